"""How long a file that a process renews has not changed, without comparing two machines' clocks.

When the file is first seen, the storage's own clock gives its age: a probe is written beside it.
From then on this process's monotonic clock counts for as long as its contents stay the same.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from dataclasses import dataclass
from typing import Any

from howdah import storage
from howdah.errors import HowdahError, NotFound


@dataclass(frozen=True)
class _Heard:
    beat: Any
    at: float
    """When this beat was first seen, by time.monotonic."""
    age: float
    """Seconds that the beat had then."""


_heard: dict[tuple[str, str], _Heard] = {}


def age(path: str) -> float:
    """Seconds since a file was written, by the storage's own clock; 0 where it is gone by now.

    Raises:
        StorageError: a probe cannot be written beside it.
    """
    name = f"clock-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    probe = storage.join(storage.parent(path), name)
    try:
        storage.write_whole(probe, b"")
        return storage.modified(probe) - storage.modified(path)
    except NotFound:
        return 0.0
    finally:
        storage.remove(probe)


def unheard_seconds(path: str, writer: str, beat: Any) -> float:
    """For how long the writer of a file has not renewed it.

    Args:
        path: the file.
        writer: whose file it is, such as an application.
        beat: what the file holds that each renewal changes.
    """
    key, now = (path, writer), time.monotonic()
    last = _heard.get(key)
    if last is None:
        last = _Heard(beat, now, _first_age(path, beat))
    elif last.beat != beat:  # renewed while this process looked
        last = _Heard(beat, now, 0.0)
    _heard[key] = last
    return last.age + now - last.at


def _first_age(path: str, beat: Any) -> float:
    try:
        return age(path)
    except HowdahError:
        # A user who may not write there cannot start a job there either: the age is for display.
        written_at = beat if isinstance(beat, int | float) else 0.0
        return max(0.0, time.time() - written_at)
