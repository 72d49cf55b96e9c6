"""The first task of howdah_daily: choose the day and check the values that were sent."""

from __future__ import annotations

import howdah.airflow.required

from collections.abc import Sequence
from typing import Any

from airflow.sdk import Context

from howdah.airflow.daily import form
from howdah.airflow.form import trigger_form
from howdah.airflow.hook import refusals
from howdah.airflow.operators import HowdahOperator


class CheckDayOperator(HowdahOperator):
    """Refuses values that cannot be used or that the policy does not allow; chooses the day.

    Returns {"partitions", "source", "output", "model", "ready", "wait", "since", "directory",
    "config"}: the same for every try of the DAG run.
    """

    template_fields: Sequence[str] = ("conn_id",)

    def execute(self, context: Context) -> dict[str, Any]:
        values, directory = trigger_form.own_params(context), self.run_directory(context)
        with refusals():
            form.check(values, self.hook.judge())
            fixed = form.settings()
            day = form.day_of(
                context, fixed.partition, values.get("partition"), timezone=fixed.timezone,
                back=fixed.again_days,
            )  # fmt: skip
            made = form.request(values, day, directory)
        self.log.info("day: %s, from %s", day.name, day.by)
        for key in ("source", "output", "model"):
            self.log.info("%s: %s", key, made[key])
        return made
