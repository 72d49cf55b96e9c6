"""The commands from a finished run on: gate, publish, score, register."""

from __future__ import annotations

from typing import Annotated

import typer

from howdah import storage
from howdah.cli.common import (
    MODEL_HELP,
    AsJson,
    ConfigPath,
    IdColumn,
    Overrides,
    RunWith,
    TextColumns,
    allowed,
    answer,
    chosen,
    load,
    say,
    typed,
)
from howdah.cli.groups import ModelCommands
from howdah.errors import CheckFailed, UsageError

app = typer.Typer()
group = typer.Typer(
    cls=ModelCommands,
    help="Manage published models: versions, thresholds, MLflow, lineage, rows to forget.",
    no_args_is_help=True,
)
"""The commands of `howdah model`."""


def evaluator(config):
    """The function by which the gate evaluates the published model on another dataset."""

    def evaluate(model: str, dataset: str, split: str) -> dict:
        from howdah.training.evaluation.evaluate import evaluate_run

        data = config.data.model_copy(update={"dataset": dataset})
        on_dataset = config.model_copy(update={"data": data})
        return evaluate_run(on_dataset, model=model, split=split, progress=say)

    return evaluate


@app.command()
def gate(config: ConfigPath = None, set: Overrides = None, json: AsJson = False) -> None:
    """Judge the configuration's finished run by gate.*: bounds, baseline, published model."""
    from howdah.serving.registry.gate import judge

    checked = load(chosen(config, set), set)
    verdict = judge(checked, evaluator(checked))
    _show_judgement(checked.run.directory)
    verdict.require("gate")
    for check in verdict.checks:
        say(f"{check.metric}: {check.got:.6g} ({check.bound_text}, {check.against})")
    for note in verdict.notes:
        say(f"warning: {note}")
    passed = f"gate: passed on {verdict.split}"
    nothing = "gate: nothing to check: gate.* is empty"
    following = f"next: {typed('publish', config, set)}"
    answer(verdict.as_dict(), json, [passed if verdict.asks else nothing, following])


def reviewer(anyway: bool):
    """The function that shows a run's report verdict before it is published, and refuses a model
    that is Not good if gate.* sets no bounds."""

    def review(run, verdict) -> None:
        for note in verdict.notes:
            say(f"warning: {note}")
        judgement = _show_judgement(run.directory)
        bad = judgement is not None and judgement.verdict.state == "bad"
        if bad and not verdict.asks and not anyway:
            raise CheckFailed(
                "the report says Not good, and gate.* sets no bounds",
                where=run.directory,
                got=judgement.verdict.sentence,
                remedy="see its report.html; `howdah publish --anyway` publishes it anyway",
            )

    return review


def _show_judgement(directory: str):
    """Print the verdict on a run, as `howdah train` did at its end; None: it is not known."""
    from howdah.cli.training.judgement import renewed

    judged = renewed(directory)
    for line in () if judged is None else (judged.verdict.line, judged.line):
        say(line)
    return judged


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
        str | None, typer.Option(help="Note for the history, e.g. who approved it.")
    ] = None,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway",
            help="Publish even if the report says Not good and gate.* sets no bounds; with"
            " --version or --rollback, even if rows of that version were forgotten since.",
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Publish the configuration's run as <publish.directory>/<name>/v=N, if it passes the gate."""
    if version is not None and rollback:
        raise UsageError("give one of --version and --rollback")
    from howdah.serving.registry import publish as publishing

    checked = load(chosen(config, set), set)
    if follows := checked.publish.mlflow.mode is not None:
        from howdah.serving.deployment import following, mlflow_registry

        mlflow_registry.require_mlflow()
    if version is not None:
        made = publishing.republish(
            checked, version, note=note, despite_forgotten=anyway, progress=say
        )
    elif rollback:
        made = publishing.roll_back(checked, note=note, despite_forgotten=anyway, progress=say)
    else:
        made = publishing.publish(
            checked, evaluator(checked), note=note, review=reviewer(anyway), progress=say
        )
    if follows:
        made["mlflow"] = following.after_publish(checked, say)
    state = "published" if made["changed"] else "unchanged"
    lines = [f"{state}: {storage.absolute(made['path'])}"]
    if made["current"] != made["version"]:
        lines += [f"current is v={made['current']}; `howdah publish --version` changes that"]
    if follows:
        lines += [f"MLflow: {made['mlflow']['state']}"]
    root = storage.parent(storage.absolute(made["path"]))
    answer(made, json, [*lines, f"next: {typed('serve', None, None, '--model', root)}"])


@app.command()
def score(
    model: Annotated[
        str,
        typer.Option(help=f"{MODEL_HELP}; the version that is current now scores all partitions."),
    ],
    source: Annotated[str, typer.Option(help="Hive table with partitions, database.table.")],
    output: Annotated[str, typer.Option(help="Hive table; created as Parquet if it is missing.")],
    partition: Annotated[
        list[str] | None,
        typer.Option(
            help="ds=2026-11-01, or ds=2026-11-01/country=at; may be given several times."
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="ds=2026-10-01: that partition and all later ones.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="ds=2026-10-31: that partition and all earlier ones.")
    ] = None,
    text_column: TextColumns = None,
    id_column: IdColumn = None,
    framework: RunWith = None,
    force: Annotated[
        bool, typer.Option("--force", help="Score again what has been scored before.")
    ] = False,
    config: ConfigPath = None,
    set: Overrides = None,
    json: AsJson = False,
) -> None:
    """Score partitions of a Hive table into another one; skip those that are scored already."""
    allowed(
        ("--model", "model", model), ("--source", "table", source), ("--output", "table", output),
    )  # fmt: skip
    from howdah.data.files.listing import ending

    if "/" in source or ending(source) in (".csv", ".tsv", ".jsonl", ".json", ".parquet"):
        raise UsageError(
            "`howdah score` scores partitions of a Hive table",
            where="--source", expected="database.table", got=source,
            remedy=f"files are for `howdah predict --model {model} --source {source} --output ...`",
        )  # fmt: skip
    checked = load(config, set)
    from howdah.serving.scoring import score as scoring
    from howdah.serving.scoring.selection import Selection

    request = scoring.ScoreRequest(
        model=model, source=source, output=output,
        selection=Selection(partitions=tuple(partition or ()), since=since, until=until),
        text_columns=text_column, id_column=id_column, framework=framework,
        force=force,
    )  # fmt: skip
    made = scoring.score(request, checked, progress=say)
    counted = [one["state"] for one in made["partitions"]]
    rows = sum(one["rows"] for one in made["partitions"] if one["state"] == "scored")
    answer(
        made,
        json,
        [
            f"{output}: {counted.count('scored')} partitions scored ({rows:,} rows),"
            f" {counted.count('skipped')} done before"
        ],
    )


@group.command()
def published(config: ConfigPath = None, set: Overrides = None, json: AsJson = False) -> None:
    """Show the configuration's published model: versions, which is current, since when, by whom."""
    checked = load(config, set)
    from howdah.models.registry import Published

    model = Published(checked.model_directory)
    _, now = model.newest()
    versions = model.versions()
    kept = ("published", "by", "note", "action", "run_id", "run_directory", "metrics", "dataset")
    current = now and {"version": now["version"], "path": model.path_of(now["version"]),
                       **{key: now.get(key) for key in kept}}  # fmt: skip
    result = {"model": model.root, "versions": versions, "current": current}
    count = f"{len(versions)} version{'s' if len(versions) > 1 else ''}"
    lines = [f"{model.root}: {count if versions else 'none'}"]
    if current is not None:
        lines += [f"current: v={current['version']}, {current['published']}, {current['by']}"]
    answer(result, json, lines)


# ------------------------------------------------------------------------- to others' registries
@group.command()
def register(
    config: ConfigPath = None,
    set: Overrides = None,
    model: Annotated[
        str | None, typer.Option(help=f"{MODEL_HELP}; default: --config's published model.")
    ] = None,
    alias: Annotated[
        str | None, typer.Option(help="Alias to move to this version: champion, for example.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Register a published model or an export in MLflow's model registry, as a pyfunc from code.

    With publish.mlflow.mode and no options: add missing versions and set the alias, as published.
    """
    allowed(("--model", "model", model))
    checked = load(config, set)
    mlflow = checked.tracking.mlflow
    completing = model is None and alias is None
    if completing and checked.publish.mlflow.mode is not None:
        _complete(checked, json)
        return
    if mlflow is None:
        raise UsageError(
            "no MLflow registry is configured",
            expected="tracking.mlflow.uri",
            remedy="for example --set tracking.mlflow.uri=http://127.0.0.1:5000",
        )
    from howdah.models.version import open_version
    from howdah.serving.deployment import mlflow_registry

    variant = open_version(model or checked.model_directory, checked.publish.directory)
    made = mlflow_registry.register(
        variant,
        mlflow.uri,
        name=checked.publish.name or checked.run.name,
        experiment=mlflow.experiment,
        alias=alias,
        say=say,
    )
    state = "registered" if made["changed"] else "registered before"
    answer(made, json, [f"{state}: {made['uri']}" + (f" ({alias})" if alias else "")])


def _complete(config, json: bool) -> None:
    """Bring MLflow's registry to what is published."""
    from howdah.serving.deployment import following, mlflow_registry

    mlflow_registry.require_mlflow()
    made = following.sync_registry(config, say)
    versions = ", ".join(map(str, made["added"])) or "none"
    answer(made, json, [f"registered now: {versions}; {made['name']}: champion {made['champion']}"])
