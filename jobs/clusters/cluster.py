"""Clusters where a job's driver is a process of the submitter's machine that outlives the command.

This machine, Spark and Ray differ in what is checked and in how containers are kept.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from howdah import faults, storage
from howdah.config import loader
from howdah.config.model import Config
from howdah.config.types import named_by
from howdah.core.activity import Progress
from howdah.core.processes import how_ended, process_start
from howdah.errors import (
    INTERRUPTS,
    ClusterError,
    ConfigError,
    HowdahError,
    NotFound,
    StorageError,
    TrainingError,
)
from howdah.jobs import checks, record, secret_file
from howdah.jobs.application import Application
from howdah.jobs.backend import DriverBackend
from howdah.jobs.cluster import Cluster
from howdah.jobs.clusters import dataset
from howdah.jobs.clusters.application import ProcessApplication, listed
from howdah.jobs.clusters.settings import ATTENDED, CONFIG, ETL, JOB, LOG, VERDICT
from howdah.jobs.record import Record
from howdah.jobs.status import status_file
from howdah.process import isolation
from howdah.storage import directories, is_local

_POLL_SECONDS = 0.1
_TERM_SECONDS = 30.0


class DriverCluster(Cluster):
    """A cluster that gives containers to a driver on this machine.

    Args:
        etl: the job makes its dataset first.
        command_pipe: descriptor of a pipe whose other end the command holds: once that is closed,
            the job saves and ends. None: the job outlives its command.
    """

    starting: str | None = None
    """Message to the user while the driver starts."""
    start_seconds = 300.0
    """How long a Spark session or Ray may take to start, in addition to `queue_seconds`."""

    def __init__(
        self, config: Config, *, etl: bool = False, command_pipe: int | None = None
    ) -> None:
        super().__init__(config)
        self.etl, self._command_pipe = etl, command_pipe
        self._process: subprocess.Popen | None = None
        self._started: tuple[Record, subprocess.Popen] | None = None

    # ------------------------------------------------------------ what these clusters differ in
    @abstractmethod
    def check_cluster(self, progress: Progress) -> None:
        """Check what this cluster needs in the configuration."""

    @abstractmethod
    def where(self) -> str:
        """The cluster's name for users."""

    @abstractmethod
    def containers(
        self, path: str, application: str, directory: str, secret_env: Mapping[str, str]
    ) -> contextlib.AbstractContextManager[DriverBackend]:
        """The backend that starts and keeps the job's containers; called in the driver.

        Args:
            path: the configuration's file, which may name another dataset when this returns.
            directory: the job's directory.
        """

    @property
    def ranks_are_here(self) -> bool:
        """True if ranks run in the environment of this Python, whose packages can be checked."""
        return "PYTHONPATH" not in self.config.job.env

    def queue_seconds(self) -> float:
        """How long the driver may wait in a queue before its first status."""
        return 0.0

    def prepare(self, progress: Progress) -> None:
        """Build and upload the files that the driver needs."""

    # ---------------------------------------------------------------------------- submission
    def check(self, progress: Progress) -> None:
        secret_file.values(self.config, os.environ)
        loader.require_secrets(self.config)
        if self.config.job.controller == "mpi" and self.name != "local":
            raise ConfigError(
                "job.controller: mpi works only on YARN and on this machine",
                where="job.controller",
                expected="gloo",
            )
        if self.config.run.user is not None:
            raise ConfigError(
                "only YARN runs a job as another user; here its processes belong to the submitter",
                where="run.user",
                remedy="leave it out",
            )
        self.config = config = _with_absolute_paths(self.config, self.keeps_schemes)
        parts: tuple[Callable[[], None], ...] = (
            lambda: self.check_cluster(progress),
            lambda: _writable(config),
            lambda: checks.batch(config),
            lambda: checks.carrier(config, here=self.ranks_are_here),
            lambda: dataset.check(config, progress) if self.etl else checks.dataset(config),
            lambda: checks.model(config, progress),
            lambda: checks.begins(config),
            lambda: checks.free_space(config),
        )
        checks.raise_all(checks.problems_of(parts))

    @property
    def keeps_schemes(self) -> bool:
        """True if file:// stands for a file system that all nodes mount, as on YARN."""
        return False

    def plan(self, progress: Progress) -> dict[str, Any]:
        job = self.config.job
        return {
            "on": self.name,
            "where": self.where(),
            "etl": self.etl,
            "run_directory": self.directory,
            "workers": job.workers,
            "between": [job.fewest, job.most],
            "worker": job.worker.model_dump(mode="json"),
        }

    def plan_lines(self, plan: dict[str, Any]) -> list[str]:
        worker, (fewest, most) = plan["worker"], plan["between"]
        first = ["the dataset first, in the same Spark application"] if plan["etl"] else []
        return [
            *first,
            f"a driver on this machine, {plan['workers']} workers ({fewest} to {most}) on"
            f" {plan['where']}",
            f"worker: {worker['vcores']} threads, {worker['gpus']} GPUs",
            f"run directory: {plan['run_directory']}",
        ]

    def start(self, claim: Record, progress: Progress) -> Application:
        self.prepare(progress)
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        application = f"{self.name}-{stamp}-{secrets.token_hex(3)}"
        directory = os.path.join(record.jobs_directory(), application)
        with faults.typed(directory, "make the job's directory"):
            os.makedirs(directory, mode=0o700)
            secret_file.write_private(directory, CONFIG, loader.dump_yaml(self.config))
            secret_file.write_private(directory, JOB, application)
        log = os.path.join(directory, LOG)
        pipe = self._command_pipe
        options = [ETL] if self.etl else [] if pipe is None else [ATTENDED]
        with open(log, "ab") as output:
            # In a new session, which Ctrl-C and the end of the terminal do not reach.
            self._process = process = subprocess.Popen(
                isolation.module("howdah.jobs.clusters", "driver", directory, *options),
                stdin=subprocess.DEVNULL if pipe is None else pipe,
                stdout=output, stderr=output, start_new_session=True,
                env=isolation.environment(),
            )  # fmt: skip
        running = replace(
            claim, application=application, directory=directory, pid=process.pid,
            start=process_start(process.pid) or 0,
        )  # fmt: skip
        running.write(private=True)
        self._started = running, process
        if pipe is None:  # the output of a command that waits is the job's
            progress(f"{application}: {log}")
        return self.application(running)

    def announce(self, application: Application, progress: Progress) -> str | None:
        """Wait for the driver's first status.

        Raises:
            ClusterError: it is late, or the driver has ended before it.
            HowdahError: the driver's own error, if it has written one.
        """
        if self._started is not None:
            self._wait_for_status(application, *self._started, progress)
        return application.driver_status().get("page")

    def _wait_for_status(
        self, application: Application, record: Record, process: subprocess.Popen,
        progress: Progress,
    ) -> None:  # fmt: skip
        log = os.path.join(record.directory, LOG)
        queued = self.queue_seconds()
        seconds = self.start_seconds + queued
        until, shown = time.monotonic() + seconds, False
        while not application.driver_status():
            if process.poll() is not None:
                if application.driver_status():
                    return  # a short job has ended already
                raise _not_started(record, process.returncode)
            if time.monotonic() > until:
                raise ClusterError(
                    f"the job's driver has not written a status within {seconds:g} s",
                    where=log,
                    remedy="its queue on YARN may be full; job.gang_seconds sets how long it waits"
                    if queued
                    else "its log says what it waits for",
                )
            if not shown and self.starting is not None:
                limit = f": for at most {seconds:g} s, while its queue on YARN is full"
                progress(self.starting + (limit if queued else ""))
                shown = True
            time.sleep(_POLL_SECONDS)

    def undo(self, claim: Record, progress: Progress) -> bool:
        if self._process is None:
            return True
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_TERM_SECONDS)
        except (subprocess.TimeoutExpired, *INTERRUPTS):
            self._process.kill()
        return False  # `howdah status` and `logs` need the record to show what the driver wrote

    # ------------------------------------------------------------------------------- looking
    def application(self, record: Record) -> Application:
        return ProcessApplication(record)

    def by_id(self, application: str) -> Application | None:
        private = record.of_application(application)
        return None if private is None else self.application(private)

    def listed(self, *, all_users: bool, finished: bool) -> Sequence[dict[str, Any]]:
        return listed(finished=finished)

    def is_live(self, record: Record) -> bool:
        return record.driver_lives

    def unrecorded(self, present: Record | None) -> str | None:
        """An application whose record was removed, and whose driver still writes its status."""
        if present is not None:
            return None
        try:
            status = storage.read_object(status_file.status_path(self.directory))
        except (NotFound, StorageError):
            return None
        application = status.get("application")
        if not isinstance(application, str):
            return None
        lost = Record(token="", on=self.name, run_directory=self.directory, application=application)
        return application if lost.is_heard() else None


def say_what_is_shared(config: Config, progress: Progress) -> None:
    """Tell the user which local paths every machine must have, on a shared file system."""
    local = [key for key, path in checks.paths_of_ranks(config).items() if is_local(path)]
    if local:
        progress(f"{', '.join(local)}: every machine must have this path (a shared file system)")


def _with_absolute_paths(config: Config, keeps_schemes: bool) -> Config:
    """The configuration with absolute local paths, since agents have other working directories."""
    values = config.model_dump(mode="json")
    for name, field in loader.keys():  # noqa: SIM118 - a module
        section: Any = values
        *parents, leaf = name.split(".")
        for parent in parents:
            section = section.get(parent) if isinstance(section, dict) else None
        value = section.get(leaf) if isinstance(section, dict) else None
        if not isinstance(value, str) or name.startswith("yarn."):
            continue
        is_path = named_by(field) == "path" or (
            named_by(field) in ("model", "checkpoint") and os.path.exists(value)
        )
        if is_path and is_local(value) and not (keeps_schemes and "://" in value):
            section[leaf] = storage.local_path(value)
    return loader.from_dict(values)


def _writable(config: Config) -> None:
    for key, directory, below in (
        ("run.directory", config.run.directory, directories.BELOW),
        ("checkpoint.directory", config.checkpoint_directory, ()),
    ):
        directories.take(directory, config.run.mode, key=key, below=below)
        storage.make_dirs(directory)


def _not_started(record: Record, code: int) -> HowdahError:
    """The driver's own error, if it could write one, or else its exit code."""
    path = os.path.join(record.directory, VERDICT)
    verdict = storage.read_json(path) if os.path.exists(path) else {}
    if verdict.get("error"):
        error = TrainingError.from_dict(verdict["error"])
        error.exit_code = int(verdict["error"].get("exit_code") or error.exit_code)
        return error
    return ClusterError(
        "the job's driver ended before it wrote a status",
        where=os.path.join(record.directory, LOG),
        got=how_ended(code),
    )
