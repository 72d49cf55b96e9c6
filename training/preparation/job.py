"""The inputs of a loop: dataset, base, plan and schedule, opened and checked against each other.

This module imports no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from howdah.config.model import Config
from howdah.config.splits import TRAIN, VALIDATION
from howdah.config.tasks import Task
from howdah.config.training import ParallelSection
from howdah.core.processes import limit
from howdah.data.inputs import encoder_of_model
from howdah.data.manifest import Dataset, described, load_dataset
from howdah.data.splits.class_weights import class_weights, positive_weights
from howdah.data.splits.planner import (
    PLANNER_VERSION,
    Planner,
    PlanSpec,
    PlanState,
    check_world,
    pad_multiple,
    padded_length,
)
from howdah.data.splits.shard_cache import ShardCache
from howdah.data.splits.shards import ShardSet, first_rows, node_cache
from howdah.errors import ConfigError, DataError
from howdah.models.base import learnt_parts, with_pinned_base
from howdah.models.export import formats
from howdah.models.metrics import tally
from howdah.models.replay import replayed
from howdah.models.runs.identity import Identity
from howdah.models.runs.run_json import config_hash
from howdah.models.runs.settings import unlike
from howdah.models.weights import lora, parameters
from howdah.models.weights.pretrained import BaseModel
from howdah.process.devices import Device
from howdah.training.checkpoint.state import TrainState
from howdah.training.comm.base import Comm
from howdah.training.comm.fitting import FittingSource
from howdah.training.data.readers import BatchSource
from howdah.training.optim.schedule import Schedule
from howdah.training.preparation.base import agreed_base, broadcast_files
from howdah.training.preparation.precision import agreed_precision, warn_of_emulation
from howdah.training.run.run import Run

EMBEDDINGS = limit("sparse_embeddings", "auto")
"""How the word embeddings' gradient is sent. auto: in the form with fewer bytes; tests also use
dense and sparse."""


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """The inputs of a loop, equal on every rank."""

    config: Config
    dataset: Dataset
    base: BaseModel
    """The base model without its weights."""
    model_config: dict
    """The base's config.json with the dropouts of this run."""
    weights: dict[str, np.ndarray]
    """All tensors to begin with, by Hugging Face's torch names, until `resume` has taken them;
    empty in a world that resumes from memory."""
    shards: ShardSet
    planner: Planner
    schedule: Schedule
    class_weights: np.ndarray | None
    """Weights of rows by their label; None: all 1."""
    positive_weights: np.ndarray | None
    """Weights of labels in rows that have them (task multi_label); None: all 1."""
    pad_multiple: int
    """Widths of batches are a multiple of it."""
    precision: str
    """fp32, bf16 or fp16."""
    sparse_embeddings: bool
    """True if the word embeddings' gradient crosses the network as rows."""
    identity: Identity
    max_tokens: int | None = None
    """Most tokens of a micro-batch of training; None: the configuration's."""
    learnt: list[str] | None = None
    """Identities of the parts that training.replay does not consider new; None: not known."""
    evaluated: dict[str, ShardSet] = field(default_factory=dict, repr=False)
    """Splits that evaluations read, opened once: between evaluations only their indexes are held.
    Training has other ShardSets, since both are read at the same time."""

    @property
    def positions(self) -> int:
        """Number of tokens of the longest row that the model can read."""
        return self.base.family.longest(self.base.config)

    @property
    def first_type_ends(self) -> int | None:
        """The token after which a pair's tokens have type 1; None if rows are not pairs."""
        if not self.dataset.manifest.pairs:
            return None
        encoder = encoder_of_model(self.base.config, self.base.tokenizer_files, self.base.source)
        return encoder.first_type_ends

    @property
    def task(self) -> Task:
        return self.dataset.manifest.task

    @property
    def labels(self) -> list[str]:
        """Names of the model's outputs by number."""
        return self.dataset.manifest.labels

    def at(self, state: TrainState) -> TrainingJob:
        """This job with the schedule for the run's position: with other batches the run may have
        taken more or fewer steps for the same epochs."""
        per_epoch = self.planner.steps_per_epoch
        schedule = Schedule.of(
            self.config.training, per_epoch, done=state.step, place=self._place(state)
        )
        return replace(self, schedule=schedule)

    def _place(self, state: TrainState) -> int:
        """The run's position in steps of the current plan, counted from epoch 0."""
        start = PlanState.from_json(state.plan)
        return start.epoch * self.planner.steps_per_epoch + start.step

    def train_source(self, comm: Comm, state: TrainState) -> BatchSource:
        """This rank's micro-batches from the run's position to its last step."""
        start = PlanState.from_json(state.plan)
        return BatchSource(
            self.shards,
            self.planner,
            rank=comm.rank,
            world=comm.size,
            max_tokens=self.max_tokens or self.config.training.max_tokens(),
            pad_multiple=self.pad_multiple,
            widest=self.positions,
            pad_id=self.dataset.manifest.tokenizer.pad_id,
            class_weights=self.class_weights,
            start=start,
            stop_step=self._place(state) + max(0, self.schedule.steps - state.step),
        )

    def eval_source(
        self, split: str, comm: Comm, max_rows: int | None = None, *, row_ids: bool = False
    ) -> BatchSource:
        """This rank's batches of a split, each row once.

        Args:
            max_rows: number of rows to sample (data/splits/shards.py `first_rows`); None: all.
            row_ids: the rows' keys will be needed.
        """
        shards = self.evaluated.get(split)
        if shards is None:
            shards = ShardSet(self.dataset, split, cache=node_cache(self.config.training))
            self.evaluated[split] = shards
        lengths = first_rows(shards.lengths, max_rows)
        return BatchSource(
            shards,
            _evaluation_planner(self.config, shards, lengths, comm.size),
            rank=comm.rank,
            world=comm.size,
            max_tokens=self.config.training.max_tokens(),
            pad_multiple=self.pad_multiple,
            widest=self.positions,
            pad_id=self.dataset.manifest.tokenizer.pad_id,
            row_ids=row_ids,
        )

    def fitting_source(
        self,
        comm: Comm,
        state: TrainState,
        *,
        gpu: bool,
        out_of_memory: Callable[[BaseException], bool],
        say: Callable[[str], None],
    ) -> FittingSource:
        """`train_source`, in smaller micro-batches where memory does not suffice."""
        training = self.config.training
        return FittingSource(
            lambda most: replace(self, max_tokens=most).train_source(comm, state),
            max_tokens=training.max_tokens(gpu=gpu),
            least=padded_length(
                self.dataset.manifest.max_length, self.pad_multiple, self.positions
            ),
            halves=training.halves_micro_batches,
            out_of_memory=out_of_memory,
            say=say,
        )

    def facts(self) -> dict:
        """JSON that a rank which joins later needs, except the tokenizer's files."""
        base = {"config": self.base.config, "hash": self.base.hash, "source": self.base.source}
        facts = {"path": self.dataset.path, "base": base, "precision": self.precision}
        return facts | {"learnt": self.learnt}

    def has(self, split: str) -> bool:
        """True if the dataset has rows in the split."""
        return self.dataset.manifest.rows(split) > 0


def prepare(
    config: Config,
    comm: Comm,
    run: Run,
    *,
    device: Device,
    holder: int | None = None,
    before: TrainingJob | None = None,
) -> TrainingJob:
    """Open and check everything. Every rank enters: all must agree on data, base and precision, or
    fail together.

    Args:
        holder: the rank whose memory the run resumes from (training/checkpoint/elastic_state.py).
            All ranks use its dataset and base; the model's weights come from it later. The data is
            not verified again, since the previous world has done that, and a shard that a new rank
            fetches is checked when it arrives.
        before: the job of this rank in an earlier world.
    Raises:
        ConfigError, DataError, ModelError: something does not fit; nothing has been trained yet.
    """
    tally.require(config.evaluation.metric, config.data.task)
    _check_ranks_agree(config, comm, device)
    if holder is None:
        job = _opened(config, comm, run, device, before)
    else:
        facts = comm.broadcast_json(None if before is None else before.facts(), root=holder)
        files = broadcast_files(before.base.tokenizer_files if before else {}, comm, holder)
        job = before
        if before is None or before.facts()["path"] != facts["path"]:
            job = _joined(config, comm, run, device.gpu, facts, files)
    formats.require(config.export.formats, job.base.config, where="export.formats")
    warn_of_emulation(job.precision, config.training.framework, comm, run, device)
    sparse = _sparse_embeddings(config, job.shards, job.planner, job.base, comm)
    if comm.size > 1:
        run.log(
            f"{comm.size} ranks with {comm.backend}; gradients of word embeddings are exchanged"
            f" {'as rows' if sparse else 'as a table'}"
        )
    processes = f"; {comm.size} processes" if comm.size > 1 else ""
    run.say(
        f"{job.planner.rows:,} rows, {job.planner.steps_per_epoch:,} steps per epoch,"
        f" {job.schedule.steps:,} in all; {job.precision}{processes}"
    )
    return replace(job, sparse_embeddings=sparse)


def _opened(
    config: Config, comm: Comm, run: Run, device: Device, before: TrainingJob | None
) -> TrainingJob:
    """The job of a run that begins, or resumes from a checkpoint: all data is verified."""
    precision = agreed_precision(config, comm, run, device, before and before.precision)
    # Only rank 0 chooses the version, since the ETL may be committing another one.
    facts = None
    if comm.rank == 0:
        version_path = run.choose_dataset(lambda dataset_path: load_dataset(dataset_path).path)
        facts = {"path": version_path, "learnt": _learnt(config, load_dataset(version_path), run)}
    facts = comm.broadcast_json(facts)
    version, learnt = load_dataset(facts["path"]), facts["learnt"]
    for one in unlike(config.data, version.manifest):
        run.say(f"warning: dataset {version.path} was made with {one}; `howdah etl` makes another")
    run.update(source=described(version.manifest))
    dataset = replayed(version, config.training, learnt)
    opened, cache = _open_splits(config, dataset, comm, run, pad_multiple(device.gpu, precision))
    _verify(opened, cache, comm, run)
    comm.barrier()  # no rank trains before all have verified their shards
    base, weights = agreed_base(config, dataset, comm, run, learnt=learnt)
    return _job(config, device.gpu, precision, dataset, opened, base, weights, learnt)


def _learnt(config: Config, version: Dataset, run: Run) -> list[str] | None:
    """Identities of the parts that training.replay does not consider new; called on rank 0."""
    if config.training.replay is None:
        return None
    pinned = with_pinned_base(config)
    learnt = learnt_parts(pinned, version)
    if learnt is None and pinned.model.init_from is not None:
        run.say(
            f"training.replay: the dataset version that {pinned.model.init_from} was trained on"
            " cannot be read, so only the newest part counts as new"
        )
    return learnt


def _joined(
    config: Config, comm: Comm, run: Run, gpu: bool, facts: dict, files: dict[str, bytes]
) -> TrainingJob:
    """The job of a rank that joins a running job."""
    learnt, precision = facts["learnt"], facts["precision"]
    dataset = replayed(load_dataset(facts["path"]), config.training, learnt)
    opened, _ = _open_splits(config, dataset, comm, run, pad_multiple(gpu, precision))
    base = BaseModel(weights={}, tokenizer_files=files, **facts["base"])
    return _job(config, gpu, precision, dataset, opened, base, {}, learnt)


def _job(
    config: Config,
    gpu: bool,
    precision: str,
    dataset: Dataset,
    opened: dict[str, ShardSet],
    base: BaseModel,
    weights: dict[str, np.ndarray],
    learnt: list[str] | None,
) -> TrainingJob:
    shards, task = opened[TRAIN], dataset.manifest.task
    planner = training_planner(config, shards)
    return TrainingJob(
        config=config,
        dataset=dataset,
        base=base,
        model_config=parameters.with_dropouts(base.config, config.model),
        weights=weights,
        shards=shards,
        planner=planner,
        schedule=Schedule.of(config.training, planner.steps_per_epoch),
        class_weights=(class_weights(config.training, shards) if task == "single_label" else None),
        positive_weights=(
            positive_weights(config.training, shards) if task == "multi_label" else None
        ),
        pad_multiple=pad_multiple(gpu, precision),
        precision=precision,
        sparse_embeddings=False,
        identity=_identity(config, base, dataset, planner),
        learnt=learnt,
        evaluated={split: one for split, one in opened.items() if split != TRAIN},
    )


def training_planner(config: Config, shards: ShardSet) -> Planner:
    """The plan of a run over its training split."""
    return Planner(
        shards.lengths,
        PlanSpec(
            dataset_hash=shards.dataset.identity,
            split=shards.split,
            seed=config.training.seed,
            global_batch_size=config.training.global_batch_size,
            window_batches=config.training.length_window,
        ),
    )


def _evaluation_planner(
    config: Config, shards: ShardSet, lengths: Sequence[np.ndarray], world: int
) -> Planner:
    """The plan of an evaluation during training: each row once, in order."""
    spec = PlanSpec(
        dataset_hash=shards.dataset.manifest_hash,
        split=shards.split,
        seed=0,
        global_batch_size=max(config.training.global_batch_size, 32 * world),
        shuffle=False,
    )
    return Planner(lengths, spec)


# ------------------------------------------------------------------------------------- the ranks
def _check_ranks_agree(config: Config, comm: Comm, device: Device) -> None:
    """Refuse ranks with different configurations or kinds of devices, and more ranks than rows of a
    global batch. Every rank enters."""
    # With different values of training.parallel, ranks would wait in different collectives.
    own_hash, parallel = config_hash(config), config.training.parallel
    if parallel != ParallelSection():
        own_hash += f" with training.parallel {parallel.model_dump(exclude_defaults=True)}"
    ranks = comm.gather_json({"config": own_hash, "device": device.kind})
    hashes = [one["config"] for one in ranks]
    others = [rank for rank, value in enumerate(hashes) if value != hashes[0]]
    if others:
        raise ConfigError(
            "the ranks have different configurations",
            where=f"rank 0 and ranks {', '.join(map(str, others))}",
            expected=f"{hashes[0]} everywhere",
            got=", ".join(hashes[rank] for rank in others),
            remedy="put the same configuration file on every node",
        )
    on = {k: [rank for rank, one in enumerate(ranks) if one["device"] == k] for k in ("CPU", "GPU")}
    if on["CPU"] and on["GPU"]:
        # They would lay out their gradients differently, and wait in different collectives.
        raise ConfigError(
            "some ranks train on a GPU and some on a CPU",
            where=f"ranks without a GPU: {', '.join(map(str, on['CPU']))}",
            got=f"ranks with a GPU: {', '.join(map(str, on['GPU']))}",
            remedy="check `nvidia-smi` and the framework's build where those ranks run, or set"
            " CUDA_VISIBLE_DEVICES='' on all nodes to train on CPUs",
        )
    check_world(config.training.global_batch_size, comm.size)


# -------------------------------------------------------------------------------------- the data
def _open_splits(
    config: Config, dataset: Dataset, comm: Comm, run: Run, multiple: int
) -> tuple[dict[str, ShardSet], ShardCache]:
    """(the splits to read, the cache that they are read through)."""
    manifest = dataset.manifest
    ranks = comm.size
    if manifest.rows(TRAIN) < ranks:
        raise DataError(
            "there are fewer training rows than ranks",
            where=dataset.path,
            expected=f"at least {ranks} rows in train",
            got=str(manifest.rows(TRAIN)),
        )
    longest = config.training.max_tokens()
    if padded_length(manifest.max_length, multiple) > longest:
        raise ConfigError(
            "a micro-batch cannot hold one row of the dataset",
            where="training.per_device_max_tokens",
            expected=f"at least {manifest.max_length}, the dataset's max_length, rounded up to a"
            f" multiple of {multiple}",
            got=str(longest),
        )
    splits = dict.fromkeys((TRAIN, VALIDATION, *config.evaluation.splits))
    cache = node_cache(config.training)
    opened = {
        split: ShardSet(dataset, split, cache=cache) for split in splits if manifest.rows(split)
    }
    for split, shards in opened.items():
        for name in shards.unlisted() if comm.rank == 0 else ():
            run.say(f"not read, since the manifest does not list it: {name} (of {split})")
        shards.check_room(
            training_planner(config, shards)
            if split == TRAIN
            else _evaluation_planner(config, shards, shards.lengths, ranks)
        )
    return opened, cache


def _verify(opened: dict[str, ShardSet], cache: ShardCache, comm: Comm, run: Run) -> None:
    """Verify all splits if the cache holds them: each byte is read by one rank.

    A dataset that no cache can hold is not read twice: each of its shards is checked when it
    arrives, before its rows are used. Sizes of all files, and all indexes, are already checked.
    """
    indexes = next(iter(opened.values())).files.index_bytes  # of all splits
    needed = indexes + sum(shards.cached_bytes for shards in opened.values())
    whole = needed <= cache.limit_bytes
    if whole:
        unverified = sum(shards.verify(comm.rank, comm.size) for shards in opened.values())
        whole = unverified == 0
    if not comm.agree(not whole):
        return
    run.say(
        "the dataset does not fit the shard cache (training.shard_cache_bytes): each shard is"
        " checked when it arrives, before its first row is used"
    )


def _sparse_embeddings(
    config: Config, shards: ShardSet, planner: Planner, base: BaseModel, comm: Comm
) -> bool:
    """True if rows on the network are fewer bytes than the table, that is if N * U < 2 V.

    All ranks use rank 0's estimate of U (rows that a rank's step touches): if each decided
    separately, they could wait for each other in different collectives.
    """
    ranks = comm.size
    trained = parameters.trainable_names(base.config, config.model, config.training.lora)
    if ranks == 1 or base.family.word_embeddings not in trained:
        return False
    if config.training.parallel.shard == "full":  # FSDP2 sums all gradients dense
        return False
    if EMBEDDINGS != "auto":
        return {"dense": False, "sparse": True}[EMBEDDINGS]
    unique = 0.0
    if comm.rank == 0:
        steps = min(4, planner.steps_per_epoch)
        for step in range(steps):
            rows = planner.rank_rows(0, step, 0, ranks)
            rows = rows.take(rows.real)
            ids = shards.gather(rows.shard, rows.row, rows.length)
            unique += len(np.unique(ids)) / steps
    unique = comm.broadcast_json(unique)
    return ranks * unique < 2 * int(base.config[base.family.keys.vocabulary])


# ------------------------------------------------------------------------------ the run itself
def _identity(config: Config, base: BaseModel, dataset: Dataset, planner: Planner) -> Identity:
    spec = planner.spec
    return Identity(
        base_model=base.hash,
        dataset=dataset.identity,
        manifest=dataset.manifest_hash,
        dataset_path=dataset.path,
        tokenizer=dataset.manifest.tokenizer.hash,
        labels=tuple(dataset.manifest.labels),
        adapters=lora.described(config.model, config.training.lora),
        plan=planner.plan_hash,
        plan_inputs=(
            ("version of the plan", str(PLANNER_VERSION)),
            ("data.dataset", spec.dataset_hash),
            ("training.seed", str(spec.seed)),
            ("training.global_batch_size", str(spec.global_batch_size)),
        ),
    )
