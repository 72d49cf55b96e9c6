"""Rows in, predictions out, with an opened model: on one machine and in Spark's executors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import assert_never

import numpy as np

from howdah.data.clean import PAIR
from howdah.drift.profile import Profile
from howdah.errors import ModelError
from training.prediction.rows import Outputs, Prediction, Row
from training.serving.serve import ServedModel

_WRONG_SIDES = {
    True: "the model reads pairs of texts, and this is one text",
    False: "the model reads single texts, and this is a pair",
}
EMPTY = "the text is empty"
"""The error of a row whose text has nothing left after cleaning."""


def classify(
    served: ServedModel,
    rows: Sequence[Row],
    observe: Callable[[np.ndarray, Sequence[np.ndarray]], None] = lambda scores_NC, ids_N: None,
) -> list[Prediction]:
    """Predictions of rows, in their order; a row without a usable text gets an error.

    A text that is empty after cleaning is not classified: the model would return its prior.

    Args:
        observe: called once with the scores float32 [N, C] and the token ids of the N rows that
            have a usable text, if there are any.
    Raises:
        UsageError: the model classifies images.
    """
    served.require("text", where="model", remedy="`howdah predict --source DIR` classifies images")
    out: list[Prediction | None] = [None] * len(rows)
    texts, numbers = [], []
    for number, row in enumerate(rows):
        if row.text is not None and served.pairs != row.pair:
            row = replace(row, text=None, error=_WRONG_SIDES[served.pairs])
        text = None if row.text is None else served.clean_text(row.text)
        if text is None:
            out[number] = Prediction(row.id, None, None, row.error)
        elif not all(side.strip() for side in (text.split(PAIR) if row.pair else [text])):
            out[number] = Prediction(row.id, None, None, EMPTY)
        else:
            texts.append(text)
            numbers.append(number)
    ids_N = served.encode(texts) if texts else []
    scores_NC = served.scores_of_ids(ids_N)
    if texts:
        observe(scores_NC, ids_N)
    for number, scores_C in zip(numbers, scores_NC, strict=True):
        out[number] = Prediction(rows[number].id, _predicted(served, scores_C), scores_C)
    return out


def _predicted(served: ServedModel, scores_C: np.ndarray) -> str | list[str] | float:
    """The label, the labels above 0.5, or the number."""
    if served.task == "single_label":
        return served.labels[int(scores_C.argmax())]
    if served.task == "multi_label":
        return [served.labels[number] for number in np.flatnonzero(scores_C > 0.5)]
    if served.task == "regression":
        return float(scores_C[0])
    assert_never(served.task)


def count_failed(profile: Profile, predictions: Sequence[Prediction]) -> None:
    """Count the rows that have no prediction in a profile."""
    reasons = Counter(one.error for one in predictions if one.error is not None)
    empty = reasons.pop(EMPTY, 0)
    profile.add_failed(empty=empty, errors=reasons.total())


def no_profile(path: str) -> ModelError:
    """The error for a model without a profile of its own."""
    return ModelError(
        "the model has no profile of its own to hold rows against",
        where=path,
        expected="profile.json in the export",
        remedy="`howdah drift --make-reference --config FILE --model MODEL` makes it from the"
        " dataset that the model was trained on",
    )


def outputs_of(served: ServedModel) -> Outputs:
    """What the model's predictions have."""
    return Outputs(task=served.task, labels=served.labels)
