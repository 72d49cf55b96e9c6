"""`howdah submit --on local|spark|ray`: a configuration becomes a driver process on this machine.

In this order: checks, claim on the run directory, the job's own files, the driver, which outlives
the command. A second submission of the same run attaches to the live job; one that is being stopped
is waited for, and the submission starts a job of its own.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from howdah import redact, storage
from howdah.config import loader
from howdah.config.model import Config
from howdah.config.types import named_by
from howdah.core.activity import Progress
from howdah.core.processes import boot_id, process_start
from howdah.data.manifest import content_hash
from howdah.errors import INTERRUPTS, ClusterError, ConfigError, HowdahError, TrainingError
from howdah.jobs import checks, secret_file
from howdah.jobs.clusters import dataset as making
from howdah.jobs.clusters import record
from howdah.jobs.clusters.record import Record
from howdah.jobs.clusters.settings import (
    ATTENDED,
    CHECKS,
    CONFIG,
    ETL,
    JOB,
    LOG,
    VERDICT,
    ranks_are_here,
    shipped_for_spark,
)
from howdah.jobs.status import status_file
from howdah.process import isolation
from howdah.spark import shipping
from howdah.storage import directories

__all__ = ["Submitted", "dry_run", "start_seconds", "submit", "wait_for_status"]

_START_SECONDS = 300.0
"""How long a Spark session or a Ray may take to start, besides what a queue takes."""
_END_SECONDS = 120.0
"""What a job that is being stopped may need to end besides its ranks' grace period."""
_POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A job whose driver runs."""

    record: Record
    page: str | None
    attached: bool
    """An earlier submission of the same run is still live; nothing was started."""
    seconds: float
    """From the command to the driver's first status."""

    def as_dict(self) -> dict[str, Any]:
        """For --json: the keys of a job on YARN, and where it runs."""
        return {
            "application": self.record.application,
            "on": self.record.on,
            "tracking_url": self.page,
            "run_directory": self.record.run_directory,
            "attached": self.attached,
            "follow": self.follow,
            "seconds": round(self.seconds, 1),
        }

    @property
    def follow(self) -> str:
        """The command that shows its log."""
        return f"howdah logs {self.record.run_directory} --follow"


def dry_run(config: Config, progress: Progress, *, etl: bool = False) -> dict[str, Any]:
    """What `submit` would start, after the same checks; no process is started."""
    config = _checked(config, etl, progress)
    job, on = config.job, config.job.on
    where = {
        "local": socket.gethostname(),
        "spark": f"Spark, {config.data.spark.master}",
        "ray": f"Ray, {config.ray.address or 'one on this machine'}",
    }[on]
    return {
        "on": on,
        "where": where,
        "etl": etl,
        "run_directory": config.run.directory,
        "workers": job.workers,
        "between": [job.fewest, job.most],
        "worker": job.worker.model_dump(mode="json"),
    }


def lines(plan: Mapping[str, Any]) -> list[str]:
    """A `dry_run` as text."""
    worker, (fewest, most) = plan["worker"], plan["between"]
    first = ["the dataset first, in the same Spark application"] if plan["etl"] else []
    return [
        *first,
        f"a driver on this machine, {plan['workers']} workers ({fewest} to {most}) on"
        f" {plan['where']}",
        f"worker: {worker['vcores']} threads, {worker['gpus']} GPUs",
        f"run directory: {plan['run_directory']}",
    ]


def submit(
    config: Config, progress: Progress, *, etl: bool = False, command_pipe: int | None = None
) -> Submitted:
    """Start the job of a configuration, or attach to its live one.

    Args:
        etl: the job makes its dataset first, unless it is there.
        command_pipe: a descriptor whose end of file says that the command is gone: the job saves
            and ends then. None: the job outlives its command.
    Raises:
        ConfigError, DataError, ModelError, StorageError: a check failed.
        ClusterError: another job holds the run directory; the driver did not start.
        Interrupted, Terminated: after ending what was started by then.
    """
    began = time.monotonic()
    secret_file.values(config, os.environ)
    config = _checked(config, etl, progress)
    digest = content_hash(redact.config(config).model_dump(mode="json"))
    with record.submitting(config.run.directory):
        there = record.read(config.run.directory)
        if there is not None and there.on == config.job.on:
            _wait_for_end(there, config, progress)
        attached = there is not None and there.alive
        if attached:
            if there.fingerprint != digest or there.on != config.job.on:
                raise record.in_use(there)
            progress(f"this run is submitted already: {there.application}")
            page = record.driver_status(there).get("page")
        else:
            record.refuse_live_on_yarn(config.run.directory)
            if config.job.on == "spark":  # what is built and uploaded here, the driver finds
                shipped_for_spark(config, etl=etl, progress=progress)
            there, page = _start(config, digest, etl, progress, command_pipe)
    seconds = time.monotonic() - began
    return Submitted(record=there, page=page, attached=attached, seconds=seconds)


def _wait_for_end(there: Record, config: Config, progress: Progress) -> None:
    """Wait for a job that is being stopped, or has failed, to end; one that runs stays.

    Raises:
        ClusterError: it does not end.
    """
    seconds = config.checkpoint.grace_seconds + _END_SECONDS
    status_file.wait_for_end(
        lambda: not (there.alive and status_file.is_ending(record.driver_status(there))),
        application=there.application, seconds=seconds, pause=_POLL_SECONDS, progress=progress,
        refused=ClusterError(
            "the job that has this run directory is being stopped and does not end",
            where=there.run_directory, expected=f"its end within {seconds:.0f} s",
            got=f"{there.application}, process {there.pid}",
            remedy=f"howdah kill {there.application}",
        ),
    )  # fmt: skip


# -------------------------------------------------------------------------------------- checks
def _checked(config: Config, etl: bool, progress: Progress) -> Config:
    """The configuration with absolute paths, after all checks."""
    loader.require_secrets(config)
    if config.job.controller == "mpi" and config.job.on != "local":
        raise ConfigError(
            "job.controller: mpi works on YARN and on this machine only",
            where="job.controller", expected="gloo", got="mpi",
        )  # fmt: skip
    if config.run.user is not None:
        raise ConfigError(
            "run.user is for YARN: here the job's processes are those of the user who starts it",
            where="run.user", got=config.run.user, remedy="leave it out",
        )  # fmt: skip
    config = _absolute(config)
    found: list[HowdahError] = []
    parts: tuple[Callable[[], None], ...] = (
        lambda: CHECKS[config.job.on](config, etl, progress),
        lambda: _writable(config),
        lambda: checks.batch(config),
        lambda: checks.carrier(config, here=ranks_are_here(config)),
        lambda: making.check(config, progress) if etl else checks.dataset(config),
        lambda: checks.model(config, progress),
        lambda: checks.begins(config),
        lambda: checks.free_space(config),
    )
    for part in parts:
        with checks.gathered(found):
            part()
    checks.raise_all(found)
    return config


def _absolute(config: Config) -> Config:
    """Agents have working directories of their own: every local path becomes absolute.

    On YARN file:// names what all nodes mount, and a path without a scheme is refused.
    """
    on_yarn = config.job.on == "spark" and shipping.on_yarn(config.data.spark)
    values = config.model_dump(mode="json")
    for name, field in loader.keys():  # noqa: SIM118 - a module
        section: Any = values
        *parents, leaf = name.split(".")
        for parent in parents:
            section = section.get(parent) if isinstance(section, dict) else None
        value = section.get(leaf) if isinstance(section, dict) else None
        if not isinstance(value, str) or name.startswith("yarn."):
            continue
        is_path = named_by(field) == "path" or (
            named_by(field) in ("model", "checkpoint") and os.path.exists(value)
        )
        if is_path and storage.is_local(value) and not (on_yarn and "://" in value):
            section[leaf] = storage.local_path(value)
    return loader.from_dict(values)


def _writable(config: Config) -> None:
    for key, directory in {
        "run.directory": config.run.directory,
        "checkpoint.directory": config.checkpoint_directory,
    }.items():
        below = directories.BELOW if key == "run.directory" else ()
        directories.take(directory, config.run.mode, key=key, below=below)
        storage.make_dirs(directory)


# ---------------------------------------------------------------------------------- the driver
def _start(
    config: Config, digest: str, etl: bool, progress: Progress, command_pipe: int | None
) -> tuple[Record, str | None]:
    """Start the driver and wait for its first status; the job's record and its page.

    A failure and an interrupt end the driver.
    """
    on = config.job.on
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    application = f"{on}-{stamp}-{secrets.token_hex(3)}"
    directory = os.path.join(record.jobs_directory(), application)
    os.makedirs(directory, mode=0o700)
    submitted = time.time()
    _write(os.path.join(directory, CONFIG), loader.dump_yaml(config))
    _write(os.path.join(directory, JOB), application)
    log = os.path.join(directory, LOG)
    words = [ETL] if etl else [] if command_pipe is None else [ATTENDED]
    with open(log, "ab") as output:
        # Of its own session: a Ctrl-C at the terminal and the terminal's end do not reach it.
        process = subprocess.Popen(
            isolation.module("howdah.jobs.clusters", "driver", directory, *words),
            stdin=subprocess.DEVNULL if command_pipe is None else command_pipe,
            stdout=output, stderr=output, start_new_session=True,
            env=isolation.environment(),
        )  # fmt: skip
    try:
        made = Record(
            application=application, on=on, run_directory=config.run.directory,
            directory=directory, fingerprint=digest, submitted=submitted,
            host=socket.gethostname(), boot=boot_id(), pid=process.pid,
            start=process_start(process.pid) or 0,
        )  # fmt: skip
        made.write()
        progress(f"{application}: {log}")
        wait_for_status(made, process, config, progress)
        return made, record.driver_status(made).get("page")
    except BaseException:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except (subprocess.TimeoutExpired, *INTERRUPTS):
            process.kill()
        raise


def start_seconds(config: Config, own_seconds: float = _START_SECONDS) -> float:
    """How long a driver may take to its first status: a session on YARN starts when its queue has
    room, and is waited for as long as workers are.

    Args:
        own_seconds: of a Spark session or a Ray that waits for nothing.
    """
    job = config.job
    return own_seconds + (job.gang_seconds * job.gang_attempts if _in_a_queue(config) else 0.0)


def _in_a_queue(config: Config) -> bool:
    return config.job.on == "spark" and shipping.on_yarn(config.data.spark)


def wait_for_status(
    made: Record, process: subprocess.Popen, config: Config, progress: Progress,
    own_seconds: float = _START_SECONDS,
) -> None:  # fmt: skip
    """Wait for a driver's first status.

    Raises:
        ClusterError: not within `start_seconds`, or it has ended before.
        HowdahError: the driver's own, with which it has ended.
    """
    seconds, queued = start_seconds(config, own_seconds), _in_a_queue(config)
    until, shown = time.monotonic() + seconds, False
    while not record.driver_status(made):
        if process.poll() is not None:
            if record.driver_status(made):
                return  # a short job: it is over
            raise _not_started(made, process.returncode)
        if time.monotonic() > until:
            raise ClusterError(
                "the job's driver has not started", where=os.path.join(made.directory, LOG),
                expected=f"its first status within {seconds:g} s",
                remedy="is its queue on YARN full? job.gang_seconds and job.gang_attempts say how"
                " long it waits" if queued else "its log says what it waits for",
            )  # fmt: skip
        if not shown and made.on != "local":
            limit = f": for at most {seconds:g} s, while its queue on YARN is full"
            say = {"spark": "starting a Spark session", "ray": "starting Ray"}[made.on]
            progress(say + (limit if queued else ""))
            shown = True
        time.sleep(_POLL_SECONDS)


def _not_started(made: Record, code: int) -> HowdahError:
    """The driver's own error, if it could write one."""
    path = os.path.join(made.directory, VERDICT)
    verdict = storage.read_json(path) if os.path.exists(path) else {}
    if verdict.get("error"):
        error = TrainingError.from_dict(verdict["error"])
        error.exit_code = int(verdict["error"].get("exit_code") or error.exit_code)
        return error
    return ClusterError(
        "the job's driver has ended before it wrote a status",
        where=os.path.join(made.directory, LOG),
        got=f"exit code {code}" if code >= 0 else signal.Signals(-code).name,
    )


def _write(path: str, text: str) -> None:
    """A file that its owner alone can read: a configuration may hold secrets."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
