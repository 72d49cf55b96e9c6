"""The difference of two runs by the rows that both have predicted: is it more than chance?"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from howdah import storage
from howdah.config.tasks import Task
from howdah.errors import HowdahError
from howdah.models.fit_decision import logits_of
from howdah.models.metrics.metrics import pair_metrics
from howdah.models.metrics.tally import MEASURES
from howdah.serving.report.findings.intervals import Interval, bootstrapped, of_difference
from howdah.serving.report.findings.predictions import Predictions
from howdah.serving.report.findings.verdict import FEWEST

_MOST_VALUES = 2**22
"""Scores of a run in memory; of more rows, an even sample by their ids is compared."""
_FEWEST_SHARED = 0.9
"""Part of the rows that both runs must have predicted."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is compared, in which rows."""

    metric: str
    split: str
    task: Task
    labels: Sequence[str]
    rows: int
    """Number of rows of the split."""


@dataclass(frozen=True)
class Rows:
    """A run's predictions: ids [N], labels and predictions [N, ...], scores [N, C]."""

    ids: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    scores: np.ndarray


def read(run_directory: str, question: Question) -> Rows | None:
    """Read a run's predictions; None: it has none that can be compared."""
    directory = storage.join(run_directory, "predictions", question.split)
    every = -(-question.rows * len(question.labels) // _MOST_VALUES)
    columns: list[tuple[np.ndarray, ...]] = []
    try:
        for chunk in Predictions(directory, question.labels, question.task).chunks():
            ids = np.array([str(one) for one in chunk.ids.to_pylist()], dtype=object)
            kept = np.ones(len(ids), bool)
            if every > 1:
                kept = np.array([zlib.crc32(one.encode()) % every == 0 for one in ids])
            each = (ids, chunk.labels, chunk.predicted, chunk.scores)
            columns.append(tuple(column[kept] for column in each))
    except HowdahError:
        return None
    if not columns:
        return None
    return Rows(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def difference(first: Rows, second: Rows, question: Question) -> tuple[Interval, int] | None:
    """Return the 95 % interval of the first run's metric minus the second's, and the rows.

    It is a paired bootstrap: rows are drawn with both predictions, so that rows which both runs get
    right, or both wrong, add no noise. None: too few rows have both predictions.
    """
    at = {one: number for number, one in enumerate(second.ids)}
    mine = np.array([n for n, one in enumerate(first.ids) if one in at], np.int64)
    if len(mine) < max(FEWEST, _FEWEST_SHARED * max(len(first.ids), len(second.ids))):
        return None
    theirs = np.array([at[one] for one in first.ids[mine]], np.int64)
    labels, classes, name = first.labels[mine], len(question.labels), question.metric
    if not np.array_equal(labels, second.labels[theirs]):
        return None
    if question.task == "single_label" and name in pair_metrics(np.zeros(1, int), np.ones(1), 1):
        keys = (labels * classes + first.predicted[mine]) * classes + second.predicted[theirs]
        return of_difference(name, *np.unique(keys, return_counts=True), classes), len(mine)
    logits = [
        logits_of(question.task, scores) for scores in (first.scores[mine], second.scores[theirs])
    ]
    measure = MEASURES[question.task][0]

    def value(of: np.ndarray) -> float | None:
        ours, other = (measure(labels[of], each[of], question.labels).get(name) for each in logits)
        return None if ours is None or other is None else ours - other

    ends = bootstrapped(value, len(labels), classes, len(labels))
    return None if ends is None else (ends, len(labels))
