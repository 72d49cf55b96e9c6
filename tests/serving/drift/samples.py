"""Profiles to test with: small bins, rows of random scores and tokens."""

import numpy as np

from howdah.models.profile.bins import Bins, Known
from howdah.models.profile.profile import Profile, Reference

VOCABULARY = 60


def bins(**changes) -> Bins:
    """Bins of three labels and 60 tokens: 0 to 2 special, 3 unknown, 4 to 13 with own cells."""
    return Bins(
        **{
            "task": "single_label",
            "labels": ("a", "b", "c"),
            "confidence": (0.5, 0.7, 0.9),
            "slope": 0.8,
            "intercept": 0.1,
            "length": (4, 8),
            "vocabulary": VOCABULARY,
            "top": tuple(range(4, 14)),
            "special": (0, 1, 2),
            "unknown": 3,
        }
        | changes
    )


def reference(**changes) -> Profile:
    """A model's own profile in them, in which tokens below 50 are known."""
    tokens = Known.of(np.arange(50), VOCABULARY)
    return Profile(bins(**changes), reference=Reference(known_tokens=tokens, split="validation"))


def rows(seed: int, count: int, classes: int = 3) -> tuple[np.ndarray, list[np.ndarray]]:
    """Scores float32 [N, C], and token ids of N rows."""
    random = np.random.default_rng(seed)
    scores_NC = random.dirichlet(np.ones(classes), count).astype(np.float32)
    lengths = random.integers(2, 12, count)
    ids_N = [np.array([1, *random.integers(3, VOCABULARY, n - 2), 2], np.uint32) for n in lengths]
    return scores_NC, ids_N
