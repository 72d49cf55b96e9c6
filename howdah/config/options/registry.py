"""The run configuration's section `publish.mlflow`: a registry that follows what is published."""

from __future__ import annotations

from typing import Literal

from howdah.config.types import Rare, Section


class RegistryOptions(Section):
    enabled: Rare[bool] = False
    """Whether MLflow's registry follows what is published and which version is current: a version
    with tags, and the aliases champion (current.json) and challenger. It needs tracking.mlflow.uri.
    The published directory decides: where MLflow does not answer, `howdah model register` completes
    the registration later."""
    mode: Rare[Literal["reference", "full"]] = "reference"
    """What is registered. reference: a loader of 2 kB that opens the published directory, which
    must be reachable where the model is loaded. full: a copy of the whole export."""
