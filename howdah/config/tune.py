"""The run configuration's section `tune` (howdah/config/model.py has the others)."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from howdah.config.job import ClusterName
from howdah.config.metric_table import METRICS, unknown_metric
from howdah.config.types import AnyPath, Rare, Section

SQLITE = "sqlite:///"
"""What tune.storage begins with where it is a database of SQLite."""
JOURNAL = "study.journal"
"""The default journal's file in the study's directory."""

Scalar = bool | int | float | str | None


class Dimension(Section):
    """The values that trials may give one key: a range, or choices."""

    low: int | float | None = None
    """Smallest value of a range."""
    high: int | float | None = None
    """Largest value of a range."""
    log: bool = False
    """Whether values are drawn on a logarithmic scale."""
    step: int | float | None = None
    """Distance of the values: low, low + step, low + 2 step, ..."""
    choices: list[Scalar] | None = None
    """The values, instead of a range."""

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> Any:
        fields = ", ".join(cls.model_fields)
        if not isinstance(value, dict | Dimension):
            raise ValueError(f"give {{low, high}} or {{choices}}; got {value!r}")
        if isinstance(value, dict) and (unknown := set(value) - set(cls.model_fields)):
            raise ValueError(
                f"unknown: {', '.join(map(repr, sorted(unknown, key=str)))}; known: {fields}"
            )
        return value

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Dimension:
        if self.choices is not None:
            if (self.low, self.high, self.step, self.log) != (None, None, None, False):
                raise ValueError("give a range (low, high, log, step) or choices, not both")
            if not self.choices:
                raise ValueError("choices is empty")
            if len({(type(one), one) for one in self.choices}) < len(self.choices):
                raise ValueError("a choice is given twice")
            return self
        if self.low is None or self.high is None:
            raise ValueError("a range needs low and high (or give choices)")
        for name in ("low", "high", "step"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number; got {value}")
        if self.low >= self.high:
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")
        if self.log and self.low <= 0:
            raise ValueError(f"with log, low must be above 0; got {self.low}")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"step must be above 0; got {self.step}")
        if self.log and self.step is not None:
            raise ValueError("log and step exclude each other")
        return self


class TuneSection(Section):
    """A study of hyperparameters (`howdah tune`)."""

    space: dict[str, Dimension] = {}
    """Values that trials may give each key, {key: {low, high, log, step} or {choices}}, such as
    {training.learning_rate: {low: 1e-5, high: 1e-4, log: true}}. The keys are of `model` and
    `training`, or data.dataset with choices that exist."""
    metric: str | None = None
    """Metric of the validation split to optimise, in the direction that is better for it. null:
    evaluation.metric."""
    trials: int = Field(default=20, ge=1)
    """Number of trials of the study, over all machines. A later call may ask for more."""
    parallel: int = Field(default=1, ge=1)
    """Number of simultaneous trials on each machine; with tune.on, of simultaneous jobs of each
    worker of the study."""
    on: ClusterName | None = None
    """Where trials run, each as a job of `howdah submit --on` with the section `job`. null: as
    processes of the machine that runs `howdah tune`."""
    sampler: Rare[Literal["tpe", "random"]] = "tpe"
    """How values are chosen. tpe: from the results of earlier trials (TPE). random: at random."""
    pruner: Rare[Literal["asha", "hyperband", "median", "none"]] = "asha"
    """What stops trials that are behind others after the same number of evaluations
    (evaluation.every_steps): asha (successive halving), hyperband, median or none."""
    storage: Rare[AnyPath | None] = None
    """Storage that all workers share: a journal file (also on NFS), or sqlite:///FILE for workers
    of one machine. null: study.journal in run.directory."""
    storage_url_file: Rare[AnyPath | None] = None
    """File of mode 0600 with the URL of a database, postgresql://user:password@host/database, in
    place of tune.storage, so that no password is in a configuration, log or process list."""
    publish: bool = False
    """Whether the best trial's export is published at the end, if it passes the gate."""

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, value: str | None) -> str | None:
        if value is not None and value not in METRICS:
            raise ValueError(unknown_metric(value))
        return value

    @model_validator(mode="after")
    def _one_storage(self) -> TuneSection:
        if self.storage is not None and self.storage_url_file is not None:
            raise ValueError("give tune.storage or tune.storage_url_file, not both")
        if self.storage is not None and not self.storage.startswith(SQLITE):
            scheme = self.storage.partition("://")[0]
            if scheme.partition("+")[0] in ("postgresql", "postgres", "sqlite"):
                raise ValueError(
                    f"a {scheme} URL may hold a password: put it into a file of mode 0600, and name"
                    " that in tune.storage_url_file"
                    if scheme != "sqlite"
                    else "a database of SQLite is sqlite:///FILE"
                )
        return self
