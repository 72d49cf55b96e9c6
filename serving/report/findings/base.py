"""The common parts of all tasks' first and second passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from howdah.models.decision import Decision
from howdah.models.fit_decision import logits_of
from howdah.models.metrics.metrics import ECE_BINS, calibration, calibration_bins
from howdah.serving.report.findings.predictions import Chunk, Predictions
from howdah.serving.report.findings.sums import (
    LONGEST_ROW,
    ROW,
    Best,
    Sample,
    Slice,
    SliceSums,
    judged,
)

WORST = 20
SUSPECTS = 50
_SAMPLE_VALUES = 2**22
_SAMPLE_ROWS = 50_000
_LENGTHS = 5


def row_of(split: str, chunk: Chunk, number: int, **of_task: Any) -> ROW:
    """Return a row for the report, still without its text."""
    place = tuple(chunk.places[number].tolist())
    return {"split": split, "id": chunk.ids[number].as_py(), "place": place, **of_task}


@dataclass(frozen=True, kw_only=True)
class Rival:
    """Another model's predictions of the same rows."""

    predicted: np.ndarray
    """int[N]: class numbers of all rows in the order of the split's shards."""
    starts: np.ndarray
    """int[shards + 1]: offset of each shard's rows."""

    @classmethod
    def of(cls, predicted: np.ndarray | None, rows: Sequence[int]) -> Rival | None:
        """Return the predictions, if their number is that of the rows in the split's shards."""
        starts = np.cumsum([0, *rows])
        if predicted is None or len(predicted) != starts[-1]:
            return None
        return cls(predicted=predicted, starts=starts)

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the predicted classes of rows.

        Args:
            places: `Chunk.places`.
        """
        return self.predicted[self.starts[places[:, 0]] + places[:, 1]]


class First:
    """The first pass over a split.

    Args:
        split: name of the split.
        predictions: its predictions.
        advance: called after each batch.
        parts: source part of each shard.
        rival: another model's predictions of the split, for single-label tasks.
    """

    share = True
    """True if slices are judged by 0 or 1: whether the row is right."""
    lower = False
    """True if lower values are better."""

    def __init__(
        self,
        split: str,
        predictions: Predictions,
        advance: Callable[[], None] = lambda: None,
        *,
        parts: Sequence[str | None] = (),
        rival: Rival | None = None,
    ) -> None:
        self.rival = rival
        self.split, self.labels, self.rows = split, predictions.labels, 0
        self.worst = Best(WORST)
        classes = len(self.labels)
        self.sample = Sample(min(_SAMPLE_ROWS, _SAMPLE_VALUES // classes))
        """(labels, scores)"""
        self.places = Sample(_SAMPLE_ROWS)
        """([shard, row], value that slices are judged by)"""
        self._lengths = SliceSums(LONGEST_ROW)
        self._parts = list(parts)
        self._of_shards = SliceSums(len(parts) + 1)
        self.begin(classes)
        for chunk in predictions.chunks():
            self.rows += len(chunk)
            self.sample.add(chunk.labels, chunk.scores)
            values = self.add(chunk)
            self.places.add(chunk.places[:, :2], values)
            self._lengths.add(chunk.places[:, 2], values)
            if parts:
                self._of_shards.add(chunk.places[:, 0], values)
            advance()

    def begin(self, classes: int) -> None:
        """Prepare the task's own sums."""

    def add(self, chunk: Chunk) -> np.ndarray:
        """Count a batch of rows; return the values float64[N] that slices are judged by."""
        raise NotImplementedError

    def of_pairs(self) -> dict[str, Any]:
        """Return counted labels and predictions, for single-label tasks."""
        return {}

    def slices(self) -> list[Slice]:
        """Return the slices by length and by source part."""
        lengths = [
            (f"{first} to {last} tokens" if first < last else f"{first} tokens", sums)
            for first, last, sums in self._lengths.quantiles(_LENGTHS)
        ]
        slices = judged("length", lengths, share=self.share, lower=self.lower)
        if any(part is not None for part in self._parts):
            sums: dict[str, np.ndarray] = {}
            for part, of_shard in zip(self._parts, self._of_shards.sums.T, strict=False):
                name = part or "older"
                sums[name] = sums.get(name, np.zeros(3)) + of_shard
            named = [(name, of_part) for name, of_part in sums.items() if of_part[0]]
            slices += judged("source part", named[-20:], share=self.share, lower=self.lower)
        return slices


class Second:
    """The second pass over a split.

    Args:
        split, predictions, advance: those of the first pass.
        first: the first pass over the split.
        temperature: temperature fitted on validation; None: unknown.
        validation: the first pass over validation; None: there is none, or it is this split.
    """

    def __init__(
        self,
        split: str,
        predictions: Predictions,
        first: First,
        advance: Callable[[], None] = lambda: None,
        *,
        temperature: float | None = None,
        validation: First | None = None,
    ) -> None:
        self.split, self.first, self.temperature = split, first, temperature
        self.validation, self.labels, self.task = validation, first.labels, predictions.task
        self.suspects = Best(SUSPECTS)
        self._bins, self._tempered = np.zeros((3, ECE_BINS)), np.zeros((3, ECE_BINS))
        self.begin(len(self.labels))
        if self.needed:
            for chunk in predictions.chunks():
                self.add(chunk)
                advance()

    needed = True
    """True if the rows are read again."""

    def begin(self, classes: int) -> None:
        """Prepare the task's own sums."""

    def add(self, chunk: Chunk) -> None:
        """Look at a batch of rows."""

    def count_calibration(self, scores_NC: np.ndarray, claims: Any, right: np.ndarray) -> None:
        """Count how often claims of the model are right, by their scores before and with the
        temperature.

        Args:
            claims: index of the claims' scores in an array [N, C].
            right: whether each claim is right.
        """
        self._bins += calibration_bins(scores_NC[claims].reshape(-1), right)
        if self.temperature is not None:
            decision = Decision(temperature=self.temperature)
            tempered = decision.scores(self.task, logits_of(self.task, scores_NC))
            self._tempered += calibration_bins(tempered[claims].reshape(-1), right)

    def calibrations(self) -> dict[str, Any]:
        """Return {before, after, temperature}; the last two only with a temperature."""
        bins, ece = calibration(self._bins)
        measured: dict[str, Any] = {"before": {"bins": bins, "ece": ece}}
        if self.temperature is not None:
            bins, ece = calibration(self._tempered)
            measured |= {"after": {"bins": bins, "ece": ece}, "temperature": self.temperature}
        return measured

    def examples(self) -> list[ROW]:
        """Return rows to show besides the worst ones and suspects."""
        return []

    def as_dict(self) -> dict[str, Any]:
        """Return the task's findings."""
        return {}
