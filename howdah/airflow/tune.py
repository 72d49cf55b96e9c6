"""A study of hyperparameters on the machine where the command runs: `howdah tune` to its end."""

from __future__ import annotations

import howdah.airflow.required

from collections.abc import Sequence
from typing import Any

from airflow.sdk import Context

from howdah.airflow.local_training import grace_seconds
from howdah.airflow.operators import HowdahOperator

_LEASES_SECONDS = 30.0
"""Time that a stopped study needs after its trainings to store outcomes and release leases."""
_JOBS_SECONDS = 150.0
"""Time that a stopped study needs where trials are jobs, which have to be killed."""


class TuneOperator(HowdahOperator):
    """Runs the study of the configuration's section `tune`; a retry continues it.

    With `tune.publish` the best model is published, and each of the task's outlets (Assets) gets an
    event with its version and metrics.

    Args:
        np: ranks of each trial; not for trials that are jobs (`tune.on`), which have the section
            `job`.
    Returns:
        {"run_directory", "trials", "best", "page", "published"}.
    """

    template_fields: Sequence[str] = (*HowdahOperator.template_fields, "np")

    def __init__(self, *, np: int | str = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.np = np

    def execute(self, context: Context) -> dict[str, Any]:
        config = self.config or {}
        jobs = (config.get("tune") or {}).get("on") is not None
        words = [] if jobs else ["--np", str(int(self.np))]
        made = self.command(
            context, "tune", *words,
            grace_seconds=grace_seconds(config) + (_JOBS_SECONDS if jobs else _LEASES_SECONDS),
        )  # fmt: skip
        published = made["published"]
        if published is not None:
            published = self.emit_published(context, published)
        kept = {key: made[key] for key in ("trials", "best", "page")}
        return {"run_directory": made["directory"], **kept, "published": published}
