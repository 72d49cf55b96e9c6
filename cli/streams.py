"""The standard streams of a command: all three are there, and stdout says what it cannot take.

Without this a command that is started with a closed stdout ends at a stream that is None; a full
disk behind stdout is a traceback of whatever prints, or of Python's own end; and a pipe that
nothing reads is an exit code 1 ("a check failed") of the libraries that print help.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import itertools
import json
import os
import shutil
import stat
import sys
import threading
from collections.abc import Iterator
from typing import TextIO, cast

import typer

from howdah.core import threads
from howdah.core.activity import Activity
from howdah.core.terminal import shown
from howdah.errors import UsageError
from howdah.faults import typed

_TURNS = "|/-\\"
_REPAINT_SECONDS = 0.2
_LINE = threading.RLock()
_PAINTED: list[threading.Thread] = []
"""The thread that paints the live line, while there is one."""
_ESCAPED = "howdah.escaped"
"""How characters that a stream's encoding lacks are printed: as in JSON, which stays JSON so."""


def prepare() -> None:
    """Make the standard streams of this process fit for commands; at its start, once.

    A closed descriptor becomes /dev/null: files that are opened later do not get its number, and
    children inherit it. sys.stdin stays None then, so that what needs it can refuse; sys.stdout
    and sys.stderr are never None.
    """
    for descriptor in range(3):  # in order: the lowest free number is the one that is missing
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    codecs.register_error(_ESCAPED, _escaped)
    if sys.stdout is sys.__stdout__:  # Python's own, not a caller's in this process
        sys.stdout = _stream(sys.stdout, 1, "stdout")
    if sys.stderr is sys.__stderr__:
        sys.stderr = _stream(sys.stderr, 2, "stderr")


@contextlib.contextmanager
def live_line() -> Iterator[None]:
    """On a terminal, show what this thread's activity is in a last line that is replaced.

    Lines that are printed meanwhile stand above it: `above` removes it for them.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    over = threading.Event()
    activity = Activity()

    def paint() -> None:
        for turn in itertools.count():
            state = activity.snapshot()
            if state.text:
                text = f"{_TURNS[turn % len(_TURNS)]} {state.text}, {state.seconds:.0f} s"
                with _LINE:
                    width = shutil.get_terminal_size().columns - 1
                    sys.stderr.write(f"\r\x1b[K{shown(text)[:width]}")
                    sys.stderr.flush()
            if over.wait(_REPAINT_SECONDS):
                return

    with activity.followed():
        painter = threads.start(paint, name="live-line", failed=lambda error: None)
        _PAINTED.append(painter)
        try:
            yield
        finally:
            over.set()
            painter.join()
            with above():
                _PAINTED.clear()


@contextlib.contextmanager
def above() -> Iterator[None]:
    """Inside, the live line is removed and stays so: what is printed stands in its place."""
    with _LINE:
        if _PAINTED:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        yield


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _stream(old: TextIO | None, descriptor: int, name: str) -> TextIO:
    """A stream as Python made it, or would have, on `_Descriptor`."""
    file = _Descriptor(descriptor, name)
    at_once = isinstance(old, io.TextIOWrapper) and old.write_through  # PYTHONUNBUFFERED
    return io.TextIOWrapper(
        file if at_once else io.BufferedWriter(file),
        encoding="utf-8" if old is None else old.encoding,
        errors=_ESCAPED,
        line_buffering=old is None or old.line_buffering,
        write_through=at_once,
    )


class _Descriptor(io.FileIO):
    """Takes all that is written: it fails once, with a StorageError, and only as stdout.

    Where nothing reads what is written, that and what follows is dropped, and the command goes on.
    What stderr cannot take is dropped as well: no other stream could take the message, and the
    command's exit code must stay what it is.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self.name = f"<{name}>"
        self._what = name
        self._failed = False
        self.unread = False
        """Whether what reads it has gone."""

    def write(self, data: bytes | memoryview, /) -> int | None:
        # It is said once: Python writes again what a buffer has kept. An empty write is skipped:
        # click tests with one whether a stream takes text, and swallows the error.
        if self._failed or not len(data):
            return len(data)
        with typed(self._what, f"write to {self._what}"):
            try:
                return super().write(data)
            except OSError as error:
                if read_by_none(error, self.fileno()):
                    self.unread = True
                    discard(self.fileno())
                elif self._what == "stdout":
                    self._failed = True
                    raise
        return len(data)


def read_by_none(error: OSError, descriptor: int) -> bool:
    """Whether writing failed as nothing reads: a pipe without a reader, a terminal that is gone."""
    if error.errno == errno.EIO:  # of a disk it is a defect
        return stat.S_ISCHR(os.fstat(descriptor).st_mode)
    return error.errno in (errno.EPIPE, errno.ECONNRESET)


def discard(descriptor: int) -> None:
    """Let all that is written to it from now on be dropped, also what a buffer keeps."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)


def opened_stdin() -> TextIO:
    """stdin, for a command that needs it.

    Raises:
        UsageError: it was closed when the command was started.
    """
    if sys.stdin is None:
        raise UsageError(
            "stdin is closed", where="stdin", remedy="leave out <&-; </dev/null is an empty input"
        )
    return sys.stdin


class _Results(io.TextIOBase):
    """stdout, for commands that print for as long as there is something; see `results`."""

    def write(self, text: str, /) -> int:
        return sys.stdout.write(text)

    def flush(self) -> None:
        sys.stdout.flush()
        buffer = getattr(sys.stdout, "buffer", None)
        file = getattr(buffer, "raw", buffer)
        if isinstance(file, _Descriptor) and file.unread:
            raise typer.Exit(0)


def results() -> TextIO:
    """stdout; the command ends, with exit code 0, at a flush after what reads it has gone (| head).

    Other commands do their work although nothing reads the result; these would print into nothing.
    """
    return cast(TextIO, _Results())
