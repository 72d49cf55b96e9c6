"""The findings of `howdah drift`: a verdict and the earlier ones, as JSON and as a page."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from howdah.config.options.drift import DriftSection
from howdah.errors import CheckFailed, HowdahError
from howdah.models.profile.profile import Profile
from howdah.serving.drift.examples import Example, Examples
from howdah.serving.drift.judge import DriftVerdict
from howdah.serving.drift.sentences import ADVICE, bin_names

_MOST_LABELS = 50
_MOST_TOKENS = 20


@dataclass(frozen=True, kw_only=True)
class Point:
    """An earlier partition."""

    name: str
    version: int | None
    verdict: DriftVerdict


@dataclass(frozen=True, kw_only=True)
class Findings:
    """All that a page shows."""

    model: str
    """The model as the user named it."""
    directory: str
    """Directory of the opened version, whose tokenizer has the words of the page."""
    version: int | None
    run_id: str | None
    what: str
    """The table and partition, or the file."""
    reference: Profile
    current: Profile
    verdict: DriftVerdict
    limits: DriftSection
    points: Sequence[Point] = ()
    """Partitions in their order, this one last; none for a file."""
    unpredicted: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """{error: ids of some rows with it}; only for files."""
    examples: Examples | None = None
    """Rows of the source; None: the profile of a partition has no rows."""
    scored_at: str | None = None
    """When `howdah score` scored the partition; None for a file."""
    created: str = field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON: the verdict's keys, and what was judged."""
        return {
            "model": self.model,
            "version": self.version,
            "run_id": self.run_id,
            "what": self.what,
            **self.verdict.as_dict(),
            "labels": self.labels(),
            "history": [
                {"partition": p.name, "version": p.version, **_brief(p.verdict)}
                for p in self.points
            ],
            "limits": self.limits.model_dump(mode="json"),
            "scored_at": self.scored_at,
            "created": self.created,
        }

    def rows_without(self) -> list[str]:
        """Describe the rows without a prediction, in lines."""
        counts = self.current.counts
        lines = []
        if counts.empty or counts.errors:
            lines = [
                f"{counts.empty + counts.errors:,} of {self.verdict.rows:,} rows have no"
                f" prediction: {counts.empty:,} have no text, {counts.errors:,} failed otherwise"
            ]
        return lines + [
            f"{error}: for example {', '.join(ids)}" for error, ids in self.unpredicted.items()
        ]

    def lines(self) -> list[str]:
        """Describe the verdict for a console: what moved, the furthest first, then the rest."""
        moved = [f"{column.grade} change: {column.sentence}" for column in self.verdict.alarms]
        calm = [one for one in self.verdict.by_size if one.state == "ok"]
        unjudged = [one for one in self.verdict.by_size if one.state not in ("ok", "alarm")]
        return [
            *moved,
            *(f"within limits: {column.sentence}" for column in calm),
            *(f"{column.name}: {column.state}, since {column.why}" for column in unjudged),
        ]

    def rows_shown(self) -> dict[str, list[Example]]:
        """Return {headline: rows} that show what has moved."""
        if self.examples is None:
            return {}
        old, new = self.reference.counts, self.current.counts
        rises = {name: one["share"] - one["reference"] for name, one in self.labels().items()}
        longer = bool(old.texts and new.texts) and new.ids / new.texts >= old.ids / old.texts
        return self.examples.shown(self.verdict, max(rises, key=rises.get, default=None), longer)

    def error(self, page: str | None) -> CheckFailed | None:
        """Return the alarm as an error, or None."""
        if not self.verdict.alarms:
            return None
        problems = [
            HowdahError(f"{column.grade} change: {column.sentence}", where=column.name)
            for column in self.verdict.alarms
        ]
        return CheckFailed(
            f"drift: {len(problems)} column{'s have' if len(problems) > 1 else ' has'} moved",
            where=self.what,
            problems=problems,
            remedy=ADVICE[self.verdict.alarms[0].name].replace(" below", "")
            + (f" See {page}." if page else " --output writes a page."),
        )

    def labels(self) -> dict[str, dict[str, float | int]]:
        """Return {label: {rows, share, reference}} of the labels whose shares moved most."""
        bins, (old_C, new_C) = self.reference.bins, self._both("labels")
        if not bins.classes or not new_C.sum() or not old_C.sum():
            return {}
        before_C, now_C = old_C / old_C.sum(), new_C / new_C.sum()
        order = np.argsort(-np.abs(now_C - before_C), kind="stable")[:_MOST_LABELS]
        return {
            bins.rule.counted[n]: {
                "rows": int(new_C[n]), "share": float(now_C[n]), "reference": float(before_C[n]),
            }
            for n in order.tolist()
        }  # fmt: skip

    def histogram(self, name: str) -> list[tuple[str, float, float]]:
        """Return (bin, reference's share, partition's share) of confidence or length."""
        old_B, new_B = self._both(name)
        if not len(old_B) or not old_B.sum() or not new_B.sum():
            return []
        before_B, now_B = (old_B / old_B.sum()).tolist(), (new_B / new_B.sum()).tolist()
        return list(zip(bin_names(self.reference.bins, name), before_B, now_B, strict=True))

    def tokens(self) -> list[tuple[int, float, float]]:
        """Return (token number, reference's share, partition's share) of frequent tokens.

        They are those that add most to the distance.
        """
        old_K, new_K = self._both("cells")
        top = self.reference.bins.top
        if not len(top) or not old_K.sum() or not new_K.sum():
            return []
        p, q = old_K[: len(top)] / old_K.sum(), new_K[: len(top)] / new_K.sum()
        middle = (p + q) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            added = np.where(p > 0, p * np.log2(p / middle), 0) + np.where(
                q > 0, q * np.log2(q / middle), 0
            )
        order = np.argsort(-added, kind="stable")[:_MOST_TOKENS]
        return [(top[n], float(p[n]), float(q[n])) for n in order.tolist() if added[n] > 0]

    def _both(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        return getattr(self.reference.counts, name), getattr(self.current.counts, name)


def _brief(verdict: DriftVerdict) -> dict[str, Any]:
    """Return an earlier partition's verdict as an entry of the history."""
    return {
        "state": verdict.state,
        "rows": verdict.rows,
        "alarms": [column.name for column in verdict.alarms],
        "values": {column.name: column.value for column in verdict.columns},
    }
