"""Keeps the few rows that show a drift best: the least sure, the longest, those of unseen words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from howdah.models.profile.bins import SKIPPED
from howdah.models.profile.profile import Profile
from howdah.serving.drift.judge import DriftVerdict

_EACH = 5
"""Rows of each kind."""
_MOST_LABELS = 200
"""Labels of which rows are kept."""
_MOST_CHARACTERS = 400


@dataclass(frozen=True, kw_only=True)
class Example:
    """A row of the source."""

    id: str
    text: str | None
    """Beginning of the text; None for predictions without texts."""
    answer: str
    confidence: float | None
    """None for a regression."""
    tokens: int | None
    unseen: float | None
    """Share of its tokens that training never had."""


class Examples:
    """The rows that show best what moved, of any number of rows.

    Args:
        reference: the model's own profile.
    """

    def __init__(self, reference: Profile) -> None:
        self._bins = reference.bins
        self._known = reference.reference.known_tokens
        self._kept: defaultdict[str, list[tuple[float, int, Example]]] = defaultdict(list)
        self._number = 0

    def add(
        self,
        rows: Sequence[tuple[str, str | None]],
        scores_NC: np.ndarray,
        ids_N: Sequence[np.ndarray] | None = None,
    ) -> None:
        """Take predicted rows.

        Args:
            rows: (id, text) each; text None: it is not available.
            scores_NC: their scores.
            ids_N: their token ids; None: they are not available.
        """
        confidence_N = self._bins.outputs(scores_NC)[1]
        answers = self._bins.rule.answers(scores_NC)
        finite_N = np.isfinite(scores_NC).all(axis=1)
        for number, (row_id, text) in enumerate(rows):
            if not finite_N[number]:
                continue
            ids = None if ids_N is None else np.asarray(ids_N[number], np.int64)
            self._take(row_id, text, answers[number], float(confidence_N[number]), ids)

    def _take(
        self, row_id: str, text: str | None, answer: Any, confidence: float, ids: np.ndarray | None
    ) -> None:
        unseen = 0.0
        if ids is not None:
            counted = ids[self._bins.cells[ids] != SKIPPED]
            unseen = float((~self._known.has(counted)).mean()) if len(counted) else 0.0
        is_number = self._bins.task == "regression"
        labels = (
            answer if isinstance(answer, list) else ["(rejected)" if answer is None else answer]
        )
        example = Example(
            id=row_id,
            text=None if text is None else text[:_MOST_CHARACTERS],
            answer=f"{answer:.4g}" if is_number else ", ".join(labels) or "no label",
            confidence=None if is_number else confidence,
            tokens=None if ids is None else len(ids),
            unseen=None if ids is None else unseen,
        )
        self._number += 1
        self._keep("confidence", abs(confidence) if is_number else -confidence, example)
        if ids is not None:
            self._keep("long", len(ids), example)
            self._keep("short", -len(ids), example)
            self._keep("unseen", unseen, example)
        for name in () if is_number else labels:
            if f"label {name}" in self._kept or len(self._kept) < _MOST_LABELS:
                self._keep(f"label {name}", confidence, example)

    def _keep(self, kind: str, score: float, example: Example) -> None:
        kept = self._kept[kind]
        if len(kept) < _EACH or score > kept[-1][0]:
            kept.append((score, -self._number, example))
            kept.sort(key=lambda one: one[:2], reverse=True)
            del kept[_EACH:]

    def shown(
        self, verdict: DriftVerdict, label: str | None, longer: bool
    ) -> dict[str, list[Example]]:
        """Return {headline: rows} for the columns that have moved, a row only once.

        Args:
            label: the label whose share has risen most.
            longer: the texts are longer than in the reference, not shorter.
        """
        is_number = self._bins.task == "regression"
        unsure = (
            "confidence",
            "The largest predicted numbers" if is_number else "The least sure predictions",
        )
        kinds = {
            "label": (f"label {label}", f"Predicted as “{label}”, the surest"),
            "confidence": unsure,
            "estimated_accuracy": unsure,
            "accuracy": unsure,
            "length": ("long", "The longest texts") if longer else ("short", "The shortest texts"),
            "unseen": ("unseen", "Most tokens that training never had"),
            "tokens": ("unseen", "Most tokens that training never had"),
        }
        moved = [kinds[column.name] for column in verdict.alarms if column.name in kinds]
        shown: dict[str, list[Example]] = {}
        ids: set[str] = set()
        for kind, headline in dict.fromkeys(moved):
            rows = [example for _, _, example in self._kept.get(kind, ()) if example.id not in ids]
            ids.update(example.id for example in rows)
            if rows:
                shown[headline] = rows
        return shown
