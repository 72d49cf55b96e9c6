"""Spark's Python workers on a partition's rows: classify them, and count them in a profile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, assert_never

import numpy as np

from howdah.config.tasks import Task
from howdah.models.opened.opened import ServedModel
from howdah.models.profile.profile import Profile
from howdah.serving.prediction.classify import classify, count_failed
from howdah.serving.prediction.executor import ModelLocation, Predictor
from howdah.serving.prediction.rows import Prediction, Row

if TYPE_CHECKING:
    import pyarrow as pa


def columns_of(task: Task) -> dict[str, str]:
    """Return {column: Spark's type} of a worker's output."""
    scored = {"score": "float", "scores": "map<string,float>", "margin": "float"}
    if task == "single_label":
        return {"id": "string", "label": "string", **scored, "error": "string"}
    if task == "multi_label":
        return {"id": "string", "labels": "array<string>", **scored, "error": "string"}
    if task == "regression":
        return {"id": "string", "value": "float", "error": "string"}
    assert_never(task)


class RowScorer(Predictor):
    """A function for mapInArrow: batches of (id, text) to batches of `columns_of` and run_id.

    Args:
        location, framework, seen: see `Predictor`.
        reference: the model's profile; None: rows are not counted in a profile.
        merged: accumulator of `profiles`.
    """

    def __init__(
        self,
        location: ModelLocation,
        framework: str,
        seen: Any,
        *,
        reference: Profile | None,
        merged: Any,
    ) -> None:
        super().__init__(location, framework, seen)
        self._reference = reference
        self._merged = merged
        self._profile: Profile | None = None

    def _classified(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self._reference is None:
            yield from super()._classified(batches)
            return
        from pyspark import TaskContext

        self._profile = Profile.like(self._reference)
        yield from super()._classified(batches)
        context = TaskContext.get()
        self._merged.add((frozenset({context.partitionId()}), self._profile))

    def _answer(self, served: ServedModel, rows: list[Row]) -> pa.RecordBatch:
        profile = self._profile
        if profile is None:
            return _batch(served, classify(served, rows))
        predictions = classify(served, rows, profile.add)
        count_failed(profile, predictions)
        return _batch(served, predictions)


def _batch(served: ServedModel, predictions: Sequence[Prediction]) -> pa.RecordBatch:
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "float": pa.float32(),
        "array<string>": pa.list_(pa.string()),
        "map<string,float>": pa.map_(pa.string(), pa.float32()),
    }
    scored = [one.scores for one in predictions]
    cells = {
        "id": lambda: [one.id for one in predictions],
        **dict.fromkeys(("label", "labels", "value"), lambda: [one.label for one in predictions]),
        "score": lambda: [None if each is None else each.max() for each in scored],
        "scores": lambda: [
            None if each is None else list(zip(served.labels, each, strict=True)) for each in scored
        ],
        "margin": lambda: _margins(served, scored),
        "error": lambda: [one.error for one in predictions],
    }
    columns = columns_of(served.task)
    arrays = [pa.array(cells[name](), types[kind]) for name, kind in columns.items()]
    arrays.append(pa.array([served.run_id] * len(predictions), pa.string()))
    return pa.record_batch(arrays, names=[*columns, "run_id"])


def _margins(served: ServedModel, scored: Sequence[np.ndarray | None]) -> list[float | None]:
    """Return each row's distance from another answer; None for rows that failed."""
    out: list[float | None] = [None] * len(scored)
    scored_indices = [number for number, each in enumerate(scored) if each is not None]
    if scored_indices:
        margins = served.rule.margins(np.stack([scored[number] for number in scored_indices]))
        for number, margin in zip(scored_indices, margins, strict=True):
            out[number] = float(margin)
    return out


def profiles() -> Any:
    """Make Spark's accumulator of (the tasks' partition numbers, their merged Profile or None).

    A task that Spark runs twice (a lost executor, speculation) counts once.
    """
    from pyspark.accumulators import AccumulatorParam

    class Merged(AccumulatorParam):
        def zero(self, value: tuple) -> tuple:
            return frozenset(), None

        def addInPlace(self, one: tuple, other: tuple) -> tuple:
            numbers, profile = other
            if profile is None or numbers <= one[0]:
                return one
            if one[1] is None:
                return other
            one[1].merge(profile)
            return one[0] | numbers, one[1]

    return Merged()
