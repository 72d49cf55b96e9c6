"""Batch scoring: the form's fields, and the check of what was sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howdah.airflow import DEFAULT_CONNECTION, require

require()

from airflow.sdk import Context, Param  # noqa: E402

from howdah.airflow import form  # noqa: E402
from howdah.airflow.hook import refusals  # noqa: E402
from howdah.airflow.operators import HowdahOperator, safe_name  # noqa: E402
from howdah.errors import ConfigError, HowdahError  # noqa: E402

__all__ = ["CheckScoringOperator", "params"]

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
            None, "Spark master; none: this machine, without Spark (a table: local[*]).",
            **_OPTIONAL,
        ),
        "conn_id": Param(
            DEFAULT_CONNECTION, "Airflow Connection of type howdah.", type="string", minLength=1,
        ),
    }  # fmt: skip


class CheckScoringOperator(HowdahOperator):
    """Refuses keys that no field has and passwords in URLs; says where the output goes.

    Returns {"model", "source", "target", "text_columns", "id_column", "master"}. Without an output
    of the user's, a retry of the DAG run writes to the same place, another run elsewhere.
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
    problems += [
        HowdahError("a value is needed", where=name)
        for name in ("model", "source")
        if not given.get(name)
    ]
    if problems:
        raise ConfigError("what was sent cannot be used", problems=problems)
