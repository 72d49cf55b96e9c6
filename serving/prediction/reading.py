"""Reads rows from files: CSV, JSON and Parquet, streamed, on any storage.

data/files/records.py reads the text files, as for the ETL. Spark's workers make rows with the
functions of this module, too (serving/prediction/files.py), so that a row has the same text and
error in each process.

A row that cannot be read does not stop the others; its prediction has a null label and an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from howdah import storage
from howdah.config.data import Columns, CsvOptions
from howdah.data import ids
from howdah.data.clean import joined
from howdah.data.files import checks, everyday, footers, peek, records
from howdah.data.files.listing import files_of
from howdah.data.files.records import Part
from howdah.errors import DataError, NotFound
from howdah.serving.prediction.rows import EMPTY, NO_KEY, SUFFIXES, Row, format_of
from howdah.storage import Entry
from howdah.storage.charsets import ESCAPE, SURROGATES, spelled

if TYPE_CHECKING:
    import pyarrow as pa

_PARQUET_BATCH_ROWS = 2048
NOT_DECODED = "the text is not in the file's encoding"
OPTIONS = "--text-column and --id-column name them"


@dataclass(frozen=True, kw_only=True)
class SourceFiles:
    """The files of a source, in the order of their names."""

    entries: Sequence[Entry]
    root: str | None = None
    """Directory above all files; None: the source is a file or a pattern."""

    @property
    def paths(self) -> list[str]:
        """Paths of the files."""
        return [entry.path for entry in self.entries]


def source_files(
    source: str,
    progress: Callable[[str], None] = lambda line: None,
    *,
    remedy: str = "check the path",
) -> SourceFiles:
    """List the files of a source: itself, a pattern's matches, or those below a directory.

    Args:
        progress: called with a line about files that are left out.
        remedy: what the caller can do if there are none.
    Raises:
        NotFound: there are no files.
    """
    root, entries = files_of(source) or (None, [])
    if root is None and len(entries) == 1:
        return SourceFiles(entries=entries)
    named = [entry for entry in entries if format_of(entry.path) is not None]
    if not named:
        if (error := everyday.refusal(source, entries)) is not None:
            raise error
        raise NotFound(
            "the source has no files with rows",
            where=storage.absolute(source),
            expected="a file, a pattern or a directory of .csv, .jsonl or .parquet files",
            got=", ".join(entry.name for entry in entries[:5]) or None,
            remedy=remedy,
        )
    if len(named) < len(entries):
        others = [entry.name for entry in entries if format_of(entry.path) is None]
        more = ", ..." if len(others) > 5 else ""
        progress(f"not read, since their suffixes are unknown: {', '.join(others[:5])}{more}")
    return SourceFiles(entries=named, root=root)


# --------------------------------------------------------------------------- columns of the files
def choose_columns(
    trained: Columns, text_columns: Sequence[str] | None, id_column: str | None
) -> Columns:
    """Return the training data's column mapping, with the caller's columns in place of its own."""
    changes: dict = {"id": id_column if id_column is not None else trained.id}
    if text_columns:
        changes["text"] = list(text_columns)
    return trained.model_copy(update=changes)


def mapped(columns: Columns) -> list[str]:
    """List the names of the columns that are read, each once."""
    names = [*columns.text, *(columns.text_pair or ()), *([columns.id] if columns.id else [])]
    return list(dict.fromkeys(names))


def check_files(
    files: Mapping[str, Entry],
    form: str,
    columns: Columns,
    options: CsvOptions,
    *,
    source: str,
    id_required: bool,
    root: str | None = None,
    remedy: str = OPTIONS,
    progress: Callable[[str], None] = lambda line: None,
) -> None:
    """Require that files of a format have the mapped columns (`checks.check`).

    A line says so if rows have no id of their own.
    """
    texts = [*columns.text, *(columns.text_pair or ())]
    required = [
        checks.Wanted(
            name=name,
            where=f"column {name}",
            text=name in texts,
            id=name == columns.id,
            required=name in texts or id_required,
        )
        for name in mapped(columns)
    ]
    checked = checks.check(files, form, required, options, source=source, root=root, remedy=remedy)
    if columns.id in checked.missing:
        progress(no_ids(str(columns.id)))


def no_ids(name: str) -> str:
    """Return the line that rows are numbered, since the training data's column is missing."""
    return (
        f"the source has no column {name!r}: ids are the rows' numbers, as `{NO_KEY}0` (--id-column"
        " names another)"
    )


# ------------------------------------------------------------------------------------------- rows
def read_rows(
    files: SourceFiles,
    columns: Columns,
    *,
    csv_options: CsvOptions | None = None,
    id_required: bool = True,
    most_undecodable: float = 1.0,
    remedy: str = OPTIONS,
    progress: Callable[[str], None] = lambda line: None,
) -> Iterator[Row]:
    """Look at the files' columns and at the first rows, and return the rows of all in order.

    Args:
        columns: text column(s) and id column; without an id column it is the row's number from 0.
        csv_options: how to read CSV.
        id_required: refuse a source without the id column, rather than number its rows.
        most_undecodable: refuse a source if a larger share of its first rows is in another
            character set.
        remedy: how a missing column is named, for the error.
        progress: called with a line.
    Raises:
        DataError: see `check_files` and `peek.sample`; while reading: a file is damaged.
    """
    options = csv_options or CsvOptions()
    forms: dict[str, dict[str, Entry]] = {}
    for entry in files.entries:
        form = format_of(entry.path)
        if form is None:
            if (error := everyday.refusal(entry.path, [entry])) is not None:
                raise error
            raise DataError(
                "the format of the source is not known",
                where=entry.path,
                expected=", ".join(SUFFIXES) + ", also with .gz, .bz2 or .zst (not .parquet)",
            )
        forms.setdefault(form, {})[entry.path] = entry
    for form, form_files in forms.items():
        check_files(
            form_files, form, columns, options, source=files.paths[0], id_required=id_required,
            root=files.root, remedy=remedy, progress=progress,
        )  # fmt: skip
        first = peek.sample(next(iter(form_files)), form, options)
        peek.refuse_encoding(first, mapped(columns), most_undecodable, options.encoding)
        if line := first.stripped:
            progress(line)
    return _rows(files, Rows(columns), options)


def _rows(files: SourceFiles, rows: Rows, options: CsvOptions) -> Iterator[Row]:
    number = 0
    for path in files.paths:
        form = format_of(path)
        if form == "csv" or form == "jsonl":
            each = rows.of_part(Part(path=path, form=form), options, root=files.root, first=number)
        else:
            each = _of_parquet(path, rows, records.directories(path, files.root), first=number)
        for row in each:
            yield row
            number += 1


class Rows:
    """Makes rows from the values of the mapped columns.

    Where there is an id column, a row without an id gets `row N`: a number could be another's id.
    """

    def __init__(self, columns: Columns) -> None:
        self.names = mapped(columns)
        self._separator = columns.separator
        at = {name: number for number, name in enumerate(self.names)}
        self._sides = [[at[name] for name in columns.text]]
        if columns.text_pair is not None:
            self._sides.append([at[name] for name in columns.text_pair])
        self._id = at[columns.id] if columns.id else None
        self._unnamed = NO_KEY if columns.id else ""

    def of_part(
        self, part: Part, options: CsvOptions, *, root: str | None, first: int, **more: Any
    ) -> Iterator[Row]:
        """Yield the rows of a part of a text file.

        Args:
            first: number of the first row.
            more: see `records.read`.
        """
        rows = records.read(part, self.names, options, root=root, **more)
        for number, (line, values, problem, _) in enumerate(rows, first):
            if problem is not None:
                where = f"line {line}: " if line else ""
                yield Row(self._without_key(number), None, where + spelled(problem), has_key=False)
            else:
                yield self.row(values, number)

    def row(self, values: Sequence[Any], number: int) -> Row:
        """Make the row to classify.

        Args:
            values: values of `names`: texts, None, or what is not a text.
            number: the id of a row that has none.
        """
        key = None if self._id is None else values[self._id]
        row_id, problem = self._without_key(number), None
        if isinstance(key, list | dict):
            problem = f"the id is {_kind(key)}, not a text"
        elif key is not None:
            row_id = spelled(key)
            if row_id != key:
                problem = "the id is not in the file's encoding"
        has_key = key is not None
        texts = []
        for side, name in zip(self._sides, ("text", "second text"), strict=False):
            # Nulls are skipped, as in Spark's concat_ws, which made the training texts.
            present = [values[at] for at in side if values[at] is not None]
            if not present:
                return Row(row_id, None, problem or EMPTY, has_key=has_key)
            if wrong := [part for part in present if not isinstance(part, str)]:
                why = problem or f"the {name} is {_kind(wrong[0])}, not a text"
                return Row(row_id, None, why, has_key=has_key)
            texts.append(self._separator.join(present))
        text = joined(*texts) if len(texts) > 1 else texts[0]
        if problem is None and not text.isascii() and SURROGATES.search(text):
            problem = NOT_DECODED
        if problem is not None:
            return Row(row_id, None, problem, has_key=has_key)
        return Row(row_id, text, pair=len(texts) > 1, has_key=has_key)

    def _without_key(self, number: int) -> str:
        return f"{self._unnamed}{number}"


def _kind(value: Any) -> str:
    return {list: "an array", dict: "an object"}.get(type(value), type(value).__name__)


def _of_parquet(
    path: str, rows: Rows, constants: Mapping[str, str | None], *, first: int
) -> Iterator[Row]:
    number = first
    schema = footers.schema(path, "parquet")
    present = [name for name in rows.names if footers.type_of(schema, name) is not None]
    for batch in parquet_batches(path, present):
        columns = [
            _values(footers.column(batch, name), footers.type_of(schema, name))
            if name in present
            else [constants.get(name)] * batch.num_rows
            for name in rows.names
        ]
        for values in zip(*columns, strict=True):
            yield rows.row(values, number)
            number += 1


def parquet_batches(
    path: str, columns: Sequence[str], most: int = _PARQUET_BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield these columns of a Parquet file, in batches of at most `most` rows.

    Raises:
        DataError: the file is damaged.
    """
    import pyarrow.parquet as pq

    with storage.open_read(path) as file, footers.readable(path, "parquet"):
        yield from pq.ParquetFile(file).iter_batches(most, columns=columns)


def _values(column: Any, kind: Any) -> list[str | None]:
    """Return a column's values as texts, spelt as ids are."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind) and column.type != kind:  # times of old Spark versions
        column = column.cast(pa.timestamp("us"), safe=False).cast(kind)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        return ids.texts(column)
    except UnicodeDecodeError:  # the writer did not use UTF-8
        raw = column.cast(pa.large_binary()).to_pylist()
        return [None if value is None else value.decode("utf-8", ESCAPE) for value in raw]
