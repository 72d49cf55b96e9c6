"""Which texts of a cluster stay: those that are like none that stays already.

A cluster is a connected component: in a chain of edits its two ends may share little. A row is
removed only as the near duplicate of a row that is kept, its leader; a row that is like no leader
becomes one. All of a cluster are in one split whichever stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from howdah.etl.rows.minhash import equal_entries
from howdah.spark.errors import crossing

MOST_LEADERS = 100
"""Leaders of a cluster that its rows are compared with. Rows beyond that are like none of them,
and stay."""
_FOUND = "own string, survivor string"


def survivors(members: DataFrame, keys: list[str], threshold: float) -> DataFrame:
    """(own, survivor) of each member: its leader, or itself where it stays.

    Args:
        members: own, signature, and the columns `keys`; leaders are found by ascending `own`.
        keys: of rows that can stand for each other.
        threshold: share of equal entries from which two signatures are near duplicates.
    """
    # Rows go to Python sorted and one by one, not as lists: a cluster may have any size.
    rows = members.repartition(*keys).sortWithinPartitions(*keys, "own")
    work = partial(_lead, keys=keys, threshold=threshold)
    return rows.select(*keys, "own", "signature").mapInArrow(crossing(work), _FOUND)


def _lead(
    batches: Iterable[pa.RecordBatch], keys: list[str], threshold: float
) -> Iterator[pa.RecordBatch]:
    """mapInArrow: a group may begin in one batch and end in a later one."""
    group: tuple | None = None
    names: list[str] = []
    leaders = np.empty((0, 0), np.uint32)  # (MOST_LEADERS, K) once there is a row
    for batch in batches:
        pairs = []
        groups = zip(*(batch.column(key).to_pylist() for key in keys), strict=True)
        ids = batch.column("own").to_pylist()
        signatures = batch.column("signature").to_pylist()
        for key, name, raw in zip(groups, ids, signatures, strict=True):
            signature = np.frombuffer(raw, np.uint32)
            if key != group:
                group, names = key, []
                leaders = np.empty((MOST_LEADERS, len(signature)), np.uint32)
            equal = (leaders[: len(names)] == signature).sum(axis=1)
            like = np.flatnonzero(equal >= equal_entries(threshold, len(signature)))
            pairs.append(names[like[0]] if len(like) else name)
            if not len(like) and len(names) < MOST_LEADERS:
                leaders[len(names)] = signature
                names.append(name)
        yield pa.RecordBatch.from_arrays(
            [pa.array(ids, pa.string()), pa.array(pairs, pa.string())], names=["own", "survivor"]
        )
