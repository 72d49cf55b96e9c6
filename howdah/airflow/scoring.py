"""Fields of the batch scoring form, and the check of the values that were sent."""

from __future__ import annotations

import howdah.airflow.required

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Context, Param

from howdah.airflow.form import left_out, trigger_form
from howdah.airflow.hook import refusals
from howdah.airflow.operators import HowdahOperator
from howdah.config import loader as configs
from howdah.config.data import SparkOptions
from howdah.errors import ConfigError, HowdahError
from howdah.policy.check import Judge
from howdah.policy.rules import Policy

_OPTIONAL = {"type": ["string", "null"]}
_NAMES = {"model": "model", "source": "rows", "output": "output", "master": "master"}
"""Kind of each field's value for the policy."""


def params(policy: Policy | None = None) -> dict[str, Param]:
    """The `params` of a DAG that scores.

    Args:
        policy: fields that it does not allow to be sent (`spark`, `conn_id`) are hidden and keep
            their defaults; None: every field is shown.
    """
    defaults = trigger_form.installed_defaults()
    spark = (defaults.get("data") or {}).get("spark") or None
    keys = [f"data.spark.{name}" for name in SparkOptions.model_fields]
    sendable = policy is None or any(map(policy.may_send, keys))
    # With a `const` Airflow does not show the field, and takes no other value.
    fixed = {} if sendable else {"const": spark}
    return {
        "model": Param(
            "models/run", "Published model, version, run directory or export (any storage).",
            type="string", minLength=1,
        ),
        "source": Param(
            None, "CSV, JSON lines or Parquet file(s), or a table's name.",
            type="string", minLength=1,
        ),
        "output": Param(
            None, "A .parquet, .jsonl or .csv file, a directory (with Spark), or table:NAME;"
            " empty: predictions.parquet in the run directory.", **_OPTIONAL,
        ),
        "text_column": Param(
            None, "Column of the text; empty: as in the model's training.", **_OPTIONAL,
        ),
        "id_column": Param(None, "Column of the row's key; empty: as in training.", **_OPTIONAL),
        "batch": Param(
            None, "With table:NAME as output: name of this batch of rows, such as their day: a"
            " partition below the model's; empty: all rows of the model are replaced.", **_OPTIONAL,
        ),
        "master": Param(
            None, "Spark master (yarn, local[*], ...); empty: this machine, without Spark (for a"
            " table: Spark's default master, or local[*]).", **_OPTIONAL,
        ),
        "spark": Param(
            spark, "Settings of Spark, the keys of data.spark: queue,"
            " executors, executor_memory, executor_cores, conf ...",
            type=["object", "null"], **fixed,
        ),
        "overwrite": Param(
            False, "Replace an existing output, once the new one is complete. The default output"
            " of an earlier try is always replaced.", type="boolean",
        ),
        "conn_id": trigger_form.own_param("conn_id", defaults, policy),
    }  # fmt: skip


class CheckScoringOperator(HowdahOperator):
    """Refuses unknown keys, passwords in URLs, and values that the policy does not allow; chooses
    the path of the output.

    Returns {"model", "source", "target", "text_columns", "id_column", "batch", "master", "config",
    "overwrite"}; the configuration has Spark's settings. The default output belongs to the DAG
    run: a retry replaces the output of an earlier try.
    """

    template_fields: Sequence[str] = ("conn_id",)

    def execute(self, context: Context) -> dict[str, Any]:
        values = trigger_form.own_params(context)
        with refusals():
            check(values, self.hook.judge())
        target = values["output"] or f"{self.run_directory(context)}/predictions.parquet"
        column = values["text_column"]
        request = {
            "model": values["model"],
            "source": values["source"],
            "target": target,
            "text_columns": [column] if column else None,
            "id_column": values["id_column"] or None,
            "batch": values.get("batch") or None,
            "master": values["master"] or None,
            "config": left_out.leave_out(configuration(values.get("spark"))),
            "overwrite": bool(values.get("overwrite")) or not values["output"],
        }
        for key, value in request.items():
            self.log.info("%s: %s", key, value)
        return request


def check(values: Mapping[str, Any], judge: Judge) -> None:
    """Raise ConfigError with every problem of the values that were sent, the policy's included."""
    problems = trigger_form.unknown(values, params())
    for name, value in values.items():
        problems += trigger_form.secrets(name, value)
    refused: list[HowdahError] = []
    try:
        spark = values.get("spark") or {}
        config = configs.from_dict(configuration(spark), where="what was sent")
        refused += judge.config(config, sent=[f"data.spark.{name}" for name in spark])
    except ConfigError as error:
        problems += error.problems or [error]
    for name, value in values.items():
        if name != "spark":
            refused += judge.printable(name, value)
    for name, kind in _NAMES.items():
        if isinstance(values.get(name), str) and values[name]:
            refused += judge.value(name, kind, values[name])
    if values.get("conn_id") != trigger_form.own_default(
        "conn_id", trigger_form.installed_defaults()
    ):
        refused += judge.key("conn_id")
    problems += [
        HowdahError("a value is required", where=name)
        for name in ("model", "source")
        if not values.get(name)
    ]
    if values.get("batch") and not str(values.get("output") or "").startswith("table:"):
        problems.append(
            HowdahError(
                "a batch needs a table as the output", where="batch", expected="output: table:NAME"
            )
        )
    trigger_form.refuse(problems, refused, judge)


def configuration(spark: Mapping[str, Any] | None) -> dict[str, Any]:
    """The checked configuration of a prediction: the Spark settings that were sent override this
    installation's defaults.

    Raises:
        ConfigError: with every unknown key and every invalid value.
    """
    made = trigger_form.sections(trigger_form.installed_defaults())
    data = dict(made.get("data") or {})
    made["data"] = {**data, "spark": {**(data.get("spark") or {}), **(spark or {})}}
    configs.from_dict(made, where="what was sent")
    return made
