"""A look at the ETL's source before Spark starts: what one MiB of its files tells.

It judges the first rows by the gate that judges all rows later, and raises the errors that the ETL
would raise after its start.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from howdah.config.data import DataSection
from howdah.config.yaml_text import flow
from howdah.data.clean import joined
from howdah.data.files import encodings, peek
from howdah.data.files.peek import Sample
from howdah.data.targets import label_name
from howdah.errors import DataError
from howdah.etl import attention
from howdah.etl.rows import gate, labels
from howdah.etl.sources import source as sources
from howdah.etl.sources.source import Source
from howdah.storage.charsets import SURROGATES, replaced

_FORMS = ("csv", "jsonl", "parquet", "orc", "avro")
_MOST_SHOWN = 20
_WHOLE_NUMBER = re.compile(r"\s*(-?\d+)\.0+\s*")


@dataclass(frozen=True, kw_only=True)
class Look:
    """What the first rows of a source tell."""

    files: int
    size: int
    """Bytes of all files."""
    samples: list[Sample]
    """Samples of the first file of the source, and of that of each official set."""
    rows: int = 0
    whole: bool = False
    """True if the source has no other rows."""
    reasons: Counter[str] = field(default_factory=Counter)
    """{reason of the gate: rows that it rejects}."""
    labels: Counter[str] = field(default_factory=Counter)
    """{label: rows that pass}."""
    columns: str = ""
    warnings: list[str] = field(default_factory=list)
    """About the files."""
    advice: list[str] = field(default_factory=list)
    """About the labels; a whole ETL says it at its end, of all rows."""

    def lines(self) -> Iterator[str]:
        """All of it, for `howdah etl --check`."""
        first = self.samples[0]
        more = f", the first of {self.files:,} files of {self.size:,} bytes"
        yield f"source: {first.path}" + (more if self.files > 1 else f", {self.size:,} bytes")
        yield f"format: {first.description}"
        yield f"columns: {', '.join(first.names)}"
        yield f"read as: {self.columns}"
        if self.rows:
            which = "all" if self.whole else "the first"
            rejected = ", ".join(f"{n:,} {reason}" for reason, n in self.reasons.most_common())
            kept = self.rows - self.reasons.total()
            yield f"{which} {self.rows:,} rows: {kept:,} pass; rejected: {rejected or 'none'}"
        if self.labels:
            shown = [f"{name} {rows:,}" for name, rows in self.labels.most_common(_MOST_SHOWN)]
            more = f" and {len(self.labels) - _MOST_SHOWN} more"
            yield "labels: " + ", ".join(shown) + more * (len(self.labels) > _MOST_SHOWN)
        yield from (*self.warnings, *self.advice)

    def as_dict(self) -> dict[str, Any]:
        """The output of --json."""
        first = self.samples[0]
        return {
            "source": first.path, "files": self.files, "bytes": self.size,
            "format": first.description, "columns": first.names, "rows": self.rows,
            "whole": self.whole, "rejected": dict(self.reasons), "labels": dict(self.labels),
            "warnings": [*self.warnings, *self.advice],
        }  # fmt: skip


def look(data: DataSection) -> Look | None:
    """Look at the first rows of the source; None: it is not one of files of rows.

    Raises:
        ConfigError, DataError: the ETL would fail.
    """
    if data.query_file is not None or data.names_table or data.kind == "image":
        return None
    source = sources.with_parts(sources.resolve(data), data, sources.resolve)
    if source.kind not in _FORMS:
        return None
    parts = {None: source, **source.parts}
    samples = []
    for split, part in parts.items():
        of_part = sources.data_of(data, split)
        samples.append(peek.sample(part.files[0].path, source.kind, data.csv, part.root))
        try:
            sources.check_columns(part, of_part)
        except DataError as error:
            _add_guess(error, samples[-1])
            raise
        names = [name for _, name in sources.wanted(of_part)]
        peek.refuse_encoding(samples[-1], names, encodings.MOST_DROPPED, data.csv.encoding)
    return _judged(source, samples, data)


def _add_guess(error: DataError, one: Sample) -> None:
    """Add the columns that look right to the error of a missing one."""
    if "no column" in error.what and "paste" not in (error.remedy or "") and one.rows:
        paste = flow({"data": {"columns": peek.guessed(one)}})
        error.remedy = f"{error.remedy}; by their values: {paste}"


def _judged(source: Source, samples: list[Sample], data: DataSection) -> Look:
    rows = [(*row, part) for part, one in enumerate(samples) for row in _rows(one, data)]
    files = [*source.files, *(entry for part in source.parts.values() for entry in part.files)]
    whole = all(one.whole for one in samples) and len(files) == len(samples)
    malformed = sum(len(one.malformed) for one in samples)
    read = len(rows) + malformed
    if whole and not read and source.kind not in ("orc", "avro"):
        raise DataError(
            "the source is empty",
            where=samples[0].path,
            got=f"columns {', '.join(samples[0].names)}, and no row",
            remedy="check data.source; with data.csv.header the first line is not a row",
        )
    reasons: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    rules = labels.rules(data)
    keys: set[tuple[str | None, int]] = set()
    for text, label, lacks, *key in rows:
        if lacks is not None:
            reasons[lacks] += 1
            continue
        verdict = gate.judge(text, label, data.clean, data.quality, rules)
        if verdict.reason is None:
            if tuple(key) in keys:
                reasons["duplicate_id"] += 1
                continue
            if key[0] is not None:
                keys.add(tuple(key))
            counts[verdict.label or ""] += 1
            continue
        reasons[verdict.reason] += 1
        if verdict.reason == "bad_label" and (value := label_name(label or "")):
            unknown[value] += 1
    reasons["malformed"] += malformed
    one_label = data.task == "single_label"
    if read:
        try:
            if one_label:
                labels.refuse_unknown(data, unknown)
            if whole:
                gate.refuse_rejects(read, reasons, data)
            if whole and one_label and not data.append.enabled:
                labels.names(data, counts)
        except DataError as error:
            error.where = f"{error.where} in {samples[0].path}"
            raise
    look = Look(
        files=len(files),
        size=sum(entry.size for entry in files),
        samples=samples,
        rows=read,
        whole=whole,
        reasons=+reasons,
        labels=counts if one_label else Counter(),
        columns=", ".join(
            key.removeprefix("data.").removeprefix("columns.") for key, _ in sources.wanted(data)
        ),
    )
    look.warnings.extend(_warnings(look, data))
    if one_label and counts:
        look.advice.extend(_of_labels(look, data))
    return look


def _rows(one: Sample, data: DataSection) -> Iterator[tuple[str | None, ...]]:
    """(text, label, why it is rejected unseen, key) of each row, as etl/sources/reading.py has
    them."""
    columns = data.columns
    lacks: list[str | None] = [None] * len(one.rows)
    for name, reason in ((columns.id, "no_id"), (data.split.time.column, "bad_time")):
        for at, value in enumerate(one.column(name) if name else ()):
            lacks[at] = lacks[at] or _problem(value, reason)
    keys = one.column(columns.id) if columns.id else [None] * len(lacks)
    sides = [one.texts(columns.text)]
    if columns.text_pair is not None:
        sides.append(one.texts(columns.text_pair))
    listed = [name.strip() for name in data.labels or ()]
    label_texts = one.column(columns.label, lists=data.task == "multi_label")
    for *texts, label, lack, key in zip(*sides, label_texts, lacks, keys, strict=True):
        both = [columns.separator.join(parts) for parts in texts]
        text = joined(*both) if len(both) > 1 else both[0]
        if label is not None and one.form == "jsonl" and label.strip() not in listed:
            label = _WHOLE_NUMBER.sub(r"\1", label)
        lack = lack or (_problem(label, None) if label else None)
        yield replaced(text), label, lack, key


def _problem(value: str | None, missing: str | None) -> str | None:
    """Why a row with this value in a column other than the text's is rejected."""
    if value is None or not value.strip():
        return missing
    return "wrong_encoding" if SURROGATES.search(value) else None


def _warnings(look: Look, data: DataSection) -> Iterator[str]:
    """What a user should look at, with the YAML to paste."""
    for one in look.samples:
        if one.stripped:
            yield one.stripped
        if "BROTLI" in one.compression:
            yield (
                f"{one.path}: compressed with brotli, which Spark reads only with a jar of that"
                " codec; zstd, gzip and snappy need none"
            )
        for line, problem in one.malformed[:1]:
            yield f"{one.path}, line {line}: {problem}; {len(one.malformed)} such rows"
        names = [name for _, name in sources.wanted(data)]
        wrong = peek.undecodable(one, names) if one.form in ("csv", "jsonl") else 0
        if wrong:
            yield f"{one.path}: {wrong:,} of {len(one.rows):,} rows are not in {data.csv.encoding}"


def _of_labels(look: Look, data: DataSection) -> Iterator[str]:
    counts, name = look.labels, data.columns.label
    if len(counts) == 1 and not look.whole:
        (only,) = counts
        yield (
            f"check the labels: all of the first {look.rows:,} rows have {only!r}; is {name} the"
            " column of the label?"
        )
    if data.labels is not None:
        return
    if len(counts) > max(10, counts.total() // 2):
        yield (
            f"check the labels: {len(counts):,} different ones in {counts.total():,} rows; is"
            f" {name} the column of the label?"
        )
        return
    for group in labels.similar(counts):
        shown = ", ".join(f"{one!r} ({counts[one]} rows)" for one in group)
        yield f"check the labels: these look alike but would be separate classes: {shown}"
    for one in attention.missing_values(list(counts)):
        yield f"check the labels: {one!r} ({counts[one]} rows) reads like a missing value"
    if changed := tidied(counts):
        yield f"to change that, paste into the configuration: {flow({'data': changed})}"


def tidied(counts: Counter[str]) -> dict[str, Any]:
    """Keys of `data` that make labels that look alike one, and reject missing values; {}: none."""
    twins, missing = labels.similar(counts), attention.missing_values(list(counts))
    if not twins and not missing:
        return {}
    mapping = attention.one_name_each(Counter(dict(sorted(counts.items()))), twins, missing)
    reject = {"quality": {"unknown_label": "reject"}} if missing else {}
    return {**reject, "labels": mapping}
