"""The run configuration's section `data.dedup`: exact and near duplicates, and their labels."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from howdah.config.types import Rare, Section

NUM_PERMUTATIONS = 128
"""Entries of a MinHash signature: the estimated similarity of two texts has a standard deviation of
at most 0.044 then. Ledgers hold such signatures, so another number needs another ETL_FORMAT."""


class ConflictOptions(Section):
    policy: Rare[Literal["reject", "majority", "keep"]] = "reject"
    """What happens to rows that have the same text but different labels. reject: all are rejected.
    majority: the rows of a label that at least nine in ten of them have are kept. keep: one row for
    each label is kept, all in one split."""
    tolerance: Rare[float] = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Largest difference of the targets of the same text, with `task: regression`, that is not a
    conflict. The first row is kept."""


class DedupOptions(Section):
    exact: Rare[bool] = True
    """Whether rows with the same cleaned text are removed."""
    near: bool = True
    """Whether near duplicates are removed, by MinHash-LSH."""
    ngram: Rare[Literal["auto"] | Annotated[int, Field(ge=1, le=20)]] = "auto"
    """Number of words in a shingle. auto: single words and pairs of neighbours, which find one
    changed word in texts from 10 words on. A character counts as a word in scripts without
    blanks."""
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
