"""Compares a profile with the model's own: which columns have moved by more than chance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from howdah.config.options.drift import DriftSection
from howdah.errors import DataError
from howdah.models.profile.profile import Counts, Profile
from howdah.models.profile.statistics import (
    interpolated,
    js_distance,
    normal_quantile,
    pool,
    psi,
    psi_noise,
)
from howdah.pages.figures import number
from howdah.serving.drift.sentences import described

QUANTILE = 0.999
"""Share of the partitions in which chance alone stays below a limit: one false alarm in a thousand
days for each column."""
_UNSEEN = 0.05
"""Smallest relevant rise of the share of tokens that training never had: from 8 % to 13 %."""
_TOKENS = 0.1
"""Smallest relevant Jensen-Shannon distance of token counts, above the mean distance of as many
tokens of the training split from its other half."""
_FAILED = 0.02
"""Smallest relevant rise of the share of rows without text, or of rows that failed."""

State = Literal["alarm", "ok", "too few rows", "not measured"]

COLUMNS = {
    "label": "how often each label is predicted (PSI)",
    "confidence": "how sure the model is of its predictions (PSI)",
    "length": "how long the texts are, in tokens (PSI)",
    "unseen": "share of tokens that training never had",
    "tokens": "which tokens occur how often (Jensen-Shannon distance from training)",
    "empty": "share of rows without text",
    "errors": "share of rows that failed otherwise",
    "estimated_accuracy": "accuracy expected from the model's confidence",
    "accuracy": "accuracy on the rows whose true label is known",
}
"""Columns of a verdict, in their order."""
_DISTANCES = {"label": "PSI", "confidence": "PSI", "length": "PSI", "tokens": "distance"}
_LARGE = 3.0
"""Excess from which an alarm is a large change: a PSI of 0.6, or 15 points of accuracy lost."""

Grade = Literal["large", "moderate", "none"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One statistic of a profile."""

    name: str
    state: State
    value: float | None = None
    reference: float | None = None
    """Its value in the model's own profile; for a distance, its mean by chance alone."""
    limit: float | None = None
    """Value beyond which there is an alarm: above it, for an accuracy below it."""
    why: str = ""
    """Reason if the column was not judged."""
    change: str = ""
    """What the rows show beside the reference, in plain words; "" if the column was not judged."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {"what": COLUMNS[self.name], **vars(self), "grade": self.grade}

    @property
    def sentence(self) -> str:
        """The change with its figures."""
        kind = _DISTANCES.get(self.name)
        figure = "" if kind is None else f"{kind} {number(self.value)}, "
        return f"{self.change} ({figure}limit {number(self.limit)})"

    @property
    def grade(self) -> Grade:
        """Size of an alarm."""
        if self.state != "alarm":
            return "none"
        return "large" if self.excess >= _LARGE else "moderate"

    @property
    def excess(self) -> float:
        """Way from the reference towards the limit: above 1 for an alarm, below 0 the other way."""
        if self.value is None or self.reference is None or self.limit is None:
            return 0.0
        allowed = self.limit - self.reference
        return (self.value - self.reference) / allowed if allowed else math.inf


@dataclass(frozen=True, kw_only=True)
class DriftVerdict:
    """The judgement on one profile."""

    rows: int
    """Number of rows, including those without a prediction."""
    columns: tuple[Column, ...]

    @property
    def alarms(self) -> tuple[Column, ...]:
        """Columns that have moved, the one furthest beyond its limit first."""
        return tuple(column for column in self.by_size if column.state == "alarm")

    @property
    def state(self) -> State:
        """State: alarm if a column has one; too few rows if the outputs were not judged."""
        if self.alarms:
            return "alarm"
        by_name = {column.name: column.state for column in self.columns}
        return "too few rows" if by_name["confidence"] == "too few rows" else "ok"

    @property
    def by_size(self) -> tuple[Column, ...]:
        """All columns, the one that has moved furthest first, those not judged last."""
        return tuple(sorted(self.columns, key=lambda one: (one.value is None, -one.excess)))

    def column(self, name: str) -> Column:
        """Return a column by its name."""
        return next(column for column in self.columns if column.name == name)

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "state": self.state,
            "rows": self.rows,
            "alarms": [column.name for column in self.alarms],
            "columns": {column.name: column.as_dict() for column in self.columns},
        }


def judge(
    reference: Profile,
    current: Profile,
    limits: DriftSection | None = None,
    *,
    labelled: tuple[int, int] | None = None,
) -> DriftVerdict:
    """Compare a profile with the model's own.

    Args:
        reference: the model's own profile.
        current: a profile counted in the same bins.
        limits: section `drift`; None: its defaults.
        labelled: (rows, right ones) of the rows with true labels; None: there are none.
    Raises:
        DataError: the profile is in the bins of another model.
    """
    if reference.reference is None or reference.bins is None:
        raise ValueError("the reference must be a model's own profile")
    if current.bins_id != reference.bins_id:
        raise DataError(
            "the profile was counted with another model's profile",
            expected=f"bins {reference.bins_id}",
            got=f"bins {current.bins_id}",
        )
    at = _Judging(reference, current.counts, limits or DriftSection())
    return DriftVerdict(
        rows=current.rows,
        columns=(
            at.histogram("label"),
            at.histogram("confidence"),
            at.histogram("length"),
            at.unseen(),
            at.tokens(),
            at.failed("empty", reference.reference.expected_empty),
            at.failed("errors", 0.0),
            at.estimated_accuracy(),
            at.accuracy(labelled),
        ),
    )


class _Judging:
    """The columns of one verdict."""

    def __init__(self, reference: Profile, counts: Counts, limits: DriftSection) -> None:
        self.profile = reference
        self.bins, self.reference = reference.bins, reference.reference
        self.old, self.new, self.limits = reference.counts, counts, limits
        self.sigma = normal_quantile(QUANTILE)

    def _refused(self, name: str, old: int, new: int, *, texts: bool = False) -> Column | None:
        """Return the unjudged column if a side has too few rows, else None."""
        if texts and not self.bins.vocabulary:
            return Column(name=name, state="not measured", why="the model has no tokens")
        if texts and not self.new.texts and self.new.rows:
            why = "the rows' texts were not read, only their predictions"
            return Column(name=name, state="not measured", why=why)
        least = self.limits.min_rows
        for rows, whose, remedy in (
            (new, "the partition", "judge more rows at once"),
            (old, "the model's own profile", "a larger data.split.validation gives it more"),
        ):
            if rows < least:
                why = f"{whose} has {rows:,} rows, fewer than {least:,} (drift.min_rows): {remedy}"
                return Column(name=name, state="too few rows", why=why)
        return None

    def histogram(self, name: str) -> Column:
        """Judge a histogram's PSI by that of chance alone."""
        field = {"label": "labels"}.get(name, name)
        old_B, new_B = getattr(self.old, field), getattr(self.new, field)
        if not len(old_B) and name == "label":
            return Column(name=name, state="not measured", why="a regression has no labels")
        refused = self._refused(name, int(old_B.sum()), int(new_B.sum()), texts=name == "length")
        if refused is not None:
            return refused
        old_B, new_B = pool(old_B, new_B)
        bins = int(np.count_nonzero((old_B > 0) | (new_B > 0)))
        old, new = int(old_B.sum()), int(new_B.sum())
        noise = psi_noise(bins, old, new, QUANTILE)
        return self._above(
            name,
            psi(old_B, new_B),
            reference=max(0, bins - 1) * (1 / old + 1 / new),
            limit=max(self.limits.psi, noise),
        )

    def unseen(self) -> Column:
        """Judge the share of unseen tokens by that of the rows that training held out."""
        tokens, unseen, spread = self.reference.unseen
        refused = self._refused("unseen", self.old.texts, self.new.texts, texts=True)
        if refused is not None:
            return refused
        if not tokens or not self.new.tokens:
            return Column(name="unseen", state="not measured", why="there are no tokens to compare")
        share = unseen / tokens
        # The spread is that of rows of the reference's length; shorter rows vary by more.
        length = tokens / max(1, self.old.rows)
        rows = self.new.tokens / length if length else self.new.texts
        noise = self.sigma * spread * math.sqrt(1 / max(1.0, rows) + 1 / max(1, self.old.rows))
        return self._above(
            "unseen",
            self.new.unseen / self.new.tokens,
            reference=share,
            limit=share + max(_UNSEEN, noise),
        )

    def tokens(self) -> Column:
        """Judge the distance of token counts by that between two halves of the training rows."""
        refused = self._refused("tokens", self.old.texts, self.new.texts, texts=True)
        if refused is not None:
            return refused
        if not self.reference.spread:
            why = "the training split is too small to estimate the distance expected by chance"
            return Column(name="tokens", state="not measured", why=why)
        if not self.new.tokens or not self.old.tokens:
            return Column(name="tokens", state="not measured", why="there are no tokens to compare")
        size: float = self.new.tokens
        if self.reference.sampled_tokens is not None:  # both sides are samples: the equivalent size
            size = 1 / (1 / self.new.tokens + 1 / self.reference.sampled_tokens)
        mean, deviation = interpolated(self.reference.spread, size)
        return self._above(
            "tokens",
            js_distance(self.old.cells, self.new.cells),
            reference=mean,
            limit=mean + max(_TOKENS, self.sigma * deviation),
        )

    def failed(self, name: str, expected: float) -> Column:
        """Judge the share of rows without a prediction."""
        rows = self.new.rows + self.new.empty + self.new.errors
        if rows < self.limits.min_rows:
            why = f"the partition has {rows:,} rows, fewer than {self.limits.min_rows:,}"
            return Column(name=name, state="too few rows", why=why)
        noise = self.sigma * math.sqrt(expected * (1 - expected) / rows)
        return self._above(
            name,
            getattr(self.new, name) / rows,
            reference=expected,
            limit=expected + max(_FAILED, noise),
        )

    def estimated_accuracy(self) -> Column:
        """Judge the mean calibrated confidence: the accuracy, if the calibration still holds."""
        name = "estimated_accuracy"
        if self.reference.right is None:
            return Column(name=name, state="not measured", why="a regression has no accuracy")
        refused = self._refused(name, self.old.rows, self.new.rows)
        if refused is not None:
            return refused
        (old, old_spread), (new, new_spread) = (_moments(c) for c in (self.old, self.new))
        noise = self.sigma * math.sqrt(old_spread / self.old.rows + new_spread / self.new.rows)
        return self._below(name, new, reference=old, noise=noise)

    def accuracy(self, labelled: tuple[int, int] | None) -> Column:
        """Judge the accuracy by true labels."""
        if labelled is None or self.reference.right is None:
            why = "no labels were joined" if labelled is None else "a regression has no accuracy"
            return Column(name="accuracy", state="not measured", why=why)
        rows, right = labelled
        answered = self.old.rows if self.reference.answered is None else self.reference.answered
        refused = self._refused("accuracy", answered, rows)
        if refused is not None:
            return refused
        old = self.reference.right / answered
        noise = self.sigma * math.sqrt(old * (1 - old) * (1 / answered + 1 / rows))
        return self._below("accuracy", right / rows, reference=old, noise=noise)

    def _above(self, name: str, value: float, *, reference: float, limit: float) -> Column:
        return self._judged(name, value, reference, limit, alarm=value > limit)

    def _below(self, name: str, value: float, *, reference: float, noise: float) -> Column:
        limit = reference - max(self.limits.accuracy, noise)
        return self._judged(name, value, reference, limit, alarm=value < limit)

    def _judged(
        self, name: str, value: float, reference: float, limit: float, *, alarm: bool
    ) -> Column:
        change = described(name, self.profile, self.new, value, reference, alarm=alarm)
        return Column(
            name=name, state="alarm" if alarm else "ok", value=value, reference=reference,
            limit=limit, change=change,
        )  # fmt: skip


def _moments(counts: Counts) -> tuple[float, float]:
    """Return (mean, variance) of the calibrated confidence."""
    mean = counts.calibrated_nano / counts.rows / 1e9
    return mean, max(0.0, counts.squared_nano / counts.rows / 1e9 - mean**2)
