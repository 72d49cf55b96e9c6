"""Drift of live texts from the model's own profile, if its export has one.

The last texts are counted in two windows, so that old ones are forgotten: once a window is full,
the one before it is dropped. Only counts are kept, no texts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from howdah.errors import HowdahError
from howdah.models.profile.profile import NO_PROFILE, Profile, find_reference
from howdah.serving.compute.generation import Generation
from howdah.serving.compute.metrics import Metrics
from howdah.serving.drift.judge import judge
from howdah.serving.prediction.rows import Prediction

_WINDOW = 5000
"""Number of texts in a window."""
_AT_ONCE = 64
"""Number of texts that are counted together, since each call has a fixed cost."""


class LiveDrift:
    """Counts classified texts; gauges are written when Prometheus reads them.

    Args:
        generation: the version that answers at first.
        limits: section `drift` of the configuration; None: its defaults.
        say: takes a line.
    """

    def __init__(
        self,
        generation: Generation,
        metrics: Metrics,
        say: Callable[[str], None],
        limits: Any = None,
    ) -> None:
        self._metrics, self._say, self._limits = metrics, say, limits
        self._lock = threading.Lock()
        self._reference: Any = None
        self.begin(generation)

    def begin(self, generation: Generation) -> None:
        """Start counting again, in the bins of a new version that answers."""
        reference = None
        try:
            reference, why = find_reference(generation.version.path)
            if reference is None and why != NO_PROFILE:
                self._say(f"no drift is shown: {why}")
        except HowdahError as error:
            self._say(f"no drift is shown: {error.what} ({error.where})")
        with self._lock:
            self._generation, self._reference = generation, reference
            self._buffer: list[tuple[np.ndarray, np.ndarray]] = []
            self._windows = [] if reference is None else [self._empty(), self._empty()]
        self._clear_gauges()

    def _clear_gauges(self) -> None:
        self._metrics.drift_rows.set(0)
        self._metrics.drift.clear()
        self._metrics.drift_alarm.clear()

    def _empty(self) -> Any:
        return Profile.like(self._reference)

    def add(self, answers: list[tuple[Any, Any, np.ndarray, Prediction]]) -> None:
        """Count classified texts: (generation, row, ids, prediction) each."""
        if self._reference is None:
            return
        with self._lock:
            self._buffer += [
                (prediction.scores, ids)
                for generation, _, ids, prediction in answers
                if generation is self._generation
            ]
            if len(self._buffer) >= _AT_ONCE:
                self._count()

    def failed(self, *, empty: int, errors: int) -> None:
        """Count texts without a prediction."""
        with self._lock:
            if self._windows:
                self._windows[-1].add_failed(empty=empty, errors=errors)

    def give_up(self, error: Exception) -> None:
        """Stop counting until another version answers."""
        with self._lock:
            self._reference, self._windows, self._buffer = None, [], []
        self._clear_gauges()
        self._say(f"drift is not counted any more: {type(error).__name__}: {error}")

    def _count(self) -> None:
        if not self._buffer:
            return
        scores_NC = np.stack([scores for scores, _ in self._buffer])
        self._windows[-1].add(scores_NC, [ids for _, ids in self._buffer])
        self._buffer = []
        if self._windows[-1].rows >= _WINDOW:
            self._windows = [self._windows[-1], self._empty()]

    def publish(self) -> None:
        """Write the gauges; they have values once there are enough texts."""
        with self._lock:
            if self._reference is None:
                return
            self._count()
            total = self._empty()
            for window in self._windows:
                total.merge(window)
            reference = self._reference
        verdict = judge(reference, total, self._limits)
        self._metrics.drift_rows.set(verdict.rows)
        for column in verdict.columns:
            if column.state in ("alarm", "ok") and column.value is not None:
                self._metrics.drift.labels(column.name).set(column.value)
                self._metrics.drift_alarm.labels(column.name).set(column.state == "alarm")
