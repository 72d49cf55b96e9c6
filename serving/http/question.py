"""A checked request: its texts, and the function that makes the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from howdah.serving.compute.generation import Generation
from howdah.serving.prediction.rows import Prediction, Row


@dataclass(frozen=True, kw_only=True)
class Question:
    """A checked request."""

    rows: list[Row]
    key: str | None = None
    """Requests with one key are answered by one of several models."""
    answer: Callable[[Generation, Sequence[Prediction]], Any]
    """Makes the answer's body: plain JSON, or `oip.Tensors`."""
