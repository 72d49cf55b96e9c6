"""A job whose driver is a process of the submitter's machine: on this machine, Spark or Ray."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping
from typing import Any

from howdah import storage
from howdah.core.activity import Progress
from howdah.errors import ClusterError, HowdahError, NotFound
from howdah.jobs import record
from howdah.jobs.application import TAIL_BYTES, Application
from howdah.jobs.clusters.settings import LOG, VERDICT
from howdah.jobs.record import OVER, Record
from howdah.jobs.status.text import row, run_summary

_POLL_SECONDS = 0.1
_STOP_SECONDS = 20.0
"""How long a driver has to read the request to stop and to end its workers."""
_SIGNAL_SECONDS = 10.0


class ProcessApplication(Application):
    """A job of a record whose process is its driver."""

    def __init__(self, record: Record) -> None:
        super().__init__(record.application, on=record.on, directory=record.run_directory)
        self.record = record

    def look(self) -> tuple[str, bool]:
        """STARTING, RUNNING, FINISHED, FAILED, KILLED; LOST: the driver has died."""
        alive = self.record.driver_lives
        return self._state(self.driver_status(), alive)[0], not alive

    def _state(self, driver: Mapping[str, Any], alive: bool) -> tuple[str, str | None]:
        final = OVER.get(str(driver.get("state")))
        if final is not None:
            return ("FINISHED" if final == "SUCCEEDED" else final), final
        if alive:
            return ("RUNNING" if driver else "STARTING"), None
        if self._verdict().get("status") == "FAILED":  # before its first status
            return "FAILED", "FAILED"
        return "LOST", None

    def _verdict(self) -> dict[str, Any]:
        if not (self.record.here and self.record.is_ours):
            return {}
        try:
            return storage.read_json(os.path.join(self.record.directory, VERDICT))
        except NotFound:
            return {}

    def facts(self, driver: Mapping[str, Any]) -> dict[str, Any]:
        state, final = self._state(driver, self.record.driver_lives)
        over = (driver.get("updated") or time.time()) if final or state == "LOST" else time.time()
        return {
            "state": state,
            "final_status": final,
            "name": _name(self.record),
            "where": f"on {self.on}, driver on {self.record.host}",
            "host": self.record.host,
            "tracking_url": driver.get("page") if state == "RUNNING" else None,
            "diagnostics": self._verdict().get("diagnostics") or "",
            "elapsed_seconds": max(0.0, over - self.record.submitted),
            "log": os.path.join(self.record.directory, LOG),
        }

    # -------------------------------------------------------------------------------- logs
    def container_logs(self, progress: Progress) -> dict[str, dict[str, str]]:
        """{"driver" or container: {file: its end}}, on the machine where the driver runs."""
        if not self.record.here:
            raise ClusterError(
                "the job's own files are on the machine of its driver", where=self.record.host,
                got=socket.gethostname(), remedy="howdah logs --rank N reads the run directory",
            )  # fmt: skip
        self._require_ours("its own files are read")
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
        if driver.get("state") not in OVER:
            self.request({"type": "stop", "save": False})
        self._wait(_STOP_SECONDS)
        if self.record.driver_lives and not self.record.here:
            starting = None if driver else "it is starting: the request waits for it"
            raise ClusterError(
                "the job's driver has not ended", where=f"{self.id} on {self.record.host}",
                expected=f"its end within {_STOP_SECONDS:.0f} s", got=starting,
                remedy=f"run `howdah kill {self.directory}` on {self.record.host}",
            )  # fmt: skip
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.record.driver_lives:
                self._require_ours("its process is signalled")
                os.kill(self.record.pid, number)
                self._wait(_SIGNAL_SECONDS)
        return self.look()[0]

    def _wait(self, seconds: float) -> None:
        """Until the driver has ended, or the time is over."""
        until = time.monotonic() + seconds
        while self.record.driver_lives and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)

    def _require_ours(self, what: str) -> None:
        """Raise ClusterError for a record that another user, or a copy, may have put there."""
        job, owner = self.record, os.geteuid()
        if job.process_lives:
            with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
                owner = os.stat(f"/proc/{job.pid}").st_uid
        if job.is_ours and owner == os.geteuid():
            return
        raise ClusterError(
            f"this run directory's record names a job that is not this user's: {what} by its owner"
            " alone", where=record.path_of(job.run_directory),
            expected=f"the record in {record.jobs_directory()}, which only this user can write",
            got=f"{job.application}, process {job.pid}",
            remedy="do it as the user who has submitted the job, with that user's HOWDAH_CACHE",
        )  # fmt: skip


def listed(*, finished: bool) -> list[dict[str, Any]]:
    """The rows of `howdah ps` for jobs that were submitted from this machine."""
    rows = []
    for job in record.known():
        try:
            current, application = record.read(job.run_directory), ProcessApplication(job)
            driver = application.driver_status()
            facts = application.facts(driver)
            hours = (run_summary(job.run_directory) or {}).get("hours")
        except HowdahError:  # its storage is away, or not ours to read any more
            current, driver, hours, facts = job, {}, None, _unreadable(job)
        live = facts["state"] in ("STARTING", "RUNNING")
        if not (live or finished) or (live and current != job):
            continue
        total = driver.get("total_steps")
        rows.append(
            row(
                application=job.application, state=facts["state"],
                final_status=facts["final_status"], driver=driver, name=_name(job), user=None,
                queue=job.on, elapsed_seconds=facts["elapsed_seconds"], hours=hours,
                progress=round(100 * (driver.get("step") or 0) / total, 1) if total else 0.0,
                run_directory=job.run_directory,
            )
        )  # fmt: skip
    return rows


def _name(job: Record) -> str:
    return os.path.basename(job.run_directory.rstrip("/"))


def _unreadable(job: Record) -> dict[str, Any]:
    """What is known of a job whose run directory cannot be read."""
    alive = job.process_lives
    return {
        "state": "RUNNING" if alive else "UNKNOWN", "final_status": None,
        "elapsed_seconds": time.time() - job.submitted if alive else 0.0,
    }  # fmt: skip


def _tail(path: str) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        return file.read().decode(errors="replace")
