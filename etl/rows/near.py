"""Near duplicates by MinHash-LSH, and what must not be torn apart by the split.

Rows with the same signature are near duplicates as they are; one of them, their leader, stands for
all. Leaders that share an LSH bucket are compared by their signatures, and similar ones joined to
connected components: the clusters, of which all but one row a label is removed.

A bucket with more than MAX_BUCKET_SIZE leaders is cut into pieces. Each piece holds the bucket's
first MAX_BUCKET_SIZE members and about as many of the others, so that every member is compared
with the first ones and with its own piece. Two of the others in different pieces are not compared:
they may be near duplicates that are not known to be. So all the others of a bucket are put into one
GROUP, as is every cluster as a whole. The split goes by group; nothing is removed by it.

For each pair of rows in a bucket then: they were compared, or they are in the same split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from howdah.config.data import DedupOptions
from howdah.config.options.dedup import NUM_PERMUTATIONS
from howdah.errors import ClusterError
from howdah.etl.rows.components import connected_components
from howdah.etl.rows.minhash import band_keys, equal_entries, link_bucket, signatures
from howdah.etl.workspace.kept import Kept, release
from howdah.etl.workspace.scratch import Scratch, local_table
from howdah.spark.errors import crossing

_SIGNED = "id string, same binary, signature binary"
_ENTRIES = "node bigint, bucket bigint"
_EDGES = "a bigint, b bigint"
_SALTS = 8

MAX_BUCKET_SIZE = 1_000
"""Up to this many signatures of an LSH bucket are all compared with each other, half a million
pairs. In a larger bucket (one template's texts) this many are compared with all: the work grows
with the members, not with their square. Another number makes other rows: raise ETL_FORMAT."""


@dataclass(frozen=True, kw_only=True)
class Near:
    """What was found among the different texts."""

    rows: DataFrame
    """id, signature, cluster, group: rows that are in a cluster or group with others. Both of these
    are named by the smallest id in them."""
    capped_buckets: int = 0
    """LSH buckets with more than MAX_BUCKET_SIZE different signatures."""
    capped_entries: int = 0
    """Their members beyond that: compared with the first ones only, and put into one group."""


def none(rows: DataFrame) -> Near:
    """No near duplicates: they were not looked for."""
    schema = "id string, signature binary, cluster string, group string"
    return Near(rows=local_table(rows.sparkSession, [], schema))


def find(
    unique: DataFrame,
    options: DedupOptions,
    scratch: Scratch,
    temporary: Kept,
    *,
    progress: Callable[[str], None] = lambda line: None,
) -> Near:
    """Find the near duplicates of different texts.

    Args:
        unique: id, text; each id and each text once.
        options: `data.dedup`.
        scratch: for intermediate data; `rows` of the result are read from it.
        progress: gets a line where it takes rounds.
    """
    begin = len(temporary)
    join = partial(connected_components, scratch=scratch, temporary=temporary, progress=progress)
    large = F.col("size") > MAX_BUCKET_SIZE
    sign = crossing(partial(_sign_batches, options=options))
    hashed = unique.select("id", "text").mapInArrow(sign, _SIGNED).persist()
    temporary.append(hashed)
    before = len(temporary)
    for salt in range(_SALTS):
        signed = hashed.withColumn("node", F.xxhash64(F.lit(salt), "id"))
        # A row that has the signature of another: the leader's node is lower.
        leader = F.min("node").over(Window.partitionBy("same")).alias("leader")
        copies = signed.select("node", leader).where(F.col("node") != F.col("leader")).persist()
        shared = _shared(signed, copies, options).persist()
        temporary += [copies, shared]
        # One job: whether a hash is that of two rows, in which case nothing of it is used, and how
        # many buckets are too large.
        oversized = shared.where(large).agg(F.countDistinct("bucket").alias("n"), F.count("*"))
        equal = signed.agg(F.count("*") - F.countDistinct("node"), F.lit(None).cast("bigint"))
        facts = oversized.union(equal).collect()
        (buckets, entries), (collisions, _) = sorted(facts, key=lambda row: row[1] is None)
        if not collisions:
            break
        release(temporary, before)
    else:
        raise ClusterError(
            "no hash separates all rows",
            got=f"two rows with the same 64-bit hash under each of {_SALTS} salts",
            remedy="report this as a defect",
        )
    pieces = shared.where(~large).select(
        "bucket", F.lit(0).alias("piece"), F.lit(False).alias("beyond"), "node"
    )
    loose = None
    directory = scratch.path("near")
    if buckets:
        # From files, as the rows found below: what reads them has a plan of one step.
        oversized = scratch.keep(shared.where(large), f"{directory}/oversized")
        more, loose = _pieces(oversized, MAX_BUCKET_SIZE)
        pieces = pieces.unionByName(more)
    components = join(_links(pieces, signed, options.threshold))
    members = _members(copies, components, loose)
    if loose is None:
        members = members.withColumn("group", F.col("root"))
    else:
        members = _grouped(members, loose, join)
    named = members.join(signed.select("id", "node", "signature"), "node")
    cluster = F.min("id").over(Window.partitionBy("root")).alias("cluster")
    if loose is None:
        rows = named.select("id", "signature", cluster).withColumn("group", F.col("cluster"))
    else:
        group = F.min("id").over(Window.partitionBy("group")).alias("group")
        rows = named.select("id", "signature", cluster, group)
    kept = scratch.keep(rows, f"{directory}/found")
    release(temporary, begin)
    return Near(
        rows=kept,
        capped_buckets=buckets,
        capped_entries=entries - buckets * MAX_BUCKET_SIZE,
    )


# --------------------------------------------------------------------------------- signatures
def _sign_batches(
    batches: Iterable[pa.RecordBatch], options: DedupOptions
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        texts = batch.column("text").to_pylist()
        signature = signatures(texts, options.ngram, NUM_PERMUTATIONS)
        raw = [row.tobytes() for row in signature]
        yield pa.RecordBatch.from_arrays(
            [
                batch.column("id"),
                pa.array([blake2b(row, digest_size=16).digest() for row in raw], pa.binary()),
                pa.array(raw, pa.binary()),
            ],
            names=["id", "same", "signature"],
        )


# ------------------------------------------------------------------------------------ buckets
def _shared(signed: DataFrame, copies: DataFrame, options: DedupOptions) -> DataFrame:
    """(bucket, node, size) of the buckets in which at least two leaders meet."""
    leaders = signed.select("node", "signature").join(copies.select("node"), "node", "left_anti")
    # Buckets are computed where they are counted: kept with the signatures they would be a third
    # of all that is kept.
    work = partial(_entry_batches, banding=options.banding)
    entries = leaders.mapInArrow(crossing(work), _ENTRIES)
    size = F.count("*").over(Window.partitionBy("bucket"))
    return entries.withColumn("size", size).where(F.col("size") > 1)


def _entry_batches(
    batches: Iterable[pa.RecordBatch], banding: tuple[int, int]
) -> Iterator[pa.RecordBatch]:
    """mapInArrow: (node, bucket) of each band of each row."""
    bands, rows = banding
    for batch in batches:
        if not batch.num_rows:
            continue
        signed = b"".join(batch.column("signature").to_pylist())
        signature = np.frombuffer(signed, np.uint32).reshape(batch.num_rows, -1)
        keys = band_keys(signature, bands, rows)  # a bucket's key covers the band's number
        nodes = np.repeat(batch.column("node").to_numpy(), bands)
        yield pa.RecordBatch.from_arrays(
            [pa.array(nodes), pa.array(keys.reshape(-1))], names=["node", "bucket"]
        )


def _pieces(large: DataFrame, most: int) -> tuple[DataFrame, DataFrame]:
    """Cut oversized buckets: (pieces: bucket, piece, beyond, node; loose edges a, b).

    `beyond` separates the members of one piece from the first `most`, which are in every piece. The
    order is by node, a hash: it favours no kind of id.
    """
    place = F.row_number().over(Window.partitionBy("bucket").orderBy("node"))
    # The constant bound lets Spark keep only that many rows per task (WindowGroupLimit).
    first = large.withColumn("place", place).where(F.col("place") <= most + 1)
    anchors = first.groupBy("bucket").agg(F.max("node").alias("anchor"))
    count = F.ceil((F.col("size") - most) / F.lit(most)).cast("int")
    cut = large.join(anchors, "bucket").withColumn("count", count)
    beyond = F.col("node") >= F.col("anchor")  # the anchor itself is the first one beyond
    everywhere = cut.where(~beyond).select(
        "bucket",
        F.explode(F.sequence(F.lit(1), F.col("count"))).alias("piece"),
        F.lit(False).alias("beyond"),
        "node",
    )
    rest = cut.where(beyond)
    singles = rest.select(
        "bucket",
        (F.pmod("node", F.col("count")) + 1).cast("int").alias("piece"),
        F.lit(True).alias("beyond"),
        "node",
    )
    loose = rest.where(F.col("node") != F.col("anchor"))
    loose = loose.select(F.col("node").alias("a"), F.col("anchor").alias("b")).distinct()
    return everywhere.unionByName(singles), loose


def _links(pieces: DataFrame, signed: DataFrame, threshold: float) -> DataFrame:
    """Edges between the near duplicates of each piece."""
    work = partial(_link_batches, threshold=threshold)
    rows = pieces.join(signed.select("node", "signature"), "node")
    # Rows and not lists of them go to Python: a batch has a bounded number of signatures.
    rows = rows.repartition("bucket", "piece").sortWithinPartitions(
        "bucket", "piece", "beyond", "node"
    )
    rows = rows.select("bucket", "piece", "beyond", "node", "signature")
    return rows.mapInArrow(crossing(work), _EDGES)


class _Rows(NamedTuple):
    """M consecutive rows of pieces, each piece's rows one after the other."""

    bucket: np.ndarray  # int64[M]
    piece: np.ndarray  # int32[M]
    beyond: np.ndarray  # bool[M]
    node: np.ndarray  # int64[M]
    signature: np.ndarray  # uint32[M, K]

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> _Rows:
        plain = [
            batch.column(name).to_numpy(zero_copy_only=False)
            for name in ("bucket", "piece", "beyond", "node")
        ]
        signed = b"".join(batch.column("signature").to_pylist())
        return cls(*plain, np.frombuffer(signed, np.uint32).reshape(batch.num_rows, -1))

    def part(self, begin: int, end: int | None = None) -> _Rows:
        return _Rows(*(column[begin:end] for column in self))

    def starts(self) -> np.ndarray:
        """int64[P]: where each of the P pieces begins."""
        other = (self.bucket[1:] != self.bucket[:-1]) | (self.piece[1:] != self.piece[:-1])
        return np.concatenate(([0], np.flatnonzero(other) + 1))


def _link_batches(batches: Iterable[pa.RecordBatch], threshold: float) -> Iterator[pa.RecordBatch]:
    """mapInArrow: edges of sorted rows; a piece may begin in one batch and end in a later one."""
    rest: _Rows | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        rows = _Rows.of(batch)
        if rest is not None:
            rows = _Rows(*map(np.concatenate, zip(rest, rows, strict=True)))
        starts = rows.starts()
        yield _edges(rows, starts, threshold)  # of all pieces but the last
        rest = rows.part(int(starts[-1]))
    if rest is not None:
        yield _edges(rest, np.array([0, len(rest.node)]), threshold)


def _edges(rows: _Rows, starts: np.ndarray, threshold: float) -> pa.RecordBatch:
    """Edges of the pieces [starts[k], starts[k + 1])."""
    sizes = np.diff(starts)
    need = equal_entries(threshold, rows.signature.shape[1])
    pair = starts[:-1][sizes == 2]  # by far the most: all of them at once
    equal = (rows.signature[pair] == rows.signature[pair + 1]).sum(axis=1)
    pair = pair[equal >= need]
    edges = [np.stack((pair, pair + 1), axis=1)]
    for begin, size in zip(starts[:-1][sizes > 2], sizes[sizes > 2], strict=True):
        one = rows.part(begin, begin + size)
        # in the first piece of a bucket (0 where there is but one) its first members as well
        compared = 1 if one.piece[0] <= 1 else int((~one.beyond).sum())
        edges.append(link_bucket(one.signature, threshold, compared) + begin)
    a, b = np.concatenate(edges).T
    return pa.RecordBatch.from_arrays(
        [pa.array(rows.node[a]), pa.array(rows.node[b])], names=["a", "b"]
    )


# ----------------------------------------------------------------------------------- clusters
def _members(copies: DataFrame, components: DataFrame, loose: DataFrame | None) -> DataFrame:
    """(node, root) of all rows that have a signature, a cluster or a group with others."""
    parts = [
        copies.select("node", "leader"),
        copies.select(F.col("leader").alias("node"), "leader"),
        components.select("node", F.col("node").alias("leader")),
    ]
    if loose is not None:
        parts += [loose.select(F.col(c).alias("node"), F.col(c).alias("leader")) for c in "ab"]
    led = parts[0]
    for part in parts[1:]:
        led = led.unionByName(part)
    roots = components.select(F.col("node").alias("leader"), "root")
    roots = led.distinct().join(roots, "leader", "left")
    return roots.select("node", F.coalesce("root", "leader").alias("root"))


def _grouped(
    members: DataFrame, loose: DataFrame, join: Callable[[DataFrame], DataFrame]
) -> DataFrame:
    """Add `group`: the root of all clusters that loose edges put together."""
    first = members.select(F.col("node").alias("a"), F.col("root").alias("first"))
    second = members.select(F.col("node").alias("b"), F.col("root").alias("second"))
    between = loose.join(first, "a").join(second, "b")
    groups = join(between.select(F.col("first").alias("a"), F.col("second").alias("b")))
    groups = groups.select(F.col("node").alias("root"), F.col("root").alias("group"))
    joined = members.join(groups, "root", "left")
    return joined.select("node", "root", F.coalesce("group", "root").alias("group"))
