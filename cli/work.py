"""The commands that do the work on this machine: doctor, config, etl, package, train, predict..."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from howdah.cli import alerting, streams
from howdah.cli.begin import configuration
from howdah.cli.common import (
    MODEL_HELP,
    AsJson,
    ConfigPath,
    Folds,
    IdColumn,
    Overrides,
    Ranks,
    RunWith,
    TextColumns,
    allowed,
    answer,
    chosen,
    cross_validate,
    load,
    login,
    note_command,
    pinned,
    policies,
    say,
    typed,
)
from howdah.config import launchers
from howdah.config.splits import SPLITS, TEST
from howdah.core.paths import absolute
from howdah.errors import UsageError
from howdah.packaging.kinds import KINDS

app = typer.Typer()
app.add_typer(configuration.app, name="config")


@app.command()
def doctor(
    json: AsJson = False,
    launcher: Annotated[
        str | None,
        typer.Option(help=f"Check what this launcher needs: {launchers.either()}; default: all."),
    ] = None,
    config: ConfigPath = None,
    set: Overrides = None,
) -> None:
    """Check this machine: Python, Java, MPI, Horovod, memory, disk, ports, Hadoop's settings; with
    --config also that file's base model, source, dataset and cluster."""
    if launcher is not None:
        launchers.require(launcher, where="--launcher")
    from howdah.doctor.report import doctor as check

    more = []
    if config is not None or set:
        from howdah.cli.begin import fitness

        checked = load(config, set)
        with login(checked.data.spark):
            more = fitness.check(checked)
    raise typer.Exit(check(json=json, launcher=launcher, more=more))


@app.command(
    hidden=True,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def guard(arguments: Annotated[list[str], typer.Argument(metavar="COMMAND...")]) -> None:
    """Run a howdah command and end it when stdin closes: for programs that start howdah."""
    from howdah.process.supervisor import supervise

    raise typer.Exit(supervise(arguments, policies=policies()))


# --------------------------------------------------------------------------------------- etl
@app.command()
def etl(
    config: ConfigPath = None,
    set: Overrides = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Read the first rows and print the findings, without starting Spark."
        ),
    ] = False,
    compact: Annotated[
        bool,
        typer.Option("--compact", help="Read no rows: merge the shards of the older parts."),
    ] = False,
    json: AsJson = False,
) -> None:
    """Clean, de-duplicate, split and tokenise the source into TFRecord shards with a manifest."""
    checked = pinned(load(chosen(config, set), set), lambda config: config.data.spark)
    if compact:
        _compact(checked, json)
        return
    from howdah.config.loader import require_secrets
    from howdah.etl import attention, peek

    require_secrets(checked, "data")
    with login(checked.data.spark):
        look = peek.look(checked.data)
    if check:
        answer(look.as_dict() if look else {}, json, list(look.lines()) if look else [_NO_LOOK])
        return
    for line in look.warnings if look else ():
        say(line)
    from howdah.etl.launch.submit import run

    alerting.begun("etl")
    with streams.live_line():
        result = run(checked, progress=say)
    made = result.as_dict()
    state = "unchanged" if result.unchanged else "written"
    answer(
        made,
        json,
        [
            f"dataset {state}: {absolute(result.path)}",
            "rows: " + ", ".join(f"{split} {rows:,}" for split, rows in made["rows"].items()),
            f"report: {absolute(result.report_path)}",
            *attention.lines(made["look"]),
            f"next: {typed('train', config, set)}",
        ],
    )


_NO_LOOK = "only Spark can read this source, so nothing was checked"


def _compact(config, json: bool) -> None:
    from howdah.data.manifest import load_dataset
    from howdah.etl.history import rewrite

    before = load_dataset(config.data.dataset)
    made = rewrite.compact(before, say, target=config.data.shard_bytes)
    shards = [sum(map(len, one.manifest.splits.values())) for one in (before, made)]
    answer(
        {"dataset": made.path, "shards_before": shards[0], "shards": shards[1]},
        json,
        [f"dataset: {made.path}", f"shards: {shards[0]:,} before, {shards[1]:,} now"],
    )


@app.command(hidden=True)
def partition(
    partition: Annotated[
        list[str], typer.Option(help="column=value, or a=b/c=d; repeatable: all must exist.")
    ],
    source: Annotated[
        str | None,
        typer.Option(help="Table, or path with {column} for the value; default: data.source."),
    ] = None,
    ready: Annotated[
        str | None,
        typer.Option(help="Check for this file or directory instead; {column}: the value."),
    ] = None,
    config: ConfigPath = None,
    set: Overrides = None,
    json: AsJson = False,
) -> None:
    """Check whether partitions of a table, or a day's files, exist; does not wait for them.

    Exit code 0 in both cases: --json prints {"there", "missing"}.
    """
    from howdah.config.options.partition import is_files

    # The policy judges the paths of files below, which the partition completes.
    if source is not None and not is_files(source):
        allowed(("--source", "table", source))
    checked = load(config, set)
    from howdah.spark import days

    search = days.search(checked, partition, source=source, ready=ready)
    option = "--ready" if ready else "--source"
    allowed(*((option, "path", path) for path in search.paths.values()))
    missing = search.missing()
    lines = [f"{name}: {'missing' if name in missing else 'there'}" for name in partition]
    result = {"source": search.name, "partitions": partition, "there": not missing}
    answer({**result, "missing": missing}, json, lines)


@app.command()
def package(
    kind: Annotated[str, typer.Option(help=f"One of {', '.join(KINDS)}.")] = "etl",
    output: Annotated[
        str | None, typer.Option(help="Directory (any storage); default: the local cache.")
    ] = None,
    horovod: Annotated[
        str | None,
        typer.Option(help="Horovod wheel without MPI for the framework; default: found or built."),
    ] = None,
    extra: Annotated[
        list[str] | None, typer.Option("--with", help="One more package to include; repeatable.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Pack the wheel and a relocatable Python environment, each named by its hash."""
    from howdah import storage
    from howdah.packaging import package as packages

    local = output if output is None or storage.is_local(output) else None
    started = time.monotonic()
    environment = packages.environment(
        kind, local, progress=say, horovod=horovod, extra=extra or []
    )
    made = [packages.wheel(local), environment]
    paths = [item.path for item in made]
    if output is not None and local is None:
        paths = [packages.publish(item, output, progress=say) for item in made]
    listed = [{**item.as_dict(), "path": path} for item, path in zip(made, paths, strict=True)]
    seconds = round(time.monotonic() - started, 1)
    answer(
        {"wheel": listed[0], "environment": listed[1], "seconds": seconds},
        json,
        [
            *(f"{item['path']}  {item['bytes'] / 2**20:,.1f} MiB" for item in listed),
            "runs on x86-64 with any glibc (nodes with one older than"
            f" {environment.glibc} use the packed one); made in {seconds} s",
        ],
    )


# ------------------------------------------------------------------------------------- train
@app.command()
def plan(
    config: ConfigPath = None,
    set: Overrides = None,
    np: Ranks = 1,
    workers: Annotated[
        str | None,
        typer.Option(help="World sizes to predict: 8,64,512 (measures a few steps here first)."),
    ] = None,
    network: Annotated[
        str | None, typer.Option(help="Bits per second between nodes, e.g. 25G (default 10G).")
    ] = None,
    json: AsJson = False,
) -> None:
    """Show what a training run would take: steps, minutes, memory, disk; and how it would scale."""
    from howdah.cli.training import plan_table
    from howdah.training.planning.preview import preview, scaling_lines, scaling_preview

    checked = pinned(load(chosen(config, set), set))
    summary = preview(checked, world=np)
    summary |= plan_table.estimated(checked, summary, np)
    lines = plan_table.lines(summary)
    if workers is not None or network is not None:
        scaling = scaling_preview(checked, workers or "2,4,8,16", network or "10G", progress=say)
        lines += ["", *scaling_lines(scaling)]
        summary = {**summary, "scaling": scaling}
    answer(summary, json, lines)


@app.command()
def train(
    config: ConfigPath = None,
    set: Overrides = None,
    np: Ranks = 1,
    launcher: Annotated[str | None, typer.Option(hidden=True)] = None,
    folds: Folds = None,
    json: AsJson = False,
) -> None:
    """Train on this machine; with two or more ranks, start a job and wait for it."""
    if launcher is not None:
        launchers.refuse(launcher, np)
    path = chosen(config, set)
    checked = load(path, set)
    if folds is None:  # else the ETL makes one for each
        _require_dataset(checked)
    checked = pinned(checked)
    if folds is not None:
        cross_validate(checked, folds, json, np=np)
        return
    note_command()
    alerting.begun("train")
    if np > 1:
        from howdah.cli.local_job import train as train_by_job

        train_by_job(checked, np=np)
    else:
        from howdah.jobs import checks
        from howdah.models.runs import settings
        from howdah.training.launch.launch import train as train_in_process

        if settings.already_finished(checked) is None:
            checks.free_space(checked)
        train_in_process(checked)
    from howdah.cli.training import judgement

    result, lines = judgement.conclude(checked, typed("publish", path, set))
    answer(result, json, lines)


def _require_dataset(config) -> None:
    """Refuse to train without a dataset before a framework is imported; a finished run needs none.

    Raises:
        DataError: there is no dataset.
    """
    from howdah import storage
    from howdah.data.manifest import load_dataset
    from howdah.run_files import RUN_JSON

    if not storage.exists(storage.join(config.run.directory, RUN_JSON)):
        load_dataset(config.data.dataset)


@app.command()
def evaluate(
    config: ConfigPath = None,
    set: Overrides = None,
    model: Annotated[
        str | None, typer.Option(help=f"{MODEL_HELP}; default: the configuration's run.")
    ] = None,
    split: Annotated[str, typer.Option(help=f"{', '.join(SPLITS)}.")] = TEST,
    framework: RunWith = None,
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline",
            help="Measure the TF-IDF and logistic regression baseline instead: once per dataset"
            " version; it then appears in the report of every run on that version.",
        ),
    ] = False,
    folds: Folds = None,
    json: AsJson = False,
) -> None:
    """Evaluate a trained model, or the baseline, on the dataset."""
    if baseline:
        from howdah.cli.training import judgement

        judgement.evaluate_baseline(chosen(config, set), set, folds, json)
        return
    if folds is not None:
        raise UsageError(
            "--folds requires --baseline", remedy="`howdah train --folds N` evaluates the model"
        )
    allowed(("--model", "model", model))
    checked = load(chosen(config, set), set)
    from howdah.training.evaluation.evaluate import evaluate_run

    metrics = evaluate_run(checked, model=model, split=split, framework=framework, progress=say)
    lines = [f"{key}: {value:.4f}" for key, value in metrics.items() if isinstance(value, float)]
    answer({"split": split, "metrics": metrics}, json, lines)


@app.command()
def export(
    config: ConfigPath = None,
    set: Overrides = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Checkpoint (step-60, or a path); default: the best one, else the last."),
    ] = None,
    output: Annotated[str | None, typer.Option(help="Directory; default: <run>/export.")] = None,
    json: AsJson = False,
) -> None:
    """Export a checkpoint of the run: a Hugging Face directory, ONNX, SavedModel."""
    from howdah.config.model import is_step

    # A step of the run is where the configuration says, which the policies judge by themselves.
    path = None if checkpoint is None or is_step(checkpoint) else checkpoint
    allowed(("--checkpoint", "path", path), ("--output", "path", output))
    checked = load(chosen(config, set), set)
    from howdah.training.export_run import export_run

    path = export_run(checked, checkpoint=checkpoint, output=output, progress=say)
    _add_profile(checked, path)
    following = typed("serve", None, None, "--model", absolute(path))
    answer({"export": path}, json, [f"export: {path}", f"next: {following}"])


def _add_profile(config, path: str) -> None:
    """Give an export of a checkpoint its profile for `howdah drift`: rows are scored for it."""
    from howdah.errors import HowdahError
    from howdah.training.evaluation.profile_writer import make_reference

    try:
        say(f"profile: {make_reference(config, path, progress=say)}")
    except HowdahError as error:  # the export itself is whole
        say(f"warning: no profile.json for `howdah drift`: {error.what}")


@app.command()
def predict(
    model: Annotated[str, typer.Option(help=f"{MODEL_HELP}.")],
    source: Annotated[
        str | None, typer.Option(help="CSV, JSON lines or Parquet file(s), or images.")
    ] = None,
    output: Annotated[
        str | None, typer.Option(help=".parquet, .jsonl or .csv file, or table:NAME (Hive).")
    ] = None,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="Read a text (or image file) a line; write JSON lines.")
    ] = False,
    text_column: TextColumns = None,
    id_column: IdColumn = None,
    master: Annotated[
        str | None,
        typer.Option(
            help="Run on this Spark master (yarn, local[*], ...); default: in this process; for a"
            " table, data.spark.master."
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace the output, once the new one is complete."),
    ] = False,
    batch: Annotated[
        str | None,
        typer.Option(
            help="With table:NAME: name of this batch of rows, such as their day: a partition below"
            " the model's; default: all rows of the model are replaced."
        ),
    ] = None,
    framework: RunWith = None,
    drift: Annotated[
        bool,
        typer.Option("--drift", help="Also check the rows for drift, as `howdah drift` does."),
    ] = False,
    config: ConfigPath = None,
    set: Overrides = None,
    json: AsJson = False,
) -> None:
    """Classify texts: id, label, scores and the run id of the model."""
    allowed(
        ("--model", "model", model), ("--source", "rows", source), ("--output", "output", output),
        ("--master", "master", master),
    )  # fmt: skip
    checked = load(config, set)
    if stdin:
        from howdah.models.version import open_version
        from howdah.serving.prediction.lines import predict_lines

        if source is not None or output is not None:
            raise UsageError(
                "--stdin reads stdin and writes stdout", remedy="leave out --source/--output"
            )
        lines_in = streams.opened_stdin()
        path = open_version(model, checked.publish.directory).path
        predict_lines(path, lines_in, streams.results(), framework=framework, progress=say)
        return
    from howdah.serving.prediction import judged
    from howdah.serving.prediction import predict as predictor

    if source is None or output is None:
        raise UsageError(
            "predict needs --source and --output, or --stdin",
            remedy="for example `--source messages.csv --output predictions.csv`",
        )
    with streams.live_line():
        summary = predictor.predict(
            model, source, output,
            text_columns=text_column, id_column=id_column, master=master, config=checked,
            overwrite=overwrite, batch=batch, framework=framework, drift=drift,
            progress=say,
        )  # fmt: skip
    lines = judged.lines(summary)
    if not json:  # with --json an error is the one object
        answer(summary, json, lines)
    judged.require_few(summary, checked, source)
    if json:
        answer(summary, json, lines)
