"""The commands that say what a run's figures are worth: baseline, crossval, report."""

from __future__ import annotations

from typing import Annotated

import typer

from howdah.cli.common import (
    AsJson,
    ConfigPath,
    Overrides,
    allowed,
    answer,
    chosen,
    load,
    load_to_begin,
    say,
)
from howdah.config.data import MOST_FOLDS
from howdah.config.splits import VALIDATION
from howdah.errors import UsageError

app = typer.Typer()


@app.command()
def baseline(
    config: ConfigPath = None,
    set: Overrides = None,
    spark: Annotated[
        bool,
        typer.Option("--spark", help="By Spark MLlib on data.spark.master, for large datasets."),
    ] = False,
    output: Annotated[
        str | None,
        typer.Option(help="Directory for baseline.json (any storage); none: the run directory."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Measure TF-IDF and logistic regression on the dataset's splits: what a model must beat."""
    allowed(("--output", "path", output))
    checked = load(chosen(config, set), set)
    from howdah.serving.baseline.run import measure_baseline

    found = measure_baseline(checked, spark=spark, output=output, progress=say)
    lines = [
        f"{split} {name}: {value:.4f}"
        for split, metrics in found["metrics"].items()
        for name, value in metrics.items()
        if isinstance(value, float)
    ]
    answer(found, json, [*lines, f"baseline: {found['path']}"])


@app.command()
def crossval(
    config: ConfigPath = None,
    set: Overrides = None,
    folds: Annotated[
        int, typer.Option(min=2, max=MOST_FOLDS, help="Parts of the duplicate clusters.")
    ] = 5,
    np: Annotated[int, typer.Option("--np", min=1, help="Ranks of each fold's training.")] = 1,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Fold the baseline instead of the model.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Train and evaluate once for each fold of the source; print mean and standard deviation."""
    if baseline and np != 1:
        raise UsageError(
            "the baseline has no ranks", where="--np", got=str(np), remedy="leave --np out"
        )
    checked = load_to_begin(chosen(config, set), set)
    from howdah.tuning.crossval.folds import cross_validate
    from howdah.tuning.crossval.summary import table

    found = cross_validate(checked, folds=folds, np=np, baseline=baseline, progress=say)
    answer(found, json, [*table(found), f"cross-validation: {found['path']}"])


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run directories.")],
    output: Annotated[
        str | None,
        typer.Option(help="The page of several runs; none: comparison.html beside this process."),
    ] = None,
    texts: Annotated[
        str | None,
        typer.Option(help="Texts in the page: none, or worst; none given: the run's report.texts."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Write a run's report.html again, or one page with several runs side by side."""
    if texts not in (None, "none", "worst"):
        raise UsageError("unknown value", where="--texts", expected="none or worst", got=texts)
    allowed(*(("RUN", "path", run) for run in runs), ("--output", "path", output))
    if len(runs) == 1:
        if output is not None:
            raise UsageError(
                "the report of one run lies in its directory", where="--output", got=output,
                remedy="leave it out, or give several runs",
            )  # fmt: skip
        from howdah.serving.report.report import write

        path = write(runs[0], texts=texts)
        answer({"path": path}, json, [f"report: {path}"])
        return
    from howdah.serving.report.comparison import compare

    found = compare(runs, output or "comparison.html")
    if not found["same_dataset"]:
        say("warning: these runs were measured on different datasets, or it is not known on which")
    answer(found, json, [f"comparison: {found['path']}"])


@app.command()
def threshold(
    model: Annotated[str, typer.Option(help="Run directory, or its export (any storage).")],
    metric: Annotated[
        str | None,
        typer.Option(help="Choose thresholds of labels by it: f1, f0.5, f2, accuracy or mcc."),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--class",
            help="Label that gets a threshold; repeatable for a model of several (none: all).",
        ),
    ] = None,
    reject_below: Annotated[
        float | None, typer.Option(help="Rows whose label's score is lower get no label.")
    ] = None,
    coverage: Annotated[
        float | None, typer.Option(help="Choose that bound so that this share keeps its label.")
    ] = None,
    accuracy: Annotated[
        float | None, typer.Option(help="Choose that bound so that those kept are right so often.")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Fit a temperature: scores that can be believed.")
    ] = False,
    reset: Annotated[
        bool, typer.Option("--reset", help="Take the decision out of the export.")
    ] = False,
    split: Annotated[str, typer.Option(help=f"What it is fitted on: {VALIDATION}.")] = VALIDATION,
    config: ConfigPath = None,
    set: Overrides = None,
    json: AsJson = False,
) -> None:
    """Fit on validation from which score on a label is given; write it into the run's export."""
    allowed(("--model", "path", model))
    checked = load(config, set)
    from howdah.serving.decision.threshold import Asked, decide, lines
    from howdah.training.evaluation.evaluate import evaluate_run

    asked = Asked(
        metric=metric, labels=tuple(label or ()), reject_below=reject_below, coverage=coverage,
        accuracy=accuracy, calibrate=calibrate, reset=reset, split=split,
    )  # fmt: skip
    found = decide(
        model, asked, config=checked if config or set else None, progress=say, evaluate=evaluate_run
    )
    answer(found, json, lines(found))
