"""The run configuration's section `publish.mlflow`: a registry that follows what is published."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from howdah.config.types import Section


class RegistryOptions(Section):
    enabled: bool = False
    """On publish, and whenever another version becomes current, MLflow's registry follows: a
    version with tags, and the aliases champion (current.json) and challenger. Needs
    tracking.mlflow.uri. The published directory decides: where MLflow is away, `howdah register`
    completes it later."""
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][^/:'\"\\]{0,249}$")
    """Name of the registered model; null: publish.name, else run.name."""
    mode: Literal["reference", "full"] = "reference"
    """What goes up: a loader of 2 kB that opens the published directory (whatever loads the model
    must reach it), or a copy of the whole export."""
