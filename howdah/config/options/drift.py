"""The run configuration's section `drift` (howdah/config/model.py has the others)."""

from __future__ import annotations

from pydantic import Field

from howdah.config.types import Fraction, Section


class DriftSection(Section):
    """When `howdah drift` raises an alarm. Each limit must be exceeded together with what chance
    alone would reach."""

    min_rows: int = Field(default=100, ge=20)
    """Fewer rows with a prediction are not judged: the verdict is "too few rows"."""
    quantile: float = Field(default=0.999, ge=0.9, lt=1.0)
    """Chance alone stays below a limit in this share of partitions: 0.999 is one false alarm in a
    thousand for each column."""
    psi: float = Field(default=0.2, gt=0.0, allow_inf_nan=False)
    """Smallest population stability index of labels, confidence or lengths that matters. By custom
    0.1 is a small change, 0.2 a large one."""
    unseen: Fraction = Field(default=0.05, gt=0.0)
    """Smallest rise that matters of the share of tokens which training never had; 0.05: from 8 %
    to 13 %."""
    tokens: Fraction = Field(default=0.1, gt=0.0)
    """Smallest Jensen-Shannon distance of token counts that matters, above the mean distance of as
    many tokens of the training split from its other half."""
    failed: Fraction = Field(default=0.02, gt=0.0)
    """Smallest rise that matters of the share of rows without text, or of rows that failed."""
    accuracy: Fraction = Field(default=0.05, gt=0.0)
    """Smallest fall that matters of the accuracy, estimated or measured."""
    history: int = Field(default=30, ge=1, le=1000)
    """Partitions that drift.html shows, the newest last."""
