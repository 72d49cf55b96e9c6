"""What a baseline's computation gives, whichever it was."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from howdah.config.loader import Config
from howdah.core import machine
from howdah.data.manifest import Dataset
from howdah.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one of the two ways of computing a baseline has found."""

    by: str
    """scikit-learn or spark."""
    features: int
    c: float
    """The regularisation that was chosen."""
    tried: dict[str, float | None]
    """{c: the score that it was chosen by}."""
    chosen_by: str
    converged: bool | None
    """None: not known."""
    metrics: dict[str, dict[str, Any]]
    packages: tuple[str, ...]
    predicted: dict[str, np.ndarray] = field(default_factory=dict)
    """{split: int[N], the class that it predicts of each row in the order of the shards}; {}: not
    known."""
    application: str | None = None


def wanted_splits(config: Config, dataset: Dataset) -> list[str]:
    """The splits to evaluate: those of the model's last evaluation that have rows.

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
            remedy="give one of them a share in data.split, or name another split",
        )
    return splits


def strengths(config: Config) -> tuple[float, ...]:
    """The values of `baseline.c` to try."""
    return (1.0, 10.0) if config.baseline.c is None else (config.baseline.c,)


def memory_limit(config: Config) -> tuple[int, str]:
    """(bytes, name): what a baseline's estimated memory may be at most."""
    asked, there = config.baseline.max_bytes, machine.memory_bytes()[0]
    return (asked, "baseline.max_bytes") if asked <= there else (there, "this machine's memory")


def gib(size: int) -> str:
    """A size for messages."""
    return f"{size / 2**30:.3g} GiB"
