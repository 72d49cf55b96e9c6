"""Which rows make which batch: pure arithmetic, no I/O, no framework, the same on every rank.

A batch is a function of (plan, epoch, step in the epoch). It is GLOBAL and sorted by length; rank r
of N takes its rows r, r+N, ... so that the world size never changes what a step learns from, and
all ranks' slices are about equally long. The order of an epoch: shards are shuffled and taken in
groups; rows are permuted inside a group; windows of up to 50 global batches, a quarter of the epoch
at the most, are sorted by length and cut into batches; the batches of a window are shuffled. State
is {plan hash, epoch, step}: resuming costs one window, at any world size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np

from howdah.errors import CheckpointError, ConfigError, DataError
from howdah.manifest import content_hash
from training.permutation import permute, permute_by_rounds

PLANNER_VERSION = 2
"""Of the order that new runs have. A run that began with an earlier one goes on with that one:

1: windows of `window_batches` whatever the epoch's length, all permutations by Feistel rounds
2: windows of at most a quarter of an epoch, permutations of up to 64 items by sorting
"""
_WINDOWS_PER_EPOCH = 4
_SHARDS, _ROWS, _BATCHES = 1, 2, 3  # what a permutation is for: part of its key


@dataclass(frozen=True, kw_only=True)
class PlanSpec:
    """What the order of batches depends on, and nothing else."""

    dataset_hash: str
    split: str
    seed: int
    global_batch_size: int
    shuffle: bool = True
    window_batches: int = 50
    """Global batches, at the most, in a window that is sorted by length (see Planner)."""
    group_shards: int = 8
    """Shards whose rows are mixed; a node's cache must hold two groups."""


@dataclass(frozen=True, kw_only=True)
class PlanState:
    """Where in the plan the next step is."""

    plan_hash: str
    epoch: int
    step: int
    """Step in the epoch."""

    def to_json(self) -> dict:
        """Less than 1 kB, whatever the size of the data."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict) -> PlanState:
        """What `to_json` gave; CheckpointError for anything else."""
        try:
            return cls(
                plan_hash=str(value["plan_hash"]),
                epoch=int(value["epoch"]),
                step=int(value["step"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                "a checkpoint's plan state is not whole", got=f"{value!r}: {error}"
            ) from None


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of a batch or of a slice of one, longest first.

    shard int32[B], row int64[B] (in the shard), length int32[B] (tokens), real bool[B]. A row that
    is not real fills up the last batch: shard and row -1, length 1, weight 0.
    """

    shard: np.ndarray
    row: np.ndarray
    length: np.ndarray
    real: np.ndarray

    def __len__(self) -> int:
        return len(self.shard)

    def without_fillers(self) -> Rows:
        """The real rows."""
        return self if self.real.all() else self.take(self.real)

    def take(self, index: slice | np.ndarray) -> Rows:
        """The rows at `index`."""
        return Rows(
            shard=self.shard[index],
            row=self.row[index],
            length=self.length[index],
            real=self.real[index],
        )

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """The rows of all parts."""
        return cls(
            shard=np.concatenate([part.shard for part in parts]),
            row=np.concatenate([part.row for part in parts]),
            length=np.concatenate([part.length for part in parts]),
            real=np.concatenate([part.real for part in parts]),
        )


GlobalBatch = Rows


class Planner:
    """The plan of one split.

    Args:
        shard_lengths: for each shard, tokens of each of its rows (int32[N_s]; may be mapped).
        spec: what the order depends on.
        version: of the order, 1 to PLANNER_VERSION.
    Raises:
        DataError: no rows at all.
    """

    def __init__(
        self, shard_lengths: Sequence[np.ndarray], spec: PlanSpec, version: int = PLANNER_VERSION
    ) -> None:
        self.spec = spec
        self._lengths = list(shard_lengths)
        self._shard_rows = np.array([len(part) for part in self._lengths], dtype=np.int64)
        self.rows = int(self._shard_rows.sum())
        if self.rows == 0:
            raise DataError(
                f"the split {spec.split} has no rows",
                where=f"dataset {spec.dataset_hash}",
                remedy="check data.split and the data report",
            )
        self.steps_per_epoch = math.ceil(self.rows / spec.global_batch_size)
        self._set_version(version)

    def _set_version(self, version: int) -> None:
        self.version = version
        self.plan_hash = self._hash_of(version)
        self._permute = permute if version > 1 else permute_by_rounds
        most = self.spec.window_batches
        if version > 1 and self.spec.shuffle:
            # With one window an epoch, each row would meet the same rows of its length every time.
            most = min(most, max(1, self.steps_per_epoch // _WINDOWS_PER_EPOCH))
        self.window_batches = most
        """Global batches in a window that is sorted by length."""
        self._epoch_groups = lru_cache(maxsize=2)(self._make_epoch_groups)
        self._window = lru_cache(maxsize=2)(self._make_window)

    def _hash_of(self, version: int) -> str:
        return content_hash({"planner": version, **asdict(self.spec)})

    @property
    def earlier_hashes(self) -> tuple[str, ...]:
        """Hashes of this plan by the versions before the newest one."""
        return tuple(self._hash_of(version) for version in range(1, PLANNER_VERSION))

    def go_on_with(self, plan_hash: str) -> None:
        """Take the version that this plan had where it has this hash; else nothing changes.

        A run that an earlier version of Howdah began keeps its order of rows to its end: inside an
        epoch another order would repeat rows and leave others out.
        """
        for version in range(1, PLANNER_VERSION + 1):
            if plan_hash == self._hash_of(version) != self.plan_hash:
                self._set_version(version)

    # -- state ---------------------------------------------------------------------------
    def start(self) -> PlanState:
        """The state before the first step."""
        return PlanState(plan_hash=self.plan_hash, epoch=0, step=0)

    def state(self, epoch: int, step: int) -> PlanState:
        """The state before that step."""
        return PlanState(plan_hash=self.plan_hash, epoch=epoch, step=step)

    def after(self, epoch: int, step: int) -> tuple[int, int]:
        """(epoch, step) of the step that follows."""
        return (epoch, step + 1) if step + 1 < self.steps_per_epoch else (epoch + 1, 0)

    def at(self, global_step: int) -> tuple[int, int]:
        """(epoch, step in the epoch) of the global_step-th step from the start."""
        return divmod(global_step, self.steps_per_epoch)

    def check(self, state: PlanState) -> None:
        """Refuse a state of another plan.

        Raises:
            CheckpointError: data, seed, global_batch_size, windows or the planner have changed.
        """
        if state.plan_hash != self.plan_hash:
            raise CheckpointError(
                "the checkpoint follows another data plan",
                expected=f"plan {self.plan_hash} (split {self.spec.split}, dataset "
                f"{self.spec.dataset_hash}, seed {self.spec.seed}, global_batch_size "
                f"{self.spec.global_batch_size})",
                got=f"plan {state.plan_hash}",
                remedy="restore those settings and data, or start anew with --resume never",
            )

    # -- batches -------------------------------------------------------------------------
    def batch(self, epoch: int, step: int) -> GlobalBatch:
        """The global batch of a step: exactly global_batch_size rows, longest first."""
        if not 0 <= step < self.steps_per_epoch:
            raise IndexError(f"step {step} of an epoch of {self.steps_per_epoch}")
        window, place = divmod(step, self.window_batches)
        rows, order = self._window(epoch, window)
        size = self.spec.global_batch_size
        start = int(order[place]) * size
        part = rows.take(slice(start, start + size))
        return part if len(part) == size else _filled_up(part, size)

    def rank_rows(self, epoch: int, step: int, rank: int, world: int) -> Rows:
        """Rank's slice of the global batch: rows rank, rank+world, ... (see check_world)."""
        check_world(self.spec.global_batch_size, world)
        return self.batch(epoch, step).take(slice(rank, None, world))

    # -- which shards when ---------------------------------------------------------------
    def shards_at_once(self) -> int:
        """Shards, at most, that a window can touch; at least two groups, or all there are.

        While one group is read the next one arrives: a node's cache must hold as many.
        """
        size, count = self.spec.group_shards, len(self._shard_rows)
        if count <= 2 * size:
            return count
        # A full group has at least as many rows as the smallest shards together.
        fewest = int(np.sort(self._shard_rows)[:size].sum())
        window = self.window_batches * self.spec.global_batch_size
        groups = max(2, math.ceil((window - 1) / max(fewest, 1)) + 1)
        return min(count, groups * size)

    def groups_at(self, epoch: int, step: int) -> tuple[int, int]:
        """The first and the last group of the epoch that the window of this step reads from."""
        size = self.window_batches * self.spec.global_batch_size
        start = step // self.window_batches * size
        _, starts = self._epoch_groups(epoch)
        return (
            int(np.searchsorted(starts, start, side="right")) - 1,
            int(np.searchsorted(starts, min(start + size, self.rows), side="left")) - 1,
        )

    def groups(self, epoch: int) -> list[np.ndarray]:
        """The shards of each group of an epoch, in the order they are read."""
        return self._epoch_groups(epoch)[0]

    # -- the order of an epoch -----------------------------------------------------------
    def _make_epoch_groups(self, epoch: int) -> tuple[list[np.ndarray], np.ndarray]:
        """Shards of each group, and where each group starts in the epoch's stream of rows."""
        count = len(self._shard_rows)
        order = np.arange(count)
        if self.spec.shuffle:
            order = np.empty(count, dtype=np.int64)
            order[self._permute(np.arange(count), count, self.spec.seed, epoch, _SHARDS)] = (
                np.arange(count)
            )
        size = self.spec.group_shards
        groups = [order[at : at + size] for at in range(0, count, size)]
        sizes = [int(self._shard_rows[group].sum()) for group in groups]
        return groups, np.concatenate([[0], np.cumsum(sizes)])

    def _make_window(self, epoch: int, window: int) -> tuple[Rows, np.ndarray]:
        """Rows of a window sorted by length, and the order of its batches."""
        size = self.spec.global_batch_size
        start = window * self.window_batches * size
        stop = min(start + self.window_batches * size, self.rows)
        groups, starts = self._epoch_groups(epoch)
        shards, rows = [], []
        first = int(np.searchsorted(starts, start, side="right")) - 1
        for group in range(first, len(groups)):
            low, high = int(starts[group]), int(starts[group + 1])
            if low >= stop:
                break
            place = np.arange(max(start, low), min(stop, high)) - low
            if self.spec.shuffle:
                place = self._permute(place, high - low, self.spec.seed, epoch, _ROWS, group)
            ends = np.cumsum(self._shard_rows[groups[group]])
            which = np.searchsorted(ends, place, side="right")
            shards.append(groups[group][which])
            rows.append(place - (ends - self._shard_rows[groups[group]])[which])
        shard = np.concatenate(shards).astype(np.int32)
        row = np.concatenate(rows).astype(np.int64)
        length = self._lengths_of(shard, row)
        longest_first = np.argsort(-length, kind="stable")
        found = Rows(shard=shard, row=row, length=length, real=np.ones(len(row), dtype=bool))
        batches = math.ceil(len(row) / size)
        order = np.arange(batches)
        if self.spec.shuffle:
            order = self._permute(order, batches, self.spec.seed, epoch, _BATCHES, window)
        return found.take(longest_first), order

    def _lengths_of(self, shard: np.ndarray, row: np.ndarray) -> np.ndarray:
        length = np.empty(len(shard), dtype=np.int32)
        for number in np.unique(shard):
            here = shard == number
            length[here] = self._lengths[number][row[here]]
        return length


def _filled_up(rows: Rows, size: int) -> Rows:
    """The last batch of an epoch: rows of weight 0 make every rank take the same steps."""
    missing = size - len(rows)
    return Rows(
        shard=np.concatenate([rows.shard, np.full(missing, -1, np.int32)]),
        row=np.concatenate([rows.row, np.full(missing, -1, np.int64)]),
        length=np.concatenate([rows.length, np.ones(missing, np.int32)]),
        real=np.concatenate([rows.real, np.zeros(missing, bool)]),
    )


def check_world(global_batch_size: int, world: int) -> None:
    """Every rank needs a row of each batch.

    Raises:
        ConfigError: fewer rows in a global batch than ranks.
    """
    if global_batch_size < world:
        raise ConfigError(
            "there are more ranks than rows in a global batch",
            where="training.global_batch_size",
            expected=f"at least {world}, the number of ranks",
            got=str(global_batch_size),
            remedy="raise it, or start fewer ranks",
        )


def pad_multiple(gpu: bool, precision: str = "fp32") -> int:
    """What the widths of batches are a multiple of.

    8 suits a GPU's matrix units; on a CPU it would add 6% of padding to short texts, and 2 still
    halves the number of shapes. In bf16 oneDNN compiles some 27 kernels for each width, of which
    it keeps 1,024 in all: with a multiple of 4 those of 128 tokens fit.
    """
    if gpu:
        return 8
    return 4 if precision == "bf16" else 2


def padded_length(length: int, pad_multiple: int, widest: int | None = None) -> int:
    """`length` rounded up to a multiple, but not beyond what the model has positions for.

    >>> padded_length(13, 8), padded_length(127, 2, 127)
    (16, 127)
    """
    padded = -(-length // pad_multiple) * pad_multiple
    return padded if widest is None else max(length, min(padded, widest))


def micro_batches(
    rows: Rows, max_tokens: int, pad_multiple: int = 1, widest: int | None = None
) -> list[Rows]:
    """A rank's slice cut so that no part is larger than `max_tokens`, padding included.

    Rows are longest first, so a part's width is its first row's length. Memory stays bounded
    whatever the world size: fewer ranks accumulate more parts. They are as few as can be, and of
    those as even in rows as can be: 33 rows, of which a part holds 32, are cut into 17 and 16.

    Args:
        widest: positions that the model has; None: not to be asked for.
    Raises:
        ConfigError: one row alone is larger.
    """
    if not len(rows):
        return []
    if max_tokens // padded_length(int(rows.length[0]), pad_multiple, widest) >= len(rows):
        return [rows]
    count = len(_cuts(rows, max_tokens, pad_multiple, widest, None))
    parts, at = [], 0
    for stop in _cuts(rows, max_tokens, pad_multiple, widest, count):
        parts.append(rows.take(slice(at, stop)))
        at = stop
    return parts


def _cuts(
    rows: Rows, max_tokens: int, pad_multiple: int, widest: int | None, count: int | None
) -> list[int]:
    """Where each part ends.

    Args:
        count: parts there are to be, the fewest that are possible; None: fill each part up, which
            gives the fewest. What fits only grows from part to part, rows being longest first: so
            even parts are possible from the first one on that can be as large as the mean.
    """
    stops, at = [], 0
    while at < len(rows):
        width = padded_length(int(rows.length[at]), pad_multiple, widest)
        fit = max_tokens // width
        if fit == 0:
            raise ConfigError(
                "a row is longer than a micro-batch may be",
                where="training.per_device_max_tokens",
                expected=f"at least {width}",
                got=str(max_tokens),
            )
        if count is not None:
            fit = min(fit, -(-(len(rows) - at) // (count - len(stops))))
        at = min(at + fit, len(rows))
        stops.append(at)
    return stops
