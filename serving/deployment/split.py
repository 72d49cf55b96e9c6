"""The split of requests between two models."""

from __future__ import annotations

import hashlib
import random

from howdah.errors import ModelError, UsageError
from howdah.models.version import Version


def require_comparable(one: Version, other: Version, share: float | None) -> float:
    """Check that two models can share requests; return the share of `other`.

    Raises:
        UsageError: it is not a share.
        ModelError: the models have different labels, so that their answers are not comparable.
    """
    if share is None or not 0.0 < share < 1.0:
        raise UsageError(
            "--and needs the share of requests that go to the other model",
            where="--share",
            expected="more than 0 and less than 1, for example 0.1",
            got="none" if share is None else str(share),
        )
    tasks = [
        each.info.get("task", "single_label") + (" of pairs" if each.info.get("pairs") else "")
        for each in (one, other)
    ]
    if tasks[0] != tasks[1]:
        raise ModelError(
            "the two models have different tasks",
            where=other.path,
            expected=f"{tasks[0]} ({one.path})",
            got=tasks[1],
        )
    if one.labels != other.labels:
        raise ModelError(
            "the two models have different labels",
            where=other.path,
            expected=", ".join(one.labels) + f" ({one.path})",
            got=", ".join(other.labels),
        )
    return share


def choose(key: str | None, share: float, salt: str) -> int:
    """Choose which of two models answers: 1 for `share` of all keys, else 0.

    For the same `salt`, requests with the same key always get the same model, on every server and
    after a restart; requests without a key are split at random.

    >>> [choose(f"user-{n}", 0.5, "zoo") for n in range(8)]
    [0, 0, 0, 1, 1, 0, 1, 1]
    """
    if key is None:
        return int(random.random() < share)
    digest = hashlib.sha256(f"{salt}\n{key}".encode("utf-8", "surrogatepass")).digest()
    return int(int.from_bytes(digest[:8], "big") < share * 2**64)
