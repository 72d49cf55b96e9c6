"""The section `report`."""

from __future__ import annotations

from typing import Literal

from howdah.config.types import Rare, Section


class ReportSection(Section):
    """The run's page, report.html."""

    texts: Rare[Literal["none", "worst"]] = "worst"
    """Texts in the report. worst: those of the worst rows, of suspected labels and of confused
    ones, decoded from the dataset. none: their ids alone, for pages that are mailed."""
