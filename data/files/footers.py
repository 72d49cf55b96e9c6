"""What Parquet, ORC and Avro files say of their columns, read by threads on the driver.

Spark takes the columns of such files from one of them: the others' become nulls where they are
named otherwise.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from howdah import storage
from howdah.data.files.listing import of_each
from howdah.errors import DataError
from howdah.storage import Entry

_MOST_FOOTERS = 1_000
_MOST_HEADER_BYTES = 16 * 2**20

Kind = Literal["parquet", "orc", "avro"]
TITLES = {"parquet": "Parquet", "orc": "ORC", "avro": "Avro"}
_A_FILE = {"parquet": "a Parquet file", "orc": "an ORC file", "avro": "an Avro file"}


def check_alike(
    files: Sequence[Entry], kind: Kind, columns: Sequence[tuple[str, str]]
) -> list[Any]:
    """Refuse Parquet, ORC or Avro files that do not have the columns with one type each.

    A column that no file has is not refused here: it may be a partition directory's. Of more than
    1,000 files every n-th is read.

    Args:
        columns: (what names the column, for messages; its name).
    Returns:
        for each column its type (of pyarrow), or None where no file has it.
    Raises:
        DataError: the column, and a file of each kind; or a file of another format.
    """
    read = files[:: -(-len(files) // _MOST_FOOTERS) or 1]
    schemas: list[Any] = of_each(read, lambda entry: schema(entry.path, kind))
    types = []
    for where, name in columns:
        kinds: dict[Any, Entry] = {}
        for entry, file_schema in zip(read, schemas, strict=True):
            kinds.setdefault(_plain(type_of(file_schema, name)), entry)
        if len(kinds) > 1:
            (first, file), (other, different), *_ = kinds.items()
            raise DataError(
                f"the {TITLES[kind]} files do not have the same columns",
                where=f"{where}, in {different.path}",
                expected=f"{first or 'no such column'}, as in {file.path}",
                got=str(other) if other else f"columns {_shown(schemas[read.index(different)])}",
                remedy="give files of one kind, or name them by a narrower pattern",
            )
        types.append(next(iter(kinds), None))
    return types


def is_text(kind: Any) -> bool:
    """Whether a type that `check_alike` returns is one of texts, or of nothing but nulls."""
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_null(kind)


def _shown(file_schema: Any) -> str:
    names = ", ".join(file_schema.names[:20])
    return names if len(file_schema.names) <= 20 else f"{names}, ..."


def schema(path: str, kind: Kind) -> Any:
    """A file's columns, as a pyarrow schema.

    Raises:
        DataError: it is not a file of this kind.
    """
    import pyarrow as pa

    with readable(path, kind), storage.open_read(path) as file:
        if kind == "parquet":
            import pyarrow.parquet as pq

            return _without_int96(pq.ParquetFile(file))
        if kind == "orc":
            import pyarrow.orc

            return pyarrow.orc.ORCFile(pa.PythonFile(file, "r")).schema
        return _avro(file)


def _without_int96(file: Any) -> Any:
    """A Parquet file's schema in which Spark's old times (INT96) are what they say: moments."""
    import pyarrow as pa

    stored = map(file.schema.column, range(len(file.schema)))
    old = {column.path for column in stored if column.physical_type == "INT96"}

    def moments(field: Any, path: str) -> Any:
        if path in old:
            return field.with_type(pa.timestamp("us", tz="UTC"))
        if not pa.types.is_struct(field.type):
            return field
        inner = [moments(each, f"{path}.{each.name}") for each in field.type]
        return field.with_type(pa.struct(inner))

    schema = file.schema_arrow
    if not old:
        return schema
    return pa.schema([moments(field, field.name) for field in schema], schema.metadata)


def compression(file: Any) -> frozenset[str]:
    """How the first rows' columns of a `pyarrow.parquet.ParquetFile` are compressed."""
    if not file.metadata.num_row_groups:
        return frozenset()
    group = file.metadata.row_group(0)
    return frozenset(group.column(number).compression for number in range(group.num_columns))


@contextlib.contextmanager
def readable(path: str, kind: Kind) -> Iterator[None]:
    """Raise DataError if the file is damaged or not of this kind."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, EOFError, ValueError, KeyError, TypeError) as error:
        reason = str(error) or type(error).__name__
        raise DataError(
            f"a file of the source is not {_A_FILE[kind]}",
            where=path,
            got=reason.splitlines()[0][:200],
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
    metadata: dict[str, bytes] = {}
    while count := _avro_long(file):
        if count < 0:  # the block's size in bytes comes too
            count = -count
            _avro_long(file)
        for _ in range(count):
            key = _exactly(file, _avro_long(file)).decode()
            metadata[key] = _exactly(file, _avro_long(file))
    return _avro_record(json.loads(metadata["avro.schema"]))


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
    data = file.read(count)
    if len(data) != count:
        raise EOFError("it ends in its header")
    return data


def type_of(schema: Any, name: str) -> Any:
    """The type of a column, or of a field inside one (`a.b`); None: there is none."""
    import pyarrow as pa

    if name in schema.names:
        return schema.field(name).type
    inner: Any = schema
    for part in name.split("."):
        is_struct = isinstance(inner, pa.StructType | pa.Schema)
        fields = {field.name: field for field in inner} if is_struct else {}
        if part not in fields:
            return None
        inner = fields[part].type
    return inner


def column(batch: Any, name: str) -> Any:
    """A column of a pyarrow batch, or a field of a struct inside (`a.b`), which is null where the
    struct is."""
    import pyarrow.compute as pc

    if name in batch.schema.names:
        return batch.column(name)
    first, *inner = name.split(".")
    return pc.struct_field(batch.column(first), inner)


def _plain(kind: Any) -> Any:
    """The type as Spark sees it: how a file encodes a text column is its own affair."""
    import pyarrow as pa

    if kind is None:
        return None
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    return kind
