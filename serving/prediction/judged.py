"""Counts of the rows without a prediction, by reason, and their limit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from howdah.config.types import too_many
from howdah.errors import TooManyErrors
from howdah.serving.prediction.rows import NO_KEY, Prediction, format_of, shown

if TYPE_CHECKING:
    from howdah.config.model import Config

_MOST_REASONS = 1_000
SHOWN_REASONS = 5
_LINE = re.compile(r"^line \d+: ")
_DETAIL = re.compile(r" \(.*$", re.DOTALL)
LINE_OF_SPARK = r"^line \d+: | \((?s).*$"
"""What `reason_of` removes, for Spark's regexp_replace."""


def reason_of(error: str) -> str:
    """Return an error without its line and details, so that similar errors have one reason.

    >>> reason_of("line 7: not JSON (Expecting value: line 1 column 1 (char 0))")
    'not JSON'
    """
    return _DETAIL.sub("", _LINE.sub("", error))


def named(row_id: str | None) -> str:
    """A row in a message: its id, or that it has none, as in a table."""
    if row_id is None:
        return "a row without an id"
    return row_id if row_id.startswith(NO_KEY) else f"id {row_id}"


class Reasons:
    """Counts errors by reason."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[str, Any]] = {}
        self.count = 0
        """Number of rows with an error, including those whose reasons are not shown."""

    def add(self, predictions: Sequence[Prediction]) -> None:
        """Count the rows without a prediction."""
        for one in predictions:
            if one.error is None:
                continue
            self.count += 1
            reason = reason_of(one.error)
            if reason not in self._entries and len(self._entries) >= _MOST_REASONS:
                reason = "other reasons"
            entry = self._entries.setdefault(
                reason, {"error": reason, "rows": 0, "example": one.id, "first": one.error}
            )
            entry["rows"] += 1

    def as_list(self) -> list[dict[str, Any]]:
        """Return [{error, rows, example: an id, first: its whole error}], most frequent first."""
        return sorted(self._entries.values(), key=lambda one: -one["rows"])[:SHOWN_REASONS]


def of_lines(count: int, reasons: Reasons) -> list[str]:
    """Describe the errors among answered lines, if there are any."""
    why = "; ".join(f"{one['rows']:,} {one['error']}" for one in reasons.as_list())
    return [f"{reasons.count:,} of {count:,} lines have an error ({why})"] if why else []


def lines(summary: Mapping[str, Any]) -> list[str]:
    """Describe a prediction's result: rows, and how many have an error by reason."""
    line = f"{summary['rows']:,} rows -> {shown(summary['output'])}"
    if summary["errors"]:
        why = "; ".join(f"{one['rows']:,} {one['error']}" for one in summary["reasons"])
        line += f"; {summary['errors']:,} with an error ({why}): column error"
    if "drift" not in summary:
        return [line]
    drift = summary["drift"]
    moved = [drift["columns"][name] for name in drift["alarms"]]
    return [
        line,
        f"drift: {drift['state']}",
        *(f"{column['grade']} change: {column['change']}" for column in moved),
    ]


def require_few(summary: Mapping[str, Any], config: Config, source: str) -> None:
    """Refuse a result in which too many rows have an error. The output stays.

    Args:
        config: `score.max_error_fraction` and `data.csv` are used.
        source: the predicted source.
    Raises:
        TooManyErrors: exit code 3.
    """
    from howdah.data.files.encodings import explained
    from howdah.serving.prediction.reading import NOT_DECODED, source_files

    most = config.score.max_error_fraction
    rows, errors = summary["rows"], summary["errors"]
    if not too_many(errors, rows, most):
        return
    why = "; ".join(
        f"{one['error']}: {one['rows']:,} ({named(one['example'])}"
        + (f", {one['first']})" if one["first"] != one["error"] else ")")
        for one in summary["reasons"]
    )
    remedy = "the column error has the reason for each row"
    if any(one["error"] == NOT_DECODED for one in summary["reasons"]):
        paths = [path for path in source_files(source).paths if format_of(path) == "csv"]
        other = explained(paths, config.data.csv.encoding)
        remedy = (
            f"all of these rows decode as {other}: set data.csv.encoding: {other}"
            if other
            else "set data.csv.encoding to the file's character set (JSON must be UTF-8)"
        )
    raise TooManyErrors(
        "too many rows could not be classified; they are in the output, with an error",
        where=shown(summary["output"]),
        expected=f"at most {most:.2%} of the rows (score.max_error_fraction)",
        got=f"{errors:,} of {rows:,} rows ({errors / rows:.2%}): {why}",
        remedy=f"{remedy}; or raise score.max_error_fraction",
    )
