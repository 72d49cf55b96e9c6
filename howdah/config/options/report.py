"""The section `report`."""

from __future__ import annotations

from typing import Literal

from howdah.config.types import Rare, Section


class ReportSection(Section):
    """The pages: data report, run report, drift."""

    texts: Rare[Literal["masked", "plain", "none"]] = "masked"
    """Texts in all pages. masked: samples, worst rows, suspected labels and confused rows, with
    mail addresses and phone numbers masked. plain: the texts as they are. none: no texts; rows
    have their ids alone."""
