"""The result of a baseline's computation, and its limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from howdah.config.loader import Config
from howdah.core import machine
from howdah.data.manifest import Dataset
from howdah.errors import DataError

NGRAMS = 2
"""Longest n-grams of token ids: single ids and pairs. Triples would multiply the memory, and a
baseline must be cheap."""
MIN_ROWS = 2
"""N-grams in fewer training rows are left out: they do not help with other rows."""
MAX_FEATURES = 200_000
"""Largest number of n-grams: those in most rows are used."""
STRENGTHS = (1.0, 10.0)
"""Inverse strengths of the L2 regularisation to choose from, by evaluation.metric on validation."""
MAX_BYTES = 8 * 2**30
"""The baseline is refused if its estimated memory is larger: a comparison must not take a machine
from the training that it is compared with."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The result of measuring a baseline."""

    features: int
    c: float
    """Chosen inverse regularisation strength."""
    tried: dict[str, float | None]
    """{c: score by which the best one was chosen}."""
    chosen_by: str
    converged: bool
    metrics: dict[str, dict[str, Any]]
    packages: tuple[str, ...]
    predicted: dict[str, np.ndarray]
    """{split: int[N], predicted class of each row in the order of the shards}."""


def splits_to_evaluate(config: Config, dataset: Dataset) -> list[str]:
    """List the splits to evaluate: those of the model's last evaluation that have rows.

    Raises:
        DataError: none of them has rows.
    """
    splits = [split for split in config.evaluation.splits if dataset.manifest.rows(split)]
    if not splits:
        have = [name for name in dataset.manifest.splits if dataset.manifest.rows(name)]
        raise DataError(
            "there is nothing to evaluate the baseline on",
            where=dataset.path,
            expected=f"rows in one of evaluation.splits ({', '.join(config.evaluation.splits)})",
            got=f"rows in {', '.join(have) or 'no split'}",
        )
    return splits


def memory_limit() -> tuple[int, str]:
    """Return (bytes, name) of the limit of a baseline's estimated memory."""
    available = machine.memory_bytes()[0]
    if available >= MAX_BYTES:
        return MAX_BYTES, "its limit"
    return available, "this machine's memory"


def gib(size: int) -> str:
    """Format a size for messages."""
    return f"{size / 2**30:.3g} GiB"
