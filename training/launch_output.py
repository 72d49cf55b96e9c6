"""What a launcher prints: rank 0's lines are shown, its own words about the end are held back.

mpirun's boxes and horovodrun's traceback say that a rank has failed, not why; `howdah train` says
why, last. Everything is in logs/launcher all the same.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from typing import BinaryIO, TextIO

__all__ = ["Relay"]

# horovodrun puts the rank before each line: "[0]<stderr>:step 10/60 ..."
_PREFIX = re.compile(r"^\[\d+\]<std(?:out|err)>: ?")
_RULE = re.compile(r"^-{20,}$")
# The first words of the launchers' accounts of a failed job (Open MPI 4, Horovod 0.28).
_FAREWELL = re.compile(
    r"^(Primary job +terminated|mpirun (detected|noticed)|Process \d+ exit with status"
    r"|Terminating remaining workers|Traceback \(most recent call last\)|Killed$)"
)


class Relay:
    """Copies a launcher's output to people and into a log.

    Args:
        target: where people look.
        log: local file that takes everything.
    """

    def __init__(self, target: TextIO, log: str) -> None:
        self._target = target
        self._log = log
        self._held: list[str] = []
        self._thread: threading.Thread | None = None

    def start(self, source: BinaryIO) -> None:
        """Copy until the source ends, in a thread."""
        os.makedirs(os.path.dirname(self._log), exist_ok=True)
        self._thread = threading.Thread(target=self._copy, args=(source,), daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait for the rest. A process that keeps the pipe open is not waited for."""
        if self._thread is not None:
            self._thread.join(timeout=5.0)

    def held_back(self) -> str:
        """The launcher's own words about the end."""
        return "".join(self._held).rstrip()

    def _copy(self, source: BinaryIO) -> None:
        with open(self._log, "a", encoding="utf-8") as log:
            for raw in iter(source.readline, b""):
                line = _PREFIX.sub("", raw.decode("utf-8", "replace"))
                log.write(line)
                log.flush()
                self._pass_on(line)
        if self._held and _RULE.match(self._held[0]) and len(self._held) == 1:
            self._show(self._held.pop())

    def _pass_on(self, line: str) -> None:
        """A rule is kept until the next line tells whether a farewell follows it."""
        if _FAREWELL.match(line) or _RULE.match(line):
            self._held.append(line)
            return
        only_rules = all(_RULE.match(held) for held in self._held)
        if self._held and not only_rules:
            self._held.append(line)
            return
        for held in self._held:
            self._show(held)
        self._held.clear()
        self._show(line)

    def _show(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads our stderr any more
            self._target.write(line)
            self._target.flush()
