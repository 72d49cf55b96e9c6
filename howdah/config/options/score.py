"""The run configuration's section `score`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from howdah.config.types import Section


class ScoreSection(Section):
    """Scoring partitions of a Hive table (`howdah score`), and predictions (`howdah predict`)."""

    max_error_fraction: Annotated[float, Field(ge=0.0, le=1.0)] = 0.05
    """A partition is not replaced if more of its rows have an error (a null or empty text);
    `howdah predict` writes all rows and ends with exit code 3 then. 1: any number."""
