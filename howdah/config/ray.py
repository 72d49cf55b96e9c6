"""The run configuration's section `ray`: the Ray cluster of `job.on: ray`."""

from __future__ import annotations

from howdah.config.types import Cluster, Section


class RaySection(Section):
    """A Ray cluster."""

    address: Cluster | None = None
    """host:port of a Ray cluster's head (6379), on whose nodes Howdah is installed; null: one that
    is started on this machine for the job alone, and ends with it."""
