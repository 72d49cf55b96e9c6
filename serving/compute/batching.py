"""The choice of waiting texts that are computed together: no clock, no thread, no model."""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST_RETRY = 60


def choose(lengths: Sequence[int], budget: int, *, alike: bool = False) -> list[int]:
    """Choose the waiting texts of the next batch, as indexes in their order of arrival.

    The oldest is always chosen, so that no text waits for ever. Its neighbours in length join it,
    since each text of a batch costs as much as the longest: first shorter ones, longest first,
    then, if there is room, longer ones.

    Args:
        lengths: tokens of the waiting texts, the oldest first; not empty.
        budget: largest number of tokens, padding included. A longer text is a batch of its own.
        alike: only texts of one length, for models whose scores must not depend on padding
            (ServedModel.own_width).

    >>> choose([4, 90, 5, 3, 80], 16)
    [0, 2, 3]
    >>> choose([90, 4, 80, 85], 300)
    [0, 2, 3]
    >>> choose([4, 90, 4, 5, 4], 8, alike=True)
    [0, 2]
    """
    room = max(1, budget // max(1, lengths[0]))
    if alike:
        return [index for index, length in enumerate(lengths) if length == lengths[0]][:room]
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    oldest = order.index(0)
    chosen = order[oldest : oldest + room]
    if len(chosen) < room:  # it and all shorter ones fit: longer ones widen the batch
        for index in reversed(order[:oldest]):
            if (len(chosen) + 1) * lengths[index] > budget:
                break
            chosen.append(index)
    return sorted(chosen)


def padded(lengths: Sequence[int]) -> int:
    """Count the tokens of a batch with its padding."""
    return len(lengths) * max(lengths, default=0)


def retry_seconds(waiting: int, per_second: float) -> int:
    """Return after how many whole seconds, 1 to 60, a client behind `waiting` texts asks again."""
    if per_second <= 0:
        return 1
    return min(_LONGEST_RETRY, max(1, round(waiting / per_second)))
