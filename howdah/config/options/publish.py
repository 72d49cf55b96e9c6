"""The run configuration's sections `gate` and `publish`: what a trained model must reach, and where
it is published."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, field_validator

from howdah.config.metric_table import METRICS, unknown_metric
from howdah.config.splits import TEST, HeldOut
from howdah.config.types import AnyPath, Rare, Section, Usual


class GateSection(Section):
    split: HeldOut = TEST
    """Split whose metrics the gate checks."""
    minimum: Usual[dict[str, float]] = {}
    """Smallest values of metrics, {metric: minimum}, such as {accuracy: 0.9}. For loss, ece, mse
    and mae the value is the maximum."""
    better_than_published: Usual[bool] = False
    """Whether evaluation.metric is compared with that of the currently published model on the same
    rows. If that model was evaluated on other data, it is evaluated again."""
    margin: Rare[float] = Field(default=0.0, allow_inf_nan=False)
    """How much better than the published model the run must be in evaluation.metric. 0: as good.
    Below 0: it may be that much worse."""

    min_over_baseline: float | None = Field(default=None, allow_inf_nan=False)
    """How much better than `howdah evaluate --baseline` on the same dataset the run must be in
    evaluation.metric. 0: as good. null: the run is not compared with the baseline."""

    @field_validator("minimum")
    @classmethod
    def _known_metrics(cls, value: dict[str, float]) -> dict[str, float]:
        for name, bound in value.items():
            if name not in METRICS:
                raise ValueError(unknown_metric(name))
            if not math.isfinite(bound):
                raise ValueError(f"the bound of {name} must be a finite number; got {bound}")
        return value

    @property
    def asks(self) -> bool:
        """Whether the gate checks anything."""
        compares = self.better_than_published or self.min_over_baseline is not None
        return bool(self.minimum) or compares


class RegistryOptions(Section):
    mode: Rare[Literal["reference", "full"] | None] = None
    """What MLflow's registry gets of each published version: tags, the alias champion
    (current.json), and a model. reference: a loader of 2 kB that opens the published directory,
    which must be reachable where the model is loaded. full: a copy of the whole export. null:
    nothing is registered. A mode needs tracking.mlflow.uri. Publishing does not depend on MLflow:
    if it does not answer, `howdah model register` completes the registration later."""


class PublishSection(Section):
    directory: Usual[AnyPath] = "models"
    """Directory of published models: <directory>/<name>/v=N."""
    name: Usual[str | None] = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the published model: letters, digits, '.', '_' and '-'. null: run.name."""
    mlflow: RegistryOptions = RegistryOptions()
    """MLflow's model registry, which follows what is published."""
