"""Jobs on this machine: containers are processes."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from howdah.core import machine
from howdah.core.activity import Progress
from jobs.backend import DriverBackend
from places.cluster import DriverCluster

__all__ = ["LocalCluster"]


class LocalCluster(DriverCluster):
    """This machine."""

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
        from places.local_place import LocalDriver

        with open(path, encoding="utf-8") as file:
            config = file.read()
        yield LocalDriver(
            application, directory, config, secret_env=secret_env, address="127.0.0.1"
        )
