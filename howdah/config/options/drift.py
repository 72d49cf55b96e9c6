"""The run configuration's section `drift` (howdah/config/model.py has the others)."""

from __future__ import annotations

from pydantic import Field

from howdah.config.types import Fraction, Rare, Section


class DriftSection(Section):
    """When `howdah drift` raises an alarm. Each limit must be exceeded together with what chance
    alone would reach."""

    min_rows: Rare[int] = Field(default=100, ge=20)
    """Fewest rows with a prediction that are judged. With fewer the verdict is "too few rows"."""
    psi: Rare[float] = Field(default=0.2, gt=0.0, allow_inf_nan=False)
    """Smallest population stability index of labels, confidence or lengths that counts as drift. By
    convention 0.1 is a small change and 0.2 a large one."""
    accuracy: Rare[Fraction] = Field(default=0.05, gt=0.0)
    """Smallest fall of the estimated or measured accuracy that counts as drift."""
