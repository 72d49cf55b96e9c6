"""Memory of processes, sampled from /proc."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path


def anonymous(pid: int) -> int:
    """Bytes of a process's memory that no file backs (the page cache is not its own); 0: gone.

    Source: proc_pid_status(5), RssAnon.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)


class Sampler:
    """Samples processes every 20 ms, in a thread.

    Args:
        pids: the processes by name, asked anew each time.
    """

    def __init__(self, pids: Callable[[], Mapping[int, int]]) -> None:
        self._pids, self._over = pids, threading.Event()
        self._found: list[tuple[float, dict[int, int]]] = []
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def start(self) -> Sampler:
        """Begin."""
        self._thread.start()
        return self

    def stop(self) -> list[tuple[float, dict[int, int]]]:
        """End; (time.time, {name: bytes}) of each sample."""
        self._over.set()
        self._thread.join()
        return self._found

    def _sample(self) -> None:
        while not self._over.is_set():
            sizes = {name: anonymous(pid) for name, pid in self._pids().items()}
            self._found.append((time.time(), sizes))
            self._over.wait(0.02)
