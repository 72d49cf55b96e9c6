"""The command of hyperparameter studies: tune."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from howdah.cli.common import (
    AsJson,
    ConfigPath,
    Overrides,
    answer,
    chosen,
    load,
    login,
    pinned,
    refused,
    say,
    typed,
)
from howdah.cli.models import evaluator
from howdah.errors import UsageError
from howdah.pages.figures import duration, percent

if TYPE_CHECKING:
    from howdah.config.model import Config
    from howdah.config.yarn import YarnSection

app = typer.Typer()


def _section(config: Config) -> YarnSection | None:
    """Whose keytab the study uses."""
    return config.yarn if config.tune.on == "yarn" else None


@app.command()
def tune(
    config: ConfigPath = None,
    set: Overrides = None,
    join: Annotated[
        bool, typer.Option("--join", help="Add a worker to a study that was begun elsewhere.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Show the state of the study and exit.")
    ] = False,
    np: Annotated[
        int | None, typer.Option("--np", min=1, help="Ranks of each trial here; default: 1.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Search for hyperparameters: train trials of tune.space, stop weak ones, name the best."""
    if join and status:
        raise UsageError("give --join or --status, not both")
    checked = pinned(load(chosen(config, set), set), _section)
    from howdah.tuning import tune as studies

    with login(_section(checked)):  # the trials' files are read while they train
        if status:
            study = studies.status(checked)
            answer(study, json, _lines(study, study["all"]))
            return
        made = studies.tune(
            checked, join=join, np=np, evaluate=evaluator(checked),
            refused=refused, say=say,
        )  # fmt: skip
    lines = [*_lines(made, []), f"page: {made['page']}"]
    if made["published"] is not None:
        lines.append(f"published: {made['published']['path']}")
    elif made["best"] is not None:
        best = [*(set or ()), f"run.directory={made['best']['run']}"]
        lines.append(f"next: {typed('publish', config, best)}")
    answer(made, json, lines)


def _lines(study: dict[str, Any], trials: list[dict[str, Any]]) -> list[str]:
    counts = ", ".join(f"{count} {state}" for state, count in study["trials"].items() if count)
    lines = [f"study {study['study']}: {counts}"]
    for trial in trials:
        if trial["state"] != "waiting":
            shown = ", ".join(f"{key} {value}" for key, value in trial["params"].items())
            seen = trial["evaluations"].values()
            value = trial["value"] if trial["value"] is not None else next(reversed(seen), None)
            text = "" if value is None else f" {value:.4f}"
            lines.append(f"trial {trial['number']}: {trial['state']}{text} ({shown})")
    best = study["best"]
    if best is None:
        return [*lines, "best: no trial has finished yet"]
    lines.append(f"best: trial {best['trial']}, {study['metric']} {best['value']:.4f}")
    for key, value in best["params"].items():
        share = study["importance"].get(key)
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        lines.append(f"    {key}: {shown}" + (f" (importance {percent(share)})" if share else ""))
    if study["seconds_left"] is not None:
        lines.append(f"about {duration(study['seconds_left'])} left")
    return [*lines, f"run: {best['run']}"]
