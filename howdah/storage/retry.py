"""Try again while storage is away: a NameNode that restarts must not end a training run.

Only `StorageUnavailable` is tried again; every other error is an answer. Whatever waits for one
storage, from however many threads, says so once when waiting begins and once when it is over. Each
attempt counts as progress of the thread that waits (howdah/activity.py): waiting ends by itself.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from howdah import activity
from howdah.errors import ConfigError, StorageUnavailable
from howdah.storage import paths

T = TypeVar("T")
ENVIRONMENT = "HOWDAH_STORAGE_RETRY_SECONDS"
DEFAULT_SECONDS = 120.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0

_lock = threading.Lock()
_waiting: dict[str, int] = {}
"""Callers that wait now, by storage (scheme and authority)."""


def limit_seconds() -> float:
    """How long to try again, in seconds; 0: not at all. $HOWDAH_STORAGE_RETRY_SECONDS, else 120."""
    text = os.environ.get(ENVIRONMENT, "")
    if not text:
        return DEFAULT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ConfigError(
            "no number of seconds", where=ENVIRONMENT, expected="0 or more", got=repr(text)
        )
    return seconds


def run(path: str, action: Callable[[], T]) -> T:
    """The action's result; while storage is unavailable it is called again, up to the limit.

    Args:
        path: what the action is about.
        action: one attempt; safe to be called again.
    Raises:
        StorageUnavailable: the last attempt's, with how long was tried.
    """
    limit = limit_seconds()
    pause, began = _FIRST_PAUSE, None
    where = f"{paths.scheme(path)}://{paths.authority(path)}"
    try:
        while True:
            try:
                result = action()
            except StorageUnavailable as error:
                now = time.monotonic()
                if began is None:
                    if limit > 0:
                        _begin(where, error, limit)
                    began = now
                left = began + limit - now
                if left <= 0:
                    raise _given_up(error, now - began) from None
                activity.note(f"waiting for {where}, {now - began:.0f} s of {limit:.0f} s")
                time.sleep(min(pause, left) * random.uniform(0.5, 1.0))
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                if began is not None:
                    _over(where, time.monotonic() - began)
                    began = None
                    activity.note("")
                activity.advanced()
                return result
    finally:
        if began is not None and limit > 0:
            activity.note("")
            with _lock:
                _waiting[where] -= 1


def _begin(where: str, error: StorageUnavailable, limit: float) -> None:
    with _lock:
        first = not _waiting.get(where)
        _waiting[where] = _waiting.get(where, 0) + 1
    if first:
        cause = f" ({error.got})" if error.got else ""
        say(f"{where}: {error.what}{cause}; trying again for up to {limit:.0f} s")


def _over(where: str, seconds: float) -> None:
    with _lock:
        _waiting[where] -= 1
        last = not _waiting[where]
    if last:
        say(f"{where}: answers again after {seconds:.0f} s")


def _given_up(error: StorageUnavailable, seconds: float) -> StorageUnavailable:
    if seconds > 0:
        error.got = f"{error.got or error.what}; tried again for {seconds:.0f} s"
    return error


def _tell(line: str) -> None:
    print(f"howdah: {line}", file=sys.stderr, flush=True)


say: Callable[[str], None] = _tell
"""Who is told of waiting: stderr, unless `storage.configure(say=)` names another."""
