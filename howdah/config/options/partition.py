"""How a partition is spelt: column=value, with several columns a=b/c=d in the table's order."""

from __future__ import annotations

import decimal
import re
from collections.abc import Mapping

from howdah.config.options.source import TABLE_NAME
from howdah.errors import ConfigError, UsageError

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The metastore's name of the partition whose value is null."""
_INTEGRAL = ("tinyint", "smallint", "int", "bigint")

_EXACT = decimal.Context(prec=40)
"""More digits than Spark's decimal(38); Python's own default rounds to 28."""
_PAIR = re.compile(r"([A-Za-z_]\w*)=([^/=\s][^/=]*)", re.ASCII)
_COLUMN = re.compile(r"[A-Za-z0-9_]+")
_WHOLE = re.compile(r"[+-]?[0-9]+", re.ASCII)
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}", re.ASCII)
_FILE_ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".orc", ".avro")


def parse(partition: str) -> dict[str, str]:
    """{column: value} of a partition: %2F and %25 in a value are / and %, as in `text_of`.

    >>> parse("country=de/ds=2026-11-01"), parse("path=a%2Fb")
    ({'country': 'de', 'ds': '2026-11-01'}, {'path': 'a/b'})

    Raises:
        ConfigError: it is not a partition.
    """
    parts = partition.split("/") if isinstance(partition, str) else [""]
    if all(_PAIR.fullmatch(part) and part.isprintable() for part in parts):
        values = _values(partition)
        if values is not None:
            return values
    raise ConfigError(
        "this names no partition",
        where="partition",
        expected="column=value, or a=b/c=d with several columns: ds=2026-11-01",
        got=repr(partition),
    )


def parse_spec(text: str, option: str) -> dict[str, str]:
    """`parse` for a command that has the table at hand: any value that Hive takes. A comma is a
    part of the value.

    Raises:
        UsageError: it is not of this form.

    >>> parse_spec("ds=2026-11-01/country=at", "--partition")
    {'ds': '2026-11-01', 'country': 'at'}
    >>> parse_spec("path=a%2Fb,c", "--partition")
    {'path': 'a/b,c'}
    """
    values = _values(text)
    if values is None:
        raise UsageError(
            "that is not a partition",
            where=option,
            expected="column=value, several columns with / between them, each once",
            got=text,
        )
    return values


def _values(text: str) -> dict[str, str] | None:
    """{column: value}; None: the text is not of this form, or names a column twice."""
    spec: dict[str, str] = {}
    for part in text.split("/"):
        column, equals, value = part.partition("=")
        if not (equals and value and _COLUMN.fullmatch(column)) or column in spec:
            return None
        spec[column] = value.replace("%2F", "/").replace("%2f", "/").replace("%25", "%")
    return spec


def order_of(value: str) -> tuple[int, int, str]:
    """What partitions are sorted by: whole numbers by their size, before all other values; those by
    their text.

    >>> sorted(["10", "9", "2026-01-02", "2026-01-01"], key=order_of)
    ['9', '10', '2026-01-01', '2026-01-02']
    """
    return (0, int(value), value) if _WHOLE.fullmatch(value) else (1, 0, value)


def text_of(values: Mapping[str, str]) -> str:
    """The partition of these values: what `parse` takes.

    >>> text_of({"ds": "2026-11-01", "path": "a/b"})
    'ds=2026-11-01/path=a%2Fb'
    """
    return "/".join(f"{column}={_spelt(value)}" for column, value in values.items())


def _spelt(value: str) -> str:
    return value.replace("%", "%25").replace("/", "%2F")


def canonical(value: str, kind: str) -> str:
    """A partition's value as all spellings of it are compared: directories of one value may be
    named `hour=5` and `hour=05`, and the metastore has the name.

    Args:
        kind: Spark's type of the column.

    >>> canonical("05", "int"), canonical("05", "string"), canonical("1.50", "decimal(4,2)")
    ('5', '05', '1.5')
    """
    if value == NULL:
        return value
    if kind in _INTEGRAL and _WHOLE.fullmatch(value.strip()):
        return str(int(value))
    if kind.startswith("decimal") or kind in ("float", "double"):
        try:
            return f"{decimal.Decimal(value.strip()).normalize(_EXACT):f}"
        except decimal.InvalidOperation:
            return value
    return value.strip().lower() if kind == "boolean" else value


def is_files(source: str) -> bool:
    """True for files or a directory, False for a table's name.

    >>> is_files("news.texts"), is_files("texts.csv"), is_files("hdfs:///in/{ds}")
    (False, True, True)
    """
    return TABLE_NAME.fullmatch(source) is None or source.lower().endswith(_FILE_ENDINGS)


def expanded(pattern: str, partition: str) -> str:
    """A path for a partition: {column} is replaced by its value; alternatives ({a,b}) stay.

    >>> expanded("/in/{ds}.csv", "ds=2026-11-01")
    '/in/2026-11-01.csv'

    Raises:
        ConfigError: another {column} is left: no file would ever be there.
    """
    values = parse(partition)
    for column in _PLACEHOLDER.findall(pattern):
        if column not in values:
            raise ConfigError(
                "the path names a column that the partition lacks",
                where=pattern,
                expected=" or ".join(f"{{{each}}}" for each in values),
                got=f"{{{column}}}",
                remedy="name a column of the partition in braces",
            )
    for column, value in values.items():
        pattern = pattern.replace(f"{{{column}}}", _spelt(value))  # as Hive names directories
    return pattern
