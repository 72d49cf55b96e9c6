"""Labels that are probably wrong, by confident learning (Northcutt, Jiang and Chuang, 2021).

A row is a confident suspect if the model gives another label at least the score that rows of this
label get on average. These come first. The other rows on which the model disagrees with the label
follow: a good model has few of them, and some are wrong labels of which it is less sure. The rows
are held out, so that the model has not learnt their labels.
"""

from __future__ import annotations

import numpy as np


def of_one_label(
    labels_N: np.ndarray, scores_NC: np.ndarray, mean_C: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (key, other label) of each row; a suspect has a key above 0.

    The key is the margin, the other label's score minus that of the row's label, and 1 more for a
    confident suspect.

    Args:
        mean_C: mean score of each label over its rows; infinity if it has none.
    """
    rows = np.arange(len(labels_N))
    others = scores_NC.astype(np.float64)
    label_N = others[rows, labels_N].copy()
    others[rows, labels_N] = -1.0
    reached = np.where(others >= mean_C, others, -1.0)
    confident = reached.max(axis=1) >= 0.0
    other = np.where(confident, reached.argmax(axis=1), others.argmax(axis=1))
    return others[rows, other] - label_N + confident, other


def of_several(
    labels_NC: np.ndarray, scores_NC: np.ndarray, having_C: np.ndarray, lacking_C: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (key, label) of each multi-label row: the label most likely missing or superfluous.

    Args:
        having_C, lacking_C: mean score of each label over the rows with it, and without.
    """
    scores = scores_NC.astype(np.float64)
    margins = np.where(labels_NC, 1.0 - 2.0 * scores, 2.0 * scores - 1.0)
    confident = np.where(labels_NC, scores <= lacking_C, scores >= having_C)
    keys = margins + confident
    which = keys.argmax(axis=1)
    return keys[np.arange(len(keys)), which], which
