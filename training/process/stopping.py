"""Stop requests: from a signal to a saved checkpoint, even if the main thread is in a collective.

The sources of signals:

- `howdah train` forwards SIGINT as SIGUSR1 and SIGTERM as SIGUSR2 to its rank, and waits; a rank
  that an agent asks to stop sends itself SIGUSR2 (training/__main__.py). These are orderly: all
  ranks agree on the step they stop at.
- A SIGINT or SIGTERM to a process that trains alone is orderly, too.
- With several ranks, SIGINT or SIGTERM comes from the launcher (mpirun, torchrun...), which is
  ending the job, kills a moment later, and may already have lost a rank. Collectives may not
  complete any more: each rank stops alone, and rank 0 saves the last step that it has completed.

Python runs a signal handler only in the main thread, and only between bytecodes: a rank that waits
in an allreduce for a dead peer never gets there. But the C-level handler still writes to the
wake-up pipe, which a separate thread reads.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from howdah.core import threads
from howdah.errors import HowdahError, Interrupted, Terminated
from howdah.training.process.token_expiry import TokenExpiry

_MEANING = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGUSR1: signal.SIGINT,
    signal.SIGUSR2: signal.SIGTERM,
}
_ORDERLY = (signal.SIGUSR1, signal.SIGUSR2)


class StopSignals:
    """Stop requests to this rank: signals, or delegation tokens that are about to expire.

    Args:
        abandon: called from the watching thread if the main thread cannot act on the request; it
            ends the process with `error` and does not return.
        patience: seconds that the main thread has to act before `abandon` is called.
        tokens: their expiry; None: they do not expire.
    """

    def __init__(
        self,
        *,
        several_ranks: bool,
        abandon: Callable[[], None],
        patience: float = 0.2,
        tokens: TokenExpiry | None = None,
    ) -> None:
        self._several_ranks = several_ranks
        self._abandon = abandon
        self._patience = patience
        self._tokens = tokens
        self._signal: int | None = None
        self._seen_by_main = threading.Event()
        self._stepping = False
        self._pipe: tuple[int, int] | None = None
        self._handlers: dict[int, Any] = {}
        self._came = threading.Event()
        self.alone = False
        """True if the launcher is ending the job: save (rank 0) and stop without a collective."""

    def install(self) -> None:
        """Handle the four signals; must be called in the main thread."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        self._pipe = (read, write)
        for number in _MEANING:
            self._handlers[number] = signal.signal(number, self._in_main_thread)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        threads.start(self._watch, read, name="signals", failed=threads.RESTART)

    def uninstall(self) -> None:
        """Restore the handlers that `install` replaced; does nothing outside the main thread."""
        if self._pipe is None or threading.current_thread() is not threading.main_thread():
            return
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._pipe[1])  # the watching thread reads the end of the pipe, and ends
        self._pipe = None

    def disarm(self) -> None:
        """Only note signals from now on: the process is ending."""
        self._seen_by_main.set()
        self._came.clear()

    def torn_down_within(self, seconds: float) -> bool:
        """True if a signal comes within that time; call `disarm` before."""
        return self._came.wait(seconds)

    def stepping(self, on: bool) -> None:
        """Set if steps are being taken: then a request waits for a step's end, otherwise it raises
        at once."""
        self._stepping = on
        if not on and self._signal is not None and not self._seen_by_main.is_set():
            self._seen_by_main.set()
            raise self.error()

    def requested(self) -> bool:
        """True if a stop is requested. The main thread calls it at a step's end, and then acts."""
        if self._signal is None:
            return self._tokens is not None and self._tokens.ending()
        self._seen_by_main.set()
        return True

    def error(self, **fields: str | None) -> HowdahError:
        """The error to stop with: Interrupted, Terminated or TokensExpiring."""
        # Every rank gets a signal. Without one, the tokens of some rank were the cause.
        if self._signal is None and self._tokens is not None and self._tokens.end is not None:
            return self._tokens.error(**fields)
        if self.alone:
            return Terminated(
                "the launcher ended the job: it was cancelled, or another rank had ended", **fields
            )
        if self._signal == signal.SIGINT:
            return Interrupted("training was interrupted", **fields)
        return Terminated("training was terminated", **fields)

    def _note(self, number: int) -> None:
        if number not in _ORDERLY and self._several_ranks:
            self.alone = True
        self._signal = self._signal or _MEANING[signal.Signals(number)]

    def _in_main_thread(self, number: int, frame: object) -> None:
        self._note(number)
        if not self._stepping and not self._seen_by_main.is_set():
            self._seen_by_main.set()
            raise self.error()

    def _watch(self, read: int) -> None:
        while True:
            data = os.read(read, 1)
            if not data:
                os.close(read)
                return
            if data[0] not in _MEANING:
                continue
            self._note(data[0])
            self._came.set()
            # The loop acts on an orderly request during the steps, however long its step takes.
            if self._stepping and not self.alone:
                continue
            # Outside of steps nothing can be lost; the pause lets the main thread end by itself.
            if not self._seen_by_main.wait(self._patience if self._stepping else 2.0):
                self._abandon()
