"""The run configuration's section `drift` (howdah/config/model.py has the others)."""

from __future__ import annotations

from pydantic import Field

from howdah.config.types import Fraction, Section

__all__ = ["DriftSection"]


class DriftSection(Section):
    """When `howdah drift` raises an alarm. Each limit must be exceeded together with what chance
    alone would reach."""

    min_rows: int = Field(default=100, ge=20)
    """Fewer rows with a prediction are not judged: the verdict is "too few rows"."""
    psi: float = Field(default=0.2, gt=0.0, allow_inf_nan=False)
    """Smallest population stability index of labels, confidence or lengths that matters. By custom
    0.1 is a small change, 0.2 a large one."""
    accuracy: Fraction = Field(default=0.05, gt=0.0)
    """Smallest fall that matters of the accuracy, estimated or measured."""
