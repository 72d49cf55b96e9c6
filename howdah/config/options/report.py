"""The section `report`."""

from __future__ import annotations

from typing import Literal

from howdah.config.types import Section


class ReportSection(Section):
    """The run's page, report.html."""

    texts: Literal["none", "worst"] = "worst"
    """worst: show the texts of the worst rows, of suspected labels and of confused ones, decoded
    from the dataset. none: show their ids alone, since pages are mailed."""
