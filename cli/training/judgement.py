"""How `howdah train` ends: is the model good, where is its report, and what comes next. And what
it is compared with: the baseline."""

from __future__ import annotations

from typing import Any

from howdah import storage
from howdah.cli.common import answer, cross_validate, load, pinned, say
from howdah.config.metric_table import SHOWN
from howdah.config.model import Config
from howdah.config.options.publish import GateSection
from howdah.core.terminal import as_table
from howdah.errors import HowdahError
from howdah.models.runs import record
from howdah.pages.figures import number
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
    judged, state = renewed(directory), ""
    if judged is not None:
        state = judged.verdict.state
        result |= judged.as_dict()
        lines = [judged.verdict.line, judged.line]
    result["next"] = _next(state, publish, config.gate)
    return result, [*lines, f"report: {result['report']}", f"next: {result['next']}"]


def renewed(directory: str) -> report.Judgement | None:
    """The judgement of a run as it is now; None: it has no evaluated split, or a line says why it
    is not known."""
    try:
        return report.renew(directory, say)
    except HowdahError as error:
        say(f"the verdict is not known: {error.what} ({error.where})")
        return None


def evaluate_baseline(
    path: str | None, overrides: list[str] | None, folds: int | None, json: bool
) -> None:
    """Measure the baseline of a configuration's dataset, or of each fold of its source."""
    if folds is not None:
        cross_validate(pinned(load(path, overrides)), folds, json, baseline=True)
        return
    config = load(path, overrides)
    measured = measure_baseline(config, progress=say)
    lines = _beside_the_model(config, measured)
    answer(measured, json, [*lines, f"baseline: {storage.absolute(measured['path'])}"])


def _beside_the_model(config: Config, measured: dict[str, Any]) -> list[str]:
    """A table of the baseline's figures and those of the run, if it is on the same dataset."""
    try:
        run = record.read(config.run.directory)
    except HowdahError:
        run = {}
    dataset = (run.get("attempts") or [{}])[-1].get("dataset") or ""
    is_same = storage.name(dataset) == storage.name(measured["dataset"])
    model = (run.get("metrics") or {}) if is_same else {}
    table = [
        (split, name, number(metrics[name]), number((model.get(split) or {}).get(name)))
        for split, metrics in measured["metrics"].items()
        for name in SHOWN
        if metrics.get(name) is not None
    ]
    return as_table([("split", "metric", "baseline", "model"), *table])


def _next(state: str, publish: str, gate: GateSection) -> str:
    if state == "good":
        return publish
    if state == "bad":
        return (
            "see the report for the labels and rows with the most errors; more rows, cleaner"
            " labels, more epochs (training.num_train_epochs) or another training.learning_rate"
            f" may help. {_all_the_same(publish, gate)}"
        )
    return f"`{publish}` if that is good enough; more test rows make the verdict clearer"


def _all_the_same(publish: str, gate: GateSection) -> str:
    """How a model that is Not good is published: --anyway does so only where gate.* has no
    bounds."""
    others = ["gate.minimum"] if gate.minimum else []
    others += ["gate.better_than_published"] if gate.better_than_published else []
    if others:
        baseline = ["gate.min_over_baseline"] if gate.min_over_baseline is not None else []
        keys = " and ".join([*others, *baseline])
        return f"`{publish}` publishes it only if it meets the bounds of {keys}"
    unbound = "" if gate.min_over_baseline is None else " --set gate.min_over_baseline=null"
    return f"`{publish}{unbound} --anyway` publishes it anyway"
