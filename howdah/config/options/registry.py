"""The run configuration's section `publish.mlflow`: a registry that follows what is published."""

from __future__ import annotations

from typing import Literal

from howdah.config.types import Rare, Section


class RegistryOptions(Section):
    mode: Rare[Literal["reference", "full"] | None] = None
    """What MLflow's registry gets of each published version: tags, the aliases champion
    (current.json) and challenger, and a model. reference: a loader of 2 kB that opens the published
    directory, which must be reachable where the model is loaded. full: a copy of the whole export.
    null: the registry does not follow. It needs tracking.mlflow.uri. The published directory
    decides: where MLflow does not answer, `howdah model register` completes the registration
    later."""
