"""Labels that are probably wrong, by confident learning (Northcutt, Jiang and Chuang, 2021).

A row is a suspect if the model gives another label at least the score that this label's own rows
get on average. The rows are held out: the model has not learnt their labels.
"""

from __future__ import annotations

import numpy as np

__all__ = ["of_one_label", "of_several"]


def of_one_label(
    labels_N: np.ndarray, scores_NC: np.ndarray, own_C: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(margin, other label) of each row; no suspect where the margin is not above 0.

    The margin is the other label's score less the row's own, among the labels whose score reaches
    `own_C`.

    Args:
        own_C: mean score of each label over the rows that have it; infinity where none has.
    """
    rows = np.arange(len(labels_N))
    reached = np.where(scores_NC >= own_C, scores_NC, -1.0)
    reached[rows, labels_N] = -1.0
    other = reached.argmax(axis=1)
    best = reached[rows, other]
    return np.where(best >= 0.0, best - scores_NC[rows, labels_N], -1.0), other


def of_several(
    labels_NC: np.ndarray, scores_NC: np.ndarray, having_C: np.ndarray, lacking_C: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same for rows with several labels: the label that is most surely missing, or too much.

    Args:
        having_C, lacking_C: mean score of each label over the rows with it, and without.
    """
    missing = np.where(~labels_NC & (scores_NC >= having_C), scores_NC, -1.0)
    extra = np.where(labels_NC & (scores_NC <= lacking_C), 1.0 - scores_NC, -1.0)
    margins = np.maximum(missing, extra)
    which = margins.argmax(axis=1)
    return 2.0 * margins[np.arange(len(margins)), which] - 1.0, which
