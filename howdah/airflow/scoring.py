"""Batch scoring: the fields of its form, and the check of the values that were sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howdah.airflow import require

require()

from airflow.sdk import Context, Param  # noqa: E402

from howdah.airflow.form import left_out, trigger_form  # noqa: E402
from howdah.airflow.hook import refusals  # noqa: E402
from howdah.airflow.operators import HowdahOperator, run_name, safe_name  # noqa: E402
from howdah.config import loader as configs  # noqa: E402
from howdah.config.data import SparkOptions  # noqa: E402
from howdah.errors import ConfigError, HowdahError  # noqa: E402
from howdah.policy.check import Judge  # noqa: E402
from howdah.policy.rules import Policy  # noqa: E402

_OPTIONAL = {"type": ["string", "null"]}
_NAMES = {"model": "model", "source": "rows", "output": "output", "master": "master"}
"""{field: kind of its value for the policy}."""


def params(policy: Policy | None = None) -> dict[str, Param]:
    """The `params` of a DAG that scores.

    Args:
        policy: where it does not allow `spark` or `conn_id` to be sent, they are not shown and
            keep their defaults; None: every field is shown.
    """
    made = _params()
    if policy is not None:
        spark = any(policy.may_send(f"data.spark.{name}") for name in SparkOptions.model_fields)
        for name, sendable in (("spark", spark), ("conn_id", policy.may_send("conn_id"))):
            if not sendable:
                made[name].schema = {**made[name].schema, "const": made[name].value}
    return made


def _params() -> dict[str, Param]:
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
            " none: predictions.parquet in the run directory.", **_OPTIONAL,
        ),
        "text_column": Param(
            None, "Column of the text; none: those that the model was trained on.", **_OPTIONAL,
        ),
        "id_column": Param(None, "Column of the row's key; none: as in training.", **_OPTIONAL),
        "batch": Param(
            None, "With table:NAME as output: the rows' batch, such as their day, a partition below"
            " the model's; none: the model's rows are replaced.", **_OPTIONAL,
        ),
        "master": Param(
            None, "Spark master (yarn, local[*], ...); none: this machine, without Spark (a table:"
            " spark's own master, or local[*]).", **_OPTIONAL,
        ),
        "spark": Param(
            _installed_spark(), "Settings of Spark, as data.spark of a configuration: queue,"
            " executors, executor_memory, executor_cores, staging, conf ...",
            type=["object", "null"],
        ),
        "overwrite": Param(
            False, "Replace an existing output, once the new one is complete; without an output"
            " of your own that of the run's earlier try is replaced in any case.", type="boolean",
        ),
        "conn_id": Param(
            trigger_form.own_default("conn_id", trigger_form.installed_defaults()),
            "Airflow Connection of type howdah.", type="string", minLength=1,
        ),
    }  # fmt: skip


def _installed_spark() -> dict[str, Any] | None:
    """Spark's settings in this installation's defaults."""
    return (trigger_form.installed_defaults().get("data") or {}).get("spark") or None


class CheckScoringOperator(HowdahOperator):
    """Refuses unknown keys, passwords in URLs, and what the installation's policy does not allow;
    chooses the path of the output.

    Returns {"model", "source", "target", "text_columns", "id_column", "batch", "master", "config",
    "overwrite"}: the configuration has the settings of Spark. Without an output of the user's the
    path belongs to the DAG run: a retry replaces the output of an earlier try.
    """

    template_fields: Sequence[str] = ("conn_id",)

    def execute(self, context: Context) -> dict[str, Any]:
        given, ti = trigger_form.own_params(context), context["ti"]
        with refusals():
            check(given, self.hook.judge())
        target = given["output"] or "/".join(
            (
                self.hook.run_root.rstrip("/"), safe_name(ti.dag_id), run_name(ti.run_id),
                "predictions.parquet",
            )
        )  # fmt: skip
        column = given["text_column"]
        asked = {
            "model": given["model"],
            "source": given["source"],
            "target": target,
            "text_columns": [column] if column else None,
            "id_column": given["id_column"] or None,
            "batch": given.get("batch") or None,
            "master": given["master"] or None,
            "config": left_out.leave_out(configuration(given.get("spark"))),
            "overwrite": bool(given.get("overwrite")) or not given["output"],
        }
        for key, value in asked.items():
            self.log.info("%s: %s", key, value)
        return asked


def check(given: Mapping[str, Any], judge: Judge) -> None:
    """Raise ConfigError with every problem of the values that were sent, the policy's included."""
    known = params()
    problems = [
        HowdahError(f"unknown key {name!r}", where=name, expected=", ".join(known))
        for name in given
        if name not in known
    ]
    problems += [
        problem for name, value in given.items() for problem in trigger_form.secrets(name, value)
    ]
    refused: list[HowdahError] = []
    try:
        spark = given.get("spark") or {}
        asked = configs.from_dict(configuration(spark), where="what was sent")
        refused += judge.config(asked, sent=[f"data.spark.{name}" for name in spark])
    except ConfigError as error:
        problems += error.problems or [error]
    for name, value in given.items():
        if name != "spark":
            refused += judge.printable(name, value)
    for name, kind in _NAMES.items():
        if isinstance(given.get(name), str) and given[name]:
            refused += judge.value(name, kind, given[name])
    if given.get("conn_id") != trigger_form.own_default(
        "conn_id", trigger_form.installed_defaults()
    ):
        refused += judge.key("conn_id")
    problems += [
        HowdahError("a value is needed", where=name)
        for name in ("model", "source")
        if not given.get(name)
    ]
    if given.get("batch") and not str(given.get("output") or "").startswith("table:"):
        problems.append(
            HowdahError(
                "a batch is a partition of a table", where="batch", expected="output: table:NAME",
                got=str(given.get("output")),
            )
        )  # fmt: skip
    if problems:
        raise ConfigError("what was sent cannot be used", problems=problems + refused)
    judge.refuse(refused)


def configuration(spark: Mapping[str, Any] | None) -> dict[str, Any]:
    """The configuration of a prediction: Spark's settings that were sent, over this installation's
    defaults, checked.

    Raises:
        ConfigError: with every unknown key and every invalid value.
    """
    made = trigger_form.sections(trigger_form.installed_defaults())
    data = dict(made.get("data") or {})
    made["data"] = {**data, "spark": {**(data.get("spark") or {}), **(spark or {})}}
    configs.from_dict(made, where="what was sent")
    return made
