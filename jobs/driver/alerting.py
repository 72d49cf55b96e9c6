"""The driver's alerts: a job that failed, that takes no step for long, whose disk fills up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from howdah import alerts
from howdah.config.loader import Config
from howdah.core import threads
from howdah.errors import HowdahError
from howdah.jobs.stall import Stall

_LOOK_SECONDS = 2.0
_DISK_SECONDS = 300.0


class Alerting:
    """Sends from a thread of its own: a slow webhook must not keep the driver from its job.

    Args:
        config: the job's.
        step: the newest step; None: none yet, or none is due.
        page: the job's page.
        say: gets lines for the log.
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
        """Watch from now on, if anything is to be sent to."""
        if self._config.alerts.asks:
            threads.start(self._watch, name="alerts", failed=threads.REPORT, say=self._say)

    def _watch(self) -> None:
        asked = self._config.alerts
        stall = Stall(asked.stall_factor, asked.stall_seconds)
        disk_at = 0.0
        pause = min(_LOOK_SECONDS, asked.stall_seconds / 4)
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
        """Stop watching; send how the job ended, if it failed by itself."""
        self._over.set()
        if error is not None:
            alerts.of_error(self._config, "submit", error, link=self._page(), say=self._say)
