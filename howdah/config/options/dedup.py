"""The run configuration's section `data.dedup`: exact and near duplicates, and their labels."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from howdah.config.types import Section

__all__ = ["NUM_PERMUTATIONS", "ConflictOptions", "DedupOptions"]

NUM_PERMUTATIONS = 128
"""Entries of a MinHash signature: the estimated similarity of two texts has a standard deviation of
at most 0.044 then. Ledgers hold such signatures, so another number needs another ETL_FORMAT."""


class ConflictOptions(Section):
    policy: Literal["reject", "majority", "keep"] = "reject"
    """The same text under several labels: reject all of its rows; keep those of the label that nine
    in ten of them have (majority); or keep it once a label, in one split."""
    tolerance: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """With `task: regression`: the same text with targets that differ by no more is no conflict,
    and the first row is kept."""


class DedupOptions(Section):
    exact: bool = True
    """Remove rows whose cleaned text is the same."""
    near: bool = True
    """Remove near duplicates by MinHash-LSH."""
    ngram: Literal["auto"] | Annotated[int, Field(ge=1, le=20)] = "auto"
    """Words of a shingle; auto: single words and pairs of neighbours, which find one changed word
    in texts from 10 words on. A character counts as a word in scripts without blanks."""
    threshold: float = Field(default=0.7, gt=0.0, le=1.0)
    """Estimated Jaccard similarity from which two texts are near duplicates."""
    conflict: ConflictOptions = ConflictOptions()
    """The same text under several labels."""

    @property
    def banding(self) -> tuple[int, int]:
        """(bands, entries of a signature in each).

        >>> DedupOptions(threshold=0.7).banding
        (25, 5)
        """
        rows = max(
            (
                rows
                for rows in range(1, NUM_PERMUTATIONS + 1)
                if _found(self.threshold, NUM_PERMUTATIONS // rows, rows) >= _LEAST_FOUND
            ),
            default=1,
        )
        return NUM_PERMUTATIONS // rows, rows

    @field_validator("conflict", mode="before")
    @classmethod
    def _policy_alone(cls, value: Any) -> Any:
        return {"policy": value} if isinstance(value, str) else value


_LEAST_FOUND = 0.95
"""Share of the pairs at the threshold that the bands must find: with fewer bands more near
duplicates stay, with more bands texts that are not alike have to be compared."""


def _found(similarity: float, bands: int, rows: int) -> float:
    """Share of pairs of this Jaccard similarity that meet in a bucket."""
    return 1 - (1 - similarity**rows) ** bands
