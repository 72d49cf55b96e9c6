"""The first task of howdah_daily: which day, and what is asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from howdah.airflow import require

require()

from airflow.sdk import Context  # noqa: E402

from howdah.airflow.daily import form  # noqa: E402
from howdah.airflow.form import trigger_form  # noqa: E402
from howdah.airflow.hook import refusals  # noqa: E402
from howdah.airflow.operators import HowdahOperator, run_name, safe_name  # noqa: E402


class CheckDayOperator(HowdahOperator):
    """Refuses what cannot be used or the policy does not allow; finds the day.

    Returns {"partitions", "source", "output", "model", "ready", "wait", "since", "directory",
    "config"}: the same for every try of the DAG run.
    """

    template_fields: Sequence[str] = ("conn_id",)

    def execute(self, context: Context) -> dict[str, Any]:
        given, ti = trigger_form.own_params(context), context["ti"]
        with refusals():
            form.check(given, self.hook.judge())
            fixed = form.settings()
            day = form.day_of(
                context, fixed.partition, given.get("partition"), timezone=fixed.timezone,
                back=fixed.again_days,
            )  # fmt: skip
            directory = "/".join(
                (self.hook.run_root.rstrip("/"), safe_name(ti.dag_id), run_name(ti.run_id))
            )
            made = form.asked(given, day, directory)
        self.log.info("the day: %s, named by %s", day.name, day.by)
        for key in ("source", "output", "model"):
            self.log.info("%s: %s", key, made[key])
        return made
