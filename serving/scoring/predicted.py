"""Reads files of predictions that `howdah predict` has written, and refuses those of other models.

A model's profile describes the scores of one run with one decision: compared with it, unchanged
rows that another model has scored would seem to have drifted.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from howdah.config.data import CsvOptions
from howdah.data.files import footers, json_rows, records
from howdah.errors import DataError
from howdah.models.profile.bins import Bins
from howdah.models.version import OF_FILES, Version
from howdah.serving.prediction.reading import SourceFiles, parquet_batches
from howdah.serving.prediction.rows import DECISION, NO_KEY, Prediction, format_of
from howdah.storage.charsets import spelled

_FIELDS = ("id", "label", "value", "scores", "run_id", "error")
_CSV_SCORE = "score_"
"""Beginning of a column of scores in CSV; the label follows."""
_NEAR = 1e-5
"""Distance to a bound within which rounded scores may give another answer: files have 6 digits."""


def are_predictions(path: str) -> bool:
    """Return whether a file has the columns or fields that `howdah predict` writes."""
    form = format_of(path)
    if form == "parquet":
        names = set(footers.schema(path, "parquet").names)
        return {"id", "run_id", "error"} <= names and bool({"scores", "value"} & names)
    try:
        if form == "csv":
            names = records.csv_names(path, CsvOptions())
            scores = [name for name in names if name.startswith(_CSV_SCORE) or name == "value"]
            return bool(scores) and {"id", "run_id", "error"} <= set(names)
        first = set(next(json_rows.first(path, 1), ()) if form == "jsonl" else ())
        return {"id", "run_id"} <= first and bool({"scores", "value"} & first)
    except DataError:  # the reader of texts reports what is wrong with the file
        return False


def read(
    files: SourceFiles,
    version: Version,
    bins: Bins,
    *,
    most: int = 2048,
    progress: Callable[[str], None] = lambda line: None,
) -> Iterator[list[Prediction]]:
    """Yield the predictions in files, in lists of at most `most`.

    Args:
        bins: of the model's profile.
        progress: called with a line if their labels are not those of the model's decision.
    Raises:
        DataError: a broken file, or predictions of another run, decision or labels.
    """
    rows = differing = 0
    for path in files.paths:
        _check_decision(path, version, bins)
        predictions = _predictions(path, version, bins)
        while chunk := list(itertools.islice(predictions, most)):
            rows += len(chunk)
            differing += _decided_otherwise(chunk, bins)
            yield chunk
    if differing:
        progress(
            f"warning: the decision of {version.path} (`howdah model threshold`) gives other labels"
            f" to the scores of {differing:,} of {rows:,} rows: they were predicted with another"
            " decision"
        )


def _check_decision(path: str, version: Version, bins: Bins) -> None:
    """Refuse a Parquet file whose metadata names another decision.

    CSV and JSON lines have no metadata, and Parquet files of other programs do not have this field.
    """
    if format_of(path) != "parquet":
        return
    decision = (footers.schema(path, "parquet").metadata or {}).get(DECISION.encode())
    expected = bins.decision.hash or ""
    if decision is not None and decision.decode() != expected:
        raise DataError(
            "the predictions were made with a different decision from the model's",
            where=path,
            expected=f"predictions by {version.path}, decision {expected or 'none'}",
            got=f"decision {decision.decode() or 'none'}",
            remedy="give --model the version that made them, or predict the rows again",
        )


def _decided_otherwise(predictions: Sequence[Prediction], bins: Bins) -> int:
    """Count the rows that have another label than the model's decision gives to their scores."""
    scored = [one for one in predictions if one.scores is not None and one.error is None]
    if bins.task != "single_label" or not scored:
        return 0
    scores_NC = np.stack([one.scores for one in scored])
    answers, margins_N = bins.rule.answers(scores_NC), bins.rule.margins(scores_NC)
    return sum(
        answer != one.label and margin > _NEAR
        for one, answer, margin in zip(scored, answers, margins_N, strict=True)
    )


def _predictions(path: str, version: Version, bins: Bins) -> Iterator[Prediction]:
    count = max(1, len(bins.labels))
    for number, values in enumerate(_records(path)):
        row_id, label, value, scores, run_id, error = values
        _check_run(run_id, version, f"{path}, row {number}")
        if bins.task == "regression":
            label, scores = value, None if value is None else [value]
        elif isinstance(scores, dict):
            same = set(scores) == set(bins.labels)
            scores = [scores[name] for name in bins.labels] if same else sorted(scores)
        scores_C = None
        if scores is not None:
            with contextlib.suppress(TypeError, ValueError):  # not a list of numbers
                scores_C = np.array([float(score) for score in scores], np.float32)
        fits = scores_C is not None and len(scores_C) == count
        if not fits and (scores is not None or error is None):
            raise DataError(
                "a prediction does not have the model's scores",
                where=f"{path}, row {number}",
                expected="a number, the field value"
                if bins.task == "regression"
                else f"{count} scores, of {', '.join(bins.labels)}"[:200],
                got=str(scores)[:100],
            )
        key = f"{NO_KEY}{number}" if row_id is None else spelled(str(row_id))
        yield Prediction(key, label, scores_C, error)


def _check_run(run_id: Any, version: Version, where: str) -> None:
    """Refuse a prediction of another run. A third-party model has no run id in its files, so that
    only predictions of a run of Howdah's are known to be another model's."""
    same = run_id == version.run_id
    if version.run_id is None:
        same = run_id is None or str(run_id).startswith(OF_FILES)
    if not same:
        raise DataError(
            "the predictions are of another model",
            where=where,
            expected=f"run_id {version.run_id or OF_FILES + '...'} ({version.path})",
            got=f"run_id {run_id}",
            remedy="give --model the version that made them, or predict the rows again",
        )


def _records(path: str) -> Iterator[Sequence[Any]]:
    """Yield the values of `_FIELDS` of each row."""
    form = format_of(path)
    if form == "parquet":
        names = footers.schema(path, "parquet").names
        for batch in parquet_batches(path, [name for name in _FIELDS if name in names]):
            yield from ([row.get(name) for name in _FIELDS] for row in batch.to_pylist())
        return
    fields: Sequence[str] = _FIELDS
    if form == "csv":
        names = records.csv_names(path, CsvOptions())
        fields = [name for name in names if name in _FIELDS or name.startswith(_CSV_SCORE)]
    part = records.Part(path=path, form=form)
    for line, values, problem, _ in records.read(part, fields, CsvOptions()):
        if problem is not None:
            raise DataError("a row cannot be read", where=f"{path}, line {line}", got=problem)
        if form == "csv":  # an empty cell is none
            cells = {name: cell or None for name, cell in zip(fields, values, strict=True)}
            scores = {
                name.removeprefix(_CSV_SCORE): cell
                for name, cell in cells.items()
                if name.startswith(_CSV_SCORE)
            }
            cells["scores"] = scores if any(scores.values()) else None
            values = [cells.get(name) for name in _FIELDS]
        yield values
