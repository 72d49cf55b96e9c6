"""What the files of a source say of their columns, read by threads on the driver.

Spark starts a job for the header of each CSV file, and takes the columns of Parquet, ORC and Avro
files from one of them: the others' columns become nulls where they are named otherwise.
"""

from __future__ import annotations

import csv
import json
import re
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from etl.sources.source import Kind, Source
from howdah import storage
from howdah.config.data import Columns, CsvOptions
from howdah.data.csv_quotes import COMPRESSED
from howdah.errors import DataError
from howdah.storage import Entry

_THREADS = 16
_MOST_FOOTERS = 1_000
_FIRST_LINE_BYTES = 64 * 2**10
_MOST_HEADER_BYTES = 16 * 2**20

Result = TypeVar("Result")


def _of_each(files: Sequence[Entry], work: Callable[[Entry], Result]) -> list[Result]:
    with ThreadPoolExecutor(min(_THREADS, len(files)), thread_name_prefix="howdah-headers") as pool:
        return list(pool.map(work, files))


# ---------------------------------------------------------------------------------------- CSV
def unlike_the_first(files: Sequence[Entry], options: CsvOptions, delimiter: str) -> list[Entry]:
    """The CSV files of which it is not certain that Spark reads the first file's columns.

    With a header: those whose first line is not the same. Without: those whose first line has not
    as many fields. And all that cannot be judged by one line: fields with line breaks, a first line
    that is empty or very long, a compression that only Spark reads.
    """
    if len(files) == 1:
        return []
    lines = _of_each(files, lambda entry: _first_line(entry, options.encoding))
    first = _judged(lines[0], options, delimiter)
    if first is None:
        return list(files[1:])
    return [
        entry
        for entry, line in zip(files[1:], lines[1:], strict=True)
        if _judged(line, options, delimiter) != first
    ]


def _first_line(entry: Entry, encoding: str) -> str | None:
    """Without its end; None where it is not to be had."""
    name = entry.name.lower()
    opened = next((how for end, how in COMPRESSED.items() if name.endswith(end)), None)
    try:
        with storage.open_read(entry.path) as raw:
            if opened is None:
                begin = raw.read(_FIRST_LINE_BYTES)
            else:
                with opened(raw) as file:
                    begin = file.read(_FIRST_LINE_BYTES)
        text = begin.decode(encoding, "ignore")  # the last character may be cut
    except (OSError, EOFError, LookupError, zlib.error):
        return None  # Spark's own message names the file
    line = re.split("[\r\n]", text, maxsplit=1)
    if len(line) == 1 and len(begin) == _FIRST_LINE_BYTES:
        return None
    return line[0].removeprefix("\ufeff")


def _judged(line: str | None, options: CsvOptions, delimiter: str) -> str | int | None:
    """What must be the same for the same columns; None: that is not known."""
    if not line or not line.strip() or (options.quote and line.count(options.quote) % 2):
        return None
    if options.header:
        return line
    if options.escape or len(delimiter) != 1 or len(options.quote) > 1:
        return None
    quoting = csv.QUOTE_MINIMAL if options.quote else csv.QUOTE_NONE
    fields = csv.reader(
        [line], delimiter=delimiter, quotechar=options.quote or None, quoting=quoting
    )
    return len(next(fields))


# --------------------------------------------------------------------------- Parquet, ORC, Avro
_NAMES = {"parquet": "Parquet", "orc": "ORC", "avro": "Avro"}


def check_columns(source: Source, columns: Columns) -> None:
    """Refuse Parquet, ORC or Avro files that do not have the mapped columns in one type each.

    A column that no file has is not refused here: it may be a partition directory's. Of more than
    1,000 files every n-th is read.

    Raises:
        DataError: the column, and a file of each kind; or a file of another format.
    """
    import pyarrow as pa

    files, name_of_kind = source.files, _NAMES[source.kind]
    step = -(-len(files) // _MOST_FOOTERS)
    read = files[::step]
    schemas: list[Any] = _of_each(read, lambda entry: _schema(entry, source.kind))
    wanted = [(f"data.columns.text: {name}", name) for name in columns.text]
    wanted += [(f"data.columns.text_pair: {name}", name) for name in columns.text_pair or ()]
    wanted.append((f"data.columns.label: {columns.label}", columns.label))
    if columns.id is not None:
        wanted.append((f"data.columns.id: {columns.id}", columns.id))
    for where, name in wanted:
        kinds: dict[Any, Entry] = {}
        for entry, schema in zip(read, schemas, strict=True):
            kinds.setdefault(_plain(_type_of(schema, name), pa), entry)
        if len(kinds) > 1:
            (first, file), (other, different), *_ = kinds.items()
            raise DataError(
                f"the {name_of_kind} files do not have the same columns",
                where=f"{where}, in {different.path}",
                expected=f"{first or 'no such column'}, as in {file.path}",
                got=str(other) if other else f"columns {_names(schemas[read.index(different)])}",
                remedy="give files of one kind, or name them by a narrower pattern",
            )


def _names(schema: Any) -> str:
    names = ", ".join(schema.names[:20])
    return names if len(schema.names) <= 20 else f"{names}, ..."


def _schema(entry: Entry, kind: Kind) -> Any:
    """A file's columns, as a pyarrow schema."""
    import pyarrow as pa

    try:
        with storage.open_read(entry.path) as file:
            if kind == "parquet":
                import pyarrow.parquet as pq

                return pq.read_schema(file)
            if kind == "orc":
                import pyarrow.orc

                return pyarrow.orc.ORCFile(pa.PythonFile(file, "r")).schema
            return _avro(file)
    except (pa.ArrowException, OSError, EOFError, ValueError, KeyError) as error:
        said = str(error) or type(error).__name__
        raise DataError(
            f"a file of the source is no {_NAMES[kind]} file",
            where=entry.path,
            got=said.splitlines()[0][:200],
            remedy="remove it, name the files by a narrower pattern, or set data.format",
        ) from None


_AVRO_TEXTS = {"string": "string", "bytes": "binary", "int": "int32", "long": "int64",
               "float": "float", "double": "double", "boolean": "bool_"}  # fmt: skip


def _avro(file: Any) -> Any:
    """The writer's schema in the header of an Avro file (Avro 1.12, "Object Container Files").

    Of types only what tells columns apart is kept: null in a union is not, nor is a logical type.
    """
    if file.read(4) != b"Obj\x01":
        raise ValueError("it does not begin as one")
    found: dict[str, bytes] = {}
    while count := _avro_long(file):
        if count < 0:  # the block's size in bytes comes too
            count = -count
            _avro_long(file)
        for _ in range(count):
            key = _exactly(file, _avro_long(file)).decode()
            found[key] = _exactly(file, _avro_long(file))
    return _avro_record(json.loads(found["avro.schema"]))


def _avro_record(schema: dict[str, Any]) -> Any:
    import pyarrow as pa

    return pa.schema([(each["name"], _avro_type(each["type"])) for each in schema["fields"]])


def _avro_type(kind: Any) -> Any:
    import pyarrow as pa

    if isinstance(kind, list):
        others = [each for each in kind if each != "null"]
        return _avro_type(others[0]) if len(others) == 1 else pa.null()
    if isinstance(kind, dict):
        if kind["type"] == "record":
            return pa.struct(list(_avro_record(kind)))
        kind = "string" if kind["type"] == "enum" else kind["type"]
    if isinstance(kind, str) and kind in _AVRO_TEXTS:
        return getattr(pa, _AVRO_TEXTS[kind])()
    return pa.null()  # a map, an array, a name: never a mapped column


def _avro_long(file: Any) -> int:
    """A zigzag number of variable length."""
    value = shift = 0
    while shift < 64:
        (byte,) = _exactly(file, 1)
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1)
    raise ValueError("a number in its header has no end")


def _exactly(file: Any, count: int) -> bytes:
    if not 0 <= count <= _MOST_HEADER_BYTES:
        raise ValueError("its header is damaged")
    found = file.read(count)
    if len(found) != count:
        raise EOFError("it ends in its header")
    return found


def _type_of(schema: Any, name: str) -> Any:
    """The type of a column, or of a field inside one (`a.b`); None: there is none."""
    import pyarrow as pa

    if name in schema.names:
        return schema.field(name).type
    inner: Any = schema
    for part in name.split("."):
        fields = (
            {inner.field(n).name: inner.field(n) for n in range(inner.num_fields)}
            if isinstance(inner, pa.StructType)
            else {field.name: field for field in inner}
            if isinstance(inner, pa.Schema)
            else {}
        )
        if part not in fields:
            return None
        inner = fields[part].type
    return inner


def _plain(kind: Any, pa: Any) -> Any:
    """The type as Spark sees it: how a file encodes a text column is its own affair."""
    if kind is None:
        return None
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    return kind
