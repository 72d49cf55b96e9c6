"""Rows in, predictions out, with an opened model: on one machine and in Spark's executors."""

from __future__ import annotations

from collections.abc import Sequence

from training.prediction.rows import Prediction, Row
from training.serving.serve import ServedModel


def classify(served: ServedModel, rows: Sequence[Row]) -> list[Prediction]:
    """Predictions of rows, in their order; a row without a usable text gets an error.

    A text that is empty after cleaning is not classified: the model would return its prior.

    Raises:
        UsageError: the model classifies images.
    """
    served.require("text", where="model", remedy="`howdah predict --source DIR` classifies images")
    out: list[Prediction | None] = [None] * len(rows)
    texts, numbers = [], []
    for number, row in enumerate(rows):
        text = None if row.text is None else served.clean_text(row.text)
        if text is None:
            out[number] = Prediction(row.id, None, None, row.error)
        elif not text.strip():
            out[number] = Prediction(row.id, None, None, "the text is empty")
        else:
            texts.append(text)
            numbers.append(number)
    scores_NC = served.scores(texts)
    for number, scores_C in zip(numbers, scores_NC, strict=True):
        out[number] = Prediction(rows[number].id, served.labels[int(scores_C.argmax())], scores_C)
    return out
