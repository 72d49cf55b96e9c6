"""`howdah submit`: check, claim, ship, start, announce; the same on every cluster.

A second submission of the same run attaches to the live application; where that one is being
stopped, the submission waits for its end and starts an application of its own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from howdah import redact, storage
from howdah.config.model import Config
from howdah.core.activity import Progress
from howdah.data.manifest import content_hash
from howdah.errors import INTERRUPTS, AlreadyExists, ClusterError, HowdahError
from howdah.jobs.application import Application
from howdah.jobs.cluster import Cluster
from howdah.jobs.record import Record, boot, path_of, read
from howdah.jobs.status import status_file
from howdah.jobs.status.status_file import directory
from howdah.storage import lease

_END_SECONDS = 120.0
"""How long a job that is being stopped may take to end, beyond its ranks' grace period."""
_POLL_SECONDS = 0.25
_SUBMITTING_SECONDS = 600.0
"""How long a submission on another machine may take before it counts as dead."""
_TAKEOVER_SECONDS = 60.0
_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """An application that its cluster has started."""

    application: Application
    page: str | None
    attached: bool
    """True if an earlier submission of the same run is still live, so that nothing was started."""
    seconds: float
    """Seconds from the command to the cluster's answer."""

    def as_dict(self) -> dict[str, Any]:
        """The output of --json."""
        return {
            "application": self.application.id,
            "on": self.application.on,
            "tracking_url": self.page,
            "run_directory": self.application.directory,
            "attached": self.attached,
            "follow": self.follow,
            "seconds": round(self.seconds, 1),
        }

    @property
    def follow(self) -> str:
        """The command that shows its log."""
        return f"howdah logs {self.application.id} --follow"


def fingerprint(config: Config) -> str:
    """Hash of a configuration without its secrets."""
    return content_hash(redact.config(config).model_dump(mode="json"))


def dry_run(cluster: Cluster, progress: Progress) -> dict[str, Any]:
    """What `submit` would start and upload, after the same checks. Nothing is started."""
    with cluster.session():
        cluster.check(progress)
        return cluster.plan(progress)


def submit(cluster: Cluster, progress: Progress, others: Callable[[str], Cluster]) -> Submitted:
    """Start the application of a configuration, or attach to its live one.

    Args:
        others: finds a cluster by its name: an application there may have the run directory.
    Raises:
        ConfigError, DataError, ModelError, StorageError: a check failed.
        ClusterError: the cluster refuses, or another application has the run directory.
        Interrupted, Terminated: after ending what had been started.
    """
    began = time.monotonic()
    with cluster.session():
        cluster.check(progress)
        claims = Claims(cluster, others)
        ours = Record.of_this_process(
            token=secrets.token_hex(6), kind=cluster.kind, on=cluster.name,
            run_directory=cluster.directory, fingerprint=fingerprint(cluster.config),
            user=cluster.submitter(),
        )  # fmt: skip
        record = claims.acquire(ours)
        if record is not ours and record.on == cluster.name:
            status = status_file.read(record.run_directory, record.application)
            if status_file.is_ending(status):
                _wait_for_end(cluster, record, progress)
                record = claims.acquire(ours)
        attached = record is not ours
        if attached:
            application = _attached(cluster, record, ours)
            progress(f"this run is already submitted: {application.id}")
            page = cluster.announce(application, progress)
        else:
            application, page = _start(cluster, claims, ours, progress)
    seconds = time.monotonic() - began
    return Submitted(application=application, page=page, attached=attached, seconds=seconds)


def in_use(record: Record) -> ClusterError:
    """The error for a submission to the run directory of another live application."""
    on_yarn, recorded = record.on == "yarn", bool(record.token)
    place = " on yarn" if on_yarn else f" on {record.host}" if recorded else ""
    job = record.run_directory if recorded and not on_yarn else record.application
    return ClusterError(
        "another job is using this run directory",
        where=record.run_directory,
        got=record.application + place,
        remedy=f"give run.directory another value, or end that job: howdah kill {job}",
    )


def _attached(cluster: Cluster, record: Record, ours: Record) -> Application:
    """The live application, if it has the same configuration."""
    same = ("on", "kind", "fingerprint")
    if any(getattr(record, name) != getattr(ours, name) for name in same):
        raise in_use(record)
    return cluster.application(record)


def _start(
    cluster: Cluster, claims: Claims, ours: Record, progress: Progress
) -> tuple[Application, str | None]:
    """Start the application, and return it with its page.

    A failure or an interrupt up to the last call ends it and releases the claim, since the user
    cannot end an application whose id this command has not printed.
    """
    try:
        application = cluster.start(ours, progress)
        return application, cluster.announce(application, progress)
    except BaseException:
        try:
            _undo(cluster, claims, ours, progress)
        except INTERRUPTS:  # a second interrupt must not leave the application running
            _undo(cluster, claims, ours, progress)
        raise


def _undo(cluster: Cluster, claims: Claims, ours: Record, progress: Progress) -> None:
    if cluster.undo(ours, progress):
        with contextlib.suppress(HowdahError):
            claims.release(ours)


def _wait_for_end(cluster: Cluster, record: Record, progress: Progress) -> None:
    """Wait for the end of a job that is being stopped, or has failed.

    Raises:
        ClusterError: it does not end.
    """
    seconds = cluster.config.checkpoint.grace_seconds + _END_SECONDS
    until, shown = time.monotonic() + seconds, False
    while cluster.is_live(record):
        if time.monotonic() > until:
            raise ClusterError(
                f"{record.application} is being stopped and has not ended in {seconds:.0f} s",
                where=record.run_directory,
                remedy=f"howdah kill {record.application}",
            )
        if not shown:
            progress(f"waiting for the end of {record.application}, which is being stopped")
            shown = True
        time.sleep(_POLL_SECONDS)


# -------------------------------------------------------------------------------------- claims
class Claims:
    """The right to start an application in a run directory.

    Args:
        cluster: the cluster that the application is to run on, for its configuration.
        others: finds the cluster of another record by its name.
    """

    def __init__(self, cluster: Cluster, others: Callable[[str], Cluster]) -> None:
        self._run_directory = cluster.directory
        self._path = path_of(cluster.directory)
        self._cluster, self._others = cluster, others

    def acquire(self, ours: Record) -> Record:
        """Write our record; where a live application has the directory, return its record instead.

        Raises:
            ClusterError: another process is submitting to it at this moment.
        """
        while True:
            present = read(self._run_directory)
            unrecorded = self._cluster.unrecorded(present)
            if unrecorded is not None:
                return self._of_unrecorded(unrecorded, present, ours)
            if present is None:
                try:
                    storage.make_dirs(directory(self._run_directory))
                    storage.create_exclusive(self._path, ours.as_json())
                    return ours
                except AlreadyExists:
                    continue
            live = self._live(present)
            if live is not None:
                return live
            if self._take_over(present, ours):
                return ours
            time.sleep(_PAUSE_SECONDS)

    def release(self, ours: Record) -> None:
        """Remove our record; another submission's stays."""
        present = read(self._run_directory)
        if present is not None and present.token == ours.token:
            storage.remove(self._path)

    def _of_unrecorded(self, application: str, present: Record | None, ours: Record) -> Record:
        """The record of a live application, with its id added where its submitter was killed."""
        if present is None or present.on != ours.on:
            return replace(ours, token="", application=application, fingerprint="", submitted=0.0)
        record = replace(present, application=application)
        if not present.application:
            record.write()
        return record

    def _live(self, present: Record) -> Record | None:
        """The record with its application's id, if that is live; None: the record is stale."""
        same = present.on == self._cluster.name
        cluster = self._cluster if same else self._others(present.on)
        if present.application:
            return present if cluster.is_live(present) else None
        application = cluster.submitted(present)
        if application is not None:
            return replace(present, application=application)
        if self._is_being_submitted(present):
            raise ClusterError(
                "this run is being submitted at this moment",
                where=self._path,
                got=f"process {present.pid} on {present.host}"
                + (f", user {present.user}" if present.user else ""),
                remedy="wait: a killed submission expires after"
                f" {_SUBMITTING_SECONDS / 60:.0f} minutes",
            )
        return None

    def _is_being_submitted(self, record: Record) -> bool:
        if record.here and record.boot == boot():
            return record.pid != os.getpid() and record.process_lives
        return lease.age(self._path) < _SUBMITTING_SECONDS

    def _take_over(self, stale: Record, ours: Record) -> bool:
        """Replace a stale record with ours; False: another process did it first.

        Only the process that creates the mark file may replace the record. It reads the record
        again after that, because another one may have replaced it and removed its own mark
        meanwhile.
        """
        for number in range(100):
            name = f"application-{stale.token or 'none'}.{number}"
            mark = storage.join(directory(self._run_directory), name)
            try:
                storage.create_exclusive(mark, ours.as_json())
            except AlreadyExists:
                if lease.age(mark) < _TAKEOVER_SECONDS:
                    return False
                continue  # the process that created it was killed
            try:
                if read(self._run_directory) != stale:  # replaced, or completed by its submitter
                    return False
                storage.write_whole(self._path, ours.as_json())
                return True
            finally:
                storage.remove(mark)
        return False
