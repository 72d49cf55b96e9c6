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
from typing import assert_never

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import Broadcast, TaskContext
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from howdah import storage
from howdah.config.splits import TRAIN
from howdah.config.tasks import Task
from howdah.data.clean import PAIR
from howdah.data.encode import Encoder
from howdah.data.id_index import name_of
from howdah.data.inputs import encoder_of_files
from howdah.data.manifest import ShardEntry
from howdah.data.record import RecordLayout, ShardWriter, ids_dtype_for
from howdah.errors import DataError
from howdah.etl.rows.draw import bucket_digits
from howdah.etl.workspace import credentials
from howdah.etl.workspace.scratch import local_table
from howdah.etl.workspace.staging import REJECTS, attempt_name
from howdah.spark.errors import crossing

ENCODED = "id string, split string, label int, ids binary, length int"
_WRITTEN = "split string, shard int, entry string"
REJECT_COLUMNS = ("id", "text", "label", "reason", "detail")
_REJECTED = "name string, rows bigint, bytes bigint"
_RECORD_OVERHEAD_BYTES = 110
_WRITE_ROWS = 2_000
_REJECT_TEXT_CHARACTERS = 2_000


# ------------------------------------------------------------------------------------- encode
def encode(
    rows: DataFrame,
    encoder: Encoder,
    labels: Sequence[str],
    max_length: int,
    *,
    task: Task = "single_label",
    pairs: bool = False,
) -> DataFrame:
    """Rows (id, text, label name, split) as ENCODED: ids little-endian, uint16 where they fit.

    Of several labels, or a target, `targets` has their numbers, or it, and `label` is 0.

    Broadcasts the tokenizer's bytes, never a path: an executor needs nothing but this package.
    """
    files = rows.sparkSession.sparkContext.broadcast((encoder.files, encoder.source, encoder.hash))
    numbers = {name: number for number, name in enumerate(labels)}
    work = partial(
        _encode_batches,
        files=files,
        numbers=numbers,
        max_length=max_length,
        task=task,
        pairs=pairs,
    )
    schema = ENCODED if task == "single_label" else f"{ENCODED}, targets array<double>"
    return rows.select("id", "text", "label", "split").mapInArrow(crossing(work), schema)


def ids_type(vocab_size: int) -> np.dtype:
    """Little-endian type of stored ids: uint16 up to 65,536 tokens, else uint32."""
    return np.dtype(ids_dtype_for(vocab_size)).newbyteorder("<")


def _encode_batches(
    batches: Iterable[pa.RecordBatch],
    files: Broadcast,
    numbers: dict[str, int],
    max_length: int,
    task: Task,
    pairs: bool,
) -> Iterator[pa.RecordBatch]:
    encoder = encoder_of_files("text", *files.value)
    dtype = ids_type(encoder.vocab_size)
    for batch in batches:
        texts = batch.column("text").to_pylist()
        encoded = encoder.encode_rows(texts, max_length, pairs=pairs)
        names = batch.column("label").to_pylist()
        more = {}
        labels = [0] * len(names)
        if task == "single_label":
            labels = [numbers[name] for name in names]
        elif task == "multi_label":
            sets = [sorted(numbers[name] for name in json.loads(row)) for row in names]
            more["targets"] = pa.array(sets, pa.list_(pa.float64()))
        elif task == "regression":
            more["targets"] = pa.array([[float(row)] for row in names], pa.list_(pa.float64()))
        else:
            assert_never(task)
        yield pa.RecordBatch.from_pydict(
            {
                "id": batch.column("id"),
                "split": batch.column("split"),
                "label": pa.array(labels, pa.int32()),
                "ids": pa.array([ids.astype(dtype).tobytes() for ids in encoded], pa.binary()),
                "length": pa.array([len(ids) for ids in encoded], pa.int32()),
                **more,
            }
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
    """Give each row its shard and its position: the order is that of hash(seed, id)."""
    order = F.sha2(F.concat(F.lit(f"{seed}:"), F.col("id")), 256)
    rows = {split: size.rows for split, size in plan.items()}
    shards = _of_split({split: size.shards for split, size in plan.items()})
    # rank * shards / rows: shard sizes differ by at most one row
    shard = F.floor(F.col("rank") * shards / _of_split(rows).cast("double"))
    return _ranked(encoded, "split", order, max(rows.values())).select(
        "split",
        shard.cast("int").alias("shard"),
        "rank",
        shards.cast("int").alias("shards"),
        "id",
        "label",
        "ids",
        *(["targets"] if "targets" in encoded.columns else []),
    )


def _of_split(numbers: dict[str, int]) -> Column:
    """The number of a row's split."""
    (first, *others) = numbers.items()
    number_column = F.when(F.col("split") == first[0], F.lit(first[1]).cast("bigint"))
    for split, number in others:
        number_column = number_column.when(F.col("split") == split, F.lit(number).cast("bigint"))
    return number_column


def _ranked(rows: DataFrame, group: str, order: Column, largest: int) -> DataFrame:
    """With `rank`: a row's place, from 0, among the rows of its group by (order, id).

    The rank is exact without sorting a group in one task: rows are numbered inside buckets of the
    order's first digits, on top of the rows of the buckets before.

    Args:
        group: the column that groups.
        order: hexadecimal digits, evenly spread.
        largest: rows of the largest group.
    """
    digits = bucket_digits(largest)
    rows = rows.withColumn("order", F.substring(order, 1, 24))
    if not digits:  # one bucket: nothing comes before it, and nothing is to be counted
        place = F.row_number().over(Window.partitionBy(group).orderBy("order", "id")) - 1
        return rows.withColumn("rank", place.cast("bigint")).drop("order")
    rows = rows.withColumn("bucket", F.substring("order", 1, digits))
    counts = sorted(
        (r[group], r["bucket"], r["count"]) for r in rows.groupBy(group, "bucket").count().collect()
    )
    before, offsets = {}, []
    for name, bucket, count in counts:
        offsets.append((name, bucket, before.get(name, 0)))
        before[name] = before.get(name, 0) + count
    kind = rows.schema[group].dataType.simpleString()
    table = local_table(rows.sparkSession, offsets, f"{group} {kind}, bucket string, before bigint")
    inside = F.row_number().over(Window.partitionBy(group, "bucket").orderBy("order", "id")) - 1
    ranked = rows.withColumn("inside", inside).join(F.broadcast(table), [group, "bucket"])
    return ranked.withColumn("rank", F.col("before") + F.col("inside")).drop(
        "order", "bucket", "inside", "before"
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
    table = F.broadcast(local_table(spark, goals, "label int, n int, goal int"))
    order = F.sha2(F.concat(F.lit(f"balance:{seed}:"), F.col("id")), 256)
    train = encoded.where(F.col("split") == TRAIN)
    train = _ranked(train, "label", order, max(counts.values())).join(table, "label")
    # copies of the row of rank r: as many k >= 0 as r + 1 + k * n <= goal
    copies = F.floor((F.col("goal") - F.col("rank") - 1) / F.col("n")).cast("int") + 1
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
    secrets: credentials.TaskTokens | None = None,
) -> dict[str, list[ShardEntry]]:
    """Write all shards into a version directory and check that what was written is all of it.

    Args:
        stored: type of the ids in the rows.
        secrets: the tokens that the tasks write with, where not their container's own.
    Raises:
        DataError: a shard is missing, there twice, or another size on storage than was written.
    """
    work = partial(
        _write_batches,
        directory=directory,
        token=token,
        layout=layout,
        compression=compression,
        dtype=stored.str,
    )
    sorted_rows = spread(placed, plan).sortWithinPartitions("split", "shard", "rank")
    entries: dict[str, dict[int, ShardEntry]] = {split: {} for split in plan}
    work = crossing(credentials.using(work, secrets))
    for row in sorted_rows.mapInArrow(work, _WRITTEN).collect():
        entry = ShardEntry(**json.loads(row["entry"]))
        if row["shard"] in entries[row["split"]]:
            raise DataError("a shard was written twice", where=entry.name, remedy="run it again")
        entries[row["split"]][row["shard"]] = entry
    _verify(directory, entries, plan)
    return {split: [shards[n] for n in sorted(shards)] for split, shards in entries.items()}


def spread(placed: DataFrame, plan: dict[str, SplitSize]) -> DataFrame:
    """One partition for each shard, and each shard in one partition.

    Hashed by its name a shard would share a partition with others, and a third of the partitions
    would have none: the fullest one decides when the stage ends.
    """
    names = [(split, shard) for split, size in plan.items() for shard in range(size.shards)]
    keys = partition_keys(len(names)).tolist()
    rows = [(*name, key) for name, key in zip(names, keys, strict=True)]
    table = local_table(placed.sparkSession, rows, "split string, shard int, partition int")
    # A number of partitions given outright is left alone by adaptive execution: no shard is torn.
    keyed = placed.join(F.broadcast(table), ["split", "shard"])
    return keyed.repartition(len(names), "partition").select(*placed.columns)


def partition_keys(count: int) -> np.ndarray:
    """int32[count]: entry p is an integer that Spark's hash partitioning puts into partition p.

    That is pmod(murmur3_32(key, seed 42), count): org.apache.spark.sql.catalyst.expressions
    .Murmur3Hash, the same in Spark 3.4 to 4.2.
    """
    partition_of = np.full(count, -1, np.int64)
    begin = 0
    while (partition_of < 0).any():
        keys = np.arange(begin, begin + max(1_024, 4 * count), dtype=np.int64)
        partitions, first = np.unique(_murmur3(keys.astype(np.uint32)) % count, return_index=True)
        new = partition_of[partitions] < 0
        partition_of[partitions[new]] = keys[first[new]]
        begin = int(keys[-1]) + 1
    return partition_of.astype(np.int32)


def _murmur3(values: np.ndarray) -> np.ndarray:
    """Spark's hash of integers, int64[N] with the values of an int32, for uint32[N]."""

    def turned(x: np.ndarray, by: int) -> np.ndarray:
        return (x << np.uint32(by)) | (x >> np.uint32(32 - by))

    k = turned(values * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    h = turned(np.uint32(42) ^ k, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    h ^= np.uint32(4)  # bytes of an integer
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return (h ^ (h >> np.uint32(16))).view(np.int32).astype(np.int64)


def _verify(
    directory: str, entries: dict[str, dict[int, ShardEntry]], plan: dict[str, SplitSize]
) -> None:
    sizes = {entry.name: entry.size for entry in storage.list_dir(directory)}
    for split, size in plan.items():
        shards = entries[split]
        written = sum(entry.rows for entry in shards.values())
        if sorted(shards) != list(range(size.shards)) or written != size.rows:
            raise DataError(
                f"the {split} shards are incomplete",
                where=directory,
                expected=f"{size.shards} shards, {size.rows} rows",
                got=f"{len(shards)} shards, {written} rows",
                remedy="run `howdah etl` again; if this repeats, the source is changing while it"
                " is read",
            )
        for entry in shards.values():
            if sizes.get(entry.name) != entry.bytes or entry.index_name not in sizes:
                size = sizes.get(entry.name)
                index = "an index" if entry.index_name in sizes else "no index"
                raise DataError(
                    "a shard on storage is not what was written",
                    where=storage.join(directory, entry.name),
                    expected=f"{entry.bytes} bytes and an index",
                    got="no file" if size is None else f"{size} bytes and {index}",
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
                    _labels(piece, layout.task),
                    [row_id.encode("utf-8") for row_id in piece.column("id").to_pylist()],
                )
            stats = writer.close()
        entry = stats.entry(name)
        with storage.open_write(storage.join(directory, entry.index_name)) as file:
            file.write(stats.index)
        with storage.open_write(storage.join(directory, name_of(name))) as file:
            file.write(stats.ids)
        yield pa.RecordBatch.from_arrays(
            [pa.array([split]), pa.array([shard], pa.int32()), pa.array([entry.model_dump_json()])],
            names=["split", "shard", "entry"],
        )


def _labels(rows: pa.RecordBatch, task: Task) -> Sequence:
    """Labels as the record has them."""
    if task == "single_label":
        return rows.column("label").to_numpy()
    targets = rows.column("targets").to_pylist()
    if task == "multi_label":
        return targets
    if task != "regression":
        assert_never(task)
    return [one for (one,) in targets]


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
    rows: DataFrame, directory: str, token: str, secrets: credentials.TaskTokens | None = None
) -> list[str]:
    """Write rejected rows (id, text, label, reason, detail) as Parquet; return the names.

    Texts are cut at 2,000 characters: the table is for reading, the source has the rest.
    """
    text = F.regexp_replace(F.substring("text", 1, _REJECT_TEXT_CHARACTERS), PAIR, " [SEP] ")
    rows = rows.select(*REJECT_COLUMNS).withColumn("text", text)
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
