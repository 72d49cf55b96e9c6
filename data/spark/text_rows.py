"""CSV and JSON files as rows of Spark: its workers read them by data/files/records.py.

Spark's own readers are not used: their parsers, character sets and file names differ from those of
a process that reads the same file for predictions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from howdah.config.data import CsvOptions
from howdah.data.files import json_rows, quotes, records
from howdah.data.files.quotes import Quotes
from howdah.data.files.records import Part, TextForm
from howdah.spark.errors import crossing
from howdah.spark.paths import quoted
from howdah.storage import Entry
from howdah.storage.charsets import SURROGATES, replaced, spelled

if TYPE_CHECKING:
    import pyarrow as pa

REASON, DETAIL = "_howdah_reason", "_howdah_detail"
"""Columns: why a row cannot be read (malformed, wrong_encoding), or null."""
_DETAIL_CHARACTERS = 200
_MOST_SCANS = 1_000
_CHUNK_ROWS, _CHUNK_CHARACTERS = 4_096, 16 * 2**20


# ----------------------------------------------------------------------------------------- quotes
@dataclass(frozen=True, kw_only=True)
class Strays:
    """The stray quotes of all files."""

    fields: int = 0
    """Fields with stray quotes that lost no row."""
    where: list[str] = field(default_factory=list)
    """"<file>, line <n>" of the first one of some files."""
    counted: Mapping[str, Quotes] = field(default_factory=dict, repr=False)
    """{path: its quotes and records}, for the parser."""


def check_quotes(spark: Any, files: Mapping[str, str], options: CsvOptions) -> Strays:
    """Read all files once: refuse unclosed quotes, count records.

    Args:
        spark: the SparkSession.
        files: {path, on any storage that the executors reach: field separator}.
    Returns:
        stray quotes that lost no row, for a report, and the counts.
    Raises:
        DataError: a field swallows lines: the file, the field's first line, and what is wrong; or a
            compression that is not read.
    """
    if not options.multiline or not options.quote:
        return Strays()
    tasks = min(len(files), _MOST_SCANS)
    # Not a DataFrame of the files: to make one of a list Spark starts Python workers of another
    # kind, which takes seconds.
    shares = [list(files.items())[number::tasks] for number in range(tasks)]
    work = partial(_scan_batches, shares=shares, options=options)
    numbers = spark.range(0, tasks, 1, tasks)
    rows = numbers.mapInArrow(crossing(work), "quotes string").collect()
    quotes_by_path = {}
    for values in sorted((json.loads(row["quotes"]) for row in rows), key=itemgetter("path")):
        path, marks = values.pop("path"), [tuple(mark) for mark in values.pop("marks")]
        quotes_by_path[path] = Quotes(**values, marks=marks)
    if bad := [(path, one) for path, one in quotes_by_path.items() if one.line]:
        raise quotes.refused(bad, options)
    strays = [
        f"{path}, line {one.stray_line}" for path, one in quotes_by_path.items() if one.strays
    ]
    return Strays(
        fields=sum(one.strays for one in quotes_by_path.values()),
        where=strays[:5],
        counted=quotes_by_path,
    )


def _scan_batches(
    batches: Iterable[pa.RecordBatch],
    shares: Sequence[Sequence[tuple[str, str]]],
    options: CsvOptions,
) -> Iterator[pa.RecordBatch]:
    """mapInArrow: the number of a share of (path, delimiter) -> (path, Quotes as JSON)."""
    import pyarrow as pa

    for batch in batches:
        results = []
        for path, delimiter in (file for n in batch.column(0).to_pylist() for file in shares[n]):
            one = asdict(quotes.scan_file(path, options, delimiter))
            results.append(
                {"quotes": json.dumps({"path": path, **one})}
            )  # in ASCII, whatever it is
        schema = pa.schema([("quotes", pa.string())])
        yield pa.RecordBatch.from_pylist(results, schema)


# ------------------------------------------------------------------------------------------ tasks
@dataclass(frozen=True, kw_only=True)
class Tasks:
    """The parts of files that each of Spark's tasks reads."""

    parts: Sequence[Sequence[tuple[int, Part]]]
    """For each task its parts, with their numbers among all."""


def numbered(
    spark: Any, files: Sequence[Entry], form: TextForm, options: CsvOptions
) -> tuple[Any, Tasks]:
    """A DataFrame of one row (id) for each task, and what the tasks read.

    Small files are read by one task together and large ones that can be divided by several, by the
    rule and the settings (spark.sql.files.*) of Spark's own readers.
    """
    settings = spark._jsparkSession.sessionState().conf()
    largest, opening = settings.filesMaxPartitionBytes(), settings.filesOpenCostInBytes()
    each_core = sum(e.size + opening for e in files) // spark.sparkContext.defaultParallelism
    most = max(1, min(largest, max(opening, each_core)))
    task_parts = [
        (part, entry.size if part.end is None else part.end - part.start)
        for entry in files
        for part in records.parts(entry.path, form, entry.size, options, most)
    ]
    tasks: list[list[tuple[int, Part]]] = []
    room = 0
    for number, (part, size) in enumerate(task_parts):
        if size > room or not tasks:
            tasks.append([])
            room = most
        tasks[-1].append((number, part))
        room -= size + opening
    return spark.range(0, len(tasks), 1, len(tasks)), Tasks(parts=tasks)


# ------------------------------------------------------------------------------------------- rows
@dataclass(frozen=True, kw_only=True)
class Columns:
    """What is read of each row."""

    names: Sequence[str]
    texts: frozenset[str] = frozenset()
    """Columns in which what is invalid in the encoding becomes U+FFFD; in others it makes the row a
    rejected one."""
    lists: frozenset[str] = frozenset()
    """Columns whose JSON arrays become JSON texts."""


def table(
    spark: Any,
    files: Sequence[Entry],
    form: TextForm,
    columns: Columns,
    options: CsvOptions,
    *,
    root: str | None = None,
    counted: Mapping[str, Quotes] | None = None,
) -> Any:
    """A DataFrame of the columns as texts, REASON and DETAIL.

    Args:
        files: in which `checks.check` has found the columns.
        root: the directory that they were found below, whose directories' names are columns.
        counted: {path: what was counted in it before}.
    """
    frame, tasks = numbered(spark, files, form, options)
    work = PartReader(
        tasks=tasks, columns=columns, options=options, root=root, counted=dict(counted or {})
    )
    schema = ", ".join(f"{quoted(name)} string" for name in (*columns.names, REASON, DETAIL))
    return frame.mapInArrow(crossing(work), schema)


@dataclass(frozen=True, kw_only=True)
class PartReader:
    """Function for mapInArrow: the numbers of tasks to their rows."""

    tasks: Tasks
    columns: Columns
    options: CsvOptions
    root: str | None
    counted: Mapping[str, Quotes] = field(default_factory=dict)

    __name__ = "read"

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for _, part in self.tasks.parts[task]:
                    yield from self._read(part)

    def _read(self, part: Part) -> Iterator[pa.RecordBatch]:
        names = self.columns.names
        texts = [at for at, name in enumerate(names) if name in self.columns.texts]
        chunk, size = _Chunk(self.columns), 0
        rows = records.read(
            part, names, self.options, root=self.root, counted=self.counted.get(part.path)
        )
        for line, values, problem, shown in rows:
            if problem is not None:
                chunk.reject(_where(line) + problem + (f": {shown}" if shown else ""))
                size += len(shown)
            for at in texts:
                if value := values[at]:
                    size += len(value)
            chunk.rows.append(values)
            chunk.lines.append(line)
            if len(chunk.rows) >= _CHUNK_ROWS or size >= _CHUNK_CHARACTERS:
                yield chunk.batch()
                chunk, size = _Chunk(self.columns), 0
        if chunk.rows:
            yield chunk.batch()


class _Chunk:
    """Rows on their way to a batch."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.rows: list[Sequence[Any]] = []
        self.lines: list[int] = []
        self._reasons: dict[int, tuple[str, str]] = {}

    def reject(self, detail: str, reason: str = "malformed", at: int | None = None) -> None:
        """Reject a row, the next one by default; its first reason stays."""
        self._reasons.setdefault(len(self.rows) if at is None else at, (reason, detail))

    def batch(self) -> pa.RecordBatch:
        """The rows as columns of texts."""
        import pyarrow as pa

        try:
            cells = [pa.array(cell, pa.string()) for cell in zip(*self.rows, strict=True)]
        except (UnicodeEncodeError, pa.ArrowException, TypeError):  # some values are not texts
            fixed = [self._fixed(at, list(row)) for at, row in enumerate(self.rows)]
            cells = [pa.array(cell, pa.string()) for cell in zip(*fixed, strict=True)]
        reasons: list[str | None] = [None] * len(self.rows)
        details = list(reasons)
        for at, (reason, detail) in self._reasons.items():
            reasons[at], details[at] = reason, replaced(detail)[:_DETAIL_CHARACTERS]
        cells += [pa.array(cell, pa.string()) for cell in (reasons, details)]
        return pa.record_batch(cells, names=[*self._columns.names, REASON, DETAIL])

    def _fixed(self, number: int, row: list[Any]) -> list[Any]:
        """Make texts of a row's values, or reject it."""
        where = _where(self.lines[number])
        for at, name in enumerate(self._columns.names):
            value = row[at]
            if isinstance(value, list) and name in self._columns.lists:
                row[at] = value = replaced(json_rows.array_text(value))
            if isinstance(value, list | dict):
                kind = "an array" if isinstance(value, list) else "an object"
                row[at] = None
                self.reject(f"{where}column {name} is {kind}, not a text", at=number)
            elif value is not None and not value.isascii() and SURROGATES.search(value):
                if name in self._columns.texts:
                    row[at] = replaced(value)
                    continue
                row[at] = spelled(value)
                self.reject(f"{where}column {name}: {row[at]}", "wrong_encoding", number)
        return row


def _where(line: int) -> str:
    return f"line {line}: " if line else ""
