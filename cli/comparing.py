"""The commands that say what a run's figures are worth: report, model threshold."""

from __future__ import annotations

from typing import Annotated

import typer

from howdah import storage
from howdah.cli.common import (
    AsJson,
    ConfigPath,
    Overrides,
    allowed,
    answer,
    load,
    say,
    usual,
)
from howdah.cli.models import group
from howdah.errors import HowdahError, UsageError

app = typer.Typer()


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run directories.")],
    output: Annotated[
        str | None,
        typer.Option(help="The page of several runs; default: ./comparison.html."),
    ] = None,
    texts: Annotated[
        str | None,
        typer.Option(
            help="Texts in the page: masked, plain or none; default: the run's report.texts."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Write a run's report.html again, or one page with several runs side by side."""
    if texts not in (None, "masked", "plain", "none"):
        raise UsageError(
            "unknown value", where="--texts", expected="masked, plain or none", got=texts
        )
    allowed(*(("RUN", "path", run) for run in runs), ("--output", "path", output))
    if len(runs) == 1:
        if output is not None:
            raise UsageError(
                "the report of one run is always written to its directory",
                where="--output",
                remedy="leave it out, or give several runs",
            )
        from howdah.serving.report.report import write

        path = write(runs[0], texts=texts, progress=say)
        answer({"path": path}, json, [f"report: {path}"])
        return
    from howdah.serving.report.comparison import compare

    comparison = compare(runs, output or "comparison.html")
    if not comparison["same_dataset"]:
        say("warning: these runs were measured on different datasets, or on unknown ones")
    answer(comparison, json, [f"comparison: {comparison['path']}"])


@app.command()
def runs(
    directory: Annotated[
        str | None,
        typer.Argument(help="Any storage; default: the parent of run.directory, else runs."),
    ] = None,
    sort: Annotated[
        str, typer.Option(help="Column to sort by; largest, best or newest first.")
    ] = "started",
    config: ConfigPath = None,
    set: Overrides = None,
    json: AsJson = False,
) -> None:
    """List the runs below a directory, the newest first, and write runs.html into it if there are
    any."""
    if directory is None:
        config = usual(config)
        above = config is None and not set
        directory = "runs" if above else storage.parent(load(config, set).run.directory)
    allowed(("DIRECTORY", "path", directory))
    from howdah.serving.report import runs as listing
    from howdah.training.run.status import state

    rows = listing.listed(directory, state, sort, say=say)
    page = None
    try:
        page = listing.write(directory, rows) if rows else None
    except HowdahError as error:  # another user's directory
        say(f"no page: {error.what} ({error.where})")
    value = {"directory": directory, "page": page, "runs": [listing.as_dict(row) for row in rows]}
    if not rows:
        answer(value, json, [f"{storage.absolute(directory)}: no runs"])
        return
    answer(value, json, [*listing.lines(rows), *([f"page: {page}"] if page else [])])


@group.command()
def threshold(
    model: Annotated[str, typer.Option(help="Run directory, or its export (any storage).")],
    metric: Annotated[
        str | None,
        typer.Option(help="Metric to choose label thresholds by: f1, f0.5, f2, accuracy or mcc."),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--class",
            help="Label that gets a threshold; of a multi-label model repeatable (default: all).",
        ),
    ] = None,
    reject_below: Annotated[
        float | None, typer.Option(help="Rows whose label's score is lower get no label.")
    ] = None,
    coverage: Annotated[
        float | None, typer.Option(help="Set --reject-below so that this share keeps its label.")
    ] = None,
    accuracy: Annotated[
        float | None,
        typer.Option(help="Set --reject-below so that the rows kept reach this accuracy."),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Fit a temperature, so that scores match accuracy.")
    ] = False,
    reset: Annotated[
        bool, typer.Option("--reset", help="Remove the decision from the export.")
    ] = False,
    config: ConfigPath = None,
    set: Overrides = None,
    json: AsJson = False,
) -> None:
    """Fit thresholds, a rejection bound or a temperature on validation; put them in the export."""
    allowed(("--model", "model", model))
    checked = load(config, set)
    from howdah.serving.decision.threshold import DecisionOptions, decide, lines
    from howdah.training.evaluation.evaluate import evaluate_run

    request = DecisionOptions(
        metric=metric, labels=tuple(label or ()), reject_below=reject_below, coverage=coverage,
        accuracy=accuracy, calibrate=calibrate, reset=reset,
    )  # fmt: skip
    decision = decide(
        model,
        request,
        config=checked if config or set else None,
        progress=say,
        evaluate=evaluate_run,
    )
    answer(decision, json, lines(decision))
