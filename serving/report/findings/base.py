"""What the first and second passes of all tasks have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
_SAMPLE_VALUES = 2**22
_SAMPLE_ROWS = 50_000
_LENGTHS = 5


def row_of(split: str, chunk: Chunk, number: int, **of_task: Any) -> ROW:
    """A row as the report shows it; its text comes later."""
    place = None if chunk.places is None else tuple(chunk.places[number].tolist())
    return {"split": split, "id": chunk.ids[number].as_py(), "place": place, **of_task}


@dataclass(frozen=True, kw_only=True)
class Rival:
    """Another model's predictions of the same rows."""

    predicted: np.ndarray
    """int[N], class numbers, of all rows in the order of the split's shards."""
    starts: np.ndarray
    """int[shards + 1]: where each shard's rows begin."""

    @classmethod
    def of(cls, predicted: np.ndarray | None, rows: Sequence[int]) -> Rival | None:
        """The predictions, if they are of as many rows as the split's shards have."""
        starts = np.cumsum([0, *rows])
        if predicted is None or len(predicted) != starts[-1]:
            return None
        return cls(predicted=predicted, starts=starts)

    def at(self, places: np.ndarray) -> np.ndarray:
        """What it predicts of rows.

        Args:
            places: `Chunk.places`.
        """
        return self.predicted[self.starts[places[:, 0]] + places[:, 1]]


class First:
    """The first pass over a split.

    Args:
        split: its name.
        predictions: to be read.
        advance: called after each batch.
        parts: the source part of each shard.
        rival: another model's predictions of the split, of tasks with one label.
    """

    share = True
    """What slices are judged by is 0 or 1: the row is right."""
    lower = False
    """Lower values of it are better."""

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
        self.places: Sample | None = None
        """([shard, row], value that slices are judged by)"""
        self._lengths = SliceSums(LONGEST_ROW)
        self._parts = list(parts)
        self._of_shards = SliceSums(len(parts) + 1)
        self.begin(classes)
        for chunk in predictions.chunks():
            self.rows += len(chunk)
            self.sample.add(chunk.labels, chunk.scores)
            values = self.add(chunk)
            if chunk.places is not None:
                self.places = self.places or Sample(_SAMPLE_ROWS)
                self.places.add(chunk.places[:, :2], values)
                self._lengths.add(chunk.places[:, 2], values)
                if parts:
                    self._of_shards.add(chunk.places[:, 0], values)
            advance()

    def begin(self, classes: int) -> None:
        """Make the task's own sums."""

    def add(self, chunk: Chunk) -> np.ndarray:
        """Count a batch of rows; the values float64[N] that slices are judged by."""
        raise NotImplementedError

    def of_pairs(self) -> dict[str, Any]:
        """Counted labels and predictions, of tasks with one label."""
        return {}

    def slices(self) -> list[Slice]:
        """Slices by length and by source part."""
        lengths = [
            (f"{first} to {last} tokens" if first < last else f"{first} tokens", sums)
            for first, last, sums in self._lengths.quantiles(_LENGTHS)
        ]
        found = judged("length", lengths, share=self.share, lower=self.lower)
        if any(part is not None for part in self._parts):
            sums: dict[str, np.ndarray] = {}
            for part, own in zip(self._parts, self._of_shards.sums.T, strict=False):
                name = part or "older"
                sums[name] = sums.get(name, np.zeros(3)) + own
            named = [(name, own) for name, own in sums.items() if own[0]]
            found += judged("source part", named[-20:], share=self.share, lower=self.lower)
        return found


class Second:
    """The second pass over a split.

    Args:
        split, predictions, advance: as of the first one.
        first: what that found.
        temperature: that validation gave; None: not known.
        validation: what the first pass over validation found; None: that is this split, or nothing.
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
        self.validation = validation
        self.suspects = Best(50)
        self.begin(len(predictions.labels))
        if self.needed:
            for chunk in predictions.chunks():
                self.add(chunk)
                advance()
        self.end()

    needed = True
    """Rows are read again."""

    def begin(self, classes: int) -> None:
        """Make the task's own sums."""

    def add(self, chunk: Chunk) -> None:
        """Look at a batch of rows."""

    def end(self) -> None:
        """All rows have been seen."""

    def examples(self) -> list[ROW]:
        """Rows to show besides worst ones and suspects."""
        return []

    def as_dict(self) -> dict[str, Any]:
        """The task's findings."""
        return {}
