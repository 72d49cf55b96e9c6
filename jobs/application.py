"""An application: a running training job or server, on any cluster.

jobs/submit.py makes one, or it is looked up by its id or run directory. Requests to a job's driver
are files in the run directory, so that they reach it from any machine.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from howdah.core.activity import Progress
from howdah.core.terminal import as_cell
from howdah.errors import (
    INTERRUPTS,
    ClusterError,
    HowdahError,
    JobLost,
    NotFound,
    PermissionDenied,
    StorageError,
    TrainingError,
    UsageError,
)
from howdah.job_log import Position, new_lines
from howdah.jobs.record import OVER
from howdah.jobs.status import rank_log, status_file
from howdah.jobs.status.text import run_summary

TAIL_BYTES = 262_144
"""How many bytes at the end of each log file are shown."""
_CAN_SAVE = ("running", "resizing", "restarting")
"""States of a driver that can save a checkpoint."""
_POLL_SECONDS = 0.5


class Application(ABC):
    """An application of one cluster.

    Args:
        application: its id.
        on: the cluster's name.
        directory: the run directory, or a server's model directory; None: not known here.
    """

    def __init__(self, application: str, *, on: str, directory: str | None) -> None:
        self.id, self.on, self.directory = application, on, directory

    # ------------------------------------------------------------ what clusters differ in
    @abstractmethod
    def look(self) -> tuple[str, bool]:
        """Its present state (STARTING, ACCEPTED, RUNNING, FINISHED, FAILED, KILLED...), and True
        once it has ended."""

    @abstractmethod
    def facts(self, driver: Mapping[str, Any]) -> dict[str, Any]:
        """The cluster's part of `status`: state, final_status, diagnostics, elapsed_seconds...

        Args:
            driver: `driver_status`.
        """

    @abstractmethod
    def container_logs(self, progress: Progress) -> dict[str, dict[str, str]]:
        """{container: {file: its last TAIL_BYTES}}.

        Raises:
            ClusterError: the logs cannot be read from this machine.
        """

    @abstractmethod
    def end(self) -> str:
        """End it now, and return its last state.

        Raises:
            ClusterError: it does not end.
        """

    def ended(self) -> None:  # noqa: B027 - most clusters have nothing to do
        """Record, after `kill`, what is known only once the application has ended."""

    def patience(self) -> contextlib.AbstractContextManager[None]:
        """Inside, calls wait for an unreachable cluster, since the application goes on without."""
        return contextlib.nullcontext()

    def container_of_rank(self, rank: int) -> list[str]:
        """Lines of a rank whose log is not in the run directory, from its container; [] if none."""
        return []

    # ------------------------------------------------------------------------------ status
    @property
    def is_over(self) -> bool:
        """True once it has ended."""
        return self.look()[1]

    def driver_status(self) -> dict[str, Any]:
        """The status.json that its driver last wrote; {}: not written yet, or not readable."""
        if self.directory is None:
            return {}
        try:
            return status_file.read(self.directory, self.id)
        except PermissionDenied:  # a user may see an application without access to its files
            return {}

    def status(self) -> dict[str, Any]:
        """The cluster's report and the driver's status, as one object.

        Raises:
            NotFound: neither the cluster nor the run directory has it (any more).
        """
        driver = self.driver_status()
        return {
            "application": self.id,
            "on": self.on,
            "run_directory": self.directory,
            **self.facts(driver),
            "job": driver or None,
            "run": run_summary(self.directory),
        }

    # -------------------------------------------------------------------------------- logs
    def rank_log(self, rank: int, *, follow: bool, out: Callable[[str], None]) -> None:
        """Pass a rank's log to `out` line by line; with `follow`, until the job is over.

        Raises:
            NotFound: the rank has no log. ClusterError: the run directory is not known.
        """
        directory = self._known_directory("leave out --rank")
        if rank_log.follow(
            directory, rank, lambda: not follow or self.is_over, out, poll_seconds=_POLL_SECONDS
        ):
            return
        lines = self.container_of_rank(rank)
        if not lines:
            raise NotFound(
                "this rank has no log",
                where=rank_log.path_of(directory, rank),
                remedy=f"howdah logs {self.id} shows the containers' logs",
            )
        for line in lines:
            out(line)

    # --------------------------------------------------------------------- requests, kill
    def request(self, what: Mapping[str, Any]) -> None:
        """Leave a request for the driver: {"type": "scale" | "stop", ...}."""
        status_file.request(self._known_directory(), self.id, what)

    def scale(self, workers: int) -> None:
        """Tell an elastic job's driver to change to `workers` workers at its next step.

        Raises:
            ClusterError: the job is over, or its run directory is not known.
            UsageError: the number is outside the job's limits.
        """
        state, over = self.look()
        if over:
            raise ClusterError("the job is over", where=self.id, got=state)
        driver = self.driver_status()
        if driver.get("state") == status_file.ETL:
            raise ClusterError(
                "the job is still making its dataset and has no workers yet",
                where=self.id,
                remedy="scale it once `howdah status` shows that training has begun",
            )
        fewest, most = driver.get("fewest_workers", 1), driver.get("most_workers", workers)
        if not fewest <= workers <= most:
            raise UsageError(
                f"the job cannot have {workers} workers",
                where=self.id,
                expected=f"{fewest} to {most} workers (job.min_workers, job.max_workers)",
                remedy="submit it again with other limits; it goes on from its newest checkpoint",
            )
        self.request({"type": "scale", "workers": workers})

    def kill(self, *, save: bool, save_seconds: float, progress: Progress) -> str:
        """End it, and return its last state.

        Args:
            save: let a job save a checkpoint first, for at most `save_seconds`.
        Raises:
            ClusterError: it does not end.
        """
        state, over = self.look()
        if over:
            self.ended()
            return state
        driver = self.driver_status() if save else {}
        if driver.get("state") in _CAN_SAVE:
            before = (driver.get("last_checkpoint") or {}).get("step")
            try:
                self.request({"type": "stop", "save": True})
            except StorageError as error:  # a full disk: it can still be ended
                progress(f"no checkpoint can be requested: {error.what}")
            else:
                self._wait_for_save(before, save_seconds, progress)
        state = self.end()
        self.ended()
        return state

    def _wait_for_save(self, before: int | None, seconds: float, progress: Progress) -> None:
        """Wait until the driver has saved and stopped the job, for at most `seconds`."""
        began = time.monotonic()
        while time.monotonic() - began < seconds and not self.is_over:
            if self.driver_status().get("state") in OVER:
                break
            time.sleep(_POLL_SECONDS)
        status = self.driver_status()
        saved = status.get("last_checkpoint") or {}
        if saved.get("step") is not None and saved["step"] != before:
            progress(f"saved {saved['path']}")
            return
        line = f"no new checkpoint after {time.monotonic() - began:.0f} s"
        if status.get("saving") is not None:
            line += f": the save of step {status['saving']} is incomplete"
        progress(f"{line}; newest complete checkpoint: {saved.get('path') or 'none'}")

    # -------------------------------------------------------------------------------- wait
    def wait(self, progress: Progress) -> dict[str, Any]:
        """Follow it to its end, showing its events and rank 0's lines, and return its last status.

        Raises:
            TrainingError, ClusterError...: the job's own error, with its exit code.
        """
        position, last = Position(), None
        while True:
            state, over = self.look()
            lines, position = new_lines(self.driver_status(), position)
            changed = [f"{self.id} is {state}"] if state != last else []
            for line in (*lines, *changed) if over else (*changed, *lines):
                progress(line)
            last = state
            if over:
                break
            time.sleep(_POLL_SECONDS)
        status = self.status()
        if status["final_status"] != "SUCCEEDED":
            raise failure_of(status)
        return status

    def follow(
        self, save_seconds: float, progress: Progress, *, page: str | None = None
    ) -> dict[str, Any]:
        """Wait for an application that this command owns; an interrupt ends it.

        Args:
            save_seconds: how long a checkpoint may take after an interrupt.
            page: the page's URL, which is shown first.
        Raises:
            TrainingError, ClusterError...: the job's own error.
            Interrupted, Terminated: after the application was ended, with a checkpoint.
        """
        with contextlib.ExitStack() as stack:
            try:
                progress(f"submitted {self.id}: {page or self.directory}")
                stack.enter_context(self.patience())
                return self.wait(progress)
            except INTERRUPTS:
                try:
                    progress("saving and ending the job; interrupt again to end it at once")
                    stack.enter_context(self.patience())
                    self.kill(save=True, save_seconds=save_seconds, progress=progress)
                except INTERRUPTS:
                    stack.enter_context(self.patience())
                    self.kill(save=False, save_seconds=0, progress=progress)
                progress(f"{self.id} is over")
                raise

    def _known_directory(self, otherwise: str = "") -> str:
        if self.directory is None:
            raise ClusterError(
                "the job's run directory is not known here",
                where=self.id,
                remedy=", or ".join(filter(None, ("give --config as well", otherwise))),
            )
        return self.directory


def failure_of(status: Mapping[str, Any]) -> HowdahError:
    """Why an application did not succeed: its driver's own error, else the cluster's report."""
    job = status["job"] or {}
    if job.get("error"):
        error = TrainingError.from_dict(job["error"])
        error.exit_code = int(job.get("exit_code") or job["error"].get("exit_code") or 6)
        return error
    final = f" ({status['final_status']})" if status["final_status"] else ""  # none if it was lost
    return JobLost(
        f"the job ended as {status['state']}{final}",
        where=status["application"],
        got=as_cell(status["diagnostics"]) or None,
        remedy=f"howdah logs {status['application']}",
    )
