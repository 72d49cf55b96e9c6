"""The driver's alerts: the job has failed, its steps have stalled, or its disk fills up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from howdah import alerts
from howdah.config.model import Config
from howdah.core import threads
from howdah.core.processes import limit
from howdah.errors import HowdahError
from howdah.jobs.stall import Stall

_STALL_FACTOR = limit("stall_factor", 20.0)
"""A job has stalled when no step has ended for this many of its median steps, more than steps of
one run differ by, and for alerts.stall_seconds."""
_LOOK_SECONDS = 2.0
_DISK_SECONDS = 300.0


class Alerting:
    """Sends alerts from a separate thread, so that a slow command does not block the driver.

    Args:
        config: the job's configuration.
        step: () -> the newest step; None: no step yet, or no step is due.
        page: () -> the URL of the job's page.
        say: logs a line.
    """

    def __init__(
        self,
        config: Config,
        *,
        step: Callable[[], int | None],
        page: Callable[[], str | None],
        say: Callable[[str], None],
    ) -> None:
        self._config, self._step, self._page, self._say = config, step, page, say
        self._over = threading.Event()

    def start(self) -> None:
        """Start to watch the job if the configuration has a receiver for alerts."""
        if self._config.alerts.asks:
            threads.start(self._watch, name="alerts", failed=threads.REPORT, say=self._say)

    def _watch(self) -> None:
        stall_seconds = self._config.alerts.stall_seconds
        stall = Stall(_STALL_FACTOR, stall_seconds)
        disk_at = 0.0
        pause = min(_LOOK_SECONDS, stall_seconds / 4)
        while not self._over.wait(pause):
            now, step = time.monotonic(), self._step()
            quiet = stall.look(step, now)
            if quiet is not None:
                alerts.send(
                    self._config, "stall", f"no step for {quiet:.0f} s, after step {step}",
                    where=self._config.run.directory, link=self._page(),
                    about={"step": step, "seconds": round(quiet, 1)}, event=f"step {step}",
                    say=self._say,
                )  # fmt: skip
            if now >= disk_at:
                disk_at = now + _DISK_SECONDS
                alerts.low_disk(self._config, say=self._say)

    def close(self, error: HowdahError | None) -> None:
        """Stop watching, and send the error of a job that failed by itself."""
        self._over.set()
        if error is not None:
            alerts.of_error(self._config, "submit", error, link=self._page(), say=self._say)
