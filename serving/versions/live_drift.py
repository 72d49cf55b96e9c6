"""Drift of live traffic against the training data, where the export has a profile of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from serving.compute.generation import Generation
from serving.compute.metrics import Metrics

__all__ = ["LiveDrift"]


class LiveDrift:
    """Collects what was classified; gauges are written when Prometheus asks."""

    def __init__(
        self, generation: Generation, metrics: Metrics, say: Callable[[str], None]
    ) -> None:
        self._metrics, self._say = metrics, say

    def begin(self, generation: Generation) -> None:
        """A new version answers: collect anew."""

    def add(self, found: list[tuple[Any, Any, Any, Any]]) -> None:
        """Texts that were classified."""

    def publish(self) -> None:
        """Write the gauges."""
