"""Encode rows, shuffle them globally and write the shards: the part of the ETL that makes bytes.

Tasks write files under attempt names and return one row about each; nothing they write counts until
the driver has put its name into the manifest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import Broadcast, TaskContext
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from etl.workspace import credentials
from etl.workspace.staging import REJECTS, attempt_name
from howdah import storage
from howdah.config.splits import TRAIN
from howdah.data.encode import Encoder
from howdah.data.manifest import ShardEntry
from howdah.data.record import RecordLayout, ShardWriter, ids_dtype_for
from howdah.errors import DataError
from howdah.spark.errors import crossing

ENCODED = "id string, split string, label int, ids binary, length int"
_WRITTEN = "split string, shard int, entry string"
_REJECTED = "name string, rows bigint, bytes bigint"
_ROWS_PER_BUCKET = 50_000
_RECORD_OVERHEAD_BYTES = 110
_WRITE_ROWS = 2_000
_REJECT_TEXT_CHARACTERS = 2_000

_encoders: dict[str, Encoder] = {}


def encoder_of(files: dict[str, bytes], source: str, key: str) -> Encoder:
    """The encoder made from broadcast files, made once a worker process."""
    if key not in _encoders:
        _encoders.clear()
        _encoders[key] = Encoder(files, source)
    return _encoders[key]


# ------------------------------------------------------------------------------------- encode
def encode(rows: DataFrame, encoder: Encoder, labels: Sequence[str], max_length: int) -> DataFrame:
    """Rows (id, text, label name, split) as ENCODED: ids little-endian, uint16 where they fit.

    Broadcasts the tokenizer's bytes, never a path: an executor needs nothing but this package.
    """
    files = rows.sparkSession.sparkContext.broadcast((encoder.files, encoder.source, encoder.hash))
    numbers = {name: number for number, name in enumerate(labels)}
    work = partial(_encode_batches, files=files, numbers=numbers, max_length=max_length)
    return rows.select("id", "text", "label", "split").mapInArrow(crossing(work), ENCODED)


def ids_type(vocab_size: int) -> np.dtype:
    """Little-endian type of stored ids: uint16 up to 65,536 tokens, else uint32."""
    return np.dtype(ids_dtype_for(vocab_size)).newbyteorder("<")


def _encode_batches(
    batches: Iterable[pa.RecordBatch],
    files: Broadcast,
    numbers: dict[str, int],
    max_length: int,
) -> Iterator[pa.RecordBatch]:
    encoder = encoder_of(*files.value)
    dtype = ids_type(encoder.vocab_size)
    for batch in batches:
        encoded = encoder.encode(batch.column("text").to_pylist(), max_length)
        labels = [numbers[name] for name in batch.column("label").to_pylist()]
        yield pa.RecordBatch.from_arrays(
            [
                batch.column("id"),
                batch.column("split"),
                pa.array(labels, pa.int32()),
                pa.array([ids.astype(dtype).tobytes() for ids in encoded], pa.binary()),
                pa.array([len(ids) for ids in encoded], pa.int32()),
            ],
            names=["id", "split", "label", "ids", "length"],
        )


# ------------------------------------------------------------------------------------ shuffle
@dataclass(frozen=True, kw_only=True)
class SplitSize:
    """Rows and tokens of a split, and how many shards it gets."""

    rows: int
    tokens: int
    shards: int


def plan_shards(
    totals: dict[str, tuple[int, int]],
    *,
    shard_bytes: int,
    num_shards: int | None,
    bytes_per_token: float,
) -> dict[str, SplitSize]:
    """How many shards each split gets, from {split: (rows, tokens)}.

    `num_shards` is for the training split; the others, and train without it, get as many as bring
    a shard nearest to `shard_bytes`. No shard is empty.
    """
    plan = {}
    for split, (rows, tokens) in totals.items():
        size = rows * _RECORD_OVERHEAD_BYTES + tokens * bytes_per_token
        shards = max(1, round(size / shard_bytes))
        if split == TRAIN and num_shards is not None:
            shards = num_shards
        plan[split] = SplitSize(rows=rows, tokens=tokens, shards=min(shards, rows))
    return plan


def place(encoded: DataFrame, plan: dict[str, SplitSize], seed: int) -> DataFrame:
    """Give each row its shard and its position: the order is that of hash(seed, id).

    The rank of a row is exact without sorting all rows in one task: rows are numbered inside
    buckets of the hash's first digits, on top of the rows of the buckets before.
    """
    spark = encoded.sparkSession
    largest = max(size.rows for size in plan.values())
    digits = max(0, math.ceil(math.log(max(1.0, largest / _ROWS_PER_BUCKET), 16)))
    order = F.sha2(F.concat(F.lit(f"{seed}:"), F.col("id")), 256)
    rows = encoded.withColumn("order", F.substring(order, 1, 24))
    rows = rows.withColumn("bucket", F.substring("order", 1, digits) if digits else F.lit(""))
    counts = sorted(
        (r["split"], r["bucket"], r["count"])
        for r in rows.groupBy("split", "bucket").count().collect()
    )
    before, offsets = {}, []
    for split, bucket, count in counts:
        offsets.append((split, bucket, before.get(split, 0), plan[split].rows, plan[split].shards))
        before[split] = before.get(split, 0) + count
    schema = "split string, bucket string, before bigint, rows bigint, shards bigint"
    table = F.broadcast(spark.createDataFrame(offsets, schema))
    inside = Window.partitionBy("split", "bucket").orderBy("order", "id")
    ranked = rows.withColumn("inside", F.row_number().over(inside) - 1).join(
        table, ["split", "bucket"]
    )
    rank = F.col("before") + F.col("inside")
    return ranked.select(
        "split",
        # rank * shards / rows: shard sizes differ by at most one row
        F.floor(rank * F.col("shards") / F.col("rows").cast("double")).cast("int").alias("shard"),
        rank.alias("rank"),
        F.col("shards").cast("int").alias("shards"),
        "id",
        "label",
        "ids",
    )


def balance(
    encoded: DataFrame, how: str, ratio: float, counts: dict[int, int], seed: int
) -> DataFrame:
    """Class balance of the training rows: largest / smallest class <= `ratio`, others untouched.

    Args:
        how: downsample (rows are left out) or upsample (rows come again, as id#2, id#3, ...).
        counts: {label number: training rows}.
    """
    goal = balance_goal(how, ratio, counts)
    spark = encoded.sparkSession
    goals = [(label, counts[label], goal[label]) for label in counts]
    table = F.broadcast(spark.createDataFrame(goals, "label int, n int, goal int"))
    train = encoded.where(F.col("split") == TRAIN).join(table, "label")
    order = F.sha2(F.concat(F.lit(f"balance:{seed}:"), F.col("id")), 256)
    rank = F.row_number().over(Window.partitionBy("label").orderBy(order, "id"))
    train = train.withColumn("place", rank)
    # copies of the row at place p (1-based): as many k >= 0 as p + k * n <= goal
    copies = F.floor((F.col("goal") - F.col("place")) / F.col("n")).cast("int") + 1
    train = train.withColumn("copies", copies).where(F.col("copies") > 0)
    train = train.withColumn("copy", F.explode(F.sequence(F.lit(1), F.col("copies"))))
    again = F.concat("id", F.lit("#"), F.col("copy").cast("string"))
    train = train.withColumn("id", F.when(F.col("copy") > 1, again).otherwise(F.col("id")))
    return encoded.where(F.col("split") != TRAIN).unionByName(train.select(*encoded.columns))


def balance_goal(how: str, ratio: float, counts: dict[int, int]) -> dict[int, int]:
    """{label: rows after balancing}.

    >>> balance_goal("downsample", 2.0, {0: 100, 1: 10})
    {0: 20, 1: 10}
    >>> balance_goal("upsample", 2.0, {0: 100, 1: 10})
    {0: 100, 1: 50}
    """
    if how == "downsample":
        most = int(min(counts.values()) * ratio)
        return {label: min(count, most) for label, count in counts.items()}
    if how == "upsample":
        least = math.ceil(max(counts.values()) / ratio)
        return {label: max(count, least) for label, count in counts.items()}
    raise ValueError(f"no way to balance classes: {how!r}")


# -------------------------------------------------------------------------------------- write
def write(
    placed: DataFrame,
    directory: str,
    token: str,
    plan: dict[str, SplitSize],
    layout: RecordLayout,
    compression: str,
    stored: np.dtype,
    secrets: credentials.Secrets | None = None,
) -> dict[str, list[ShardEntry]]:
    """Write all shards into a version directory and check that what was written is all of it.

    Args:
        stored: type of the ids in the rows.
        secrets: the tokens that the tasks write with, where not their container's own.
    Raises:
        DataError: a shard is missing, there twice, or another size on storage than was written.
    """
    total = sum(size.shards for size in plan.values())
    work = partial(
        _write_batches,
        directory=directory,
        token=token,
        layout=layout,
        compression=compression,
        dtype=stored.str,
    )
    # A number of partitions given outright is left alone by adaptive execution: no shard is torn.
    spread = placed.repartition(total, "split", "shard")
    sorted_rows = spread.sortWithinPartitions("split", "shard", "rank")
    entries: dict[str, dict[int, ShardEntry]] = {split: {} for split in plan}
    work = crossing(credentials.using(work, secrets))
    for row in sorted_rows.mapInArrow(work, _WRITTEN).collect():
        entry = ShardEntry(**json.loads(row["entry"]))
        if row["shard"] in entries[row["split"]]:
            raise DataError("a shard was written twice", where=entry.name, remedy="run it again")
        entries[row["split"]][row["shard"]] = entry
    _verify(directory, entries, plan)
    return {split: [shards[n] for n in sorted(shards)] for split, shards in entries.items()}


def _verify(
    directory: str, entries: dict[str, dict[int, ShardEntry]], plan: dict[str, SplitSize]
) -> None:
    sizes = {entry.name: entry.size for entry in storage.list_dir(directory)}
    for split, size in plan.items():
        shards = entries[split]
        written = sum(entry.rows for entry in shards.values())
        if sorted(shards) != list(range(size.shards)) or written != size.rows:
            raise DataError(
                f"the {split} shards are not whole",
                where=directory,
                expected=f"{size.shards} shards, {size.rows} rows",
                got=f"{len(shards)} shards, {written} rows",
                remedy="run `howdah etl` again; if it stays, the source changes while it is read",
            )
        for entry in shards.values():
            if sizes.get(entry.name) != entry.bytes or entry.index_name not in sizes:
                raise DataError(
                    "a shard on storage is not what was written",
                    where=storage.join(directory, entry.name),
                    expected=f"{entry.bytes} bytes and an index",
                    got=f"{sizes.get(entry.name, 'no file')}",
                    remedy="run `howdah etl` again",
                )


def _write_batches(
    batches: Iterable[pa.RecordBatch],
    directory: str,
    token: str,
    layout: RecordLayout,
    compression: str,
    dtype: str,
) -> Iterator[pa.RecordBatch]:
    attempt = TaskContext.get().taskAttemptId()
    for split, shard, count, rows in _by_shard(batches):
        stem = f"{split}-{shard:05d}-of-{count:05d}"
        name = attempt_name(stem, token, attempt, "tfrecord")
        with storage.open_write(storage.join(directory, name)) as file:
            writer = ShardWriter(file, layout, compression=compression)
            for piece in rows:
                writer.write(
                    [np.frombuffer(ids, dtype=dtype) for ids in piece.column("ids").to_pylist()],
                    piece.column("label").to_numpy(),
                    [row_id.encode("utf-8") for row_id in piece.column("id").to_pylist()],
                )
            stats = writer.close()
        entry = stats.entry(name)
        with storage.open_write(storage.join(directory, entry.index_name)) as file:
            file.write(stats.index)
        yield pa.RecordBatch.from_arrays(
            [pa.array([split]), pa.array([shard], pa.int32()), pa.array([entry.model_dump_json()])],
            names=["split", "shard", "entry"],
        )


def _by_shard(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[str, int, int, Iterator[pa.RecordBatch]]]:
    """(split, shard, shards of the split, its batches) of rows sorted by (split, shard)."""
    pieces = _pieces(batches)
    ahead = next(pieces, None)
    while ahead is not None:
        key = ahead[0]

        def of_this_shard(key=key):
            nonlocal ahead
            while ahead is not None and ahead[0] == key:
                piece = ahead[1]
                ahead = next(pieces, None)
                yield piece

        yield *key, of_this_shard()


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[tuple, pa.RecordBatch]]:
    """Batches cut so that each belongs to one shard and has at most _WRITE_ROWS rows."""
    for batch in batches:
        keys = list(
            zip(
                batch.column("split").to_pylist(),
                batch.column("shard").to_pylist(),
                batch.column("shards").to_pylist(),
                strict=True,
            )
        )
        start = 0
        for at in range(1, len(keys) + 1):
            if at == len(keys) or keys[at] != keys[start] or at - start == _WRITE_ROWS:
                yield keys[start], batch.slice(start, at - start)
                start = at


# ------------------------------------------------------------------------------------ rejects
def write_rejects(
    rows: DataFrame, directory: str, token: str, secrets: credentials.Secrets | None = None
) -> list[str]:
    """Write rejected rows (id, text, label, reason, detail) as Parquet; return the names.

    Texts are cut at 2,000 characters: the table is for reading, the source has the rest.
    """
    rows = rows.select(
        "id",
        F.substring("text", 1, _REJECT_TEXT_CHARACTERS).alias("text"),
        "label",
        "reason",
        "detail",
    )
    work = partial(_reject_batches, directory=directory, token=token)
    work = crossing(credentials.using(work, secrets))
    written = rows.mapInArrow(work, _REJECTED).collect()
    return sorted(row["name"] for row in written)


def _reject_batches(
    batches: Iterable[pa.RecordBatch], directory: str, token: str
) -> Iterator[pa.RecordBatch]:
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return
    context = TaskContext.get()
    stem = f"part-{context.partitionId():05d}"
    name = f"{REJECTS}/" + attempt_name(stem, token, context.taskAttemptId(), "parquet")
    path = storage.join(directory, name)
    rows = 0
    with storage.open_write(path) as file, pq.ParquetWriter(file, first.schema) as writer:
        for batch in (first, *batches):
            writer.write_batch(batch)
            rows += batch.num_rows
    yield pa.RecordBatch.from_pydict(
        {"name": [name], "rows": [rows], "bytes": [storage.size(path)]}
    )
