"""Which row a key belongs to: to the first one that passes the gate, in an order of all rows.

Rows of a key lie together and sorted when the gate reads them (`gathered`), whatever
the source's files, partitions and order of lines are. The gate judges them one after the other and
names them (`Names`): the first row that passes has the key, the others of a source with keys are
duplicates.
Without keys the rows of one content have a hash of it, numbered in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GROUP = "_group"
"""Column of what rows have in common that could have one id: their key, or their content."""
_ID_DIGITS = 24


def gathered(rows: DataFrame, more: Sequence[str] = (), *, content: str = "text") -> DataFrame:
    """The rows with `GROUP`, those of a group together and in an order that only they decide.

    Rows that differ in nothing that they are ordered by are the same row. Those that the source's
    reader has rejected come last, so that they take no key from others.

    Args:
        rows: key, the content, label, reason, detail and `more`.
        content: the column that is hashed where there is no key.
    """
    from pyspark.sql import functions as F

    nothing = F.lit("") if content == "text" else F.lit("").cast("binary")
    digest = F.sha2(F.coalesce(content, nothing), 256)
    rows = rows.withColumn("_digest", digest).withColumn(GROUP, F.coalesce("key", "_digest"))
    order = [F.col("reason").isNotNull(), "_digest", "label", *more, "reason", "detail"]
    return rows.repartition(GROUP).sortWithinPartitions(GROUP, *order).drop("_digest")


class Name:
    """The id of one row, once it is known."""

    __slots__ = ("again", "id")

    def __init__(self) -> None:
        self.id: str | None = None
        """The row's id; None: rows that come later decide it."""
        self.again = False
        """The row passed, and another row has its key."""


class Names:
    """Ids for the rows of groups that come one after the other.

    A row's number is its place in its group. The first row that passes changes its number with the
    row that is first, so that it is number 1: of one row at a time the id is not known yet.
    """

    def __init__(self) -> None:
        self._group: str | None = None
        self._key: str | None = None
        self._place = 0
        self._taken = False
        self._first: Name | None = None

    def of(self, group: str, key: str | None, *, passes: bool) -> Name:
        """The name of the next row."""
        if group != self._group:
            self.end()
            self._group, self._key, self._place, self._taken = group, key, 0, False
        self._place += 1
        name = Name()
        if passes and not self._taken:
            self._taken = True
            name.id = self._spelt(1)
            if self._first is not None:
                self._first.id, self._first = self._spelt(self._place), None
        elif self._place == 1:
            self._first = name
        else:
            name.id, name.again = self._spelt(self._place), passes and key is not None
        return name

    def end(self) -> None:
        """The group has no more rows: of none that passes the first one has the key."""
        if self._first is not None:
            self._first.id, self._first = self._spelt(1), None

    def _spelt(self, number: int) -> str:
        if self._key is None:
            return sha256(f"{self._group}:{number}".encode()).hexdigest()[:_ID_DIGITS]
        return self._key if number == 1 else f"{self._key}#{number}"


def with_ids(
    batches: Iterable[tuple[pa.RecordBatch, list[Name]]], names: Names
) -> Iterator[pa.RecordBatch]:
    """The batches with their rows' ids as first column `id`.

    A row whose id later rows decide is held back: at most one at a time.
    """
    waiting: tuple[Name, pa.RecordBatch] | None = None
    for batch, batch_ids in batches:
        if waiting is not None and waiting[0].id is not None:
            yield _with_id(waiting[1], [waiting[0].id])
            waiting = None
        at = next((n for n, name in enumerate(batch_ids) if name.id is None), None)
        ids = [name.id for name in batch_ids]
        if at is None:
            yield _with_id(batch, ids)
            continue
        waiting = batch_ids[at], batch.slice(at, 1)
        for rows, those in ((batch.slice(0, at), ids[:at]), (batch.slice(at + 1), ids[at + 1 :])):
            if those:
                yield _with_id(rows, those)
    names.end()
    if waiting is not None:
        yield _with_id(waiting[1], [waiting[0].id])


def _with_id(batch: pa.RecordBatch, ids: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(ids, pa.string()), *batch.columns], names=["id", *batch.schema.names]
    )
