"""The run configuration's sections `gate`, `baseline` and `publish`: what a trained model must
reach, what it is compared with, and where it is published."""

from __future__ import annotations

import math

from pydantic import Field, field_validator

from howdah.config.metric_table import METRICS, unknown_metric
from howdah.config.options.registry import RegistryOptions
from howdah.config.splits import TEST, HeldOut
from howdah.config.types import AnyPath, Bytes, Section


class GateSection(Section):
    split: HeldOut = TEST
    """Split whose metrics the gate checks."""
    minimum: dict[str, float] = {}
    """{metric: minimum}, e.g. {accuracy: 0.9}; for loss, ece, mse and mae the value is the
    maximum."""
    better_than_published: bool = False
    """Compare evaluation.metric with that of the currently published model on the same rows; if
    that model was evaluated on other data, it is evaluated again."""
    margin: float = Field(default=0.0, allow_inf_nan=False)
    """How much better than the published model it must be; 0: as good; below 0: it may be that much
    worse."""

    min_over_baseline: float | None = Field(default=None, allow_inf_nan=False)
    """How much better than `howdah baseline` on the same dataset the run must be, in
    evaluation.metric; 0: as good. null: the baseline is not compared with."""

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


class BaselineSection(Section):
    """`howdah baseline`: TF-IDF over token ids, and logistic regression."""

    ngrams: int = Field(default=2, ge=1, le=3)
    """Longest n-grams of token ids that are counted; 2: single ids and pairs."""
    min_rows: int = Field(default=2, ge=1)
    """Leave out n-grams that fewer rows of the training split have."""
    max_features: int = Field(default=200_000, ge=1)
    """Most n-grams that are used: those that most rows have. With --spark, the number of hash
    buckets."""
    c: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    """Inverse strength of the L2 regularisation; null: 1 or 10, whichever is better in
    evaluation.metric on validation (with --spark: by the log loss of Spark's CrossValidator)."""
    max_bytes: Bytes = 8 * 2**30
    """The baseline is refused if its estimated memory is more, or more than this machine has."""


class PublishSection(Section):
    directory: AnyPath = "models"
    """Directory of published models: <directory>/<name>/v=N."""
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Model name: letters, digits, '.', '_' and '-'; null: run.name."""
    mlflow: RegistryOptions = RegistryOptions()
    """MLflow's model registry, which follows what is published."""
