"""Checks before a submission to YARN; each refusal has the request and what is available.

A job that cannot run must fail here, in seconds and on the submitter's machine, rather than in a
queue or in a container.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from functools import partial

from howdah import storage
from howdah.config.model import Config
from howdah.core.activity import Progress
from howdah.data.manifest import load_dataset
from howdah.data.modelfiles import base_config
from howdah.errors import ClusterError, ConfigError, HowdahError, NotAuthenticated
from howdah.hadoop.conf import HadoopConf
from howdah.hadoop.resourcemanager import ResourceManager
from howdah.jobs import checks
from howdah.packaging import cluster_paths
from howdah.packaging.staging import ready
from howdah.storage import directories
from howdah.yarn.preflight import capacity, isolation, ports, worker_memory

_SKEW_SECONDS = 300.0
"""Kerberos's default limit; the expiry of YARN's tokens depends on the clock too."""
_WARN_SKEW_SECONDS = 30.0
_TRIED_WORKERS = 512
_FORMING_SECONDS = 60.0
"""How long a world of _TRIED_WORKERS may take to form: 7.4 s of the driver's core, and what the
ranks and the network need (docs/benchmarks.md)."""


def check(config: Config, manager: ResourceManager, progress: Progress) -> None:
    """Run all checks, and report all problems at once.

    Raises:
        HowdahError: the problem, or a ClusterError with all of them in `problems`.
    """
    _clock(manager, progress)  # first, since it fails if the cluster does not accept this user
    parts: tuple[Callable[[], None], ...] = (
        lambda: _queue(config, manager, progress),
        lambda: _directories(config),
        lambda: checks.batch(config),
        lambda: checks.carrier(config, here=False),  # the environment that is shipped has Horovod
        lambda: checks.dataset(config),
        lambda: checks.model(config, progress),
        lambda: checks.begins(config),
        lambda: _memory(config),
        lambda: checks.free_space(config),
    )
    problems = checks.problems_of(parts)
    _report_limits(config, manager.conf, progress)
    if (line := isolation.warning(manager, cluster_paths.user(config, config.yarn))) is not None:
        progress(line)
    checks.raise_all(problems)


# ----------------------------------------------------------------------------------- the checks
def _clock(manager: ResourceManager, progress: Progress) -> None:
    before = time.time()
    cluster = manager.clock()
    skew = abs(cluster + 0.5 - (before + time.time()) / 2)
    if skew > _SKEW_SECONDS and manager.conf.kerberos:
        raise ClusterError(
            f"this machine's clock differs from the cluster's by {skew:.0f} s",
            where=manager.urls[0],
            expected=f"at most {_SKEW_SECONDS:.0f} s, for Kerberos: set the clock (NTP)",
        )
    if skew > _WARN_SKEW_SECONDS:
        progress(f"this machine's clock differs from the cluster's by {skew:.0f} s")


def _queue(config: Config, manager: ResourceManager, progress: Progress) -> None:
    queue = capacity.find_queue(manager.queues(), config.yarn.queue or "default")
    user = cluster_paths.user(config, config.yarn)
    refusal = manager.refused_submission(str(queue.get("queueName")), user)
    if refusal is not None:
        raise ClusterError(
            f"{user} may not submit to queue {queue.get('queueName')}",
            where="yarn.queue",
            expected="a queue whose access list (acl_submit_applications) has the user",
            got=refusal or "refused by the queue's access list",
        )
    nodes = manager.nodes()
    checks.raise_all(capacity.problems(config, queue, nodes, manager.labels()))
    slots = capacity.slots_by_host(config, queue, nodes)
    if (too_few := ports.problem(config.job, slots)) is not None:
        raise too_few
    if (line := ports.warning(config.job, slots)) is not None:
        progress(line)


def _directories(config: Config) -> None:
    """Check that the run, checkpoint and staging directories are writable."""
    outputs = {
        "run.directory": config.run.directory,
        "checkpoint.directory": config.checkpoint_directory,
        "yarn.staging": cluster_paths.staging(config, config.yarn),
    }
    parts = [partial(_writable, config, key, directory) for key, directory in outputs.items()]
    checks.raise_all(checks.problems_of(parts))


def _writable(config: Config, key: str, directory: str) -> None:
    probe = storage.join(directory, f".howdah-{secrets.token_hex(6)}")
    try:
        if key == "yarn.staging":
            ready(directory, key)  # refuses a directory that other users own or may write to
            return
        below = directories.BELOW if key == "run.directory" else ()
        directories.take(directory, config.run.mode, key=key, below=below)
        storage.make_dirs(directory)
        storage.write_whole(probe, b"")
        storage.remove(probe)
    except NotAuthenticated:
        raise
    except HowdahError as error:
        if not (error.where or "").startswith(key):
            error.where = f"{key}: {error.where or directory}"
        raise


def _memory(config: Config) -> None:
    """Check that a worker's memory is enough for its rank's peak (worker_memory.py)."""
    if config.job.worker.gpus:
        return  # weights and activations are on the GPU, and host memory was not measured
    try:
        checks.model(config, lambda line: None)
        base = base_config(config.model.base)
        manifest = load_dataset(config.data.dataset).manifest
    except HowdahError:
        return  # the checks of both report it
    if base is None:
        return
    peak, memory = worker_memory.peak(config, base, manifest), config.job.worker.memory
    if peak.total <= memory:
        return
    enough = -(-(peak.total + peak.total // 20) // 2**29) / 2  # GiB: peaks vary by some percent
    raise ConfigError(
        "a worker's memory is too small: the NodeManager would kill it",
        where="job.worker.memory",
        expected=f"at least {peak}",
        got=f"{memory / 2**20:,.0f} MiB",
        remedy=f"set job.worker.memory to {enough:g} GiB or more, or lower"
        " training.per_device_max_tokens (the same batch in more parts)",
    )


def _report_limits(config: Config, conf: HadoopConf, progress: Progress) -> None:
    """Report limits that the job may meet later."""
    most = conf.get("yarn.resourcemanager.am.max-attempts")
    if most is not None and most.strip().isdigit() and int(most) < config.job.attempts:
        progress(
            f"the cluster starts an application at most {most} times, fewer than the job's"
            f" {config.job.attempts} (job.max_restarts)"
        )
    if conf.kerberos:
        life = conf.get("dfs.namenode.delegation.token.max-lifetime")
        hours = (int(life) if life and life.strip().isdigit() else 7 * 86_400_000) / 3_600_000
        progress(
            f"delegation tokens expire after {hours:,.1f} h: a longer job saves before that and"
            " ends; submit it again to go on"
        )
    _report_size(config, progress)


def _report_size(config: Config, progress: Progress) -> None:
    """Report a job larger than any test, or whose world may form more slowly than Gloo waits."""
    options = config.job
    if options.most > _TRIED_WORKERS:
        progress(
            f"{options.most:,} workers are more than were tested ({_TRIED_WORKERS} ranks, 2,000"
            " agents without training): the driver serves them all from one core"
        )
    forming = _FORMING_SECONDS * options.most / _TRIED_WORKERS
    if options.gloo_timeout < forming and options.controller == "gloo":
        progress(
            f"a world of {options.most:,} ranks may take {forming:.0f} s to form, and Gloo waits"
            f" {options.gloo_timeout:.0f} s for another rank: give job.hang_seconds"
            f" {1.5 * forming:.0f} or more"
        )
