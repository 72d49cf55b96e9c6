"""Labels that are probably wrong, by confident learning (Northcutt, Jiang and Chuang, 2021).

A row is a confident suspect if the model gives another label at least the score that this label's
own rows get on average. These come first. Behind them come the other rows on which the model
disagrees with the label: of a good model they are few, and among them are wrong labels of rows that
it is less sure of. The rows are held out: the model has not learnt their labels.
"""

from __future__ import annotations

import numpy as np


def of_one_label(
    labels_N: np.ndarray, scores_NC: np.ndarray, own_C: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(key, other label) of each row; no suspect where the key is not above 0.

    The key is the margin, the other label's score less the row's own, and 1 more for a confident
    suspect.

    Args:
        own_C: mean score of each label over the rows that have it; infinity where none has.
    """
    rows = np.arange(len(labels_N))
    others = scores_NC.astype(np.float64)
    own_N = others[rows, labels_N].copy()
    others[rows, labels_N] = -1.0
    reached = np.where(others >= own_C, others, -1.0)
    confident = reached.max(axis=1) >= 0.0
    other = np.where(confident, reached.argmax(axis=1), others.argmax(axis=1))
    return others[rows, other] - own_N + confident, other


def of_several(
    labels_NC: np.ndarray, scores_NC: np.ndarray, having_C: np.ndarray, lacking_C: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same for rows with several labels: the label that is most surely missing, or too much.

    Args:
        having_C, lacking_C: mean score of each label over the rows with it, and without.
    """
    scores = scores_NC.astype(np.float64)
    margins = np.where(labels_NC, 1.0 - 2.0 * scores, 2.0 * scores - 1.0)
    confident = np.where(labels_NC, scores <= lacking_C, scores >= having_C)
    keys = margins + confident
    which = keys.argmax(axis=1)
    return keys[np.arange(len(keys)), which], which
