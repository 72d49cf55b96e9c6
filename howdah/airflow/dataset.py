"""Check that the ETL's dataset has the rows and labels that the run needs."""

from __future__ import annotations

import howdah.airflow.required

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Context

from howdah.airflow import failures
from howdah.airflow.operators import HowdahOperator
from howdah.config.splits import TRAIN


class DatasetOperator(HowdahOperator):
    """Logs the dataset's quality figures; refuses a dataset with which the run cannot succeed.

    A split without rows would show only after the training, hours later.

    Args:
        made: the ETL task's output (templated); None: the task was skipped because data.source is
            not set, and the run uses the existing dataset (preflight and training check it).
    Returns:
        {"dataset", "state": "written"|"unchanged"|"as it is", "rows", "drops", "report"}.
    """

    template_fields: Sequence[str] = (*HowdahOperator.template_fields, "made")

    def __init__(self, *, made: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.made = made

    def execute(self, context: Context) -> dict[str, Any]:
        made, config = self.made, self.config
        if made is None:
            self.log.info("data.source is not set: using %s as it is", config["data"]["dataset"])
            nothing = dict.fromkeys(("rows", "drops", "report"))
            return {"dataset": config["data"]["dataset"], "state": "as it is", **nothing}
        state = "unchanged" if made["unchanged"] else "written"
        self.log.info("dataset %s: %s", state, made["dataset"])
        for split, rows in made["rows"].items():
            self.log.info("  %s: %s rows", split, f"{rows:,}")
        for reason, rows in sorted(made["drops"].items(), key=lambda item: -item[1]):
            self.log.info("  dropped, %s: %s rows", reason, f"{rows:,}")
        for line in expected(made):
            self.log.info("  %s", line)
        self.log.info("labels: %s", ", ".join(made["labels"]))
        self.log.info("report: %s", made["report"])
        problems = shortcomings(made, config)
        if problems:
            raise failures.failed(
                {
                    "what": "this dataset cannot be used for the run",
                    "where": made["dataset"],
                    "problems": problems,
                    "remedy": "see the report; data.split, data.quality and data.labels decide",
                },
                3,
            )
        small = {key: made[key] for key in ("dataset", "rows", "drops", "report")}
        return {**small, "state": state}


def expected(made: Mapping[str, Any]) -> list[str]:
    """A line for each bound of `data.expect`, with the version's figure."""
    judged = made.get("expectations") or {"found": []}
    lines = []
    for one in judged["found"]:
        figure = "not judged" if one["found"] is None else f"{one['found']:g}"
        bound = "at least" if one["key"].startswith("min_") else "at most"
        limit = f"{bound} {one['bound']:g}"
        lines.append(f"expected {one['key']} {limit}: {figure} ({one['detail']})")
    return lines


def shortcomings(made: Mapping[str, Any], config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Error objects for everything that a run needs and the dataset lacks."""
    rows, gate, problems = made["rows"], config["gate"], []
    if not rows.get(TRAIN):
        problems.append({"what": "the split train has no rows"})
    classes = made.get("task", "single_label") != "regression"
    if classes and len(made["labels"]) < 2:
        problems.append(
            {
                "what": "a classifier needs at least two labels",
                "got": ", ".join(made["labels"]) or "none",
            }
        )
    bounded = bool(gate["minimum"]) or gate["better_than_published"]
    bounded = bounded or gate.get("min_over_baseline") is not None
    if bounded and not rows.get(gate["split"]):
        problems.append(
            {
                "what": f"the split that the gate judges, {gate['split']}, has no rows",
                "where": "gate.split",
                "remedy": f"give data.split.{gate['split']} a share, or judge another split",
            }
        )
    return problems
