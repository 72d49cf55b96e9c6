"""Do files have the columns that are read? By headers and first records, before any row is read."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from howdah.config.data import CsvOptions
from howdah.config.yaml_text import flow
from howdah.data.files import footers, json_rows, peek, records
from howdah.data.files.listing import of_each
from howdah.data.files.records import csv_names, directories, positions
from howdah.errors import DataError
from howdah.storage import Entry

_FIRST_RECORDS = 1_000
_MOST_FILES = 1_000


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A column that is read."""

    name: str
    where: str
    """The key or option that names it, for messages."""
    text: bool = False
    """It must be one of texts, and each file have it; else a file may lack it where others do."""
    id: bool = False
    """It must be of a type that names rows."""
    lists: bool = False
    """Its values may be arrays."""
    required: bool = True
    """Some file must have it; else all files have it, or none."""


def check(
    files: Mapping[str, Entry],
    form: str,
    columns: Sequence[Wanted],
    options: CsvOptions,
    *,
    source: str,
    remedy: str,
    root: str | None = None,
) -> Checked:
    """Refuse files that do not have the columns.

    CSV must have them in each file's header, in any order; of Parquet, ORC and Avro each file in
    one type; of JSON some record must have them, and some record of each file those of the text.
    Of more than 1,000 files every n-th is looked at.

    Args:
        files: {path: entry}, all of `form` (csv, jsonl, parquet, orc, avro).
        source: for messages.
        remedy: what names columns.
        root: a directory below which names of directories, `day=2026-11-01`, are columns too.
    Raises:
        DataError: the column and the file; or a file is not of its format.
    """
    every = -(-len(files) // _MOST_FILES) or 1
    looked_at = list(files)[::every]
    paths = {path: directories(path, root) for path in looked_at}
    looked = _Looked(source=source, remedy=remedy, options=options, paths=paths)
    if form == "csv":
        return _csv(looked, columns)
    if form == "jsonl":
        return _json(looked, columns)
    return _columnar(looked, form, [files[path] for path in looked_at], columns)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What files say of the columns."""

    missing: frozenset[str] = frozenset()
    """Names of columns that are not required, and that no file has."""
    types: Mapping[str, Any] = field(default_factory=dict)
    """{column: its pyarrow type, or None where no file has it} of Parquet, ORC and Avro."""


@dataclass(frozen=True, kw_only=True)
class _Looked:
    """The files, as their columns are looked for."""

    source: str
    remedy: str
    options: CsvOptions
    paths: Mapping[str, Mapping[str, str | None]]
    """{path: columns of its directories}."""

    def missing(self, one: Wanted, path: str, names: Sequence[str], more: str = "") -> DataError:
        return no_column(
            one.name, [*names, *self.paths[path]], where=f"{one.where} in {path}",
            remedy=self.remedy + more,
        )  # fmt: skip

    def alike(self, one: Wanted, having: Mapping[str, bool]) -> None:
        """All files have a column that is not required, or none."""
        if len(set(having.values())) > 1:
            lacks = next(path for path, has in having.items() if not has)
            has = next(path for path, has in having.items() if has)
            raise DataError(
                "some files have the id column and others do not",
                where=lacks,
                expected=f"column {one.name!r}, as in {has}",
                remedy="predict them one after the other, or name them by a narrower pattern",
            )


def no_column(name: str, names: Sequence[str], *, where: str, remedy: str) -> DataError:
    """The error for a column that is not there. Names with blanks around them are quoted."""
    names = [str(one) for one in names]
    shown = [repr(one) if one != one.strip() or not one else one for one in names]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return DataError(
        f"the source has no column {name!r}",
        where=where,
        expected=", ".join(shown) or "no column at all",
        got=f"{name} (did you mean {near[0]}?)" if near else name,
        remedy=remedy,
    )


# -------------------------------------------------------------------------------------------- CSV
def _csv(looked: _Looked, columns: Sequence[Wanted]) -> Checked:
    options, paths = looked.options, looked.paths
    headers = of_each(list(paths), lambda path: csv_names(path, options))
    having: dict[str, dict[str, bool]] = {one.name: {} for one in columns}
    for path, names in zip(paths, headers, strict=True):
        if not names:
            continue  # an empty file
        indices = positions(names, [one.name for one in columns], path)
        for one, at in zip(columns, indices, strict=True):
            has = at is not None or one.name in paths[path]
            having[one.name][path] = has
            if one.required and not has:
                required = [each.name for each in columns if each.required]
                raise looked.missing(one, path, names, _hint(path, names, required, options))
    for one in columns:
        looked.alike(one, having[one.name])
    return Checked(missing=frozenset(name for name, has in having.items() if False in has.values()))


def _hint(path: str, names: Sequence[str], columns: Sequence[str], options: CsvOptions) -> str:
    """The end of a remedy, where the file's beginning tells what is wrong with the options."""
    commas = records.tsv_of_commas(path, names, options)
    if commas is not None:
        return f"; {commas}"
    update = peek.options_that_fit(path, columns, options)
    if update:
        values = {key: flow({key: value}).partition(": ")[2] for key, value in update.items()}
        sets = (shlex.quote(f"data.csv.{key}={value}") for key, value in values.items())
        return (
            f"; or paste: {flow({'data': {'csv': update}})} into the configuration, or add --set "
            + " --set ".join(sets)
        )
    other = peek.sniffed(path, options)
    header = records.csv_names(path, other)
    if len(header) > len(names):
        paste = flow({"data": {"csv": {"delimiter": other.delimiter}}})
        return (
            f". Divided by {other.delimiter!r} it has the columns {', '.join(header)}:"
            f" paste {paste}"
        )
    return "; without a header give data.csv.names" if options.header else ""


# ------------------------------------------------------------------------------------------- JSON
def _json(looked: _Looked, columns: Sequence[Wanted]) -> Checked:
    names = [one.name for one in columns]
    paths = list(looked.paths)
    kinds_by_file = of_each(paths, lambda path: json_rows.kinds(path, names, _FIRST_RECORDS))
    by_path = zip(paths, kinds_by_file, strict=True)
    kinds = {path: of_file for path, of_file in by_path if of_file is not None}
    missing = set()
    for one in columns:
        name = one.name
        seen = {path: of_file.get(name) for path, of_file in kinds.items()}
        if one.text:
            lacking = [
                path for path in seen if seen[path] is None and name not in looked.paths[path]
            ]
        else:
            anywhere = any(kind or name in looked.paths[path] for path, kind in seen.items())
            lacking = [] if anywhere or not one.required else list(seen)
        for path in lacking:  # it may come late in the file
            seen[path] = (json_rows.kinds(path, [name], None) or {}).get(name)
            if seen[path] is not None and not one.text:
                break
            if seen[path] is None and (one.text or path == lacking[-1]):
                raise looked.missing(one, path, _first_keys(path))
        values = set(filter(None, seen.values()))
        refused = {"object"} if one.lists else {"object", "array"}
        if values & refused and not values - refused - {"null"}:
            path = next(path for path, kind in seen.items() if kind in refused)
            raise _wrong_type(one, path, "texts, numbers or truth values", str(seen[path]))
        if kinds and not values and not any(name in looked.paths[path] for path in seen):
            missing.add(name)
    return Checked(missing=frozenset(missing))


def _first_keys(path: str) -> list[str]:
    keys: dict[str, None] = {}
    for record in json_rows.first(path, _FIRST_RECORDS):
        keys |= dict.fromkeys(record)
    return list(keys)


def _wrong_type(one: Wanted, path: str, expected: str, got: str) -> DataError:
    return DataError(
        "a column is of another type",
        where=f"{one.where} in {path}",
        expected=expected,
        got=got,
        remedy="map another column (of an object a field: a.b), or cast it where the file is made",
    )


# ------------------------------------------------------------------------------ Parquet, ORC, Avro
def _columnar(
    looked: _Looked, form: Any, entries: Sequence[Entry], columns: Sequence[Wanted]
) -> Checked:
    types = footers.check_alike(entries, form, [(one.where, one.name) for one in columns])
    missing = set()
    for one, kind in zip(columns, types, strict=True):
        path = entries[0].path if entries else looked.source
        in_directory = bool(entries) and one.name in looked.paths[path]
        if kind is None and one.required and not in_directory and entries:
            raise looked.missing(one, path, footers.schema(path, form).names)
        if one.text and kind is not None and not footers.is_text(kind):
            raise _wrong_type(one, path, "a text column (string)", str(kind))
        if one.id and kind is not None and not _names_rows(kind):
            raise _wrong_type(one, path, "texts, numbers, dates or times", str(kind))
        if kind is None and not in_directory:
            missing.add(one.name)
    return Checked(
        missing=frozenset(missing),
        types={one.name: kind for one, kind in zip(columns, types, strict=True)},
    )


def _names_rows(kind: Any) -> bool:
    """True if `howdah.data.ids` can spell values of this pyarrow type."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    a = pa.types
    is_one = (a.is_string, a.is_large_string, a.is_integer, a.is_boolean, a.is_floating,
              a.is_decimal, a.is_date, a.is_timestamp, a.is_null)  # fmt: skip
    return any(check(kind) for check in is_one) or str(kind) == "string_view"
