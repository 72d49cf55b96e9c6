"""Checks before a job is submitted to any cluster: its dataset, base model and storage space.

A job that cannot run must fail here, in seconds and on the submitter's machine, rather than in a
queue or in a container.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Sequence

from howdah import storage
from howdah.config.model import Config
from howdah.config.splits import TRAIN
from howdah.core.activity import Progress
from howdah.data.family import FAMILIES, IMAGE_FILES, family_of
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
from howdah.models.weights.lora import adapter_shapes
from howdah.models.weights.parameters import trainable_names
from howdah.packaging import cluster_paths

_TENSORS = 3  # a checkpoint holds each trained parameter and Adam's two moments of it
_FLOAT = 4
_LABELS = 2  # a classifier is small, whatever their number


def problems_of(parts: Iterable[Callable[[], None]]) -> list[HowdahError]:
    """Run all checks, and return the errors that they have raised.

    Raises:
        NotAuthenticated: the checks that follow would fail for the same reason.
    """
    problems: list[HowdahError] = []
    for part in parts:
        try:
            part()
        except NotAuthenticated:
            raise
        except HowdahError as error:
            problems.extend(error.problems or [error])
    return problems


def raise_all(problems: Sequence[HowdahError]) -> None:
    """Raise the one problem, or a ClusterError with all of them; nothing if there is none."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        together = ClusterError(
            f"this job has {len(problems)} problems",
            remedy="nothing was submitted; fix them and submit again",
            problems=problems,
        )
        together.exit_code = problems[0].exit_code
        raise together


def paths_of_ranks(config: Config) -> dict[str, str]:
    """Paths that ranks use, by their keys, without a model's name on the hub."""
    paths = cluster_paths.of_ranks(config)
    if not os.path.isdir(config.model.base):
        paths.pop("model.base", None)
    return paths


def batch(config: Config) -> None:
    """Check that each worker gets a row of every step.

    The configuration checks this only if it has a section `job`: with that section's defaults it
    may be meant for `howdah train` alone."""
    most, rows = config.job.most, config.training.global_batch_size
    if most > rows:
        key = "job.workers" if config.job.max_workers is None else "job.max_workers"
        raise ConfigError(
            "a step has fewer rows than the job has workers",
            where="training.global_batch_size",
            expected=f"at least {most} ({key}): each rank needs a row of every step",
            got=str(rows),
        )


def carrier(config: Config, *, here: bool) -> None:
    """Check that Horovod or torch.distributed is installed and can do what the job needs.

    Args:
        here: the ranks run in the environment of this Python. Elsewhere a rank itself reports that
            its environment lacks the carrier, which ends the job (training/__main__.py).
    Raises:
        ConfigError: it is not installed, or cannot.
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
            remedy="set training.comm to torch; training.parallel.shard: optimizer works with"
            " Horovod too",
        )


def dataset(config: Config) -> None:
    """Check that the dataset has a row for each worker and that its shards have their sizes.

    The ranks check the CRCs."""
    if not config.data.dataset:
        raise DataError("no dataset is named", where="data.dataset", remedy="run `howdah etl`")
    data = load_dataset(config.data.dataset)
    rows = data.manifest.rows(TRAIN)
    if rows < config.job.most:
        raise DataError(
            "the dataset has fewer rows to train on than workers",
            where=data.path,
            expected=f"at least {config.job.most} rows in train, the most workers that `howdah"
            " scale` may request",
            got=str(rows),
        )
    sizes = _sizes(data)
    for shard in (s for shards in data.manifest.splits.values() for s in shards):
        for name, size in ((shard.name, shard.bytes), (shard.index_name, None)):
            got = sizes.get(name)
            if got is None or (size is not None and got != size):
                raise DataError(
                    "a shard of the dataset is " + ("missing" if got is None else "incomplete"),
                    where=storage.join(data.directory(shard), name),
                    expected=None if got is None else f"{size:,} bytes",
                    got=None if got is None else f"{got:,} bytes",
                    remedy="run `howdah etl` again into another dataset, or restore the file",
                )


def _sizes(dataset: Dataset) -> dict[str, int]:
    """{file's name in the manifest: its bytes} for the files in a dataset's directories."""
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
    """Check that the base model is complete and belongs to a supported family."""
    base = config.model.base
    if "://" not in base and not os.path.isdir(base):
        progress(f"model.base {base}: each worker's machine fetches it from the hub")
        return
    try:
        names = {entry.name for entry in storage.list_dir(base) if not entry.is_dir}
    except NotFound:
        names = set()
    missing = [] if "config.json" in names else ["config.json"]
    # Files that make a model's rows: a base has at least one of those of its family.
    prepared = {
        family.model_type: IMAGE_FILES if family.kind == "image" else family.tokenizer.vocabularies
        for family in FAMILIES.values()
    }
    if not names.intersection(set().union(*prepared.values())):
        missing.append("tokenizer.json")
    if not any(name.endswith(".safetensors") for name in names):
        missing.append("*.safetensors")
    if not missing:
        choices = prepared[family_of(base_config(base)).model_type]
        missing = [] if names.intersection(choices) else [" or ".join(choices)]
    if missing:
        raise ModelError(
            f"the base model lacks {', '.join(missing)}",
            where=f"model.base {base}",
            got=", ".join(sorted(names)[:10]) or "no such directory, or an empty one",
        )


def begins(config: Config) -> None:
    """Check that the model and the checkpoint that the run begins from exist."""
    begun, checkpoint = config.model.init_from, config.checkpoint.resume
    if begun is not None:
        open_version(begun, config.publish.directory, key="model.init_from")
    if checkpoint not in ("auto", "never") and not storage.is_dir(checkpoint):
        raise CheckpointError(
            "this checkpoint does not exist",
            where=f"checkpoint.resume {checkpoint}",
            expected="a step-N directory, or `auto` for the run's newest complete checkpoint",
        )


def free_space(config: Config) -> None:
    """Check that there is space for the kept checkpoints, the one in writing and the best one, less
    those that lie there already."""
    size = _checkpoint_size(config)
    free = storage.free_bytes(config.checkpoint_directory)
    if size is None or free is None:
        return
    names: list[str] = []
    with contextlib.suppress(NotFound):
        if config.checkpoint.resume == "auto":  # else they are kept under other names
            names = [entry.name for entry in storage.list_dir(config.checkpoint_directory)]
    count = max(1, config.checkpoint.keep + 2 - sum(name.startswith("step-") for name in names))
    if free < count * size:
        raise StorageFull(
            "there is not enough space for the checkpoints",
            where=config.checkpoint_directory,
            expected=f"{count * size / 2**20:,.0f} MiB for {count} checkpoints",
            got=f"{free / 2**20:,.0f} MiB free",
            remedy="free space, raise the quota, or lower checkpoint.keep",
        )


def _checkpoint_size(config: Config) -> int | None:
    """Bytes of a checkpoint's tensors: those that are trained, and two moments of each; None: the
    base is on the hub and not known, or not readable, which another check says."""
    base, lora = None, config.training.lora
    with contextlib.suppress(ModelError, NotFound):
        base = base_config(config.model.base)
    family = None if base is None else family_of(base)
    sizes = () if family is None else [base.get(key) for key in family.size_keys]
    if not sizes or not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    shapes = family.encoder_shapes(base) | family.head_shapes(base, _LABELS)
    shapes |= adapter_shapes(base, config.model, lora)
    names = trainable_names(base, config.model, lora)
    return _TENSORS * sum(_FLOAT * math.prod(shapes[name]) for name in names)
