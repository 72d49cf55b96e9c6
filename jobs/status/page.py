"""The job's page: status.json as HTML. Read-only, one file that loads nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from howdah.config.metric_table import METRICS, SHOWN
from howdah.pages import charts
from howdah.pages.figures import DASH, duration, number
from howdah.pages.page import render

_MOST_EVALUATIONS, _MOST_FIGURES = 10, 8
_CURVES = [name for name in SHOWN if not METRICS[name].lower]
_MOODS = {"running": "good", "finished": "good", "failed": "bad", "killed": "bad"}
_SENTENCES = {
    "waiting": "The job is waiting for workers: the cluster has not provided all of them yet.",
    "starting": "All workers have registered and are starting the training.",
    "etl": "The dataset is being made; training begins when it is done.",
    "running": "Training is making progress.",
    "resizing": "Workers have joined or left: the ranks are forming a new world and will continue"
    " from the last committed step.",
    "restarting": "A rank was lost: the ranks are restarting from the last checkpoint.",
    "stopping": "The job is stopping and saving its state.",
    "finished": "All steps are done, and the model is exported.",
    "killed": "The job was ended on request. Submit it again to resume from its last checkpoint.",
    "failed": "The job has ended with the error below. Submit it again to resume from its last"
    " checkpoint.",
}


def page(status: dict[str, Any], curve: Sequence[tuple[int, float]], name: str) -> str:
    """Render the page of a job.

    Args:
        status: the contents of status.json.
        curve: pairs of (step, loss).
        name: the run's name.
    """
    step, total, left = status["step"], status["total_steps"], status["eta_seconds"]
    saved = status["last_checkpoint"] or {}
    evaluations = list(status["evaluations"])
    names = ", ".join(
        f"{one['rank']} on {one['node']}" for one in status["ranks"] if one["stopped"]
    )
    stopped = f"The process of rank {names} is stopped; the others are waiting." if names else ""
    return render(
        __package__,
        "page.html.j2",
        links=[("status.json", "status.json")],
        run_name=name,
        status=status,
        mood="unknown" if stopped else _MOODS.get(status["state"], "unknown"),
        headline=_headline(status),
        sentence=stopped or _SENTENCES[status["state"]],
        done_at=None if left is None or stopped else status["updated"] + left,
        fraction=min(1.0, step / total) if step is not None and total else 0.0,
        saved_ago=status["updated"] - saved.get("time", status["updated"]),
        problem=_problem(status["error"]),
        tiles=_tiles(status, evaluations),
        plots=_plots(curve, evaluations),
        evaluations=evaluations[: -_MOST_EVALUATIONS - 1 : -1],
        figures=list(dict.fromkeys(key for one in evaluations for key in one["metrics"]))[
            :_MOST_FIGURES
        ],
    )


def _headline(status: Mapping[str, Any]) -> str:
    """Return the state with how far the job is and how long it still takes."""
    words = status["state"].capitalize()
    if status["step"] is not None:
        words += f": step {number(status['step'])}"
        if status["total_steps"]:
            words += f" of {number(status['total_steps'])}"
    if status["eta_seconds"] is not None:
        words += f", about {duration(status['eta_seconds'])} left"
    return words


def _tiles(
    status: Mapping[str, Any], evaluations: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    epoch, loss, rate = status["epoch"], status["loss"], status["examples_per_second"]
    tiles = [
        ("training loss", number(loss)),
        ("epoch", DASH if epoch is None else f"{epoch:.2f}"),
        ("rows a second", number(None if rate is None else float(rate))),
        ("ranks", f"{status['world_size']} of {status['wanted']}"),
        ("restarts", str(status["restarts"])),
    ]
    if status["preemptions"]:
        tiles.append(("preemptions", str(status["preemptions"])))
    if evaluations:
        newest = evaluations[-1]
        tiles += [
            (f"{key} ({newest['split']}, step {newest['step']})", number(value))
            for key, value in newest["metrics"].items()
            if key in _CURVES
        ]
    return tiles


def _plots(
    curve: Sequence[tuple[int, float]], evaluations: Sequence[Mapping[str, Any]]
) -> list[Any]:
    plots = []
    if len(curve) > 1:
        plots.append(charts.lines("Training loss", [("loss", _drawn(curve))]))
    split = evaluations[0]["split"] if evaluations else None
    during: dict[int, Mapping[str, Any]] = {}
    for one in evaluations:  # the last ones, of the best weights, are of an earlier step
        if one["split"] == split and one["step"] > max(during, default=-1):
            during[one["step"]] = one["metrics"]
    if len(during) > 1:
        series = [
            (key, _drawn([(step, metrics.get(key, math.nan)) for step, metrics in during.items()]))
            for key in evaluations[0]["metrics"]
            if key in _CURVES
        ]
        plots.append(charts.lines(f"Evaluations on {split}", series, marked=True))
    return plots


def _drawn(points: Sequence[tuple[int, float]]) -> list[tuple[int, float | None]]:
    """Return points with a gap where a value is not finite: a loss that has diverged."""
    return [(step, value if math.isfinite(value) else None) for step, value in points]


def _problem(error: Mapping[str, Any] | None) -> str:
    """Return the error that ended the job, as lines; "" without an error."""
    if not error:
        return ""
    names = ("where", "expected", "got", "remedy")
    return "\n".join([error["what"], *(f"{n}: {error[n]}" for n in names if error.get(n))])
