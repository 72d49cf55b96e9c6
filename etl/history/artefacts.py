"""Files outside dataset versions: where each kind of file has ids, and the file without the rows.

    Parquet                columns of ids: the row; of a table of rejected rows also `detail`
    CSV, TSV               the column of ids that its header names: the record
    JSON lines, a list     the key of ids: the object
    done.json              `reasons[].example` of a scored partition: the id is replaced
    page with cards        <code>id</code> of a card of `howdah report`: the page goes, since the
                           text stands beside the id; `howdah report` makes it again
    any other text         ids that cannot be anything else (mentions.py): replaced; these also in
                           the other cells of tables and the texts in JSON

Rows and lines that stay keep their bytes. gzip is unpacked. A file whose ids cannot be found by its
structure is not guessed at: it is `Unread`, with what to do.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import html
import io
import json
import re
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from howdah import storage
from howdah.etl.history.mentions import GONE, Wanted
from howdah.models.scored import MARKER

_WITHOUT = (
    ".safetensors", ".index", ".ids", ".png", ".svg", ".crc", ".onnx", ".pb", ".npz", ".npy",
    ".yaml", ".yml", ".css", ".js", ".py", ".toml", ".pid", ".lock",
)  # fmt: skip
"""No row's id stands in them: weights, plots, indexes of hashes, configuration, code."""
_NAMES = ("metrics.jsonl", "study.journal", "_SUCCESS", "tokenizer.json", "vocab.txt")
"""Ours as well; a number in them is none of a row, and a word none either."""
_EVENTS = "events.out.tfevents"
_TABLES = {b"ORC": "ORC", b"Obj\x01": "Avro"}
_CARD = re.compile(r'<div class="id">[^<]*<code>(.*?)</code>', re.DOTALL)
_REJECTED = {"id", "text", "label", "reason", "detail"}
_DELIMITERS = ",\t;|"


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A file in which ids could not be looked for, or not all of them."""

    why: str
    remedy: str
    stops: bool
    """Rows are to be expected in it: nothing is changed while it is there."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a file has of the rows."""

    count: int = 0
    """Rows, or mentions in a text."""
    data: bytes | None = None
    """The file without them, if there were any; None: it is to be removed."""
    unread: Unread | None = None


class _Broken(Exception):
    """The file is not what its name says: why."""


def judge(
    path: str, wanted: Wanted, columns: Collection[str], *, given: bool, rewrite: bool = False
) -> Judged:
    """Look for rows in a file.

    Args:
        rewrite: `data` is asked for.
        columns: names of columns and keys that hold ids.
        given: it is a table of rows, or in a directory of such, as the user says: one without a
            column of ids stops everything.
    """
    name = storage.name(path)
    if name.lower().endswith(_WITHOUT) or name in _NAMES or name.startswith(_EVENTS):
        return Judged()
    data = storage.read_bytes(path)
    packed = data[:2] == b"\x1f\x8b"
    try:
        if packed:
            data, name = _unpacked(data), re.sub(r"(?i)\.gz(ip)?$", "", name)
        if data[:4] == b"PAR1" or name.lower().endswith(".parquet"):
            return _parquet(data, wanted, columns, given, rewrite)
        found = _judge(name.lower(), data, wanted, columns, given)
    except _Broken as broken:
        remedy = "restore it, or remove it" if packed else "correct it, or remove it"
        return Judged(unread=Unread(why=str(broken), remedy=remedy, stops=True))
    if packed and found.data is not None:
        return replace(found, data=gzip.compress(found.data, mtime=0))
    return found


def _unpacked(data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _Broken(f"it cannot be unpacked ({error})") from None


def _judge(name: str, data: bytes, wanted: Wanted, columns: Collection[str], given: bool) -> Judged:
    for magic, form in _TABLES.items():
        if data.startswith(magic):
            remedy = "write it as Parquet (Spark), and remove it; or leave it out of --files"
            return Judged(unread=Unread(why=f"{form} is not rewritten", remedy=remedy, stops=True))
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return _other(name, given)
    if not text.strip():
        return Judged()
    if "\0" in text:
        return _other(name, given)
    if name.endswith((".csv", ".tsv")):
        return _csv(text, wanted, columns, given)
    if name.endswith((".jsonl", ".ndjson", ".json")):
        return _json(name, text, wanted, columns, given)
    return _text(text, wanted)


def _other(name: str, given: bool) -> Judged:
    why = "it is no text in UTF-8, nor Parquet"
    table = name.endswith((".csv", ".tsv", ".json", ".jsonl", ".ndjson"))
    remedy = "write it in UTF-8, or remove it" if table else "remove it if it has rows' data"
    return Judged(unread=Unread(why=why, remedy=remedy, stops=given or table))


def _no_ids(columns: Collection[str], given: bool) -> Unread:
    return Unread(
        why=f"it has no column {', '.join(sorted(columns))}",
        remedy="name its column of ids by --id-column; or remove it, if it has rows' data",
        stops=given,
    )


# -------------------------------------------------------------------------------------- Parquet
def _parquet(
    data: bytes, wanted: Wanted, columns: Collection[str], given: bool, rewrite: bool
) -> Judged:
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        schema = file.schema_arrow
        count, out = 0, io.BytesIO()
        with contextlib.ExitStack() as stack:
            writer = stack.enter_context(_writer(out, file)) if rewrite else None
            for number in range(file.num_row_groups):
                table, own = _table(file.read_row_group(number), wanted, columns)
                count += own
                if writer is not None:
                    writer.write_table(table)
    except (pa.ArrowException, OSError) as error:
        raise _Broken(f"it is no whole Parquet file ({error})") from None
    known = any(name in columns for name in schema.names)
    return Judged(
        count=count,
        data=out.getvalue() if count else None,
        unread=None if known else _no_ids(columns, given),
    )


def _writer(out: io.BytesIO, file: pq.ParquetFile) -> pq.ParquetWriter:
    """... of another file like this one."""
    groups = file.metadata.num_row_groups and file.metadata.num_columns
    codec = file.metadata.row_group(0).column(0).compression if groups else "SNAPPY"
    codec = {"UNCOMPRESSED": "none"}.get(codec, codec)
    return pq.ParquetWriter(out, file.schema_arrow, compression=codec)


def _table(table: pa.Table, wanted: Wanted, columns: Collection[str]) -> tuple[pa.Table, int]:
    """The table without the rows and mentions, and how many those were."""
    rejected = set(table.schema.names) >= _REJECTED
    stays = [True] * table.num_rows
    for at, name in enumerate(table.schema.names):
        if name in columns:
            values = table.column(at).to_pylist()
            if rejected and name == "id":
                reasons = table.column("reason").to_pylist()
                gone = map(wanted.has_rejected, values, reasons)
            else:
                gone = map(wanted.has_value, values)
            stays = [kept and not one for kept, one in zip(stays, gone, strict=True)]
    count = stays.count(False)
    if count:
        table = table.filter(pa.array(stays, pa.bool_()))
    for at, name in enumerate(table.schema.names):
        kind = table.schema.types[at]
        if name in columns or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            continue
        changes = [wanted.without_detail] if rejected and name == "detail" else []
        old = table.column(at).to_pylist()
        new = [_changed(value, wanted, changes) for value in old]
        differ = sum(one != other for one, other in zip(old, new, strict=True))
        if differ:
            count += differ
            table = table.set_column(at, table.schema.field(at), pa.array(new, kind))
    return table, count


def _changed(
    value: str | None, wanted: Wanted, changes: list[Callable[[str | None], str | None]]
) -> str | None:
    for change in changes:
        value = change(value)
    return value and wanted.without_mentions(value)[0]


def without_rejected(table: pa.Table, wanted: Wanted) -> tuple[pa.Table, int]:
    """A table of rejected rows without the rows and mentions, and how many those were."""
    return _table(table, wanted, ("id",))


# ------------------------------------------------------------------------------------------ CSV
def _csv(text: str, wanted: Wanted, columns: Collection[str], given: bool) -> Judged:
    delimiter, places = next(
        (
            (delimiter, places)
            for delimiter in _DELIMITERS
            if (places := [n for n, cell in enumerate(_header(text, delimiter)) if cell in columns])
        ),
        (",", []),
    )
    if not places:
        return replace(_text(text, wanted, all_ids=True), unread=_no_ids(columns, given))
    out, count, width = [], 0, None
    for number, (raw, cells) in enumerate(_records(text, delimiter)):
        width = len(cells) if width is None else width
        if cells and len(cells) != width:
            raise _Broken(
                f"record {number + 1:,} has {len(cells)} fields, the header {width}: it is no CSV"
                ' with quotes "'
            )
        if number and cells and any(wanted.has(cells[n].strip()) for n in places):
            count += 1
            continue
        others = [(n, cell) for n, cell in enumerate(cells) if n not in places]
        if any(next(wanted.mentions(cell), None) for _, cell in others):
            for n, cell in others:
                cells[n], own = wanted.without_mentions(cell)
                count += own
            raw = _record(cells, delimiter, raw)
        out.append(raw)
    return Judged(count=count, data="".join(out).encode() if count else None)


def _header(text: str, delimiter: str) -> list[str]:
    first = next(_records(text.removeprefix("\ufeff"), delimiter), ("", []))
    return [cell.strip() for cell in first[1]]


def _records(text: str, delimiter: str) -> Iterator[tuple[str, list[str]]]:
    """(its bytes as text, its cells) of each record."""
    taken: list[str] = []

    def lines() -> Iterator[str]:
        for line in io.StringIO(text, newline=""):
            taken.append(line)
            yield line

    reader = csv.reader(lines(), delimiter=delimiter)
    before = csv.field_size_limit(2**31 - 1)
    try:
        for cells in reader:
            yield "".join(taken), cells
            taken.clear()
    except csv.Error as error:
        raise _Broken(f"it is no CSV ({error})") from None
    finally:
        csv.field_size_limit(before)


def _record(cells: list[str], delimiter: str, raw: str) -> str:
    end = raw[len(raw.rstrip("\r\n")) :]
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=delimiter, lineterminator=end).writerow(cells)
    return out.getvalue()


# ----------------------------------------------------------------------------------------- JSON
def _json(name: str, text: str, wanted: Wanted, columns: Collection[str], given: bool) -> Judged:
    if not name.endswith(".json") or name.startswith("part-"):  # that one is Spark's
        return _json_lines(text, wanted, columns, given)
    try:
        value = json.loads(text)
    except ValueError:
        return _json_lines(text, wanted, columns, given)
    count, unread = 0, None
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        if not any(isinstance(one, dict) and set(columns) & set(one) for one in value):
            unread = _no_ids(columns, given)
        kept = [one for one in value if not _is_row(one, wanted, columns)]
        count, value = len(value) - len(kept), kept
    if name == MARKER and isinstance(value, dict) and isinstance(value.get("reasons"), list):
        for one in value["reasons"]:
            if isinstance(one, dict) and wanted.has_value(one.get("example")):
                one["example"], count = GONE, count + 1
    value, mentioned = _in_json(value, wanted)
    count += mentioned
    indent = 1 if "\n" in text.strip() else None
    data = (json.dumps(value, indent=indent, ensure_ascii=False) + "\n").encode()
    return Judged(count=count, data=data if count else None, unread=unread)


def _json_lines(text: str, wanted: Wanted, columns: Collection[str], given: bool) -> Judged:
    out, count, known, broken = [], 0, False, 0
    for number, line in enumerate(io.StringIO(text, newline="\n")):
        try:
            value = json.loads(line) if line.strip() else None
        except ValueError:
            broken = broken or number + 1
            value = None
        known = known or (isinstance(value, dict) and bool(set(columns) & set(value)))
        if _is_row(value, wanted, columns):
            count += 1
            continue
        changed, own = _in_json(value, wanted)
        if own:
            count += own
            line = json.dumps(changed, ensure_ascii=False) + "\n"
        out.append(line)
    if broken and (known or given):
        raise _Broken(f"line {broken:,} is no JSON")
    if broken:
        return _text(text, wanted)
    unread = None if known else _no_ids(columns, given)
    return Judged(count=count, data="".join(out).encode() if count else None, unread=unread)


def _is_row(value: Any, wanted: Wanted, columns: Collection[str]) -> bool:
    return isinstance(value, dict) and any(wanted.has_value(value.get(name)) for name in columns)


def _in_json(value: Any, wanted: Wanted) -> tuple[Any, int]:
    """The value with mentions in its texts replaced, and how many there were; numbers stay."""
    if isinstance(value, str):
        return wanted.without_mentions(value)
    if isinstance(value, list):
        found = [_in_json(one, wanted) for one in value]
        return [one for one, _ in found], sum(count for _, count in found)
    if isinstance(value, dict):
        held = {key: _in_json(one, wanted) for key, one in value.items()}
        return {k: one for k, (one, _) in held.items()}, sum(n for _, n in held.values())
    return value, 0


# ---------------------------------------------------------------------------------------- texts
def _text(text: str, wanted: Wanted, *, all_ids: bool = False) -> Judged:
    cards = [one for one in _CARD.findall(text) if wanted.has_shown(html.unescape(one))]
    if cards:
        return Judged(count=len(cards))
    found, count = wanted.without_mentions(text)
    unread = None
    if wanted.vague and not all_ids and _CARD.search(text) is None:
        unread = Unread(
            why=f"of {wanted.vague:,} ids a mention in a text looks like another number or word",
            remedy="remove it if it has rows' data",
            stops=False,
        )
    return Judged(count=count, data=found.encode() if count else None, unread=unread)
