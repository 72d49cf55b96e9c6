"""Says in plain words what a column of a verdict shows, and what to do about it."""

from __future__ import annotations

import itertools

import numpy as np

from howdah.models.profile.bins import Bins
from howdah.models.profile.profile import Counts, Profile
from howdah.pages.figures import percent

ADVICE = {
    "label": "Look at the labels below: a different mix of topics is harmless, a label predicted in"
    " place of others is not. True labels of some rows tell which it is: --labels.",
    "confidence": "The model has not learnt such texts: label some of the rows below and give them"
    " as --labels; where the accuracy has fallen too, train with them.",
    "length": "Look at the raw rows: a changed export, or a field that was truncated or duplicated,"
    " is more likely than a change in user behaviour.",
    "unseen": "Look for another language, another kind of text or a broken encoding in the rows"
    " below.",
    "tokens": "Look at the tokens below that moved: another topic, another language, a signature or"
    " markup that now comes with each text.",
    "empty": "Look for a broken or renamed column in the source.",
    "errors": "Look at the column `error` of the predictions: it names the reason for each row.",
    "estimated_accuracy": "Label some of the rows below and give them as --labels: that measures"
    " what this estimates.",
    "accuracy": "Train again with these rows and their labels, then publish (docs/daily.md).",
}
"""What to do about an alarm, for each column."""


def where_of(reference: Profile) -> str:
    """Return the name of what the rows are compared with."""
    about_rows = reference.reference is not None and reference.reference.sampled_tokens is not None
    return "in the reference" if about_rows else "in training"


def described(
    name: str, reference: Profile, new: Counts, value: float, expected: float, *, alarm: bool
) -> str:
    """Return a judged column as a sentence without its end: "texts are 40 % longer ...".

    Args:
        value, expected: the column's value and reference.
        alarm: the column has moved.
    """
    old, bins, where = reference.counts, reference.bins, where_of(reference)
    if name == "label":
        number, before, now = _moved_most(old.labels, new.labels)
        label = bins.rule.counted[number]
        if bins.task == "multi_label":
            return (
                f"{percent(now)} of the predicted labels are “{label}”, {percent(before)} {where}"
            )
        return f"“{label}” is predicted for {percent(now)} of the rows, {percent(before)} {where}"
    if name == "confidence" and bins.task == "regression":
        number, before, now = _moved_most(old.confidence, new.confidence)
        span = bin_names(bins, name)[number]
        return f"{percent(now)} of the predicted numbers are {span}, {percent(before)} {where}"
    if name == "confidence":
        before, now = (counts.confidence_nano / counts.rows / 1e9 for counts in (old, new))
        figures = f"{percent(now)} on average, {percent(before)} {where}"
        if not alarm:
            return f"the model's confidence is {figures}"
        word = "less" if now < before else "more"
        return f"the model is {word} sure of its answers: its confidence is {figures}"
    if name == "length":
        before, now = old.ids / old.texts, new.ids / new.texts
        figures = f"{now:.0f} tokens on average, {before:.0f} {where}"
        change = now / before - 1
        if abs(change) < 0.02:
            spread = ", but lengths are spread differently" if alarm else ""
            return f"texts are as long as {where}{spread} ({figures})"
        word = "longer" if change > 0 else "shorter"
        return f"texts are {100 * abs(change):.0f} % {word} than {where} ({figures})"
    if name == "tokens":
        words = (
            f"words, or their frequencies, differ from those {where}"
            if alarm
            else f"words occur about as often as {where}"
        )
        return f"{words}: {percent(value)} of the largest distance, {percent(expected)} by chance"
    return {
        "unseen": "{} of the tokens never occurred in training; {} were expected",
        "empty": "{} of the rows have no text; {} were expected",
        "errors": "{} of the rows failed; {} were expected",
        "estimated_accuracy": "judging by the model's confidence, {} of its answers are right; {}"
        " on held-out rows of training",
        "accuracy": "{} of the labelled answers are right; {} on held-out rows of training",
    }[name].format(percent(value), percent(expected))


def bin_names(bins: Bins, name: str) -> list[str]:
    """Return the names of a histogram's bins: confidence or length."""
    edges = getattr(bins, name)
    shown = [f"{edge:.3g}" if name == "confidence" else str(edge) for edge in edges]
    middle = [f"{a} to {b}" for a, b in itertools.pairwise(shown)]
    return [f"below {shown[0]}", *middle, f"from {shown[-1]}"]


def _moved_most(old_B: np.ndarray, new_B: np.ndarray) -> tuple[int, float, float]:
    """Return (bin, its share before, its share now) of the bin whose share has moved most."""
    before_B, now_B = old_B / old_B.sum(), new_B / new_B.sum()
    number = int(np.argmax(np.abs(now_B - before_B)))
    return number, float(before_B[number]), float(now_B[number])
