"""Refuse CSV files with unclosed quotes before Spark reads them; one task a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from howdah.config.data import CsvOptions
from howdah.data import csv_quotes
from howdah.data.csv_quotes import COMPRESSED, Quotes
from howdah.errors import ConfigError
from howdah.spark.errors import crossing

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Strays", "check"]

_MOST_TASKS = 1_000
_FOUND = "path string, line bigint, problem string, begin string, strays bigint, stray_line bigint"
_NOT_READ = (".zst", ".zstd", ".snappy", ".lz4", ".lzo", ".deflate")


@dataclass(frozen=True, kw_only=True)
class Strays:
    """Stray quotes of all files."""

    fields: int = 0
    where: list[str] = field(default_factory=list)
    """"<file>, line <n>" of the first one of some files."""


def check(spark: Any, files: Mapping[str, str], options: CsvOptions) -> Strays:
    """Read all files once and refuse unclosed quotes.

    Args:
        spark: the SparkSession.
        files: {path, on any storage that the executors reach: field separator}.
    Returns:
        stray quotes that lost no row, for a report.
    Raises:
        DataError: a field swallows lines: the file, the field's first line, and what is wrong.
        ConfigError: only Spark can read a file's compression.
    """
    if not options.multiline or not options.quote:
        return Strays()
    for path in files:
        if path.lower().endswith(_NOT_READ):
            raise ConfigError(
                "a CSV file of this compression cannot be checked for unclosed quotes",
                where=path,
                expected="no compression, " + ", ".join(COMPRESSED),
                remedy="set data.csv.multiline: false if no field holds line breaks, or compress"
                " the file in another way",
            )
    rows = spark.createDataFrame(list(files.items()), "path string, delimiter string")
    work = partial(_check_batches, options=options)
    tasks = min(len(files), _MOST_TASKS)
    rows = rows.repartition(tasks).mapInArrow(crossing(work), _FOUND).collect()
    found = {row["path"]: Quotes(**{k: v for k, v in row.asDict().items() if k != "path"})
             for row in sorted(rows)}  # fmt: skip
    if bad := [(path, quotes) for path, quotes in found.items() if quotes.line]:
        raise csv_quotes.refused(bad, options)
    strays = [f"{path}, line {quotes.stray_line}" for path, quotes in found.items()]
    return Strays(fields=sum(quotes.strays for quotes in found.values()), where=strays[:5])


def _check_batches(
    batches: Iterable[pa.RecordBatch], options: CsvOptions
) -> Iterator[pa.RecordBatch]:
    """mapInArrow: (path, delimiter) -> _FOUND, a row for each file with anything to report."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("path", pa.string()),
            ("line", pa.int64()),
            ("problem", pa.string()),
            ("begin", pa.string()),
            ("strays", pa.int64()),
            ("stray_line", pa.int64()),
        ]
    )
    for batch in batches:
        found = []
        for path, delimiter in zip(*batch.to_pydict().values(), strict=True):
            quotes = csv_quotes.scan_file(path, options, delimiter)
            if quotes.line or quotes.strays:
                found.append({"path": path, **vars(quotes)})
        yield pa.RecordBatch.from_pylist(found, schema)
