"""Files outside dataset versions: Howdah rewrites its own, and lists all others.

    Parquet with a column of ids    a row whose id is to be forgotten is left out; in a table of
                                    rejected rows also the id that `detail` names
    report.html                     the page shows texts beside ids: it is removed if a card of it
                                    shows such a row, and `howdah report` makes it again
    done.json                       the example of an error in the marker of a scored partition

Every other file that may name a row is `Listed` and neither read nor changed: how another program
writes ids is not known, and a guess would change files that have none, or miss some.
"""

from __future__ import annotations

import contextlib
import html
import io
import json
import re
import shlex
from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from howdah import storage
from howdah.etl.history.mentions import GONE, Targets
from howdah.models.registry import EXPORT_INFO
from howdah.models.scored import MARKER
from howdah.run_files import REPORT

_WITHOUT = (
    ".safetensors", ".index", ".ids", ".png", ".svg", ".crc", ".onnx", ".pb", ".npz", ".npy",
    ".yaml", ".yml", ".css", ".js", ".py", ".toml", ".pid", ".lock",
)  # fmt: skip
"""Weights, plots, indexes of hashes, configuration, code: no writer puts a row's id there."""
_NAMES = (
    EXPORT_INFO, "metrics.jsonl", "study.journal", "_SUCCESS", "tokenizer.json", "vocab.txt",
)  # fmt: skip
"""Files of runs, exports and studies that hold numbers and words, and no rows."""
_EVENTS = "events.out.tfevents"
_WHY = (
    ((".csv", ".tsv"), "a table that Howdah does not rewrite may have the rows"),
    ((".jsonl", ".ndjson", ".json"), "its objects may be the rows, and its texts may name them"),
    ((".html", ".htm"), "a page may show the rows"),
    ((".log", ".out", ".err", ".txt"), "a line of a log or text may name the rows"),
    ((".orc", ".avro"), "a table that Howdah does not rewrite may have the rows"),
)
_CARD = re.compile(r'<div class="id">[^<]*<code>(.*?)</code>', re.DOTALL)
_REJECTED = {"id", "text", "label", "reason", "detail"}


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A file that a person must look at: it may name the rows, and was not searched for them."""

    why: str
    """Why it may name the rows."""
    look: str
    """How to look: a command, in which IDS stands for the file of ids, or a sentence."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a file has of the rows."""

    count: int = 0
    data: bytes | None = None
    """The file without the rows, if it has some; None: it is removed."""
    listed: Listed | None = None


def judge(
    path: str, targets: Targets, columns: Collection[str], *, rewrite: bool = False
) -> Judged:
    """Count the rows in a file of a format of Howdah's; list any other file.

    Args:
        columns: names of columns that hold ids.
        rewrite: compute `data` too.
    """
    name = storage.name(path)
    if name.lower().endswith(_WITHOUT) or name in _NAMES or name.startswith(_EVENTS):
        return Judged()
    if name == REPORT:
        cards = _CARD.findall(storage.read_bytes(path).decode("utf-8", "replace"))
        return Judged(count=sum(targets.has_as_shown(html.unescape(one)) for one in cards))
    if name == MARKER:
        return _marker(path, targets)
    if name.lower().endswith(".parquet") or _begins_as_parquet(path):
        return _parquet(path, targets, columns, rewrite)
    return Judged(listed=listed(path))


def _begins_as_parquet(path: str) -> bool:
    with storage.open_read(path) as file:  # Hive names its files 000000_0
        return file.read(4) == b"PAR1"


def listed(path: str) -> Listed:
    """Why a file of another writer may name the rows, and how to look, by its name."""
    name = storage.name(path).lower()
    packed = name.endswith((".gz", ".bz2", ".zst", ".xz"))
    stem = name.rpartition(".")[0] if packed else name
    quoted = shlex.quote(path)
    why = next((why for ends, why in _WHY if stem.endswith(ends)), None)
    if stem.endswith((".orc", ".avro")):
        look = "filter its rows with Spark, or remove it"
    elif packed:
        look = f"fetch and unpack {quoted}, then grep -nF -f IDS"
    elif storage.is_local(path):
        look = f"grep -nF -f IDS {shlex.quote(storage.local_path(path))}"
    elif path.startswith(("hdfs://", "webhdfs://", "swebhdfs://", "viewfs://")):
        look = f"hdfs dfs -cat {quoted} | grep -nF -f IDS"
    else:
        look = f"fetch {quoted}, then grep -nF -f IDS"
    return Listed(why=why or "Howdah does not know what the file holds", look=look)


def _marker(path: str, targets: Targets) -> Judged:
    try:
        marker = json.loads(storage.read_bytes(path))
        reasons = [one for one in marker["reasons"] if targets.has_value(one.get("example"))]
    except (ValueError, TypeError, KeyError, AttributeError):
        return Judged(listed=listed(path))  # the same name, and not a marker
    for one in reasons:
        one["example"] = GONE
    data = (json.dumps(marker, indent=1, ensure_ascii=False) + "\n").encode()
    return Judged(count=len(reasons), data=data)


# -------------------------------------------------------------------------------------- Parquet
_KEEPS_INT96 = 23  # the first pyarrow that reads times before 1970 rightly in microseconds


def _parquet(path: str, targets: Targets, columns: Collection[str], rewrite: bool) -> Judged:
    try:
        # Spark's times are INT96 by default. In nanoseconds, as Arrow reads them otherwise, Spark
        # would not read them again, and the year 9999 would become another one.
        file = pq.ParquetFile(
            io.BytesIO(storage.read_bytes(path)), coerce_int96_timestamp_unit="us"
        )
        if not set(columns) & set(file.schema_arrow.names):
            why = f"its rows have no column {', '.join(sorted(columns))}"
            look = "name its column of ids by --id-column; or filter its rows with Spark"
            return Judged(listed=Listed(why=why, look=look))
        if _has_int96(file) and int(pa.__version__.partition(".")[0]) < _KEEPS_INT96:
            why = f"pyarrow {pa.__version__} reads some of its times (INT96) as others"
            return Judged(listed=Listed(why=why, look=f"install pyarrow {_KEEPS_INT96} or later"))
        count, out = 0, io.BytesIO()
        with contextlib.ExitStack() as stack:
            writer = stack.enter_context(_writer(out, file)) if rewrite else None
            for number in range(file.num_row_groups):
                table, removed = _without(file.read_row_group(number), targets, columns)
                count += removed
                if writer is not None:
                    writer.write_table(table)
    except (pa.ArrowException, OSError, ArithmeticError, LookupError, ValueError) as error:
        why = f"its rows cannot be read: not a complete Parquet file ({error})"
        return Judged(listed=Listed(why=why, look="restore it and run this again, or remove it"))
    return Judged(count=count, data=out.getvalue())


def _writer(out: io.BytesIO, file: pq.ParquetFile) -> pq.ParquetWriter:
    """Open a Parquet writer with the schema, codec and type of times of `file`."""
    groups = file.metadata.num_row_groups and file.metadata.num_columns
    codec = file.metadata.row_group(0).column(0).compression if groups else "SNAPPY"
    codec = {"UNCOMPRESSED": "none"}.get(codec, codec)
    return pq.ParquetWriter(
        out, file.schema_arrow, compression=codec,
        use_deprecated_int96_timestamps=_has_int96(file),
    )  # fmt: skip


def _has_int96(file: pq.ParquetFile) -> bool:
    return any(column.physical_type == "INT96" for column in file.schema)


def _without(table: pa.Table, targets: Targets, columns: Collection[str]) -> tuple[pa.Table, int]:
    """The table without the rows, and how many were removed; a rejected row that names one of them
    in `detail` stays without that name, and counts too."""
    rejected = set(table.schema.names) >= _REJECTED
    stays = [True] * table.num_rows
    for at, name in enumerate(table.schema.names):
        if name in columns:
            values = table.column(at).to_pylist()
            if rejected and name == "id":
                reasons = table.column("reason").to_pylist()
                gone = map(targets.has_rejected, values, reasons)
            else:
                gone = map(targets.has_value, values)
            stays = [kept and not one for kept, one in zip(stays, gone, strict=True)]
    count = stays.count(False)
    if count:
        table = table.filter(pa.array(stays, pa.bool_()))
    if rejected:
        at = table.schema.get_field_index("detail")
        old = table.column(at).to_pylist()
        new = [targets.without_detail(value) for value in old]
        if differ := sum(one != other for one, other in zip(old, new, strict=True)):
            count += differ
            field = table.schema.field(at)
            table = table.set_column(at, field, pa.array(new, field.type))
    return table, count


def read_table(path: str, columns: list[str] | None = None) -> pa.Table:
    """A Parquet file of the ETL's."""
    with storage.open_read(path) as file:
        # Threads that read ahead may outlive the interpreter, which then aborts.
        return pq.read_table(pa.PythonFile(file, "r"), columns=columns, pre_buffer=False)


def without_rejected(table: pa.Table, targets: Targets) -> tuple[pa.Table, int]:
    """A table of rejected rows without the rows, and how many rows and names were removed."""
    return _without(table, targets, ("id",))
