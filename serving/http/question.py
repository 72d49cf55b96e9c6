"""A checked request: its texts, and how their predictions are answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from serving.compute.generation import Generation
from training.prediction.rows import Prediction, Row

__all__ = ["Question"]


@dataclass(frozen=True, kw_only=True)
class Question:
    """A checked request."""

    rows: list[Row]
    answer: Callable[[Generation, Sequence[Prediction]], Any]
    """The body of the answer: plain JSON, or `oip.Tensors`."""
