"""The output of a launcher: rank 0's lines are shown, its own messages about the end are not.

mpirun's boxes and horovodrun's traceback say that a rank has failed, not why; `howdah train` says
why, last. Everything is in logs/launcher all the same.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import TextIO

from howdah.config.launchers import LAUNCHERS

_PREFIX = re.compile("|".join(f"^(?:{row.prefix})" for row in LAUNCHERS.values() if row.prefix))
_RULE = re.compile(r"^-{20,}$")
_LAST_WORDS = re.compile("|".join(f"^(?:{row.failure_report})" for row in LAUNCHERS.values()))


class Relay:
    """Copies a launcher's output to the console and into a log.

    Args:
        target: the console.
        log: local file that takes everything.
    """

    def __init__(self, target: TextIO, log: str) -> None:
        self._target = target
        self._path = log
        self._log: TextIO | None = None
        self._logging = True
        self._held: list[str] = []

    def take(self, line: str) -> None:
        """Copy a line. A log that cannot be written is reported once, and ends nothing: the
        launcher would stop at a full pipe, and the ranks with it."""
        line = _PREFIX.sub("", line) + "\n"
        self._pass_on(line)
        if self._logging:
            try:
                self._write(line)
            except OSError as error:
                self._logging = False
                with contextlib.suppress(OSError, ValueError):
                    print(f"howdah: {self._path}: {error.strerror}", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """The last line has come; one that comes later all the same is shown, but not logged."""
        self._logging = False
        if self._held and _RULE.match(self._held[0]) and len(self._held) == 1:
            self._show(self._held.pop())
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.close()

    def held_back(self) -> str:
        """The launcher's own messages about the end."""
        return "".join(self._held).rstrip()

    def _write(self, line: str) -> None:
        if self._log is None:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            self._log = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 - until `finish`
        self._log.write(line)
        self._log.flush()

    def _pass_on(self, line: str) -> None:
        """A ruled line is held back until the next line shows whether a message follows it."""
        if _LAST_WORDS.match(line) or _RULE.match(line):
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
        with contextlib.suppress(OSError, ValueError):  # stderr is closed
            self._target.write(line)
            self._target.flush()
