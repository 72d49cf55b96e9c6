"""What is checked before anything is asked of YARN; every refusal says what is asked and available.

A job that cannot run should fail here, in seconds and on the machine of who submits it, rather
than in a queue or in a container.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator

from howdah import storage
from howdah.config_model import Config
from howdah.errors import (
    ClusterError,
    ConfigError,
    DataError,
    HowdahError,
    ModelError,
    NotAuthenticated,
    NotFound,
    StorageFull,
)
from howdah.hadoop.conf import HadoopConf
from howdah.hadoop.resourcemanager import ResourceManager
from howdah.manifest import Dataset, load_dataset
from yarn import capacity, ports, shipping, workermemory

__all__ = ["check"]

Progress = Callable[[str], None]

_SKEW_SECONDS = 300.0
"""What Kerberos allows by default; YARN's own tokens live by the clock as well."""
_WARN_SKEW_SECONDS = 30.0
_TENSORS = 3  # of a parameter in a checkpoint: itself and Adam's two moments


def check(config: Config, manager: ResourceManager, progress: Progress) -> None:
    """Everything that can be known beforehand; all problems at once.

    Raises:
        HowdahError: the one problem, or the first kind with all of them in `problems`.
    """
    _clock(manager, progress)  # first: it asks the cluster, and who may not ask stops here
    found: list[HowdahError] = []
    for part in (_queue, _directories, _dataset, _model, _memory, _room):
        with _gathered(found):
            part(config, manager, progress)
    _say_limits(config, manager.conf, progress)
    if len(found) == 1:
        raise found[0]
    if found:
        first = ClusterError(
            f"{len(found)} problems stand against this job",
            remedy="nothing was submitted; mend them and submit again",
        )
        first.problems = found  # type: ignore[attr-defined]
        first.exit_code = found[0].exit_code
        raise first


@contextlib.contextmanager
def _gathered(found: list[HowdahError]) -> Iterator[None]:
    try:
        yield
    except HowdahError as error:
        if isinstance(error, NotAuthenticated):
            raise  # all others would say the same
        found.extend(getattr(error, "problems", None) or [error])


# ----------------------------------------------------------------------------------- the checks
def _clock(manager: ResourceManager, progress: Progress) -> None:
    before = time.time()
    there = manager.clock()
    skew = abs(there + 0.5 - (before + time.time()) / 2)
    if skew > _SKEW_SECONDS and manager.conf.kerberos:
        raise ClusterError(
            "this machine's clock and the cluster's are too far apart for Kerberos",
            where=manager.urls[0],
            expected=f"at most {_SKEW_SECONDS:.0f} s",
            got=f"{skew:.0f} s",
            remedy="set the clock (NTP)",
        )
    if skew > _WARN_SKEW_SECONDS:
        progress(f"this machine's clock differs from the cluster's by {skew:.0f} s")


def _queue(config: Config, manager: ResourceManager, progress: Progress) -> None:
    options = config.yarn
    queue = capacity.find_queue(manager.queues(), options.queue or "default")
    refused = manager.refused_submission(str(queue.get("queueName")), shipping.user(config))
    if refused is not None:
        raise ClusterError(
            f"{shipping.user(config)} may not submit to queue {queue.get('queueName')}",
            where="yarn.queue",
            expected="a queue whose access list (acl_submit_applications) has the user",
            got=refused or "refused by the queue's access list",
            remedy="use another queue, or ask the cluster's administrator",
        )
    nodes = manager.nodes()
    found = capacity.problems(options, queue, nodes, manager.labels())
    if found:
        both = ClusterError("YARN can never give what is asked")
        both.problems = found  # type: ignore[attr-defined]
        raise both if len(found) > 1 else found[0]
    places = capacity.places_by_host(options, queue, nodes)
    narrow = ports.problem(options, places)
    if narrow is not None:
        raise narrow
    line = ports.warning(options, places)
    if line is not None:
        progress(line)


def _directories(config: Config, manager: ResourceManager, progress: Progress) -> None:
    """The run directory, the checkpoints' and the staging directory take files."""
    found: list[HowdahError] = []
    places = {
        "run.directory": config.run.directory,
        "checkpoint.directory": config.checkpoint_directory,
        "yarn.staging": shipping.staging(config),
    }
    for key, directory in places.items():
        probe = storage.join(directory, f".howdah-{secrets.token_hex(6)}")
        try:
            storage.make_dirs(directory)
            storage.write_whole(probe, b"")
            storage.remove(probe)
        except NotAuthenticated:
            raise
        except HowdahError as error:
            error.where = f"{key}: {error.where or directory}"
            found.append(error)
    if found:
        raise _all(found, "directories that the job writes to")


def _dataset(config: Config, manager: ResourceManager, progress: Progress) -> None:
    """A row for each worker, and every shard in its full size (what is in it, the ranks check)."""
    if not config.data.dataset:
        raise DataError("no dataset is named", where="data.dataset", remedy="run `howdah etl`")
    dataset = load_dataset(config.data.dataset)
    rows = dataset.manifest.rows("train")
    if rows < config.yarn.most:
        raise DataError(
            "there are fewer rows to train on than workers",
            where=dataset.path,
            expected=f"at least {config.yarn.most} rows in train: `howdah scale` may ask for as"
            " many workers",
            got=str(rows),
            remedy="lower yarn.workers and yarn.max_workers, or make a larger dataset",
        )
    sizes = _sizes(dataset)
    for shard in (s for shards in dataset.manifest.splits.values() for s in shards):
        for name, wanted in ((shard.name, shard.bytes), (shard.index_name, None)):
            got = sizes.get(name)
            if got is None or (wanted is not None and got != wanted):
                raise DataError(
                    "a shard of the dataset is missing" if got is None else "a shard is not whole",
                    where=storage.join(dataset.path, name),
                    expected="as the manifest says" if wanted is None else f"{wanted:,} bytes",
                    got="no such file" if got is None else f"{got:,} bytes",
                    remedy="run `howdah etl` again into another dataset, or restore the file",
                )


def _sizes(dataset: Dataset) -> dict[str, int]:
    """Sizes of the files below a dataset's directory, by their names in the manifest."""
    folders = {""}
    for shards in dataset.manifest.splits.values():
        folders |= {n.rpartition("/")[0] for s in shards for n in (s.name, s.index_name)}
    sizes = {}
    for folder in folders:
        place = storage.join(dataset.path, folder) if folder else dataset.path
        with contextlib.suppress(NotFound):
            for entry in storage.list_dir(place):
                if not entry.is_dir:
                    sizes[f"{folder}/{entry.name}" if folder else entry.name] = entry.size
    return sizes


def _model(config: Config, manager: ResourceManager, progress: Progress) -> None:
    base = config.model.base
    if "://" not in base:
        progress(f"model.base {base}: each node fetches it from the hub")
        return
    try:
        names = {entry.name for entry in storage.list_dir(base) if not entry.is_dir}
    except NotFound:
        names = set()
    lacking = [name for name in ("config.json", "tokenizer.json") if name not in names]
    if not any(name.endswith(".safetensors") for name in names):
        lacking.append("*.safetensors")
    if lacking:
        raise ModelError(
            "the base model is not whole",
            where=f"model.base {base}",
            expected="config.json, tokenizer.json and *.safetensors",
            got=", ".join(sorted(names)[:10]) or "no such directory, or an empty one",
            remedy=f"put there what is missing: {', '.join(lacking)}",
        )


def _memory(config: Config, manager: ResourceManager, progress: Progress) -> None:
    """A worker's container holds what its rank takes at its peak (yarn/workermemory.py)."""
    if config.yarn.worker.gpus:
        return  # weights and activations lie on the GPU, and what is left was never measured
    try:
        _model(config, manager, lambda line: None)
        shape = _shape(config.model.base)
        manifest = load_dataset(config.data.dataset).manifest
    except HowdahError:
        return  # the checks of dataset and model say so
    if shape is None:
        return
    needed, asked = workermemory.needed(config, shape, manifest), config.yarn.worker.memory
    if needed.total <= asked:
        return
    enough = -(-(needed.total + needed.total // 20) // 2**29) / 2  # GiB: peaks vary by some percent
    raise ConfigError(
        "a worker's memory is too little: the NodeManager would kill it",
        where="yarn.worker.memory",
        expected=f"at least {needed}",
        got=f"{asked / 2**20:,.0f} MiB",
        remedy=f"set yarn.worker.memory to {enough:g} GiB or more, or lower"
        " training.per_device_max_tokens (the same batch in more parts)",
    )


def _shape(base: str) -> dict[str, int] | None:
    """What config.json says of a model's size; None where it is the hub's and not known."""
    if "://" in base or os.path.isdir(base):
        fields = storage.read_json(storage.join(base, "config.json"))
        if not isinstance(fields, dict):
            return None
        known = workermemory.BASE_SHAPE
        return {key: value for key, value in fields.items() if key in known and value is not None}
    return workermemory.shape_of_hub_name(base)


def _room(config: Config, manager: ResourceManager, progress: Progress) -> None:
    """Space for the checkpoints that are kept, one being written and the best one."""
    size = _weights_size(config.model.base)
    free = storage.free_bytes(config.checkpoint_directory)
    if size is None or free is None:
        return
    needed = (config.checkpoint.keep + 2) * _TENSORS * size
    if free < needed:
        raise StorageFull(
            "there is no room for the checkpoints",
            where=config.checkpoint_directory,
            expected=f"{needed / 2**20:,.0f} MiB: {config.checkpoint.keep + 2} times"
            f" {_TENSORS * size / 2**20:,.0f} MiB",
            got=f"{free / 2**20:,.0f} MiB free",
            remedy="make room, raise the quota, or lower checkpoint.keep",
        )


def _weights_size(base: str) -> int | None:
    """Bytes of a model's weights; None where they are the hub's."""
    if "://" not in base and not os.path.isdir(base):
        return None
    with contextlib.suppress(NotFound):
        sizes = [e.size for e in storage.list_dir(base) if e.name.endswith(".safetensors")]
        return sum(sizes) or None
    return None


def _say_limits(config: Config, conf: HadoopConf, progress: Progress) -> None:
    """What will bound the job later, so that nobody is surprised by it."""
    most = conf.get("yarn.resourcemanager.am.max-attempts")
    if most is not None and most.strip().isdigit() and int(most) < config.yarn.attempts:
        progress(
            f"the cluster starts an application {most} times at most: yarn.attempts"
            f" {config.yarn.attempts} is more"
        )
    if conf.kerberos:
        life = conf.get("dfs.namenode.delegation.token.max-lifetime")
        hours = (int(life) if life and life.strip().isdigit() else 7 * 86_400_000) / 3_600_000
        progress(
            f"delegation tokens live {hours:,.1f} h at most: a longer job saves before they end;"
            " submit it again to go on"
        )


def _all(found: list[HowdahError], what: str) -> HowdahError:
    if len(found) == 1:
        return found[0]
    both = ClusterError(f"{len(found)} problems with {what}")
    both.problems = found  # type: ignore[attr-defined]
    return both
