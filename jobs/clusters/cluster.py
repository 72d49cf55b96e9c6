"""Clusters where a job's driver is a process of the submitter's machine.

The driver outlives the command.

What differs between this machine, Spark and Ray: what is checked, and how containers are kept.
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

from howdah import storage
from howdah.config import loader
from howdah.config.model import Config
from howdah.config.types import named_by
from howdah.core.activity import Progress
from howdah.core.processes import process_start
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
from howdah.packaging import cluster_paths
from howdah.process import isolation
from howdah.storage import directories, is_local

_POLL_SECONDS = 0.1
_TERM_SECONDS = 30.0


class DriverCluster(Cluster):
    """A cluster that a driver on this machine asks for containers.

    Args:
        etl: the job makes its dataset first.
        command_pipe: descriptor of a pipe whose other end the command holds: once that is closed,
            the job saves and ends. None: the job outlives its command.
    """

    starting: str | None = None
    """What the user is told while the driver starts."""
    start_seconds = 300.0
    """How long a Spark session or a Ray may take to start, besides what a queue takes."""

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
        """Check what this cluster needs of the configuration."""

    @abstractmethod
    def where(self) -> str:
        """The cluster, for users."""

    @abstractmethod
    def containers(
        self, path: str, application: str, directory: str, secret_env: Mapping[str, str]
    ) -> contextlib.AbstractContextManager[DriverBackend]:
        """In the driver: what starts and keeps the job's containers.

        Args:
            path: of the configuration, which may name another dataset by the time this returns.
            directory: the job's own.
        """

    @property
    def ranks_are_here(self) -> bool:
        """True if ranks run in the environment of this Python: what they need can be looked for."""
        return "PYTHONPATH" not in self.config.job.env

    def queue_seconds(self) -> float:
        """How long the driver may wait in a queue before its first status."""
        return 0.0

    def prepare(self, progress: Progress) -> None:
        """Build and upload what the driver then finds."""

    # ---------------------------------------------------------------------------- submission
    def check(self, progress: Progress) -> None:
        secret_file.values(self.config, os.environ)
        loader.require_secrets(self.config)
        if self.config.job.controller == "mpi" and self.name != "local":
            raise ConfigError(
                "job.controller: mpi works on YARN and on this machine only",
                where="job.controller", expected="gloo", got="mpi",
            )  # fmt: skip
        if self.config.run.user is not None:
            raise ConfigError(
                "run.user is for YARN: here the job's processes are those of the user who starts"
                " it", where="run.user", got=self.config.run.user, remedy="leave it out",
            )  # fmt: skip
        self.config = config = _with_absolute_paths(self.config, self.keeps_schemes)
        problems: list[HowdahError] = []
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
        for part in parts:
            with checks.gathered(problems):
                part()
        checks.raise_all(problems)

    @property
    def keeps_schemes(self) -> bool:
        """True if file:// names what all nodes mount, as on YARN."""
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
        os.makedirs(directory, mode=0o700)
        secret_file.write_private(directory, CONFIG, loader.dump_yaml(self.config))
        secret_file.write_private(directory, JOB, application)
        log = os.path.join(directory, LOG)
        pipe = self._command_pipe
        options = [ETL] if self.etl else [] if pipe is None else [ATTENDED]
        with open(log, "ab") as output:
            # Of its own session: a Ctrl-C at the terminal and the terminal's end do not reach it.
            self._process = process = subprocess.Popen(
                isolation.module("howdah.jobs.clusters", "driver", directory, *options),
                stdin=subprocess.DEVNULL if pipe is None else pipe,
                stdout=output, stderr=output, start_new_session=True,
                env=isolation.environment(),
            )  # fmt: skip
        started = replace(
            claim, application=application, directory=directory, pid=process.pid,
            start=process_start(process.pid) or 0,
        )  # fmt: skip
        started.write(private=True)
        self._started = started, process
        progress(f"{application}: {log}")
        return self.application(started)

    def announce(self, application: Application, progress: Progress) -> str | None:
        """Wait for the driver's first status.

        Raises:
            ClusterError: not in time, or the driver has ended before.
            HowdahError: the driver's own, with which it has ended.
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
                    return  # a short job: it is over
                raise _not_started(record, process.returncode)
            if time.monotonic() > until:
                raise ClusterError(
                    "the job's driver has not started", where=log,
                    expected=f"its first status within {seconds:g} s",
                    remedy="is its queue on YARN full? job.gang_seconds says how long it"
                    " waits" if queued else "its log says what it waits for",
                )  # fmt: skip
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
        return False  # `howdah status` and `logs` find what its driver has said

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
        left = Record(token="", on=self.name, run_directory=self.directory, application=application)
        return application if left.is_heard() else None


def say_what_is_shared(config: Config, progress: Progress) -> None:
    """Local paths mean the same on every machine only where a file system is shared."""
    local = [key for key, path in paths_of_ranks(config).items() if is_local(path)]
    if local:
        progress(f"{', '.join(local)}: every machine must have this path (a shared file system)")


def paths_of_ranks(config: Config) -> dict[str, str]:
    """Paths that ranks use, by their keys; a model's name on the hub is not a path."""
    paths = cluster_paths.of_ranks(config)
    if not os.path.isdir(config.model.base):
        del paths["model.base"]
    return paths


def _with_absolute_paths(config: Config, keeps_schemes: bool) -> Config:
    """Agents have working directories of their own: every local path becomes absolute."""
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
    for key, directory in {
        "run.directory": config.run.directory,
        "checkpoint.directory": config.checkpoint_directory,
    }.items():
        below = directories.BELOW if key == "run.directory" else ()
        directories.take(directory, config.run.mode, key=key, below=below)
        storage.make_dirs(directory)


def _not_started(record: Record, code: int) -> HowdahError:
    """The driver's own error, if it could write one."""
    path = os.path.join(record.directory, VERDICT)
    verdict = storage.read_json(path) if os.path.exists(path) else {}
    if verdict.get("error"):
        error = TrainingError.from_dict(verdict["error"])
        error.exit_code = int(verdict["error"].get("exit_code") or error.exit_code)
        return error
    return ClusterError(
        "the job's driver has ended before it wrote a status",
        where=os.path.join(record.directory, LOG),
        got=f"exit code {code}" if code >= 0 else signal.Signals(-code).name,
    )
