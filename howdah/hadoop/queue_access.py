"""The scheduler's queues, and who may submit to one by its access lists, which all users can read.

Pure functions of the answers of the ResourceManager's REST interface.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_RIGHTS = ("SUBMIT_APP", "ADMINISTER_QUEUE")


def refused(top: Mapping[str, Any], queue: str, user: str) -> str | None:
    """Why a user may not submit to a queue; None: allowed, or the lists do not decide it.

    Rights on a queue hold for all queues below it. Only YARN knows the members of groups.

    Args:
        top: the root queue with all below it.
        queue: name or path.
        user: short name.
    """
    path = _path_to(top, queue)
    readable = [lists for one in path if (lists := _lists(one)) is not None]
    if not readable or len(readable) < len(path):
        return None  # the fair scheduler, and older Hadoops, do not report the lists
    for text in (text for lists in readable for text in lists):
        users, _, groups = text.partition(" ")
        names = {name.strip() for name in users.split(",")}
        if text.strip() == "*" or groups.strip() or user in names:
            return None
    return f"no access list of {' > '.join(str(one.get('queueName')) for one in path)} has {user}"


def every(queue: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A queue and all below it."""
    yield dict(queue)
    for child in _children(queue):
        yield from every(child)


def _children(queue: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Direct children, by either scheduler's field names."""
    inner = queue.get("queues") or queue.get("childQueues") or {}
    return (inner.get("queue") or []) if isinstance(inner, Mapping) else inner


def _path_to(queue: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """From this queue down to the one of that name; empty: it is not below this queue."""
    below = _children(queue)
    if not below and name in (queue.get("queueName"), queue.get("queuePath")):
        return [queue]
    for child in below:
        if path := _path_to(child, name):
            return [queue, *path]
    return []


def _lists(queue: Mapping[str, Any]) -> list[str] | None:
    """Lists of users and groups, any of which suffices to submit; None: not reported."""
    entries = (queue.get("queueAcls") or {}).get("queueAcl")
    if entries is None:
        return None
    entries = [entries] if isinstance(entries, Mapping) else entries
    return [str(e.get("accessControlList")) for e in entries if e.get("accessType") in _RIGHTS]
