"""A job whose driver is a process of the submitter's machine: on this machine, Spark or Ray."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from howdah import storage
from howdah.core.activity import Progress
from howdah.core.user import user
from howdah.errors import ClusterError, HowdahError, NotFound, StorageError
from howdah.jobs import record
from howdah.jobs.application import TAIL_BYTES, Application
from howdah.jobs.clusters.settings import LOG, VERDICT
from howdah.jobs.record import OVER, Record
from howdah.jobs.status.text import LISTING_SECONDS, row, run_summary

_POLL_SECONDS = 0.1
_STOP_SECONDS = 20.0
"""How long a driver has to read the request to stop and to end its workers."""
_SIGNAL_SECONDS = 10.0


class ProcessApplication(Application):
    """A job with a record whose process is its driver."""

    def __init__(self, record: Record) -> None:
        super().__init__(record.application, on=record.on, directory=record.run_directory)
        self.record = record

    def look(self) -> tuple[str, bool]:
        """STARTING, RUNNING, FINISHED, FAILED, KILLED, or LOST if the driver has died."""
        alive = self.record.driver_lives
        return self._state(self.driver_status(), alive)[0], not alive

    def _state(self, driver: Mapping[str, Any], alive: bool) -> tuple[str, str | None]:
        final = OVER.get(str(driver.get("state")))
        if final is None and alive:
            return ("RUNNING" if driver else "STARTING"), None
        # Without a status it failed before the first one, or a later job has the run directory.
        final = final or self._verdict().get("status")
        if final is None:
            return "LOST", None
        return ("FINISHED" if final == "SUCCEEDED" else final), final

    def _verdict(self) -> dict[str, Any]:
        if not (self.record.here and self.record.is_ours):
            return {}
        try:
            return storage.read_json(os.path.join(self.record.directory, VERDICT))
        except NotFound:
            return {}

    def _ended(self) -> float:
        """When the driver wrote its last word, as far as this machine knows; else now."""
        if self.record.here and self.record.is_ours:
            with contextlib.suppress(OSError):
                return os.stat(os.path.join(self.record.directory, VERDICT)).st_mtime
        return time.time()

    def facts(self, driver: Mapping[str, Any]) -> dict[str, Any]:
        state, final = self._state(driver, self.record.driver_lives)
        over = state not in ("STARTING", "RUNNING")
        until = (driver.get("updated") or self._ended()) if over else time.time()
        return {
            "state": state,
            "final_status": final,
            "name": _name(self.record),
            "where": f"on {self.on}, driver on {self.record.host}",
            "host": self.record.host,
            "tracking_url": driver.get("page") if state == "RUNNING" else None,
            "diagnostics": self._verdict().get("diagnostics") or "",
            "elapsed_seconds": max(0.0, until - self.record.submitted),
            "log": os.path.join(self.record.directory, LOG),
        }

    # -------------------------------------------------------------------------------- logs
    def container_logs(self, progress: Progress) -> dict[str, dict[str, str]]:
        """{"driver" or container: {file: its end}}; only on the machine where the driver runs."""
        if not self.record.here:
            raise ClusterError(
                "the logs of the driver and its containers are on the driver's machine",
                where=self.record.host,
                remedy="howdah logs --rank N reads the run directory",
            )
        self._require_ours("its logs can be read")
        directory = self.record.directory
        logs = {"driver": {LOG: _tail(os.path.join(directory, LOG))}}
        root = os.path.join(directory, "containers")
        for container in sorted(os.listdir(root)) if os.path.isdir(root) else []:
            files = sorted(os.listdir(os.path.join(root, container)))
            logs[container] = {
                name: _tail(os.path.join(root, container, name))
                for name in files
                if name.endswith(".log")
            }
        return logs

    # --------------------------------------------------------------------------------- end
    def end(self) -> str:
        driver = self.driver_status()
        with contextlib.suppress(StorageError):  # a full disk: signals need none
            if driver.get("state") not in OVER:
                self.request({"type": "stop", "save": False})
            self._wait(_STOP_SECONDS)
        if self.record.driver_lives and not self.record.here:
            raise ClusterError(
                f"the job's driver has not ended within {_STOP_SECONDS:.0f} s",
                where=f"{self.id} on {self.record.host}",
                got=None if driver else "it is still starting, and reads the request afterwards",
                remedy=f"run `howdah kill {self.directory}` on {self.record.host}",
            )
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.record.driver_lives:
                self._require_ours("its process can be signalled")
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(self.record.pid, number)
                self._wait(_SIGNAL_SECONDS)
        return self.look()[0]

    def _wait(self, seconds: float) -> None:
        """Wait until the driver has ended, for at most `seconds`."""
        until = time.monotonic() + seconds
        while self.record.driver_lives and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)

    def _require_ours(self, what: str) -> None:
        """Raise ClusterError if another user may have made the record, or it may be a copy."""
        job, owner = self.record, os.geteuid()
        if job.process_lives:
            with contextlib.suppress(FileNotFoundError):  # the process has ended meanwhile
                owner = os.stat(f"/proc/{job.pid}").st_uid
        if job.is_ours and owner == os.geteuid():
            return
        raise ClusterError(
            f"this run directory's record names another user's job: {what} only by its owner",
            where=record.path_of(job.run_directory),
            expected=f"the same record in {record.jobs_directory()}",
            remedy="do it as the user who has submitted the job, with that user's HOWDAH_CACHE",
        )


@storage.waiting_at_most(LISTING_SECONDS, once=True)
def listed(*, finished: bool) -> list[dict[str, Any]]:
    """The rows of `howdah ps` for jobs that were submitted from this machine."""
    rows = []
    for job in record.submitted_here():
        if not finished and job.here and not job.process_lives:
            continue  # without a look at its storage, which may be unreachable by now
        try:
            current, application = record.read(job.run_directory), ProcessApplication(job)
            driver = application.driver_status()
            facts = application.facts(driver)
            hours = (run_summary(job.run_directory) or {}).get("hours")
        except HowdahError:  # its storage is unreachable, or no longer readable for this user
            current, driver, hours, facts = job, {}, None, _unreadable(job)
        live = facts["state"] in ("STARTING", "RUNNING")
        if not (live or finished) or (live and current != job):
            continue
        total = driver.get("total_steps")
        rows.append(
            row(
                application=job.application, state=facts["state"],
                final_status=facts["final_status"], driver=driver, name=_name(job), user=user(),
                queue=job.on, elapsed_seconds=facts["elapsed_seconds"], hours=hours,
                progress=round(100 * (driver.get("step") or 0) / total, 1) if total else 0.0,
                run_directory=job.run_directory,
            )
        )  # fmt: skip
    return rows


def _name(job: Record) -> str:
    return os.path.basename(job.run_directory.rstrip("/"))


def _unreadable(job: Record) -> dict[str, Any]:
    """The facts about a job whose run directory cannot be read."""
    if job.process_lives:
        elapsed = time.time() - job.submitted
        return {"state": "RUNNING", "final_status": None, "elapsed_seconds": elapsed}
    return {"state": "UNKNOWN", "final_status": None, "elapsed_seconds": 0.0}


def _tail(path: str) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        return file.read().decode(errors="replace")
