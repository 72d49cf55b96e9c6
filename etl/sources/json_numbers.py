"""JSON lines for Spark before 4.0, which reads the number 1.10 as the text 1.1."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from howdah.data.files.lines import json_value

__all__ = ["lines_for", "with_texts"]

# Numbers that Spark would write in another way, wherever they stand; whole numbers it leaves.
_REWRITTEN = re.compile(rb"[:\[,]\s*(?:-?\d+[.eE]|-0|-?Infinity|NaN)")
_NOT_UTF8 = "\ufffd"


def lines_for(spark: Any, paths: Sequence[str]) -> Any:
    """The files' lines as an RDD that `DataFrameReader.json` reads, numbers quoted as written.

    Args:
        spark: the SparkSession.
        paths: of files, as Spark takes them, of any compression that it knows.
    """
    lines = spark.read.text(list(paths))
    return lines.selectExpr("cast(value as binary)").rdd.mapPartitions(_each)


def _each(rows: Iterable[tuple[bytearray]]) -> Iterator[str]:
    return (with_texts(bytes(line)) for (line,) in rows)


def with_texts(line: bytes) -> str:
    """A line in which the numbers that Spark would write in another way are texts.

    What is no JSON object stays as it is. A line that is not in UTF-8 becomes one that is no JSON,
    as Spark refuses it in a file.

    >>> with_texts(b'{"a": 1.10, "b": [1]}')
    '{"a": "1.10", "b": ["1"]}'
    >>> with_texts(b'{"a": 1}')
    '{"a": 1}'
    """
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return _NOT_UTF8 + line.decode(errors="replace")
    if not _REWRITTEN.search(line):
        return text
    try:
        value = json_value(text)
    except ValueError:
        return text
    return json.dumps(value) if isinstance(value, dict) else text
