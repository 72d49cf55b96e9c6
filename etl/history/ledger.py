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
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from etl.rows.minhash import band_keys, equal_entries, signatures
from etl.workspace import credentials
from etl.workspace.staging import LEDGER, attempt_name
from howdah import storage
from howdah.config.data import DedupOptions
from howdah.data.manifest import LedgerFile
from howdah.spark.errors import crossing

ROWS, BANDS = "rows", "bands"
_VALUE = {ROWS: "node", BANDS: "band"}
_GROUP_ROWS = {ROWS: 2_048, BANDS: 65_536}
"""Rows of a row group, the least that is read: about a mebibyte of either kind."""
_SIGNED = "node bigint, signature binary, bands array<bigint>"
_WRITTEN = "bucket int, name string, rows bigint, bytes bigint"
_MET = "id string, node bigint, loose string"
HITS = (
    "id string, exact boolean, past string, past_label string, split string, cluster string,"
    " part string"
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
            made = signatures(
                batch.column("text").to_pylist(), options.ngram, options.num_permutations
            )
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
    secrets: credentials.Secrets | None,
) -> list[LedgerFile]:
    """Write the ledger of new rows into a version directory; the manifest will list the files.

    Args:
        rows: of `signed`: id, key, label, split, cluster, node, signature, bands.
    """
    kinds = {
        ROWS: rows.select("node", "id", "key", "label", "split", "cluster", "signature"),
        BANDS: rows.select(F.explode("bands").alias("band"), "node", "split"),
    }
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
    rows: DataFrame, paths: Paths, *, buckets: int, most: int, secrets: credentials.Secrets | None
) -> DataFrame:
    """(id, node, loose): old rows (`node`) in the LSH buckets of new ones.

    An LSH bucket with more than `most` old rows gives the first `most`. The others are not
    compared: their splits come as `loose`, a row each, without node.

    Args:
        rows: of `signed`.
        paths: files of kind bands.
    """
    wanted = rows.select("id", F.explode("bands").alias("band"))
    return _looked_up(
        wanted, "band", partial(_meet, paths=paths, most=most), _MET, buckets, secrets
    )


def compared(
    wanted: DataFrame,
    paths: Paths,
    *,
    buckets: int,
    options: DedupOptions,
    secrets: credentials.Secrets | None,
) -> DataFrame:
    """HITS: old rows of the same text as new ones, or like them.

    Args:
        wanted: id, key and signature of new rows, with the `node` of an old row each.
        paths: files of kind rows.
    """
    work = partial(_compare, paths=paths, threshold=options.threshold)
    return _looked_up(wanted, "node", work, HITS, buckets, secrets)


def _looked_up(
    wanted: DataFrame,
    value: str,
    work: Callable[..., Iterator],
    schema: str,
    buckets: int,
    secrets: credentials.Secrets | None,
) -> DataFrame:
    placed = wanted.withColumn("bucket", _bucket(value, buckets)).repartition(buckets, "bucket")
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
    for bucket, wanted in frame.groupby("bucket"):
        for found in work(wanted, int(bucket)):
            columns = [found[name] for name in names]
            if len(columns[0]):
                types = [_TYPES[column.split()[1]] for column in schema.split(", ")]
                arrays = [pa.array(c, t) for c, t in zip(columns, types, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, names=names)


_TYPES = {"string": pa.string(), "bigint": pa.int64(), "boolean": pa.bool_()}


def _groups(
    paths: Paths, bucket: int, column: str, wanted: np.ndarray, columns: Sequence[str]
) -> Iterator[tuple[pd.DataFrame, str | None]]:
    """(rows of the bucket's files whose `column` is among the sorted values `wanted`, part)."""
    for path, part in paths.get(bucket, []):
        with storage.open_read(path) as file:
            parquet = pq.ParquetFile(file)
            at = parquet.schema_arrow.get_field_index(column)
            for number in range(parquet.num_row_groups):
                range_ = parquet.metadata.row_group(number).column(at).statistics
                first = np.searchsorted(wanted, range_.min)
                if first == len(wanted) or wanted[first] > range_.max:
                    continue
                table = parquet.read_row_group(number, columns=[column])
                mask = np.isin(table.column(column).to_numpy(), wanted, assume_unique=False)
                if mask.any():
                    whole = parquet.read_row_group(number, columns=list(columns))
                    yield whole.filter(pa.array(mask)).to_pandas(), part


def _meet(wanted: pd.DataFrame, bucket: int, paths: Paths, most: int) -> Iterator[dict]:
    """Of one bucket of bands."""
    values = np.unique(wanted["band"].to_numpy())
    groups = _groups(paths, bucket, "band", values, ("band", "node", "split"))
    taken = {}  # band -> old rows so far
    mine = wanted[["id", "band"]]
    for past, _ in groups:
        past = past.sort_values(["band", "node"])
        place = past.groupby("band").cumcount() + past["band"].map(taken).fillna(0)
        for band, count in past["band"].value_counts().items():
            taken[band] = taken.get(band, 0) + int(count)
        close = mine.merge(past[place < most], on="band")[["id", "node"]].drop_duplicates()
        yield {"id": close["id"], "node": close["node"], "loose": [None] * len(close)}
        beyond = past[place >= most][["band", "split"]].drop_duplicates()
        loose = mine.merge(beyond, on="band")[["id", "split"]].drop_duplicates()
        yield {"id": loose["id"], "node": [None] * len(loose), "loose": loose["split"]}


def _compare(wanted: pd.DataFrame, bucket: int, paths: Paths, threshold: float) -> Iterator[dict]:
    """Of one bucket of rows."""
    values = np.unique(wanted["node"].to_numpy())
    columns = ("node", "id", "key", "label", "split", "cluster", "signature")
    for past, part in _groups(paths, bucket, "node", values, columns):
        pairs = wanted.merge(past, on="node", suffixes=("", "_past"))
        exact = (pairs["key"] == pairs["key_past"]).to_numpy()
        near = exact.copy()
        signed = (pairs["signature"].notna() & pairs["signature_past"].notna()).to_numpy()
        if signed.any():
            ours, theirs = (
                np.frombuffer(b"".join(pairs.loc[signed, name]), np.uint32).reshape(
                    int(signed.sum()), -1
                )
                for name in ("signature", "signature_past")
            )
            equal = (ours == theirs).sum(axis=1)
            near[signed] |= equal >= equal_entries(threshold, ours.shape[1])
        hit: Any = pairs[near]
        yield {
            "id": hit["id"], "exact": exact[near], "past": hit["id_past"],
            "past_label": hit["label"], "split": hit["split"], "cluster": hit["cluster"],
            "part": [part] * len(hit),
        }  # fmt: skip
