"""Where ranks of one world leave the addresses that Gloo connects them by: the driver's end.

Stock Horovod keeps this store open to the network and unpickles what some of its keys hold
(CVE-2024-10190). Here it is reached through yarn/wire.py alone, values are bytes that nobody looks
into, only Gloo's own names are taken, and each generation has a store of its own: a key that a dead
world left behind can never be read by the next.
"""

from __future__ import annotations

import re
import threading

__all__ = ["KEY_LIMIT", "VALUE_LIMIT", "Rendezvous", "valid_name"]

KEY_LIMIT = 2**18
"""Keys of one generation: some for each rank and scope."""
VALUE_LIMIT = 2**19
"""Bytes of a value: a rank's addresses, one for each peer."""
_SCOPE = re.compile(r"(global|local_|cross_)[A-Za-z0-9._-]{0,300}")
_KEY = re.compile(r"[A-Za-z0-9._:-]{1,200}")


def valid_name(scope: str, key: str) -> bool:
    """Whether Gloo, as Horovod uses it, asks for such a name."""
    return bool(_SCOPE.fullmatch(scope) and _KEY.fullmatch(key))


class Rendezvous:
    """The stores of the generations; only the newest one is kept."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.generation = 0
        """The one whose store is open."""
        self._values: dict[tuple[str, str], bytes] = {}

    def begin(self, generation: int) -> None:
        """Start an empty store; who waits for a key of an earlier one gets nothing."""
        with self._changed:
            self.generation = generation
            self._values = {}
            self._changed.notify_all()

    def put(self, generation: int, scope: str, key: str, value: bytes) -> bool:
        """Leave a value; False for another generation, a strange name, or too much of it."""
        if not valid_name(scope, key) or len(value) > VALUE_LIMIT:
            return False
        with self._changed:
            if generation != self.generation or len(self._values) >= KEY_LIMIT:
                return False
            self._values[scope, key] = value
            self._changed.notify_all()
            return True

    def get(self, generation: int, scope: str, key: str, wait: float) -> bytes | None:
        """A value; waits for it up to `wait` seconds. None: not there."""
        with self._changed:
            self._changed.wait_for(
                lambda: generation != self.generation or (scope, key) in self._values, wait
            )
            if generation != self.generation:
                return None
            return self._values.get((scope, key))

    def delete(self, generation: int, scope: str, key: str) -> None:
        """Take a value away: Horovod does so once all have connected."""
        with self._changed:
            if generation == self.generation:
                self._values.pop((scope, key), None)
