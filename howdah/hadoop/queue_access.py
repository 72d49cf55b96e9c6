"""The scheduler's queues, and who may submit to one by the access lists that everybody is told.

Pure: it takes what the ResourceManager's REST interface answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["every", "refused"]

_SUFFICE = ("SUBMIT_APP", "ADMINISTER_QUEUE")


def refused(top: Mapping[str, Any], queue: str, user: str) -> str | None:
    """Why a user may not submit to a queue; None: allowed, or not known from the lists.

    A right that a queue above gives holds below it. Who is in a group, YARN alone knows.

    Args:
        top: the root queue with all below it.
        queue: name or path.
        user: short name.
    """
    above = _way(top, queue)
    told = [lists for one in above if (lists := _lists(one)) is not None]
    if not told or len(told) < len(above):
        return None  # the fair scheduler's queues, and an older Hadoop's, do not tell
    for text in (text for lists in told for text in lists):
        users, _, groups = text.partition(" ")
        names = {name.strip() for name in users.split(",")}
        if text.strip() == "*" or groups.strip() or user in names:
            return None
    return f"no access list of {' > '.join(str(one.get('queueName')) for one in above)} has {user}"


def every(queue: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A queue and all below it."""
    yield dict(queue)
    for child in _children(queue):
        yield from every(child)


def _children(queue: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Those right below, in either scheduler's words."""
    inner = queue.get("queues") or queue.get("childQueues") or {}
    return (inner.get("queue") or []) if isinstance(inner, Mapping) else inner


def _way(queue: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """From this queue down to the one of that name; empty: it is not here."""
    below = _children(queue)
    if not below and name in (queue.get("queueName"), queue.get("queuePath")):
        return [queue]
    for child in below:
        if found := _way(child, name):
            return [queue, *found]
    return []


def _lists(queue: Mapping[str, Any]) -> list[str] | None:
    """Its lists of users and groups, of which one is enough to submit; None: it does not tell."""
    entries = (queue.get("queueAcls") or {}).get("queueAcl")
    if entries is None:
        return None
    entries = [entries] if isinstance(entries, Mapping) else entries
    return [str(e.get("accessControlList")) for e in entries if e.get("accessType") in _SUFFICE]
