"""What a job needs on every cluster, checked before it is submitted: dataset, base model, space.

A job that cannot run must fail here, in seconds and on the submitter's machine, rather than in a
queue or in a container.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from howdah import storage
from howdah.config.model import Config
from howdah.config.splits import TRAIN
from howdah.core.activity import Progress
from howdah.data.family import FAMILIES, IMAGE_FILES, ModelFamily, family_of
from howdah.data.manifest import Dataset, load_dataset
from howdah.data.modelfiles import base_config
from howdah.doctor.packages import carrier_of_job, require_torch_job
from howdah.errors import (
    CheckpointError,
    ClusterError,
    ConfigError,
    DataError,
    HowdahError,
    ModelError,
    NotAuthenticated,
    NotFound,
    StorageFull,
)
from howdah.models.version import open_version

_TENSORS = 3  # of a parameter in a checkpoint: itself and Adam's two moments


@contextlib.contextmanager
def gathered(found: list[HowdahError]) -> Iterator[None]:
    """Collect what a check raises; without authentication the others would fail as well."""
    try:
        yield
    except HowdahError as error:
        if isinstance(error, NotAuthenticated):
            raise  # the other checks would fail for the same reason
        found.extend(error.problems or [error])


def raise_all(found: list[HowdahError]) -> None:
    """Raise what `gathered` has found: the problem, or a ClusterError with all of them."""
    if len(found) == 1:
        raise found[0]
    if found:
        first = ClusterError(
            f"{len(found)} problems stand against this job",
            remedy="nothing was submitted; fix them and submit again",
            problems=found,
        )
        first.exit_code = found[0].exit_code
        raise first


def batch(config: Config) -> None:
    """Each worker has a row of every step. The configuration checks this where it has a section
    `job`; with that section's defaults it may be meant for `howdah train` alone."""
    most, rows = config.job.most, config.training.global_batch_size
    if most > rows:
        key = "job.workers" if config.job.max_workers is None else "job.max_workers"
        raise ConfigError(
            "a step has fewer rows than the job has workers",
            where="training.global_batch_size",
            expected=f"at least {most} ({key}): each rank needs a row of every step",
            got=str(rows),
            remedy=f"raise training.global_batch_size, or set {key} to {rows} or less",
        )


def carrier(config: Config, *, here: bool) -> None:
    """What carries the sums of the job's ranks is installed, and can do what the job needs.

    Args:
        here: the ranks run in the environment of this Python. Elsewhere a rank itself reports that
            its environment lacks the carrier, which ends the job (training/__main__.py).
    Raises:
        ConfigError: it is not, or cannot.
    """
    if config.job.most == 1:
        return
    kind = config.training.comm
    if here:
        kind = carrier_of_job(config)
    elif kind == "torch":
        require_torch_job(config)
    if config.training.parallel.shard == "full" and kind != "torch":
        raise ConfigError(
            "only torch.distributed divides a model among ranks",
            where="training.parallel.shard: full",
            expected="training.comm: torch",
            got=f"training.comm: {config.training.comm}",
            remedy="set training.comm to torch; training.parallel.shard: optimizer works with"
            " Horovod too",
        )


def dataset(config: Config) -> None:
    """The dataset has a row for each worker, and its shards have their sizes (ranks check CRCs)."""
    if not config.data.dataset:
        raise DataError("no dataset is named", where="data.dataset", remedy="run `howdah etl`")
    there = load_dataset(config.data.dataset)
    rows = there.manifest.rows(TRAIN)
    if rows < config.job.most:
        raise DataError(
            "there are fewer rows to train on than workers",
            where=there.path,
            expected=f"at least {config.job.most} rows in train: `howdah scale` may ask for as"
            " many workers",
            got=str(rows),
            remedy="lower job.workers and job.max_workers, or make a larger dataset",
        )
    sizes = _sizes(there)
    for shard in (s for shards in there.manifest.splits.values() for s in shards):
        for name, wanted in ((shard.name, shard.bytes), (shard.index_name, None)):
            got = sizes.get(name)
            if got is None or (wanted is not None and got != wanted):
                raise DataError(
                    "a shard of the dataset is missing" if got is None else "a shard is not whole",
                    where=storage.join(there.directory(shard), name),
                    expected="as the manifest says" if wanted is None else f"{wanted:,} bytes",
                    got="no such file" if got is None else f"{got:,} bytes",
                    remedy="run `howdah etl` again into another dataset, or restore the file",
                )


def _sizes(dataset: Dataset) -> dict[str, int]:
    """{name in the manifest: bytes} of the files in a dataset's directories."""
    folders = {(dataset.path, "")}
    for shards in dataset.manifest.splits.values():
        folders |= {
            (dataset.directory(s), n.rpartition("/")[0])
            for s in shards
            for n in (s.name, s.index_name)
        }
    sizes = {}
    for place, folder in folders:
        directory = storage.join(place, folder) if folder else place
        with contextlib.suppress(NotFound):
            for entry in storage.list_dir(directory):
                if not entry.is_dir:
                    sizes[f"{folder}/{entry.name}" if folder else entry.name] = entry.size
    return sizes


def model(config: Config, progress: Progress) -> None:
    """The base model is whole, and of a family that is known."""
    base = config.model.base
    if "://" not in base and not os.path.isdir(base):
        progress(f"model.base {base}: each worker's machine fetches it from the hub")
        return
    try:
        names = {entry.name for entry in storage.list_dir(base) if not entry.is_dir}
    except NotFound:
        names = set()
    missing = [] if "config.json" in names else ["config.json"]
    prepared = {family.model_type: _prepared_by(family) for family in FAMILIES.values()}
    if not names.intersection(set().union(*prepared.values())):
        missing.append("tokenizer.json")
    if not any(name.endswith(".safetensors") for name in names):
        missing.append("*.safetensors")
    if not missing:
        own = prepared[family_of(base_config(base)).model_type]
        missing = [] if names.intersection(own) else [" or ".join(own)]
    if missing:
        raise ModelError(
            "the base model is not whole",
            where=f"model.base {base}",
            expected="config.json, *.safetensors and the files of a tokenizer or image processor",
            got=", ".join(sorted(names)[:10]) or "no such directory, or an empty one",
            remedy=f"add the missing files: {', '.join(missing)}",
        )


def _prepared_by(family: ModelFamily) -> tuple[str, ...]:
    """Files of which a model of the family has at least one: what makes its rows."""
    return IMAGE_FILES if family.kind == "image" else family.tokenizer.vocabularies


def begins(config: Config) -> None:
    """The model and the checkpoint that the run begins from are there."""
    begun, checkpoint = config.model.init_from, config.checkpoint.resume
    if begun is not None:
        open_version(begun, config.publish.directory, key="model.init_from")
    if checkpoint not in ("auto", "never") and not storage.is_dir(checkpoint):
        raise CheckpointError(
            "there is no such checkpoint",
            where=f"checkpoint.resume {checkpoint}",
            expected="a step-N directory",
            remedy="`auto` takes the newest whole checkpoint of the run",
        )


def free_space(config: Config) -> None:
    """There is space for the kept checkpoints, the one being written and the best one."""
    size = _weights_size(config.model.base)
    free = storage.free_bytes(config.checkpoint_directory)
    if size is None or free is None:
        return
    needed = (config.checkpoint.keep + 2) * _TENSORS * size
    if free < needed:
        raise StorageFull(
            "there is not enough space for the checkpoints",
            where=config.checkpoint_directory,
            expected=f"{needed / 2**20:,.0f} MiB: {config.checkpoint.keep + 2} times"
            f" {_TENSORS * size / 2**20:,.0f} MiB",
            got=f"{free / 2**20:,.0f} MiB free",
            remedy="free space, raise the quota, or lower checkpoint.keep",
        )


def _weights_size(base: str) -> int | None:
    """Bytes of a model's weights; None: they are on the hub."""
    if "://" not in base and not os.path.isdir(base):
        return None
    with contextlib.suppress(NotFound):
        sizes = [e.size for e in storage.list_dir(base) if e.name.endswith(".safetensors")]
        return sum(sizes) or None
    return None
