"""The run configuration's section `data.split`: how rows come to train, validation and test."""

from __future__ import annotations

import contextlib
import math
from datetime import date
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator, model_validator

from howdah.config.options.source import moment_of
from howdah.config.splits import SPLIT_WORDS, TEST, TRAIN, VALIDATION, Split
from howdah.config.types import Rare, Section, SourcePath, Usual, number_as_text

MOST_FOLDS = 20
"""Parts that `data.split.fold` may divide the clusters into."""


def _size(value: float) -> float:
    if value < 1:
        return float(value)  # 0 and 0.0 are one value, also in a dataset's hash
    if not isinstance(value, int):
        raise ValueError(f"a fraction is below 1, and rows are a whole number; got {value!r}")
    return value


Size = Annotated[int | float, Field(ge=0), AfterValidator(_size)]
"""Size of a split: a fraction below 1 (float), or rows (int)."""


def is_number(text: str) -> bool:
    """True where `moment` takes a text for a number, not for a date or time."""
    with contextlib.suppress(ValueError):
        return math.isfinite(float(text))
    return False


def moment(text: str) -> float:
    """A moment as a number: a number as it is, a date or time of ISO 8601 as microseconds since
    1970 (UTC where it names no zone), exact up to the year 2255 (2^53).

    >>> moment("1970-01-02") == moment("1970-01-02T00:00:00+00:00") == 86_400_000_000
    True
    """
    if is_number(text):
        return float(text)
    try:
        return float(moment_of(text))
    except ValueError:
        raise ValueError(f"neither a number nor a date or time of ISO 8601: {text!r}") from None


class SplitSources(Section):
    validation: Rare[SourcePath | None] = None
    """Source of an official validation set: files or a table, as data.source and with its columns.
    null: drawn from data.source."""
    test: Rare[SourcePath | None] = None
    """Source of an official test set: files or a table, as data.source and with its columns. null:
    drawn from data.source."""

    @property
    def given(self) -> dict[Split, str]:
        """{split: its source}."""
        both: dict[Split, str | None] = {VALIDATION: self.validation, TEST: self.test}
        return {split: name for split, name in both.items() if name is not None}


class SplitTime(Section):
    column: Rare[str | None] = None
    """Column of a row's date, time or number. The newest rows go to test, and those before them to
    validation."""
    validation_from: Rare[str | None] = None
    """First date, time or number of validation. null: the newest rows before test, as many as
    data.split.validation says."""
    test_from: Rare[str | None] = None
    """First date, time or number of test. null: the newest rows, as many as data.split.test
    says."""

    @property
    def cuts(self) -> dict[str, str]:
        """{key: cut point} of those that are given."""
        both = {"validation_from": self.validation_from, "test_from": self.test_from}
        return {key: cut for key, cut in both.items() if cut is not None}

    @field_validator("validation_from", "test_from", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        # YAML reads 2026-01-01 as a date and 1700000000 as a number
        if isinstance(value, date):
            return value.isoformat()
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        return value

    @field_validator("validation_from", "test_from")
    @classmethod
    def _is_moment(cls, value: str | None) -> str | None:
        if value is not None:
            moment(value)
        return value

    @model_validator(mode="after")
    def _in_order(self) -> SplitTime:
        if self.column is None and self.cuts:
            raise ValueError("validation_from and test_from need column")
        cuts = list(self.cuts.values())
        if len(cuts) == 2 and moment(cuts[0]) > moment(cuts[1]):
            raise ValueError(
                f"validation_from ({cuts[0]}) must not be later than test_from ({cuts[1]})"
            )
        return self


class SplitOptions(Section):
    validation: Usual[Size] = 0.1
    """Size of validation where the data does not give it: a fraction of the duplicate clusters, or
    a number of rows (1 or more), which is met to within a cluster."""
    test: Usual[Size] = 0.1
    """Size of test where the data does not give it: a fraction of the duplicate clusters, or a
    number of rows (1 or more), which is met to within a cluster."""
    seed: int = Field(default=13, ge=0)
    """Seed of the hash that draws the splits."""
    fold: Rare[str | None] = Field(default=None, pattern=r"^[1-9]\d*/[1-9]\d*$")
    """Fold K/N, which `howdah train --folds` sets: the test split is part K of N (2 to 20) of the
    duplicate clusters, each of which is in one part, and data.split.test is not used. null: no
    folds."""
    column: str | None = None
    """Column that names each row's split. Copies and near copies of test rows are removed from
    train and validation, those of validation rows from train. A split that no row names is drawn
    from train."""
    values: Rare[dict[str, Split]] = {}
    """Split of each value of data.split.column, {value: train, validation or test}. Empty: the
    usual words (train, dev, ...)."""
    sources: SplitSources = SplitSources()
    """Official validation and test sets in sources of their own."""
    time: SplitTime = SplitTime()
    """Split by time."""
    group: Rare[list[str]] = []
    """Columns, such as a user, document or thread. Rows with the same value in one of them stay in
    one split, together with their duplicate clusters."""
    stratify: Rare[int | None] = Field(default=None, ge=1)
    """Number of rows from which a class gets rows in every split; each class is divided in
    proportion to the split sizes. null: clusters are divided regardless of their class."""

    @field_validator("group", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("values", mode="before")
    @classmethod
    def _values_as_text(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {number_as_text(key): split for key, split in value.items()}

    @property
    def words(self) -> dict[str, Split]:
        """{value in `column`, without blanks at its ends and in lower case: split}."""
        return {key.strip().lower(): split for key, split in self.values.items()} or SPLIT_WORDS

    @property
    def part(self) -> tuple[int, int] | None:
        """(K, N) of `fold`."""
        if self.fold is None:
            return None
        number, _, count = self.fold.partition("/")
        return int(number), int(count)

    @property
    def tested(self) -> float:
        """The size of the test split."""
        return self.test if self.part is None else 1 / self.part[1]

    @property
    def given(self) -> list[str]:
        """Keys by which the data gives a row's split."""
        sources = [f"sources.{split}" for split in self.sources.given]
        named = {"column": self.column, "time.column": self.time.column}
        return [key for key, value in named.items() if value is not None] + sources

    @property
    def in_rows(self) -> list[str]:
        """Keys whose size is a number of rows."""
        return [name for name in (VALIDATION, TEST) if getattr(self, name) >= 1]

    @property
    def of_texts(self) -> list[str]:
        """Keys that need more of a row than its id: no split of records by another writer."""
        columns = [name for name in ("group", "stratify") if getattr(self, name)]
        return [*self.given, *columns, *self.in_rows]

    @model_validator(mode="after")
    def _leaves_train(self) -> SplitOptions:
        if self.part is None:
            if sum(size for size in (self.validation, self.test) if size < 1) >= 1.0:
                raise ValueError("validation + test must stay below 1")
            return self
        number, count = self.part
        if not 2 <= count <= MOST_FOLDS or number > count:
            raise ValueError(
                f"fold must be K/N with 2 <= N <= {MOST_FOLDS} and K <= N; got {self.fold}"
            )
        others = [*self.given, *(["stratify"] if self.stratify else [])]
        others += [name for name in self.in_rows if name == VALIDATION]
        if others:
            raise ValueError(
                f"fold divides all clusters by their hash: leave out {', '.join(others)}"
                + (" (validation as a fraction is possible)" if VALIDATION in others else "")
            )
        if self.validation + 1 / count >= 1.0:
            raise ValueError(
                f"validation ({self.validation:g}) + one fold of {count} must stay below 1"
            )
        return self

    @model_validator(mode="after")
    def _one_way(self) -> SplitOptions:
        ways = {key.partition(".")[0] for key in self.given}
        if len(ways) > 1:
            raise ValueError(
                f"the splits are given by {' and by '.join(self.given)}: give one of them"
            )
        if self.values and self.column is None:
            raise ValueError("values needs column")
        if "time" in ways and self.stratify:
            raise ValueError("time divides all rows: leave out stratify")
        if len({key.strip().lower() for key in self.values}) < len(self.values):
            raise ValueError("values lists a value twice; blanks at the ends and case do not count")
        if self.values and TRAIN not in self.values.values():
            raise ValueError("values names nothing for train")
        return self
