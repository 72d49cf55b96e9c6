"""Batch scoring: the form's fields, and the check of what was sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howdah.airflow import DEFAULT_CONNECTION, require

require()

from airflow.sdk import Context, Param  # noqa: E402

from howdah import config as configs  # noqa: E402
from howdah.airflow import form  # noqa: E402
from howdah.airflow.hook import refusals  # noqa: E402
from howdah.airflow.operators import HowdahOperator, safe_name  # noqa: E402
from howdah.errors import ConfigError, HowdahError  # noqa: E402

__all__ = ["CheckScoringOperator", "configuration", "params"]

_OPTIONAL = {"type": ["string", "null"]}


def params() -> dict[str, Param]:
    """The `params` of a DAG that scores."""
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
            False, "Replace an output that is there, once the new one is whole; without an output"
            " of your own that of the run's earlier try is replaced in any case.", type="boolean",
        ),
        "conn_id": Param(
            DEFAULT_CONNECTION, "Airflow Connection of type howdah.", type="string", minLength=1,
        ),
    }  # fmt: skip


def _installed_spark() -> dict[str, Any] | None:
    """What this installation's defaults say of Spark."""
    return (form.installed_defaults().get("data") or {}).get("spark") or None


class CheckScoringOperator(HowdahOperator):
    """Refuses keys that no field has and passwords in URLs; says where the output goes.

    Returns {"model", "source", "target", "text_columns", "id_column", "master", "config",
    "overwrite"}: the configuration has the settings of Spark. Without an output of the user's, a
    retry of the DAG run writes to the same place, replacing what an earlier try left there, another
    run elsewhere.
    """

    template_fields: Sequence[str] = ("conn_id",)

    def execute(self, context: Context) -> dict[str, Any]:
        given, ti = dict(context["params"]), context["ti"]
        with refusals():
            check(given)
        target = given["output"] or "/".join(
            (
                self.hook.run_root.rstrip("/"), safe_name(ti.dag_id), safe_name(ti.run_id),
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
            "master": given["master"] or None,
            "config": configuration(given.get("spark")),
            "overwrite": bool(given.get("overwrite")) or not given["output"],
        }
        for key, value in asked.items():
            self.log.info("%s: %s", key, value)
        return asked


def check(given: Mapping[str, Any]) -> None:
    """Raises ConfigError with every problem of what was sent."""
    known = params()
    problems = [
        HowdahError(f"unknown key {name!r}", where=name, expected=", ".join(known))
        for name in given
        if name not in known
    ]
    problems += [problem for name, value in given.items() for problem in form.secrets(name, value)]
    try:
        configuration(given.get("spark"))
    except ConfigError as error:
        problems += error.problems or [error]
    problems += [
        HowdahError("a value is needed", where=name)
        for name in ("model", "source")
        if not given.get(name)
    ]
    if problems:
        raise ConfigError("what was sent cannot be used", problems=problems)


def configuration(spark: Mapping[str, Any] | None) -> dict[str, Any]:
    """The configuration of a prediction: what was sent of Spark, checked; the rest is Howdah's.

    Raises:
        ConfigError: with every key that there is not, and every value that its key does not take.
    """
    sections = {"data": {"spark": dict(spark or {})}}
    configs.from_dict(sections, where="what was sent")
    return sections
