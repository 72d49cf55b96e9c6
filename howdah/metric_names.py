"""The names of the metrics that are one number each, and which of them are better when lower."""

from __future__ import annotations

import difflib

__all__ = ["LOWER_IS_BETTER", "SCALARS", "unknown_metric"]

SCALARS = (
    "loss",
    "accuracy",
    "macro_precision",
    "macro_recall",
    "macro_f1",
    "weighted_precision",
    "weighted_recall",
    "weighted_f1",
    "roc_auc",
    "ece",
)

LOWER_IS_BETTER = frozenset({"loss", "ece"})


def unknown_metric(name: str) -> str:
    """What to say of a name that is none: the nearest one, and all."""
    close = difflib.get_close_matches(name, SCALARS, n=1)
    nearest = f" (did you mean {close[0]}?)" if close else ""
    return f"there is no metric {name!r}{nearest}; there are {', '.join(SCALARS)}"
