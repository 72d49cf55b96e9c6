"""Predictions of rows with an opened model, on one machine and in Spark's executors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from howdah.data.clean import PAIR
from howdah.errors import ModelError
from howdah.models.opened.opened import ServedModel
from howdah.serving.prediction.rows import EMPTY, Outputs, Prediction, Row

if TYPE_CHECKING:
    from howdah.models.profile.profile import Profile

NO_PAIRS = "the model reads single texts, and this is a pair"
_WRONG_SIDES = {True: "the model reads pairs of texts, and this is one text", False: NO_PAIRS}


def classify(
    served: ServedModel,
    rows: Sequence[Row],
    observe: Callable[[np.ndarray, Sequence[np.ndarray]], None] = lambda scores_NC, ids_N: None,
) -> list[Prediction]:
    """Predict rows, in their order; a row without a usable text gets an error.

    Args:
        observe: called once with the scores float32 [N, C] and the token ids of the N rows that
            have a usable text, if there are any.
    Raises:
        UsageError: the model classifies images.
    """
    served.require("text", where="model", remedy="`howdah predict --source DIR` classifies images")
    out = [usable(served, row) for row in rows]
    numbers = [number for number, one in enumerate(out) if isinstance(one, str)]
    ids_N = served.encode([out[number] for number in numbers]) if numbers else []
    scores_NC = served.scores_of_ids(ids_N)
    if numbers:
        observe(scores_NC, ids_N)
    answers = served.rule.answers(scores_NC) if numbers else []
    for number, answer, scores_C in zip(numbers, answers, scores_NC, strict=True):
        out[number] = Prediction(rows[number].id, answer, scores_C)
    return out


def usable(served: ServedModel, row: Row) -> str | Prediction:
    """Return the row's cleaned text, or a prediction with the reason why it has none.

    A text that is empty after cleaning is not classified, since the model would return its prior.
    """
    if row.text is None:
        return Prediction(row.id, None, None, row.error)
    if served.pairs != row.pair:
        return Prediction(row.id, None, None, _WRONG_SIDES[served.pairs])
    text = served.clean_text(row.text)
    if not all(side.strip() for side in (text.split(PAIR) if row.pair else [text])):
        return Prediction(row.id, None, None, EMPTY)
    return text


def count_failed(profile: Profile, predictions: Sequence[Prediction]) -> None:
    """Count the rows without a prediction in a profile."""
    errors = [one.error for one in predictions if one.error is not None]
    empty = errors.count(EMPTY)
    profile.add_failed(empty=empty, errors=len(errors) - empty)


def no_profile(path: str) -> ModelError:
    """Return the error for a model without a profile of its own."""
    from howdah.models.profile.profile import find_reference

    return ModelError(
        "the model has no profile of its own to compare rows with",
        where=path,
        expected="profile.json in the export, counted with its decision",
        got=find_reference(path)[1],
        remedy="`howdah drift --make-reference --config FILE --model MODEL` makes it from the"
        " dataset that the model was trained on",
    )


def outputs_of(served: ServedModel) -> Outputs:
    """Return the columns of the model's predictions."""
    return Outputs(task=served.task, labels=served.labels, decision=served.decision.hash)
