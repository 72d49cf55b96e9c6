"""TensorFlow's start without the log lines that are useless in a CPU job.

Before Python code runs, its libraries write to the process's stderr, by absl's own rules: that they
use oneDNN, that there is no CUDA, that cuInit fails. TF_CPP_MIN_LOG_LEVEL does not reach these.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator

from howdah.core import gpus

_NOTES = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\)|[IW]\d{4} \d\d:\d\d:"
)
"""absl's lines of severity INFO and WARNING, and the one in front of them."""
_NO_CUDA = re.compile(
    rb"E\d{4} \d\d:\d\d:.*(cuda_platform|cuda_driver|cuda_fft|cuda_dnn|cuda_blas|cudart_stub)\.cc:"
)
"""Errors of CUDA's parts, which are expected where no GPU is to be used."""
_PROC = "/proc/driver/nvidia"


@contextlib.contextmanager
def starting_tensorflow() -> Iterator[None]:
    """Inside, TensorFlow is imported and looks for its devices; its notes are left out of stderr.

    Everything else stays, in its order: errors, Python's own lines, and every line if an exception
    is raised. Where stderr is a log file, lines are written to it at once and notes taken out at
    the end, so that a process that is killed in between leaves all of them. Elsewhere they are held
    back until the end. With TF_CPP_MIN_LOG_LEVEL below 2 nothing is left out.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2") in ("0", "1"):
        yield
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    on_cpu = not gpus.chosen(visible) or not os.path.exists(_PROC)
    sys.stderr.flush()
    if _is_log(2):
        yield from _taken_out(on_cpu)
    else:
        yield from _held_back(on_cpu)


def _is_log(fd: int) -> bool:
    """A regular file that is only ever written at its end."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return False
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND)


def _taken_out(on_cpu: bool) -> Iterator[None]:
    start = os.fstat(2).st_size
    yield
    sys.stderr.flush()
    try:
        with open("/proc/self/fd/2", "rb") as log:
            log.seek(start)
            output = log.read()
    except OSError:  # a log that may only be written keeps all lines
        return
    kept = _without_notes(output, on_cpu)
    if kept != output and os.fstat(2).st_size == start + len(output):
        os.ftruncate(2, start)
        _write(2, kept)


def _held_back(on_cpu: bool) -> Iterator[None]:
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        failed = True
        try:
            yield
            failed = False
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            held.seek(0)
            output = held.read()
            _write(stderr, output if failed else _without_notes(output, on_cpu))
            os.close(stderr)


def _without_notes(output: bytes, on_cpu: bool) -> bytes:
    def note(line: bytes) -> bool:
        return bool(_NOTES.match(line) or (on_cpu and _NO_CUDA.match(line)))

    return b"".join(line for line in output.splitlines(keepends=True) if not note(line))


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
