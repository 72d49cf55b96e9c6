"""The commands from a finished run on: gate, publish, score, serve, register."""

from __future__ import annotations

import json as _json
import sys
from typing import Annotated

import typer

from howdah.cli.common import AsJson, ConfigPath, Overrides, allowed, answer, load, say
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


@app.command()
def score(
    model: Annotated[
        str,
        typer.Option(
            help="Published model (NAME or NAME/v=3 below publish.directory), export or run"
            " directory; a published one is held at the version that is current now."
        ),
    ],
    source: Annotated[str, typer.Option(help="Hive table with partitions, database.table.")],
    output: Annotated[str, typer.Option(help="Hive table; made, as Parquet, if it is missing.")],
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
    text_column: Annotated[
        list[str] | None, typer.Option(help="Column(s) of the text; none: as it was trained.")
    ] = None,
    id_column: Annotated[str | None, typer.Option(help="Column of the row's key.")] = None,
    framework: Annotated[
        str | None, typer.Option(help="What runs the model; none: the best that is installed.")
    ] = None,
    master: Annotated[str | None, typer.Option(help="Overrides data.spark.master.")] = None,
    drift: Annotated[
        bool,
        typer.Option(help="Write a profile of each partition, if the model has a reference."),
    ] = True,
    force: Annotated[
        bool, typer.Option("--force", help="Score partitions that are done, too.")
    ] = False,
    config: ConfigPath = None,
    set: Overrides = None,
    json: AsJson = False,
) -> None:
    """Score partitions of a Hive table into another one, each once; what is done is skipped."""
    allowed(
        ("--model", "model", model), ("--source", "table", source), ("--output", "table", output),
        ("--master", "master", master),
    )  # fmt: skip
    overrides = list(set or [])
    if master is not None:
        overrides.append(f"data.spark.master={_json.dumps(master)}")
    checked = load(config, overrides)
    from training.scoring import score as scoring
    from training.scoring.selection import Selection

    request = scoring.Request(
        model=model, source=source, output=output,
        selection=Selection(partitions=tuple(partition or ()), since=since, until=until),
        text_columns=text_column, id_column=id_column, framework=framework, drift=drift,
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


# ------------------------------------------------------------------------- to others' servers
_MODEL_HELP = "Published model (NAME or NAME/v=3 below publish.directory), export or run directory"


@app.command()
def serve(
    model: Annotated[str, typer.Option(help=f"{_MODEL_HELP}.")],
    on: Annotated[str, typer.Option("--on", help="What serves: ray (Ray Serve).")],
    other: Annotated[
        str | None, typer.Option("--and", help="A second model, which gets --share of requests.")
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(help="Of requests, for --and: 0.1. One `key` always goes to one model."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; who reaches it can classify.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = 8000,
    replicas: Annotated[
        str, typer.Option(help="Of each model: a number, or LEAST:MOST by how many requests wait.")
    ] = "1",
    queue: Annotated[
        int, typer.Option(min=1, help="Requests that may wait for a model; beyond it: 503.")
    ] = 64,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads of a replica.")] = 1,
    config: ConfigPath = None,
    set: Overrides = None,
    json: AsJson = False,
) -> None:
    """Serve models as JSON over HTTP: POST /predict, GET /health; Ctrl-C ends it.

    --json prints one object once requests are answered.
    """
    if on != "ray":
        raise UsageError("unknown server", where="--on", expected="ray", got=on)
    if other is None and share is not None:
        raise UsageError("--share is the share of --and", remedy="name the other model by --and")
    checked = load(config, set)
    from training.deployment import ray_serve, variants

    options = ray_serve.Options(
        host=host, port=port, replicas=ray_serve.parse_replicas(replicas), queue=queue,
        threads=threads,
    )  # fmt: skip
    found = [variants.find(model, checked.publish.directory)]
    part = 0.0
    if other is not None:
        found.append(variants.find(other, checked.publish.directory))
        part = variants.require_comparable(*found, share)

    def ready(what: dict) -> None:
        answer(what, json, [])
        sys.stdout.flush()

    ray_serve.serve(found, part, options, say=say, ready=ready)


@app.command()
def register(
    config: ConfigPath = None,
    set: Overrides = None,
    model: Annotated[
        str | None, typer.Option(help=f"{_MODEL_HELP}; none: the configuration's published model.")
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
