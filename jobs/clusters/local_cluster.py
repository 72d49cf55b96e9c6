"""Jobs on this machine: each worker is a process in a new session, which is ended as a whole."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict

from howdah.core import machine
from howdah.core.activity import Progress
from howdah.core.child import Child
from howdah.jobs.backend import Container, DriverBackend
from howdah.jobs.clusters.backend import CallsDriver
from howdah.jobs.clusters.cluster import DriverCluster
from howdah.jobs.clusters.worker import Assignment
from howdah.process import isolation

_TERM_SECONDS = 0.25
"""Time between SIGTERM and SIGKILL, the same as YARN's NodeManager uses."""


class LocalCluster(DriverCluster):
    """The machine that the job is submitted from."""

    name = "local"

    def check_cluster(self, progress: Progress) -> None:
        job = self.config.job
        if job.workers * job.worker.vcores > machine.cores():
            progress(
                f"{job.workers} workers of {job.worker.vcores} threads share"
                f" {machine.cores()} cores"
            )

    def where(self) -> str:
        return socket.gethostname()

    @contextmanager
    def containers(
        self, path: str, application: str, directory: str, secret_env: Mapping[str, str]
    ) -> Iterator[DriverBackend]:
        with open(path, encoding="utf-8") as file:
            config = file.read()
        yield LocalDriver(
            application, directory, config, secret_env=secret_env, address="127.0.0.1"
        )


class LocalDriver(CallsDriver[Child]):
    """The backend whose containers are processes."""

    def begin(self, assignment: Assignment) -> Child:
        home = os.path.join(assignment.directory, "containers", assignment.container)
        os.makedirs(home, mode=0o700)
        with tempfile.TemporaryFile() as stdin:  # has no name, since it holds the job's key
            stdin.write(json.dumps({**asdict(assignment), "home": home}).encode())
            stdin.seek(0)
            # No death signal: the kernel would send it when this thread ends, not the process. An
            # agent without contact to its driver ends by itself.
            return Child(
                isolation.module("howdah.jobs.clusters", "agent", home), cwd=home,
                env=isolation.environment() | {"LOG_DIRS": home}, stdin=stdin,
                output=os.path.join(home, "agent.log"), grace=_TERM_SECONDS, death_signal=None,
            )  # fmt: skip

    def look(self, name: str, call: Child) -> Container:
        node, code = os.uname().nodename, call.code
        if code is None:
            return Container(name, node, "running")
        return Container(name, node, "ended", code, "failed" if code else None)

    def end(self, name: str, call: Child) -> None:
        call.end(group=True)
