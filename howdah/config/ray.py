"""The run configuration's section `ray`: the Ray cluster of `job.on: ray`."""

from __future__ import annotations

from howdah.config.types import Cluster, Rare, Section


class RaySection(Section):
    """A Ray cluster."""

    address: Rare[Cluster | None] = None
    """Address host:port of a Ray cluster's head (6379), on whose nodes Howdah is installed. null: a
    Ray that is started on this machine for the job, and ends with it."""
