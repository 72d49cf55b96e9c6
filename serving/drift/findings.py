"""The findings of `howdah drift`: a verdict and the earlier ones, as JSON and as a page."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from howdah.config.options.drift import DriftSection
from howdah.errors import CheckFailed, HowdahError
from howdah.models.profile.bins import Bins
from howdah.models.profile.profile import Profile
from howdah.serving.drift.judge import Verdict

_MOST_LABELS = 50
_MOST_TOKENS = 20


@dataclass(frozen=True, kw_only=True)
class Point:
    """An earlier partition."""

    name: str
    version: int | None
    verdict: Verdict


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
    verdict: Verdict
    limits: DriftSection
    points: Sequence[Point] = ()
    """Partitions in their order, this one last; none for a file."""
    unpredicted: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """{error: ids of some rows with it}; only for files."""

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
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }

    def rows_without(self) -> list[str]:
        """Describe the rows without a prediction, in lines."""
        counts = self.current.counts
        lines = []
        if counts.empty or counts.errors:
            lines = [
                f"{self.verdict.rows:,} rows, of which {counts.empty:,} have no text and"
                f" {counts.errors:,} failed otherwise"
            ]
        return lines + [
            f"{error}: for example {', '.join(ids)}" for error, ids in self.unpredicted.items()
        ]

    def error(self, page: str | None) -> CheckFailed | None:
        """Return the alarm as an error, or None."""
        if not self.verdict.alarms:
            return None
        problems = [HowdahError(c.sentence, where=c.name) for c in self.verdict.alarms]
        return CheckFailed(
            f"drift: {len(problems)} column{'s have' if len(problems) > 1 else ' has'} moved",
            where=self.what,
            problems=problems,
            remedy=(f"see {page}; " if page else "")
            + "docs/drift.md says what each column means and what to do",
        )

    def labels(self) -> dict[str, dict[str, float | int]]:
        """Return {label: {rows, share, reference}} of the labels whose shares moved most."""
        bins, (old_C, new_C) = self.reference.bins, self._both("labels")
        if not bins.classes or not new_C.sum() or not old_C.sum():
            return {}
        shares = [(old_C / old_C.sum())[n] for n in range(bins.classes)]
        order = np.argsort(-np.abs(new_C / new_C.sum() - np.array(shares)), kind="stable")
        return {
            bins.rule.counted[n]: {
                "rows": int(new_C[n]),
                "share": float(new_C[n] / new_C.sum()),
                "reference": float(shares[n]),
            }
            for n in order[:_MOST_LABELS].tolist()
        }

    def histogram(self, name: str) -> list[tuple[str, float, float]]:
        """Return (bin, reference's share, partition's share) of confidence or length."""
        old_B, new_B = self._both(name)
        if not len(old_B) or not old_B.sum() or not new_B.sum():
            return []
        names = _bin_names(self.reference.bins, name)
        return [
            (names[n], float(old_B[n] / old_B.sum()), float(new_B[n] / new_B.sum()))
            for n in range(len(old_B))
        ]

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


def _bin_names(bins: Bins, name: str) -> list[str]:
    edges = getattr(bins, name)
    shown = [f"{edge:.5g}" if name == "confidence" else str(edge) for edge in edges]
    middle = [f"{a} to {b}" for a, b in itertools.pairwise(shown)]
    return [f"below {shown[0]}", *middle, f"from {shown[-1]}"]


def _brief(verdict: Verdict) -> dict[str, Any]:
    """Return an earlier partition's verdict as an entry of the history."""
    return {
        "state": verdict.state,
        "rows": verdict.rows,
        "alarms": [column.name for column in verdict.alarms],
        "values": {column.name: column.value for column in verdict.columns},
    }
