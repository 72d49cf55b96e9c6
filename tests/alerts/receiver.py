"""A command for `alerts.command` that keeps what it gets on its stdin."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from tests.support.waiting import wait_until

_KEEP = "import os, sys; os.write(os.open(sys.argv[1], 1025), sys.stdin.buffer.read() + b'\\n')"
"""1025: O_WRONLY | O_APPEND. One write, so that a reader sees whole lines."""


class Receiver:
    """The command, and the alerts that it got."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.command = [sys.executable, "-S", "-c", _KEEP, path]

    @property
    def alerts(self) -> list[dict[str, Any]]:
        """The alerts so far, in their order."""
        with open(self._path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def wait(self, count: int = 1, seconds: float = 60) -> list[dict[str, Any]]:
        """The alerts, once there are at least `count`."""
        wait_until(lambda: len(self.alerts) >= count, seconds)
        return self.alerts


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver with a file of its own."""
    number, path = tempfile.mkstemp(suffix=".jsonl")
    os.close(number)
    try:
        yield Receiver(path)
    finally:
        os.unlink(path)
