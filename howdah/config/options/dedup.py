"""The run configuration's section `data.dedup`: exact and near duplicates, and their labels."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from howdah.config.types import Section


class ConflictOptions(Section):
    policy: Literal["reject", "majority", "keep"] = "reject"
    """The same text under several labels: reject all of its rows; keep those of the label that
    `share` of them have; or keep it once a label, in one split."""
    share: float = Field(default=0.9, gt=0.5, le=1.0)
    """With `majority`: a text without such a label is rejected whole."""
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
    num_permutations: int = Field(default=128, ge=16, le=512)
    """MinHash permutations; must be divisible by `bands`, if given."""
    bands: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """LSH bands; more bands find less similar pairs. auto: as few as find 95 % of the pairs whose
    similarity is `threshold`."""
    threshold: float = Field(default=0.7, gt=0.0, le=1.0)
    """Estimated Jaccard similarity from which two texts are near duplicates."""
    conflict: ConflictOptions = ConflictOptions()
    """The same text under several labels."""
    max_bucket_size: int = Field(default=1_000, ge=2)
    """Up to this many signatures of an LSH bucket are all compared with each other. In a larger
    bucket this many are compared with all; the others stay in one split, and are reported."""

    @property
    def banding(self) -> tuple[int, int]:
        """(bands, entries of a signature in each).

        >>> DedupOptions(threshold=0.7).banding
        (25, 5)
        """
        if self.bands != "auto":
            return self.bands, self.num_permutations // self.bands
        rows = max(
            (
                rows
                for rows in range(1, self.num_permutations + 1)
                if _found(self.threshold, self.num_permutations // rows, rows) >= _LEAST_FOUND
            ),
            default=1,
        )
        return self.num_permutations // rows, rows

    @field_validator("conflict", mode="before")
    @classmethod
    def _policy_alone(cls, value: Any) -> Any:
        return {"policy": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _finds_what_is_asked(self) -> DedupOptions:
        if self.bands == "auto":
            return self
        if self.num_permutations % self.bands:
            raise ValueError(
                f"num_permutations ({self.num_permutations}) must be divisible by bands"
                f" ({self.bands})"
            )
        above = min(1.0, self.threshold + 0.05)
        found = _found(above, *self.banding)
        if self.near and found < _LEAST_FOUND_ABOVE:
            raise ValueError(
                f"bands ({self.bands}) of num_permutations ({self.num_permutations}) find"
                f" {found:.0%} of the pairs whose similarity is {above:g}, for a threshold of"
                f" {self.threshold:g}: leave bands out, or give more"
            )
        return self


_LEAST_FOUND = 0.95
_LEAST_FOUND_ABOVE = 0.9


def _found(similarity: float, bands: int, rows: int) -> float:
    """Share of pairs of this Jaccard similarity that meet in a bucket."""
    return 1 - (1 - similarity**rows) ** bands
