"""How `howdah train` ends: is the model good, where is its report, and what comes next. And what
it is compared with: the baseline."""

from __future__ import annotations

from typing import Any

from howdah import storage
from howdah.cli.common import answer, cross_validate, load, load_to_begin, say
from howdah.config.model import Config
from howdah.errors import HowdahError
from howdah.run_files import REPORT
from howdah.serving.baseline.run import measure_baseline
from howdah.serving.report import report
from howdah.training.launch import outcome


def conclude(config: Config, publish: str) -> tuple[dict[str, Any], list[str]]:
    """A finished run with its judgement, as JSON and in lines.

    Args:
        publish: the command that publishes it.
    """
    directory = config.run.directory
    page = storage.join(directory, REPORT)
    result: dict[str, Any] = {**outcome.summary(directory), "report": storage.absolute(page)}
    lines = []
    try:
        judged = report.renew(directory, say)
    except HowdahError as error:
        say(f"the verdict is not known: {error.what} ({error.where})")
        judged = None
    state = ""
    if judged is not None:
        state = judged.verdict.state
        result |= judged.as_dict()
        lines = [judged.verdict.line, judged.line]
    result["next"] = _next(state, publish)
    return result, [*lines, f"report: {result['report']}", f"next: {result['next']}"]


def evaluate_baseline(
    path: str | None, overrides: list[str] | None, folds: int | None, json: bool
) -> None:
    """Measure the baseline of a configuration's dataset, or of each fold of its source."""
    if folds is not None:
        cross_validate(load_to_begin(path, overrides), folds, json, baseline=True)
        return
    measured = measure_baseline(load(path, overrides), progress=say)
    lines = [
        f"{split} {name}: {value:.4f}"
        for split, metrics in measured["metrics"].items()
        for name, value in metrics.items()
        if isinstance(value, float)
    ]
    answer(measured, json, [*lines, f"baseline: {storage.absolute(measured['path'])}"])


def _next(state: str, publish: str) -> str:
    if state == "good":
        return publish
    if state == "bad":
        return (
            "see the report for the labels and rows with the most errors; more rows, cleaner"
            " labels, more epochs (training.num_train_epochs) or another training.learning_rate"
            f" may help. `{publish} --anyway` publishes it all the same"
        )
    return f"{publish}, if that is good enough; more test rows make the verdict clearer"
