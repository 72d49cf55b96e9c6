"""Data frames that a run caches in Spark, and when it unpersists them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from pyspark.sql import DataFrame


class Kept(list):
    """Data frames to unpersist at the end, in a `with`.

    A function that gets it as `temporary` appends what it persists and still needs when it returns.
    """

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # after a failure Spark may be gone, and the failure is what the user must see
        with contextlib.suppress(*([Exception] if kind else [])):
            release(self)


def release(frames: list[DataFrame], begin: int = 0, *, but: Sequence[DataFrame] = ()) -> None:
    """Unpersist the frames of a list from `begin` on, and take them from it.

    What is computed of such a frame and persisted itself must have been read to its end before:
    Spark keeps its rows then; else it would compute them from the source again.

    Args:
        but: frames that stay.
    """
    for frame in reversed(frames[begin:]):
        if not any(frame is one for one in but):
            frame.unpersist()
    frames[begin:] = [one for one in frames[begin:] if any(one is other for other in but)]
