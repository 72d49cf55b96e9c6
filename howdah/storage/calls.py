"""Calls with a time limit into libraries that have none.

hdfs-native waits for ever on a NameNode that is stopped but still holds its port, and a thread
inside it does not react to Ctrl-C. So its calls run in daemon threads: the caller waits with a
limit, and a call that never returns is abandoned. An abandoned call may still reach its server
after later ones, so nothing is removed under a name that is written again
(docs/decisions/remote-shards-and-checkpoints.md). A call's thread has its caller's niceness: writes
in the background must not compete with training's compute threads.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from howdah.core import activity, threads

T = TypeVar("T")


_LOST_SECONDS = 5.0
"""How long a call may take before its server is looked after, again and again."""


class _Job:
    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None


def niceness() -> int:
    """This thread's niceness; on Linux each thread has its own, which new threads inherit."""
    return os.getpriority(os.PRIO_PROCESS, 0)


class TimedCalls:
    """A pool of threads that make calls; it grows when all threads of a niceness are busy."""

    def __init__(self) -> None:
        self._idle: defaultdict[int, list[queue.SimpleQueue]] = defaultdict(list)
        self._lock = threading.Lock()

    def run(
        self, call: Callable[[], T], seconds: float, lost: Callable[[], bool] = lambda: False
    ) -> T:
        """The call's result or error; TimeoutError after `seconds` (the call is abandoned).

        Args:
            lost: tells, every 5 s, whether the server has stopped answering; the call is abandoned
                then.
        """
        job = _Job(call)
        with self._lock:
            idle = self._idle[niceness()]
            inbox = idle.pop() if idle else None
        if inbox is None:
            inbox = queue.SimpleQueue()
            # A call's own error goes to its caller; RESTART is for a failure of the loop itself.
            threads.start(self._work, inbox, idle, name="howdah-storage", failed=threads.RESTART)
        inbox.put(job)
        began = time.monotonic()
        with activity.current().at_most(seconds):
            while not job.done.wait(min(_LOST_SECONDS, began + seconds - time.monotonic())):
                waited = time.monotonic() - began
                if waited >= seconds or lost():
                    raise TimeoutError(f"no answer within {waited:.0f} s")
        if job.error is not None:
            raise job.error
        return job.result

    def _work(self, inbox: queue.SimpleQueue, idle: list[queue.SimpleQueue]) -> None:
        while True:
            job = inbox.get()
            try:
                job.result = job.call()
            except BaseException as error:  # noqa: BLE001 - handed to the caller, which raises it
                job.error = error
            job.done.set()
            del job  # it references the caller's data
            with self._lock:
                idle.append(inbox)
