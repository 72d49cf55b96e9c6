"""Jobs on Ray: containers are actors in a Ray that the job starts, or in an existing one."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from howdah.core.activity import Progress
from howdah.errors import ConfigError
from howdah.jobs.backend import DriverBackend
from howdah.jobs.clusters.cluster import DriverCluster, say_what_is_shared


class RayCluster(DriverCluster):
    """The Ray cluster at `ray.address`, or a private one on this machine."""

    name = "ray"
    starting = "starting Ray"

    def check_cluster(self, progress: Progress) -> None:
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(
                "Ray is not installed", where="job.on: ray", remedy="pip install 'howdah[ray]'"
            )
        if self.config.ray.address is None:
            return
        if os.environ.get("RAY_USE_TLS") != "1":
            progress(
                "WARNING: without RAY_USE_TLS=1 the job's key crosses the network to Ray's nodes"
                " unencrypted: use a private network (docs/clusters.md)"
            )
        say_what_is_shared(self.config, progress)

    def where(self) -> str:
        return f"Ray, {self.config.ray.address or 'one on this machine'}"

    @property
    def ranks_are_here(self) -> bool:
        return super().ranks_are_here and self.config.ray.address is None

    @contextmanager
    def containers(
        self, path: str, application: str, directory: str, secret_env: Mapping[str, str]
    ) -> Iterator[DriverBackend]:
        from howdah.jobs.clusters.ray_driver import RayDriver, cluster

        os.chdir(directory)  # Ray's workers import from the directory in which Ray is started
        with cluster(self.config) as (ray, address), open(path, encoding="utf-8") as file:
            where = {"secret_env": secret_env, "address": address}
            yield RayDriver(ray, self.config, application, directory, file.read(), **where)
