"""Calls with a time limit into libraries that have none.

hdfs-native waits for ever on a NameNode that is stopped but still holds its port, and a thread
inside it hears no Ctrl-C. So its calls run in daemon threads of our own: the caller waits with a
limit, and what never returns is left behind.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class _Job:
    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None


class Calls:
    """Threads that make calls; one more starts whenever all are busy."""

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue] = []
        self._lock = threading.Lock()

    def run(self, call: Callable[[], T], seconds: float) -> T:
        """The call's result or error; TimeoutError after `seconds` (the call goes on unheard)."""
        job = _Job(call)
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = queue.SimpleQueue()
            threading.Thread(
                target=self._work, args=(inbox,), name="howdah-storage", daemon=True
            ).start()
        inbox.put(job)
        if not job.done.wait(seconds):
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        if job.error is not None:
            raise job.error
        return job.result

    def _work(self, inbox: queue.SimpleQueue) -> None:
        while True:
            job = inbox.get()
            try:
                job.result = job.call()
            except BaseException as error:  # noqa: BLE001 - handed to the caller, which raises it
                job.error = error
            job.done.set()
            del job  # it holds the caller's data
            with self._lock:
                self._idle.append(inbox)
