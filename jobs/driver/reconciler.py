"""Carries out the job's decisions about containers on the cluster, in a separate thread.

Decisions (keep four containers, end this one) are recorded at once and carried out here: a cluster
that does not answer for a while delays them, and stops neither heartbeats nor decisions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from howdah.core import threads
from howdah.errors import ClusterError
from howdah.jobs.backend import Container, DriverBackend

_LIST_SECONDS = 1.0
_RETRY_SECONDS = 2.0


class Reconciler:
    """Carries a job's decisions out on the cluster, and lists its containers.

    Args:
        backend: the cluster.
        listed: called with each new list of containers.
        progress: () -> the fraction of the job that is done.
        say: logs when the cluster stops answering, and when it answers again.
        abandoned: called once the cluster will not answer again, with the reason.
    """

    def __init__(
        self,
        backend: DriverBackend,
        *,
        listed: Callable[[Sequence[Container]], None],
        progress: Callable[[], float],
        say: Callable[[str], None],
        abandoned: Callable[[str], None],
    ) -> None:
        self._backend = backend
        self._listed, self._progress, self._say = listed, progress, say
        self._abandoned = abandoned
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._count: int | None = None
        self._requested: int | None = None
        self._releases: list[str] = []
        self._closing = False
        self._away = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threads.start(
            self._run, name="cluster", failed=threads.RESTART, say=self._say
        )

    def keep(self, count: int) -> None:
        """Keep `count` containers, soon."""
        with self._lock:
            self._count = count
        self._wake.set()

    def release(self, container: str) -> None:
        """End a container soon, after the latest count has been carried out."""
        with self._lock:
            self._releases.append(container)
        self._wake.set()

    def close(self, seconds: float) -> None:
        """Carry out the pending decisions, for at most `seconds`."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        shown = -1.0
        while True:
            closing = self._closing
            self._wake.wait(_LIST_SECONDS)
            self._wake.clear()
            try:
                self._carry_out()
                if closing:
                    return
                containers = self._backend.containers()
                live = sum(one.state != "ended" for one in containers)
                if self._requested is not None and live < self._requested:
                    self._backend.keep(self._requested)
                self._listed(containers)
                fraction = self._progress()
                if abs(fraction - shown) >= 0.01:
                    self._backend.progress(fraction)
                    shown = fraction
                if self._away:
                    self._away = False
                    self._say("the cluster answers again")
            except ClusterError as error:
                if not self._away:
                    self._away = True
                    self._say(f"the cluster does not answer: {error.what} ({error.got})")
                reason = self._backend.abandoned()
                if reason is not None:
                    self._abandoned(reason)
                if closing or reason is not None:
                    return
                time.sleep(_RETRY_SECONDS)

    def _carry_out(self) -> None:
        with self._lock:
            count, releases = self._count, list(self._releases)
        if count is not None and count != self._requested:
            self._backend.keep(count)
            self._requested = count
        for container in releases:
            self._backend.release(container)
            with self._lock:
                self._releases.remove(container)
