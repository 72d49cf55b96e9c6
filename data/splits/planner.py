"""Which rows make which batch: pure arithmetic, no I/O, no framework, the same on every rank.

A batch is a function of (plan, epoch, step in the epoch). It is GLOBAL and sorted by length; rank r
of N takes its rows r, r+N, ... so that the world size never changes what a step learns from, and
all ranks' slices are about equally long. An epoch is ordered in four steps: shards are shuffled and
taken in groups; rows are permuted inside a group; windows of up to 50 global batches, at most a
quarter of the epoch, are sorted by length and cut into batches; the batches of a window are
shuffled. State is {plan hash, epoch, step}: resuming costs one window, at any world size.

Two shards of two rows, a global batch of 2, two ranks, no shuffling:

    shard, row           0,0  0,1  1,0  1,1    the epoch's rows
    length                 5    9    3    7    tokens
    window, by length    0,1  1,1  0,0  1,0    9, 7, 5, 3 tokens: batches of rows of like length
    step                   0    0    1    1
    rank                   0    1    0    1    each batch dealt out, row by row

>>> from dataclasses import replace
>>> lengths = [np.array([5, 9], np.int32), np.array([3, 7], np.int32)]  # tokens by shard and row
>>> spec = PlanSpec(dataset_hash="d", split="train", seed=0, global_batch_size=2, shuffle=False)
>>> planner = Planner(lengths, spec)
>>> [planner.batch(epoch=0, step=step).length.tolist() for step in (0, 1)]
[[9, 7], [5, 3]]
>>> rows = planner.rank_rows(epoch=0, step=1, rank=1, world=2)
>>> rows.shard.tolist(), rows.row.tolist(), rows.length.tolist()
([1], [0], [3])

With a global batch of 4 rank 0 has the rows of 9 and 5 tokens. Where a micro-batch may hold 10
tokens, padding included (2 x 9 = 18), it takes them in two:

>>> rows = Planner(lengths, replace(spec, global_batch_size=4)).rank_rows(0, 0, rank=0, world=2)
>>> [part.length.tolist() for part in micro_batches(rows, max_tokens=10)]
[[9], [5]]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np

from howdah.core.processes import limit
from howdah.data.manifest import content_hash
from howdah.data.splits.permutation import permute
from howdah.errors import CheckpointError, ConfigError, DataError

PLANNER_VERSION = 2
"""Version of the order of rows, in every plan's hash: a checkpoint inside an epoch of another
version is refused."""
_WINDOWS_PER_EPOCH = 4
_SHARDS, _ROWS, _BATCHES = 1, 2, 3  # what is permuted: part of the permutation's key


@dataclass(frozen=True, kw_only=True)
class PlanSpec:
    """All that the order of batches depends on."""

    dataset_hash: str
    split: str
    seed: int
    global_batch_size: int
    shuffle: bool = True
    window_batches: int = 50
    """Most global batches that are sorted by length together."""
    group_shards: int = 8
    """Shards whose rows are mixed; a node's cache must hold two groups."""


@dataclass(frozen=True, kw_only=True)
class PlanState:
    """The position of the next step in the plan."""

    plan_hash: str
    epoch: int
    step: int
    """Step in the epoch."""

    def to_json(self) -> dict:
        """Plain JSON, below 1 kB for data of any size."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict) -> PlanState:
        """The state that `to_json` wrote; CheckpointError for anything else."""
        try:
            return cls(
                plan_hash=str(value["plan_hash"]),
                epoch=int(value["epoch"]),
                step=int(value["step"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                "a checkpoint's plan state is incomplete", got=f"{value!r}: {error}"
            ) from None


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of a batch or of a slice of one, longest first.

    shard int32[B], row int64[B] (in the shard), length int32[B] (tokens), real bool[B]. Filler rows
    complete an epoch's last batch: real False, shard and row -1, length 1, weight 0.
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


class Planner:
    """The order of batches of one split.

    Args:
        shard_lengths: for each shard s, tokens of each of its rows (int32[N_s]; may be mapped).
        spec: what the order depends on.
    Raises:
        DataError: the split has no rows.
    """

    def __init__(self, shard_lengths: Sequence[np.ndarray], spec: PlanSpec) -> None:
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
        self.plan_hash = content_hash({"planner": PLANNER_VERSION, **asdict(spec)})
        batches = spec.window_batches
        if spec.shuffle:
            # With one window per epoch a row would share its batch with the same rows every epoch.
            batches = min(batches, max(1, self.steps_per_epoch // _WINDOWS_PER_EPOCH))
        self.window_batches = batches
        """Global batches in a window that is sorted by length."""
        self._epoch_groups = lru_cache(maxsize=2)(self._make_epoch_groups)
        self._window = lru_cache(maxsize=2)(self._make_window)

    # -- state ---------------------------------------------------------------------------
    def start(self) -> PlanState:
        """State before the first step."""
        return self.state(0, 0)

    def state(self, epoch: int, step: int) -> PlanState:
        """State before that step."""
        return PlanState(plan_hash=self.plan_hash, epoch=epoch, step=step)

    def after(self, epoch: int, step: int) -> tuple[int, int]:
        """(epoch, step) of the next step."""
        return (epoch, step + 1) if step + 1 < self.steps_per_epoch else (epoch + 1, 0)

    def at(self, global_step: int) -> tuple[int, int]:
        """(epoch, step in the epoch) of the global_step-th step from the start."""
        return divmod(global_step, self.steps_per_epoch)

    def check(self, state: PlanState) -> None:
        """Refuse a state of another plan.

        Raises:
            CheckpointError: data, seed, global_batch_size, windows or planner version differ.
        """
        if state.plan_hash != self.plan_hash:
            raise CheckpointError(
                "the checkpoint follows another data plan",
                expected=f"plan {self.plan_hash} (split {self.spec.split}, dataset "
                f"{self.spec.dataset_hash}, seed {self.spec.seed}, global_batch_size "
                f"{self.spec.global_batch_size})",
                got=f"plan {state.plan_hash}",
                remedy="restore those settings and data, or start anew with"
                " `--set checkpoint.resume=never`",
            )

    # -- batches -------------------------------------------------------------------------
    def batch(self, epoch: int, step: int) -> Rows:
        """The global batch of a step: exactly global_batch_size rows, longest first."""
        if not 0 <= step < self.steps_per_epoch:
            raise IndexError(f"step {step} of an epoch of {self.steps_per_epoch}")
        window, position = divmod(step, self.window_batches)
        rows, order = self._window(epoch, window)
        size = self.spec.global_batch_size
        start = int(order[position]) * size
        part = rows.take(slice(start, start + size))
        return part if len(part) == size else _filled_up(part, size)

    def rank_rows(self, epoch: int, step: int, rank: int, world: int) -> Rows:
        """Rank's slice of the global batch: rows rank, rank+world, ... (see check_world)."""
        check_world(self.spec.global_batch_size, world)
        return self.batch(epoch, step).take(slice(rank, None, world))

    # -- which shards when ---------------------------------------------------------------
    def shards_at_once(self) -> int:
        """Most shards that a window can touch; at least two groups, or all shards.

        A node's cache must hold as many: while one group is read, the next one is fetched.
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
        """First and last group of the epoch that this step's window reads."""
        size = self.window_batches * self.spec.global_batch_size
        start = step // self.window_batches * size
        _, starts = self._epoch_groups(epoch)
        return (
            int(np.searchsorted(starts, start, side="right")) - 1,
            int(np.searchsorted(starts, min(start + size, self.rows), side="left")) - 1,
        )

    def groups(self, epoch: int) -> list[np.ndarray]:
        """Shards of each group of an epoch, in reading order."""
        return self._epoch_groups(epoch)[0]

    # -- the order of an epoch -----------------------------------------------------------
    def _make_epoch_groups(self, epoch: int) -> tuple[list[np.ndarray], np.ndarray]:
        """Shards int[<= group_shards] of each of the G groups, and int64[G + 1]: the position of
        each group's first row in the epoch's stream of rows."""
        count = len(self._shard_rows)
        order = np.arange(count)
        if self.spec.shuffle:
            order = np.argsort(permute(order, count, self.spec.seed, epoch, _SHARDS))
        size = self.spec.group_shards
        groups = [order[at : at + size] for at in range(0, count, size)]
        sizes = [int(self._shard_rows[group].sum()) for group in groups]
        return groups, np.concatenate([[0], np.cumsum(sizes)])

    def _make_window(self, epoch: int, window: int) -> tuple[Rows, np.ndarray]:
        """Rows of a window sorted by length, and the order int64[batches] of its batches.

        W rows are in the window, at most window_batches * global_batch_size; P of them in one
        group, which has S shards.
        """
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
            position = np.arange(max(start, low), min(stop, high)) - low  # int64[P], in the group
            if self.spec.shuffle:
                position = permute(position, high - low, self.spec.seed, epoch, _ROWS, group)
            ends = np.cumsum(self._shard_rows[groups[group]])  # int64[S]: where each shard ends
            begins = ends - self._shard_rows[groups[group]]  # int64[S]
            which = np.searchsorted(ends, position, side="right")  # int64[P], 0 .. S-1
            shards.append(groups[group][which])  # int64[P]
            rows.append(position - begins[which])  # int64[P], in the shard
        shard = np.concatenate(shards).astype(np.int32)  # [W]
        row = np.concatenate(rows).astype(np.int64)  # [W]
        length = self._lengths_of(shard, row)  # int32[W]
        longest_first = np.argsort(-length, kind="stable")  # int64[W]
        in_order = Rows(shard=shard, row=row, length=length, real=np.ones(len(row), dtype=bool))
        batches = math.ceil(len(row) / size)
        order = np.arange(batches)
        if self.spec.shuffle:
            order = permute(order, batches, self.spec.seed, epoch, _BATCHES, window)
        return in_order.take(longest_first), order

    def _lengths_of(self, shard: np.ndarray, row: np.ndarray) -> np.ndarray:
        """int32[W]: tokens of each (shard[W], row[W])."""
        length = np.empty(len(shard), dtype=np.int32)
        for number in np.unique(shard):
            here = shard == number
            length[here] = self._lengths[number][row[here]]
        return length


def _filled_up(rows: Rows, size: int) -> Rows:
    """An epoch's last batch, filled with rows of weight 0: every rank takes the same steps."""
    missing = size - len(rows)
    return Rows(
        shard=np.concatenate([rows.shard, np.full(missing, -1, np.int32)]),
        row=np.concatenate([rows.row, np.full(missing, -1, np.int64)]),
        length=np.concatenate([rows.length, np.ones(missing, np.int32)]),
        real=np.concatenate([rows.real, np.zeros(missing, bool)]),
    )


def check_world(global_batch_size: int, world: int) -> None:
    """Raise ConfigError where a global batch has fewer rows than there are ranks."""
    if global_batch_size < world:
        raise ConfigError(
            "there are more ranks than rows in a global batch",
            where="training.global_batch_size",
            expected=f"at least {world}, the number of ranks",
            got=str(global_batch_size),
        )


def pad_multiple(gpu: bool, precision: str = "fp32") -> int:
    """The number that a batch's width is rounded up to a multiple of.

    8 suits a GPU's matrix units; on a CPU it would add 6% of padding to short texts, and 2 still
    halves the number of shapes. In bf16 oneDNN compiles some 27 kernels for each width and keeps
    1,024 in all: with multiples of 4 the kernels of all widths up to 128 fit.
    """
    return limit("pad_multiple", 8 if gpu else {"fp32": 2, "fp16": 2, "bf16": 4}[precision])


def padded_length(length: int, pad_multiple: int, widest: int | None = None) -> int:
    """`length` rounded up to a multiple, but not beyond `widest`, the model's positions.

    >>> padded_length(13, 8), padded_length(127, 2, 127)
    (16, 127)
    """
    padded = -(-length // pad_multiple) * pad_multiple
    return padded if widest is None else max(length, min(padded, widest))


def micro_batches(
    rows: Rows,
    max_tokens: int,
    pad_multiple: int = 1,
    widest: int | None = None,
) -> list[Rows]:
    """A rank's slice cut into parts of at most `max_tokens` each, padding included.

    Rows are longest first, so a part's width is its first row's length. Memory stays bounded at any
    world size: fewer ranks accumulate more parts. There are as few parts as possible, with rows
    spread evenly: 33 rows, where a part can hold 32, are cut into 17 and 16.

    Args:
        widest: positions of the model; None: no limit.
    Raises:
        ConfigError: a single row exceeds `max_tokens`.
    """
    if not len(rows):
        return []
    fit = max_tokens // padded_length(int(rows.length[0]), pad_multiple, widest)
    if fit >= len(rows):
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
    """Index of the row behind each part's last one.

    Args:
        count: number of parts, to be made even; None: fill each part, which gives the
            fewest. Rows are longest first, so a later part never holds fewer rows than an earlier
            one: from the first part on that can hold the mean, parts are even.
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
