"""The commands between a finished run and its published model: gate, publish."""

from __future__ import annotations

from typing import Annotated

import typer

from howdah.cli.common import AsJson, ConfigPath, Overrides, answer, load, say
from howdah.errors import UsageError

app = typer.Typer()


def evaluator(config):
    """The function by which the gate evaluates the published model on another dataset."""

    def evaluate(model: str, dataset: str, split: str) -> dict:
        from training.serving.evaluate import evaluate_run

        data = config.data.model_copy(update={"dataset": dataset})
        there = config.model_copy(update={"data": data})
        return evaluate_run(there, model=model, split=split, progress=say)

    return evaluate


@app.command()
def gate(config: ConfigPath = None, set: Overrides = None, json: AsJson = False) -> None:
    """Judge the configuration's finished run by gate.*: bounds, baseline, published model."""
    from howdah.models.gate import judge

    checked = load(config, set)
    verdict = judge(checked, evaluator(checked))
    verdict.require("gate")
    for check in verdict.checks:
        say(f"{check.metric}: {check.got:.6g} ({check.wanted}, {check.against})")
    answer(verdict.as_dict(), json, [f"gate: passed on {verdict.split}"])


@app.command()
def publish(
    config: ConfigPath = None,
    set: Overrides = None,
    version: Annotated[
        int | None, typer.Option(min=1, help="Make this published version current again.")
    ] = None,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Go back to the version before the current one.")
    ] = False,
    note: Annotated[
        str | None, typer.Option(help="Kept in the history, e.g. who approved it.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Publish the configuration's run as <publish.directory>/<name>/v=N, if it passes the gate."""
    if version is not None and rollback:
        raise UsageError("give --version or --rollback, not both")
    from howdah.models import publish as publishing

    checked = load(config, set)
    if version is not None:
        made = publishing.republish(checked, version, note=note, progress=say)
    elif rollback:
        made = publishing.roll_back(checked, note=note, progress=say)
    else:
        made = publishing.publish(checked, evaluator(checked), note=note, progress=say)
    state = "published" if made["changed"] else "unchanged"
    lines = [f"{state}: {made['path']}"]
    if made["current"] != made["version"]:
        lines += [f"current is v={made['current']}; `howdah publish --version` changes that"]
    answer(made, json, lines)
