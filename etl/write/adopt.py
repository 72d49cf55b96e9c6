"""Adopt TFRecords that another writer made: verify, strip padding, write as a dataset of ours.

The ids are taken as they are (no cleaning, no de-duplication: there is no text any more).
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from howdah import storage
from howdah.config.data import DataSection
from howdah.config.splits import SPLIT_WORDS, TRAIN
from howdah.data.encode import Encoder
from howdah.data.record import Columns, RecordLayout, decode_example, ids_dtype_for, read_frames
from howdah.errors import DataError
from howdah.etl.rows.split import split_of
from howdah.etl.sources.source import Source
from howdah.etl.workspace.scratch import local_table
from howdah.etl.write.shards import ids_type
from howdah.spark.errors import crossing

ADOPTED = (
    "id string, label string, split string, ids binary, length int, reason string, detail string"
)
_TYPES = {"string": pa.string(), "binary": pa.binary(), "int": pa.int32()}
_ARROW = pa.schema(
    [(name, _TYPES[kind]) for name, kind in (column.split() for column in ADOPTED.split(", "))]
)
_BATCH_ROWS = 2_000
_WORD = re.compile(r"[A-Za-z]+")


def split_of_name(path: str) -> str | None:
    """The split that a file's name (or its directory's) names, or None.

    >>> split_of_name("/data/train-00000-of-00004.tfrecord")
    'train'
    """
    for part in (storage.name(path), storage.name(storage.parent(path))):
        splits = {SPLIT_WORDS[w] for w in _WORD.findall(part.lower()) if w in SPLIT_WORDS}
        if len(splits) == 1:
            return splits.pop()
    return None


def splits_by_name(source: Source) -> dict[str, str] | None:
    """{path: split} where the file names have it; None where none does (split by hash then).

    Raises:
        DataError: some files name their split and some do not, or none is for training.
    """
    named = {entry.path: split_of_name(entry.path) for entry in source.files}
    if not any(named.values()):
        return None
    unnamed = sorted(path for path, split in named.items() if split is None)
    if unnamed or TRAIN not in named.values():
        raise DataError(
            "the file names do not give the splits of the records",
            where=source.name,
            expected="'train', 'validation' or 'test' in each name, or in none",
            got=", ".join(unnamed[:3]) if unnamed else "no file for training",
            remedy="rename the files, or give those of one kind by a pattern",
        )
    return {path: split for path, split in named.items() if split}


def read_records(
    spark: SparkSession,
    source: Source,
    data: DataSection,
    encoder: Encoder,
    names: dict[str, str] | None,
) -> DataFrame:
    """All records of the source as ADOPTED rows; `reason` is set where one cannot be taken.

    Args:
        names: {label number as text: label name}, or None where the numbers are the names.
    """
    splits = splits_by_name(source)
    if splits and data.split.fold is not None:
        raise DataError(
            "records whose file names give their splits cannot be divided into folds",
            where=source.name,
            expected="files without train, validation or test in their names",
            got=f"data.split.fold {data.split.fold}",
            remedy="rename the files, so that each record's key decides; or leave the fold out",
        )
    files = [
        (entry.path, splits[entry.path] if splits else None, _key_prefix(source, entry.path))
        for entry in source.files
    ]
    table = local_table(spark, files, "path string, split string, prefix string")
    work = partial(
        _read_batches, data=data, names=names, vocab_size=encoder.vocab_size, pad_id=encoder.pad_id
    )
    rows = table.repartition(len(files), "path").mapInArrow(crossing(work), ADOPTED)
    # A record that cannot be taken takes no key from one that can.
    order = (F.col("reason").isNotNull(), "ids", "label", "split", "reason", "detail")
    place = F.row_number().over(Window.partitionBy("id").orderBy(*order))
    rows = rows.withColumn("_n", place)
    again = F.col("_n") > 1
    numbered = F.concat("id", F.lit("#"), F.col("_n").cast("string"))
    rows = rows.withColumn("reason", F.coalesce("reason", F.when(again, "duplicate_id")))
    rows = rows.withColumn("id", F.when(again, numbered).otherwise(F.col("id")))
    return rows.drop("_n")


def _key_prefix(source: Source, path: str) -> str:
    if source.root and path.startswith(source.root):
        return path[len(source.root) :].lstrip("/")
    return storage.name(path)


def _frames(path: str) -> Iterator[tuple[int, bytes]]:
    """(offset, payload) of every record of a file, gzip or not: one record in memory at a time."""
    with storage.open_read(path) as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not packed:
            yield from read_frames(file, path)
            return
        try:
            yield from read_frames(gzip.GzipFile(fileobj=file), path)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(
                "a compressed shard is truncated or altered",
                where=path,
                got=str(error),
            ) from None


def _layout(data: DataSection, vocab_size: int) -> RecordLayout:
    return RecordLayout(
        ids_dtype=ids_dtype_for(vocab_size),
        columns=Columns(
            input_ids=data.tfrecord.input_ids,
            label=data.columns.label,
            length=None,
            id=data.columns.id,
            attention_mask=data.tfrecord.attention_mask,
        ),
    )


def _read_batches(
    batches: Iterable[pa.RecordBatch],
    data: DataSection,
    names: dict[str, str] | None,
    vocab_size: int,
    pad_id: int,
) -> Iterator[pa.RecordBatch]:
    layout = _layout(data, vocab_size)
    dtype = ids_type(vocab_size)
    for batch in batches:
        for item in batch.to_pylist():
            rows: list[tuple] = []
            for number, (offset, payload) in enumerate(_frames(item["path"])):
                where = f"{item['path']}, offset {offset}"
                example = decode_example(payload, layout, where=where)
                ids = example.input_ids
                if data.tfrecord.attention_mask is None:
                    real = np.flatnonzero(ids != pad_id)
                    ids = ids[: real[-1] + 1 if len(real) else 0]  # without padding
                _check(ids, vocab_size, data.max_length, where)
                row_id = _row_id(example.id, where) or f"{item['prefix']}:{number}"
                label = names.get(str(example.label)) if names else str(example.label)
                reason = detail = None
                if not len(ids):
                    reason = "empty"
                elif label is None or example.label < 0:
                    reason, detail = "bad_label", str(example.label)
                split = item["split"] or split_of(row_id, data.split)
                packed = ids.astype(dtype).tobytes()
                name = label or str(example.label)
                rows.append((row_id, name, split, packed, len(ids), reason, detail))
                if len(rows) == _BATCH_ROWS:
                    yield _batch(rows)
                    rows = []
            if rows:
                yield _batch(rows)


def _check(ids: np.ndarray, vocab_size: int, max_length: int, where: str) -> None:
    if len(ids) and (ids.min() < 0 or ids.max() >= vocab_size):
        bad = ids[(ids < 0) | (ids >= vocab_size)][0]
        raise DataError(
            "a record holds a token id that the tokenizer does not have",
            where=where,
            expected=f"ids from 0 to {vocab_size - 1}",
            got=str(int(bad)),
            remedy="set model.base to the model whose tokenizer made the records",
        )
    if len(ids) > max_length:
        raise DataError(
            "a record is longer than data.max_length",
            where=where,
            expected=f"at most {max_length} tokens",
            got=f"{len(ids)} tokens",
            remedy="raise data.max_length",
        )


def _row_id(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(
            "a record's id is not UTF-8",
            where=where,
            remedy="leave data.columns.id out: ids are made from the file's name then",
        ) from None


def _batch(rows: list[tuple]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, item.type) for values, item in zip(columns, _ARROW, strict=True)],
        schema=_ARROW,
    )
