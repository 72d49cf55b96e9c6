"""Calls with a time limit into libraries that have none.

hdfs-native waits for ever on a NameNode that is stopped but still holds its port, and a thread
inside it hears no Ctrl-C. So its calls run in daemon threads of our own: the caller waits with a
limit, and what never returns is left behind. A call's thread has its caller's niceness: what is
written behind a training's back must not compete with its compute threads.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from howdah import activity

T = TypeVar("T")


class _Job:
    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None


def niceness() -> int:
    """This thread's; on Linux every thread has its own, and gives it to those that it starts."""
    return os.getpriority(os.PRIO_PROCESS, 0)


class Calls:
    """Threads that make calls; one more starts whenever all of a niceness are busy."""

    def __init__(self) -> None:
        self._idle: defaultdict[int, list[queue.SimpleQueue]] = defaultdict(list)
        self._lock = threading.Lock()

    def run(self, call: Callable[[], T], seconds: float) -> T:
        """The call's result or error; TimeoutError after `seconds` (the call goes on unheard)."""
        job = _Job(call)
        with self._lock:
            idle = self._idle[niceness()]
            inbox = idle.pop() if idle else None
        if inbox is None:
            inbox = queue.SimpleQueue()
            threading.Thread(
                target=self._work, args=(inbox, idle), name="howdah-storage", daemon=True
            ).start()
        inbox.put(job)
        with activity.at_most(seconds):
            answered = job.done.wait(seconds)
        if not answered:
            raise TimeoutError(f"no answer within {seconds:.0f} s")
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
            del job  # it holds the caller's data
            with self._lock:
                idle.append(inbox)
