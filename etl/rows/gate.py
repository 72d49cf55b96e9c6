"""Cleaning and the quality gate: each row leaves with its clean text, or with a reason.

`judge` is pure; `clean_batches` runs it in Spark's Python workers (mapInArrow).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple, assert_never

import pyarrow as pa

from howdah.config.data import CleanOptions, DataSection, QualityOptions
from howdah.config.tasks import Task
from howdah.config.types import too_many
from howdah.data.clean import PAIR, clean_pair, clean_text
from howdah.data.targets import label_name, label_set, set_text, target_text
from howdah.errors import DataError
from howdah.etl.rows.numbering import GROUP, Name, Names, with_ids
from howdah.pages.figures import percent

REASONS = {
    "malformed": "the row could not be read: wrong number of fields, or invalid JSON",
    "no_id": "the column data.columns.id is empty",
    "duplicate_id": "an earlier row has the same id",
    "wrong_encoding": "the text is not in the encoding of data.csv.encoding",
    "empty": "no text is left after cleaning",
    "too_short": "fewer characters than data.quality.min_characters",
    "too_long": "more characters than data.quality.max_characters",
    "undecodable": "the image cannot be read",
    "too_small": "the image has too few pixels",
    "too_large": "the image has too many pixels or bytes",
    "bad_label": "no label, or one that data.labels does not have",
    "bad_target": "the target is not a finite number",
    "bad_split": "the row's split has an unknown name",
    "bad_time": "the row's time cannot be read",
    "forgotten": "the row was forgotten by `howdah model forget`",
    "known_id": "an earlier version of the dataset has the row",
    "label_conflict": "the same text has several labels (data.dedup.conflict)",
    "bridges_splits": "the row is like rows of two splits",
    "held_out_copy": "a copy of a row of validation or test",
    "exact_duplicate": "the same text as another row",
    "near_duplicate": "nearly the same text as another row (data.dedup.threshold)",
}
"""{reason for which a row is left out: its meaning}."""
DUPLICATES = ("held_out_copy", "exact_duplicate", "near_duplicate")
NOT_BAD = ("forgotten", "known_id", "bridges_splits", *DUPLICATES)
"""What says nothing against the source (the rows are there already, or were forgotten, or stand
between two splits): data.quality.max_reject_fraction does not count it."""
DETAIL_CHARACTERS = 200

SCHEMA = (
    "id string, text string, label string, reason string, detail string, key string, breaks int"
)
"""`key` of the rows that pass, and the line breaks that their texts had before cleaning."""

REJECTED_CHARACTERS = 2_000
"""What is kept of a rejected row's text: it is there to be looked at, and rows may be of any
length."""
_RAW = 16
"""A text with more than this times quality.max_characters is not cleaned: cleaning costs time by
the character, and takes out entities, tags and blanks, not fifteen of sixteen characters."""
_READ = ["key", GROUP, "text", "label", "reason", "detail"]

# UTF-8 read as Latin-1 or Windows-1252. Only what right texts do not hold: capitals and accented
# letters do come before quotation marks and no-break spaces in French, German and Portuguese.
_MOJIBAKE = re.compile(
    "[\u00c2\u00ce\u00cf\u00d0\u00d1][\u0080-\u009f\u00a1-\u00aa\u00ac-\u00ba\u00bc-\u00bf]"
    "|\u00c2\u00a0|\u00c3[\u0080-\u00ba\u00bc-\u00bf]"
    "|[\u00e2-\u00ef][\u0080-\u009f\u00a1-\u00aa\u00ac-\u00ba\u00bc-\u00bf][\u0080-\u00bf]"
    "|\u00e2\u20ac[\u0080-\u00bf\u2122\u0153\u02dc\u00a6\u201c\u201d]"
    "|\u00f0\u009f[\u0080-\u00bf]{2}|\u00f0\u0178"
)


@dataclass(frozen=True, kw_only=True)
class RowRules:
    """How the source's rows are read."""

    names: dict[str, str] | None = None
    """{value in the source: label name}; None: every value is a label."""
    task: Task = "single_label"
    separator: str = ","
    """Separates several labels in one text."""
    pairs: bool = False
    """Texts are pairs (data/clean.py)."""


class RowVerdict(NamedTuple):
    """What the gate says of one row: `reason` is None for a row that passes."""

    text: str
    label: str | None
    reason: str | None
    detail: str | None


def wrong_encoding(text: str) -> str | None:
    """The first mark of a wrongly decoded text, or None.

    >>> wrong_encoding("CafÃ©")
    'Ã©'
    """
    at = text.find("\ufffd")
    if at >= 0:
        return f"replacement character at {at}"
    if text.isascii():
        return None
    match = _MOJIBAKE.search(text)
    return match.group(0) if match else None


def judge(
    text: str | None,
    label: str | None,
    clean: CleanOptions,
    quality: QualityOptions,
    rules: RowRules,
) -> RowVerdict:
    """Clean one row and judge it.

    Args:
        text: the source's text, or both of a pair, joined; None where the source has none.
        label: the source's value.
        rules: how the source's rows are read.
    """
    raw = text or ""
    for name, side in zip(("text", "text_pair"), raw.split(PAIR), strict=False):
        if len(side) > _RAW * quality.max_characters:
            detail = f"{name}: " * rules.pairs + f"{len(side)} characters before cleaning"
            return RowVerdict(raw[:REJECTED_CHARACTERS], label, "too_long", detail)
    if rules.pairs:
        text = clean_pair(raw, clean)
        sides = [
            (f"{name}: ", *both)
            for name, *both in zip(
                ("text", "text_pair"), raw.split(PAIR), text.split(PAIR), strict=True
            )
        ]
    else:
        text = clean_text(raw, clean)
        sides = [("", raw, text)]
    reason = detail = name = None
    for side, before, after in sides:
        reason, detail = _judge_text(before, after, quality)
        if reason is not None:
            detail = side + (detail or "nothing is left") if side else detail
            break
    wrong = None
    if label is not None:
        name, wrong = _named(label, rules)
    if reason is None and name is None:
        reason = "bad_target" if rules.task == "regression" else "bad_label"
        detail = (wrong or "no label")[:DETAIL_CHARACTERS]
    return RowVerdict(text, name or label, reason, detail)


def _judge_text(raw: str, text: str, quality: QualityOptions) -> tuple[str | None, str | None]:
    """(reason, detail) of one text, before and after cleaning."""
    mark = wrong_encoding(raw) if quality.reject_wrong_encoding else None
    if not text.strip():
        return "empty", None
    if mark is not None:
        return "wrong_encoding", mark
    if len(text) < quality.min_characters:
        return "too_short", f"{len(text)} characters"
    if len(text) > quality.max_characters:
        return "too_long", f"{len(text)} characters"
    return None, None


def _named(label: str, rules: RowRules) -> tuple[str | None, str | None]:
    """(the label's text in the ETL, None) of a value of the source, or (None, what is wrong)."""
    value = label_name(label)
    if rules.task == "single_label":
        name = rules.names.get(value) if rules.names is not None else value
        return (name, None) if name else (None, value)
    if rules.task == "regression":
        return target_text(value), value
    if rules.task != "multi_label":
        assert_never(rules.task)
    labels = label_set(value, rules.separator)
    if labels is None:
        return None, value
    if rules.names is None:
        return set_text(labels), None
    unknown = [name for name in labels if name not in rules.names]
    return (
        (None, ", ".join(unknown))
        if unknown
        else (set_text(rules.names[name] for name in labels), None)
    )


def refuse_rejects(read: int, drops: Mapping[str, int], data: DataSection) -> None:
    """Fail where more rows are rejected than data.quality.max_reject_fraction, but for reasons
    that say nothing against the source (NOT_BAD)."""
    counted = {r: n for r, n in drops.items() if n and r not in NOT_BAD}
    rejected = sum(counted.values())
    if too_many(rejected, read, data.quality.max_reject_fraction):
        remedy = "fix the source or the column mapping, or raise the fraction"
        if 2 * counted.get("wrong_encoding", 0) > rejected:
            remedy = "name the files' character set in data.csv.encoding (JSON and Parquet must be"
            remedy += " UTF-8: convert the files), or raise the fraction"
        elif 2 * counted.get("bad_target", 0) > rejected:
            remedy = "write the numbers in data.columns.label with a decimal point (136.1), not a"
            remedy += " comma (136,1), or raise the fraction"
        raise DataError(
            "too many rows are rejected",
            where="data.quality.max_reject_fraction",
            expected=f"at most {percent(data.quality.max_reject_fraction)} of {read:,} rows",
            got=f"{rejected:,} rows: "
            + ", ".join(f"{n:,} {r}" for r, n in sorted(counted.items(), key=lambda x: -x[1])),
            remedy=remedy,
        )


def text_key(text: str) -> str:
    """Key of a cleaned text: equal keys are exact duplicates (SHA-256, 128 bits)."""
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def line_breaks(text: str) -> int:
    """Line breaks of a text: LF, CR or CR LF."""
    return text.count("\n") + text.count("\r") - text.count("\r\n")


def columns_of(batch: pa.RecordBatch) -> dict[str, list]:
    """The values of a source's rows, by column.

    A string of Hive or Parquet may be any bytes. Those that are not UTF-8 become U+FFFD in a text;
    in a key or label they are spelt, and the row is rejected, as in CSV and JSON.
    """
    with contextlib.suppress(UnicodeDecodeError):
        return batch.to_pydict()
    columns: dict[str, list] = {}
    invalid = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not pa.types.is_string(column.type):
            columns[name] = column.to_pylist()
            continue
        how = "replace" if name == "text" else "backslashreplace"
        raw = column.cast(pa.binary()).to_pylist()
        values = [None if value is None else value.decode("utf-8", how) for value in raw]
        if name in ("key", "label"):
            invalid += [
                (n, f"{name}: {value}"[:DETAIL_CHARACTERS])
                for n, value in enumerate(values)
                if value is not None and value.encode() != raw[n]
            ]
        columns[name] = values
    for n, detail in invalid:
        if columns["reason"][n] is None:
            columns["reason"][n], columns["detail"][n] = "wrong_encoding", detail
    return columns


def clean_batches(
    batches: Iterable[pa.RecordBatch],
    clean: CleanOptions,
    quality: QualityOptions,
    rules: RowRules,
) -> Iterator[pa.RecordBatch]:
    """mapInArrow: (key, text, label, reason, detail, `numbering.GROUP`, more...) -> SCHEMA and
    those columns as they are; earlier reasons are kept."""
    names = Names()
    yield from with_ids(_judged(batches, clean, quality, rules, names), names)


def _judged(
    batches: Iterable[pa.RecordBatch],
    clean: CleanOptions,
    quality: QualityOptions,
    rules: RowRules,
    names: Names,
) -> Iterator[tuple[pa.RecordBatch, list[Name]]]:
    """SCHEMA without the id, and the names of the rows."""
    for batch in batches:
        columns = columns_of(batch.select(_READ))
        more = [name for name in batch.schema.names if name not in _READ]
        out: dict[str, list] = {name: [] for name in ("text", "label", "reason", "detail", "key")}
        breaks: list[int] = []
        named: list[Name] = []
        for key, group, text, label, reason, detail in zip(
            *(columns[name] for name in ("key", GROUP, "text", "label", "reason", "detail")),
            strict=True,
        ):
            if reason is None:
                verdict = judge(text, label, clean, quality, rules)
            else:
                verdict = RowVerdict(text or "", label, reason, detail)
            name = names.of(group, key, passes=verdict.reason is None)
            if name.again:
                verdict = verdict._replace(reason="duplicate_id", detail=f"key {key}")
            if verdict.reason is not None:
                verdict = verdict._replace(text=verdict.text[:REJECTED_CHARACTERS])
            for column, value in verdict._asdict().items():
                out[column].append(value)
            out["key"].append(None if verdict.reason else text_key(verdict.text))
            breaks.append(0 if verdict.reason else line_breaks(text or ""))
            named.append(name)
        strings = (pa.array(out[name], pa.string()) for name in out)
        arrays = [*strings, pa.array(breaks, pa.int32()), *(batch.column(name) for name in more)]
        yield pa.RecordBatch.from_arrays(arrays, names=[*out, "breaks", *more]), named
