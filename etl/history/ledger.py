"""The ledger of an appended dataset: what new rows are compared with, as Parquet files in buckets.

    rows    node, id, key, label, split, cluster, signature: a row kept in train, validation or test
    bands   band, node, split: the LSH buckets that its signature is in

`node` is a 64-bit hash of the text's key. Bucket and order of `rows` are by node, those of `bands`
by band. A task that looks values up gets those of one bucket, opens this bucket's files only, and
of these reads only the row groups in whose range of values one of its own lies. So the past is
never shuffled, its signatures are read for candidates alone, and no text is read at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from howdah import storage
from howdah.config.data import DedupOptions
from howdah.config.options.dedup import NUM_PERMUTATIONS
from howdah.config.splits import TRAIN
from howdah.data.manifest import LedgerFile
from howdah.etl.rows.minhash import band_keys, equal_entries, signatures
from howdah.etl.workspace import credentials
from howdah.etl.workspace.staging import LEDGER, attempt_name
from howdah.spark.errors import crossing

if TYPE_CHECKING:
    import pandas as pd

ROWS, BANDS = "rows", "bands"
_VALUE = {ROWS: "node", BANDS: "band"}
_GROUP_ROWS = {ROWS: 2_048, BANDS: 65_536}
"""Rows of a row group, the least that is read: about a mebibyte of either kind."""
_SIGNED = "node bigint, signature binary, bands array<bigint>"
_WRITTEN = "bucket int, name string, rows bigint, bytes bigint"
_MET = "kind string, id string, node bigint, band bigint"
PAIR, HELD, ASKS, BEYOND = "pair", "held", "asks", "beyond"
"""Values of `kind` in the rows that `met` returns."""
HITS = (
    "id string, label string, exact boolean, past string, past_label string, split string,"
    " cluster string, part string"
)


def signed(rows: DataFrame, options: DedupOptions) -> DataFrame:
    """The rows with node, signature and bands (null and none without data.dedup.near).

    Args:
        rows: text, key and other columns.
    """
    work = partial(_sign, options=options)
    others = [f for f in rows.schema if f.name != "text"]
    schema = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in others)
    numbered = rows.withColumn("node", F.xxhash64("key"))
    return numbered.mapInArrow(crossing(work), f"{schema}, {_SIGNED}")


def _sign(batches: Iterable[pa.RecordBatch], options: DedupOptions) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        count = batch.num_rows
        if options.near:
            made = signatures(batch.column("text").to_pylist(), options.ngram, NUM_PERMUTATIONS)
            keys = band_keys(made, *options.banding)
            raw = pa.array([row.tobytes() for row in made], pa.binary())
        else:
            keys = np.empty((count, 0), np.int64)
            raw = pa.nulls(count, pa.binary())
        offsets = np.arange(count + 1, dtype=np.int32) * keys.shape[1]
        bands = pa.ListArray.from_arrays(pa.array(offsets), pa.array(keys.reshape(-1)))
        kept = [name for name in batch.schema.names if name != "text"]
        yield pa.RecordBatch.from_arrays(
            [*(batch.column(name) for name in kept), raw, bands],
            names=[*kept, "signature", "bands"],
        )


def _bucket(value: str, buckets: int):
    return F.pmod(F.xxhash64(value), F.lit(buckets)).cast("int")


# -------------------------------------------------------------------------------------- write
def write(
    rows: DataFrame,
    directory: str,
    token: str,
    *,
    part: str,
    buckets: int,
    secrets: credentials.TaskTokens | None,
    near: bool = True,
) -> list[LedgerFile]:
    """Write the ledger of new rows into a version directory; the manifest will list the files.

    Args:
        rows: of `signed`: id, key, label, split, cluster, node, signature, bands.
        near: whether they have bands (data.dedup.near).
    """
    kinds = {ROWS: rows.select("node", "id", "key", "label", "split", "cluster", "signature")}
    if near:
        kinds[BANDS] = rows.select(F.explode("bands").alias("band"), "node", "split")
    files = []
    for kind, frame in kinds.items():
        value = _VALUE[kind]
        frame = frame.withColumn("bucket", _bucket(value, buckets))
        placed = frame.repartition(buckets, "bucket").sortWithinPartitions("bucket", *frame.columns)
        work = partial(_write, kind=kind, directory=directory, token=token)
        work = crossing(credentials.using(work, secrets))
        files += [
            LedgerFile(kind=kind, part=part, **row.asDict())
            for row in placed.mapInArrow(work, _WRITTEN).collect()
        ]
    return sorted(files, key=lambda file: file.name)


def _write(
    batches: Iterable[pa.RecordBatch], kind: str, directory: str, token: str
) -> Iterator[pa.RecordBatch]:
    attempt = TaskContext.get().taskAttemptId()
    current, file, writer = None, None, None
    done: list[list] = []
    try:
        for batch in batches:
            numbers = batch.column("bucket").to_numpy()
            for bucket in np.unique(numbers):
                if bucket != current:
                    if writer is not None:
                        writer.close()
                        file.close()
                    current = bucket
                    name = attempt_name(f"{kind}-{bucket:04d}", token, attempt, "parquet")
                    done.append([int(bucket), f"{LEDGER}/{name}", 0])
                    file = storage.open_write(storage.join(directory, done[-1][1]))
                    schema = batch.schema.remove(batch.schema.get_field_index("bucket"))
                    writer = pq.ParquetWriter(file, schema)
                begin, end = np.searchsorted(numbers, [bucket, bucket + 1])
                piece = batch.slice(begin, end - begin).select(schema.names)
                done[-1][2] += piece.num_rows
                writer.write_table(pa.Table.from_batches([piece]), row_group_size=_GROUP_ROWS[kind])
    finally:
        if writer is not None:
            writer.close()
            file.close()
    for bucket, name, count in done:
        size = storage.size(storage.join(directory, name))
        yield pa.RecordBatch.from_pydict(
            {
                "bucket": pa.array([bucket], pa.int32()), "name": [name],
                "rows": [count], "bytes": [size],
            }
        )  # fmt: skip


# ------------------------------------------------------------------------------------ look up
Paths = dict[int, list[tuple[str, str | None]]]
"""{bucket: [(path, part)]}"""


def met(
    rows: DataFrame,
    paths: Paths,
    *,
    buckets: int,
    most: int,
    secrets: credentials.TaskTokens | None,
) -> DataFrame:
    """(kind, id, node, band): old rows (`node`) in the LSH buckets (`band`) of new ones (`id`).

    PAIR    id, node: to be compared
    HELD    band, node: an old row of a held-out split that is to be compared with all that ASK
    ASKS    band, id: a new row in that bucket
    BEYOND  band, id: there are training rows in the bucket that it is not compared with

    An LSH bucket with more than `most` old rows of the training split gives the first `most` as
    pairs. Those of held-out splits are all compared: the first `most` as pairs, the others as HELD,
    so that a bucket of n new and m old rows is n + m rows here and not n * m.

    Args:
        rows: of `signed`.
        paths: files of kind bands.
    """
    lookups = rows.select("id", F.explode("bands").alias("band"))
    lookups = lookups.withColumn("bucket", _bucket("band", buckets))
    return _looked_up(lookups, partial(_meet, paths=paths, most=most), _MET, buckets, secrets)


def compared(
    probes: DataFrame,
    met: DataFrame | None,
    paths: Paths,
    *,
    buckets: int,
    options: DedupOptions,
    secrets: credentials.TaskTokens | None,
    full: bool = True,
) -> DataFrame:
    """HITS: old rows of the same text as new ones, or like them.

    Args:
        probes: what `signed` returns: the new rows, with id, key, label, node and signature.
        met: what `met` returns; None: compare only rows of the same text.
        paths: files of kind rows.
        full: whether met has rows of other kinds than PAIR.
    """
    nothing = F.lit(0).cast("bigint")
    mine = probes.select("id", "key", "label", "signature")
    pairs = probes.select("id", "node")
    if met is not None:
        pairs = pairs.unionByName(met.where(F.col("kind") == PAIR).select("id", "node"))
    bands = F.array().cast("array<bigint>").alias("bands")
    lookups = pairs.distinct().join(mine, "id").select(F.lit(PAIR).alias("kind"), "*", bands)
    lookups = lookups.withColumn("bucket", _bucket("node", buckets))
    if met is not None and full:
        held = met.where(F.col("kind") == HELD).select("band", "node")
        held = held.withColumn("bucket", _bucket("node", buckets))
        asks = met.where(F.col("kind") == ASKS).select("id", "band").distinct()
        asks = asks.join(held.select("band", "bucket").distinct(), "band")
        asks = asks.groupBy("id", "bucket").agg(F.collect_set("band").alias("bands"))
        asks = asks.join(mine, "id").select("*", F.lit(ASKS).alias("kind"), nothing.alias("node"))
        held = held.select(
            "node", "bucket", F.array("band").alias("bands"), F.lit(HELD).alias("kind")
        )
        lookups = lookups.unionByName(asks).unionByName(held, allowMissingColumns=True)
    work = partial(_compare, paths=paths, threshold=options.threshold)
    return _looked_up(lookups, work, HITS, buckets, secrets)


def _looked_up(
    lookups: DataFrame,
    work: Callable[..., Iterator],
    schema: str,
    buckets: int,
    secrets: credentials.TaskTokens | None,
) -> DataFrame:
    """Give each task the rows of its buckets; `lookups` says of each row which one it is for."""
    placed = lookups.repartition(buckets, "bucket")
    work = partial(_by_bucket, work=work, schema=schema)
    return placed.mapInArrow(crossing(credentials.using(work, secrets)), schema)


def _by_bucket(
    batches: Iterable[pa.RecordBatch], work: Callable[..., Iterator[dict]], schema: str
) -> Iterator[pa.RecordBatch]:
    """A new part's share of one bucket is held whole; the past comes in row groups."""
    held = [batch for batch in batches if batch.num_rows]
    if not held:
        return
    names = [column.split()[0] for column in schema.split(", ")]
    frame = pa.Table.from_batches(held).to_pandas()
    for bucket, lookups in frame.groupby("bucket"):
        for result in work(lookups, int(bucket)):
            columns = [result[name] for name in names]
            if len(columns[0]):
                types = [_TYPES[column.split()[1]] for column in schema.split(", ")]
                arrays = [pa.array(c, t) for c, t in zip(columns, types, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, names=names)


_TYPES = {"string": pa.string(), "bigint": pa.int64(), "boolean": pa.bool_()}


def _groups(
    paths: Paths, bucket: int, column: str, values: np.ndarray, columns: Sequence[str]
) -> Iterator[tuple[pd.DataFrame, str | None]]:
    """(rows of the bucket's files whose `column` is among the sorted `values`, part)."""
    for path, part in paths.get(bucket, []):
        with storage.open_read(path) as file:
            parquet = pq.ParquetFile(file)
            at = parquet.schema_arrow.get_field_index(column)
            for number in range(parquet.num_row_groups):
                range_ = parquet.metadata.row_group(number).column(at).statistics
                first = np.searchsorted(values, range_.min)
                if first == len(values) or values[first] > range_.max:
                    continue
                table = parquet.read_row_group(number, columns=[column])
                mask = np.isin(table.column(column).to_numpy(), values, assume_unique=False)
                if mask.any():
                    whole = parquet.read_row_group(number, columns=list(columns))
                    yield whole.filter(pa.array(mask)).to_pandas(), part


def _meet(lookups: pd.DataFrame, bucket: int, paths: Paths, most: int) -> Iterator[dict]:
    """`met` for one bucket of bands."""
    values = np.unique(lookups["band"].to_numpy())
    groups = _groups(paths, bucket, "band", values, ("band", "node", "split"))
    taken: dict[bool, dict[int, int]] = {True: {}, False: {}}
    """{are they training rows: {band: old rows so far}}"""
    mine = lookups[["id", "band"]]

    def batch(kind: str, rows: pd.DataFrame, *columns: str) -> dict:
        rows = rows[list(columns)].drop_duplicates()
        nothing = [None] * len(rows)
        of = {name: rows[name] if name in columns else nothing for name in ("id", "node", "band")}
        return {"kind": [kind] * len(rows), **of}

    for past, _ in groups:
        past = past.sort_values(["band", "node"])
        training = past["split"] == TRAIN
        for trains, old in ((True, past[training]), (False, past[~training])):
            before = taken[trains]
            place = old.groupby("band").cumcount() + old["band"].map(before).fillna(0)
            for band, count in old["band"].value_counts().items():
                before[band] = before.get(band, 0) + int(count)
            yield batch(PAIR, mine.merge(old[place < most], on="band"), "id", "node")
            rest = old[place >= most]
            asking = mine[mine["band"].isin(rest["band"])]
            if trains:
                yield batch(BEYOND, asking, "id", "band")
            else:
                yield batch(ASKS, asking, "id", "band")
                yield batch(HELD, rest, "band", "node")


def _compare(lookups: pd.DataFrame, bucket: int, paths: Paths, threshold: float) -> Iterator[dict]:
    """`compared` for one bucket of rows."""
    kind = lookups["kind"]
    values = np.unique(lookups["node"][kind != ASKS].to_numpy())
    columns = ("node", "id", "key", "label", "split", "cluster", "signature")
    mine = lookups[kind == PAIR].drop(columns=["kind", "bands"])
    held = lookups[kind == HELD].explode("bands")
    asking = _by_bands(lookups[kind == ASKS])
    for past, part in _groups(paths, bucket, "node", values, columns):
        pairs = mine.merge(past, on="node", suffixes=("", "_past"))
        exact = (pairs["key"] == pairs["key_past"]).to_numpy()
        near = exact.copy()
        signed = (pairs["signature"].notna() & pairs["signature_past"].notna()).to_numpy()
        if signed.any():
            ours, theirs = (_stacked(pairs.loc[signed, n]) for n in ("signature", "signature_past"))
            equal = (ours == theirs).sum(axis=1)
            near[signed] |= equal >= equal_entries(threshold, ours.shape[1])
        yield _hit(pairs[near], exact[near], part)
        for bands, rows in asking.items():
            asked_of = past[past["node"].isin(held.loc[held["bands"].isin(bands), "node"])]
            if len(asked_of):
                yield from _alike(rows, asked_of, threshold, part)


def _by_bands(asks: pd.DataFrame) -> dict[tuple[int, ...], pd.DataFrame]:
    """Rows that look up the same LSH buckets."""
    if asks.empty:
        return {}
    return dict(iter(asks.groupby(asks["bands"].map(lambda bands: tuple(sorted(bands))))))


def _alike(
    rows: pd.DataFrame, past: pd.DataFrame, threshold: float, part: str | None
) -> Iterator[dict]:
    """Hits of new rows among the old rows of a row group: a new one at a time with all of them."""
    theirs = _stacked(past["signature"])
    need = equal_entries(threshold, theirs.shape[1])
    past = past.rename(columns={n: f"{n}_past" for n in ("id", "key", "label", "signature")})
    for row in rows.itertuples():
        ours = np.frombuffer(row.signature, np.uint32)
        like = past[(theirs == ours).sum(axis=1) >= need].assign(id=row.id, label=row.label)
        yield _hit(like, (like["key_past"] == row.key).to_numpy(), part)


def _stacked(signatures: pd.Series) -> np.ndarray:
    """uint32[R, K] of R signatures."""
    return np.frombuffer(b"".join(signatures), np.uint32).reshape(len(signatures), -1)


def _hit(pairs: pd.DataFrame, exact: np.ndarray, part: str | None) -> dict:
    return {
        "id": pairs["id"], "label": pairs["label"], "exact": exact, "past": pairs["id_past"],
        "past_label": pairs["label_past"], "split": pairs["split"], "cluster": pairs["cluster"],
        "part": [part] * len(pairs),
    }  # fmt: skip
