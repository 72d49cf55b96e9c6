"""Batches of each task, and their rows' losses in numpy, for the tests of both frameworks."""

import numpy as np

SMOOTHING = 0.1
POSITIVE = np.array([3.0, 1.0, 0.25], np.float32)


def batch(task: str) -> tuple[np.ndarray, np.ndarray]:
    """(logits [B, C], labels)."""
    random = np.random.default_rng(3)
    logits = (3 * random.standard_normal((6, 1 if task == "regression" else 3))).astype(np.float32)
    labels = {
        "single_label": random.integers(0, 3, 6).astype(np.int32),
        "multi_label": (random.random((6, 3)) < 0.5).astype(np.float32),
        "regression": random.standard_normal(6).astype(np.float32),
    }[task]
    return logits, labels


def options(task: str) -> dict:
    """Arguments of `row_losses` for a task."""
    return {
        "single_label": {"label_smoothing": SMOOTHING},
        "multi_label": {"positive_weights": POSITIVE},
        "regression": {},
    }[task]


def by_hand(task: str) -> np.ndarray:
    """float64[B]."""
    logits, labels = (array.astype(np.float64) for array in batch(task))
    if task == "regression":
        return (logits[:, 0] - labels) ** 2
    if task == "multi_label":
        p = 1 / (1 + np.exp(-logits))
        return -(POSITIVE * labels * np.log(p) + (1 - labels) * np.log(1 - p)).mean(axis=1)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    log_p_of_label = log_p[np.arange(6), labels.astype(int)]
    return -(1 - SMOOTHING) * log_p_of_label - SMOOTHING * log_p.mean(axis=1)
