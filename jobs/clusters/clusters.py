"""The clusters whose drivers are processes of the submitter's machine, by the value of job.on."""

from __future__ import annotations

from howdah.jobs.clusters.cluster import DriverCluster
from howdah.jobs.clusters.local_cluster import LocalCluster
from howdah.jobs.clusters.ray_cluster import RayCluster
from howdah.jobs.clusters.spark_cluster import SparkCluster


def class_of(name: str) -> type[DriverCluster]:
    """The class for local, spark or ray."""
    return {one.name: one for one in (LocalCluster, SparkCluster, RayCluster)}[name]
