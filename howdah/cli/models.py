"""The commands from a finished run on: gate, publish, register."""

from __future__ import annotations

from typing import Annotated

import typer

from howdah.cli.common import MODEL_HELP, AsJson, ConfigPath, Overrides, allowed, answer, load, say
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


# ------------------------------------------------------------------------- to others' registries
@app.command()
def register(
    config: ConfigPath = None,
    set: Overrides = None,
    model: Annotated[
        str | None, typer.Option(help=f"{MODEL_HELP}; none: the configuration's published model.")
    ] = None,
    uri: Annotated[
        str | None, typer.Option(help="MLflow's registry; none: tracking.mlflow.uri.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Of the registered model; none: publish.name, run.name.")
    ] = None,
    alias: Annotated[
        str | None, typer.Option(help="Alias to move to this version: champion, for example.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Put a published model or an export into MLflow's model registry, as a pyfunc from code."""
    allowed(("--model", "model", model), ("--uri", "tracking", uri))
    checked = load(config, set)
    mlflow = checked.tracking.mlflow
    if uri is None and mlflow is None:
        raise UsageError(
            "there is no registry to register the model in",
            expected="--uri, or tracking.mlflow.uri of the configuration",
            remedy="for example --uri http://127.0.0.1:5000, or sqlite:///registry.db",
        )
    from training.deployment import mlflow_registry, variants

    found = variants.find(model or checked.model_directory, checked.publish.directory)
    made = mlflow_registry.register(
        found,
        uri or mlflow.uri,
        name=name or checked.publish.name or checked.run.name,
        experiment=mlflow.experiment if mlflow else "howdah",
        alias=alias,
        say=say,
    )
    state = "registered" if made["changed"] else "registered before"
    answer(made, json, [f"{state}: {made['uri']}" + (f" ({alias})" if alias else "")])
