"""The clusters whose drivers are processes of the submitter's machine, by the value of job.on."""

from __future__ import annotations

from places.cluster import DriverCluster
from places.local_cluster import LocalCluster
from places.ray_cluster import RayCluster
from places.spark_cluster import SparkCluster

__all__ = ["class_of"]


def class_of(name: str) -> type[DriverCluster]:
    """The class of local, spark or ray."""
    return {one.name: one for one in (LocalCluster, SparkCluster, RayCluster)}[name]
