"""Check that the ETL's dataset has what the run needs of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howdah.airflow import require

require()

from airflow.sdk import Context  # noqa: E402

from howdah.airflow import failures  # noqa: E402
from howdah.airflow.operators import HowdahOperator  # noqa: E402
from howdah.config.splits import TRAIN  # noqa: E402


class DatasetOperator(HowdahOperator):
    """Logs the dataset's quality figures; refuses a dataset with which the run cannot succeed.

    A split without rows would show only after the training, hours later.

    Args:
        made: the ETL task's output (templated); None: it was skipped because there is no source,
            and the run takes the dataset as it is (preflight and training check it).
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
            self.log.info("no data.source was given: %s as it is", config["data"]["dataset"])
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
                    "what": "the run cannot succeed with this dataset",
                    "where": made["dataset"],
                    "problems": problems,
                    "remedy": "see the report; data.split, data.quality and data.labels decide",
                },
                3,
            )
        small = {key: made[key] for key in ("dataset", "rows", "drops", "report")}
        return {**small, "state": state}


def expected(made: Mapping[str, Any]) -> list[str]:
    """What `data.expect` asked of the version, and the figures that were found."""
    judged = made.get("expectations") or {"found": []}
    lines = []
    for one in judged["found"]:
        found = "not judged" if one["found"] is None else f"{one['found']:g}"
        bound = "at least" if one["key"].startswith("min_") else "at most"
        lines.append(f"expected, {one['key']}: {bound} {one['bound']:g}, {found} ({one['detail']})")
    return lines


def shortcomings(made: Mapping[str, Any], config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a run needs and the dataset lacks: error objects, empty if it lacks nothing."""
    rows, gate, problems = made["rows"], config["gate"], []
    if not rows.get(TRAIN):
        problems.append({"what": "there is nothing to train on", "got": "no rows in train"})
    classes = made.get("task", "single_label") != "regression"
    if classes and len(made["labels"]) < 2:
        problems.append(
            {
                "what": "there are no classes to tell apart",
                "expected": "two labels or more",
                "got": ", ".join(made["labels"]) or "none",
            }
        )
    asks = bool(gate["minimum"]) or gate["better_than_published"]
    asks = asks or gate.get("min_over_baseline") is not None
    if asks and not rows.get(gate["split"]):
        problems.append(
            {
                "what": "the gate has nothing to judge",
                "where": "gate.split",
                "expected": f"rows in {gate['split']}",
                "got": "none",
                "remedy": f"give data.split.{gate['split']} a share, or judge another split",
            }
        )
    return problems
