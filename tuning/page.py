"""study.html: what matters in a study, the best trial, and all others."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from howdah import storage
from howdah.config.metric_table import METRICS
from howdah.models.runs.run_json import CONFIG
from howdah.pages import page as pages
from howdah.pages.charts import Axis, Frame, cut
from howdah.pages.figures import duration, number
from howdah.tuning.summary import Study, Trial, trial_directory

PAGE = "study.html"
_FEW_TRIALS = 20
"""Fewer finished trials give an importance that is only a hint."""
_BEST, _FINISHED, _OTHERS = "c1", "c0", "faint"


def render(study: Study, config: str, links: Sequence[pages.Link] = ()) -> str:
    """The page as HTML.

    Args:
        config: the study's configuration as YAML.
        links: pages of the best trial.
    """
    best, left = study.best, study.seconds_left
    tiles = [(f"best {study.metric}", number(best and best.value))]
    tiles += [("time left", f"about {duration(left)}")] if left is not None else []
    tiles += [(f"trials {state}", str(study.count(state)))
              for state in ("finished", "pruned", "failed", "running", "waiting")
              if study.count(state) or state == "finished"]  # fmt: skip
    evaluated = [one for one in study.trials if one.last is not None]
    plots = [_evaluations(study, evaluated)] if evaluated else []
    if any(one.value is not None for one in study.trials):
        plots = [_history(study), *plots]
        plots += [_by_key(study, key) for key in study.keys]
        plots += [_parallel(study)] if len(study.keys) > 1 else []
    return pages.render(
        __package__,
        "study.html.j2",
        links=links,
        study=study,
        best=best,
        better=METRICS[study.metric].better,
        headline=_headline(study),
        is_hint=study.count("finished") < _FEW_TRIALS,
        unfinished=study.count("running") + study.count("waiting"),
        tiles=tiles,
        plots=plots,
        commands=[] if best is None else _commands(study, best),
        config=config,
    )


def _headline(study: Study) -> str:
    if not study.importance:
        return "Too few finished trials to tell which key matters"
    key, share = next(iter(study.importance.items()))
    name = key.rpartition(".")[2]
    if len(study.importance) == 1:
        return f"The best {name} of {study.count('finished')}"
    return f"{name} matters most" if share >= 0.4 else "No single key dominates"


def _commands(study: Study, best: Trial) -> list[tuple[str, str]]:
    """Return (purpose, command) of what one does with the best trial."""
    config = shlex.quote(storage.join(study.directory, CONFIG))
    run = shlex.quote(trial_directory(study.directory, best.number))
    values = " ".join(
        f"--set {key}={shlex.quote(_plain(value))}" for key, value in best.params.items()
    )
    return [
        ("Publish its model", f"howdah publish --config {config} --set run.directory={run}"),
        (
            "Train with its values in your own configuration",
            f"howdah train --config run.yaml {values}",
        ),
    ]


def _plain(value: Any) -> str:
    """A value as `--set` takes it: null and true, not None and True."""
    return value if isinstance(value, str) else json.dumps(value)


def _kind(study: Study, trial: Trial) -> str:
    """Return the class of a trial's colour."""
    best = study.best
    if best is not None and trial.number == best.number:
        return _BEST
    return _FINISHED if trial.value is not None else _OTHERS


def _tip(study: Study, trial: Trial) -> str:
    """Say a trial's value; one without a value has a newest evaluation, perhaps on fewer rows."""
    if trial.value is not None:
        return f"trial {trial.number}: {number(trial.value)}"
    text = f"trial {trial.number}: {trial.state}"
    if trial.last is None:
        return text
    rows = "" if study.max_rows is None else f" on {study.max_rows:,} rows"
    return f"{text}, {number(trial.last)}{rows} at evaluation {max(trial.evaluations)}"


def _values(study: Study) -> list[float]:
    return [one.value for one in study.trials if one.value is not None]


def _drawn(study: Study, frame: Frame, place: Callable[[Trial], float | None]) -> str:
    """Draw the trials: finished ones at their value, others as marks on the lower edge.

    A pruned trial's newest evaluation may be on fewer rows than a finished trial's value, so that
    it has no place on their axis.
    """
    parts = []
    for one in sorted(study.trials, key=lambda trial: trial.value is not None):
        across = place(one)
        if across is None or one.state == "waiting":
            continue
        up = frame.y.ends[0] if one.value is None else one.value
        parts.append(frame.dot(across, up, _kind(study, one), _tip(study, one), 4))
    return "".join(parts)


def _legend(study: Study) -> list[tuple[str, str]]:
    others = [one for one in study.trials if one.value is None and one.state != "waiting"]
    return [
        (_BEST, "best"), (_FINISHED, "finished"),
        *([(_OTHERS, "pruned, failed or running")] if others else []),
    ]  # fmt: skip


def _frame(study: Study, title: str, x: Axis) -> Frame:
    return Frame(title, x, _metric_axis(study, _values(study), 0.12))


def _metric_axis(study: Study, values: Sequence[float], room: float) -> Axis:
    low, high = min(values), max(values)
    if low == high:
        return Axis(study.metric, (low - 0.5, high + 0.5))
    return Axis.of(values, study.metric, room=room)


def _history(study: Study) -> Any:
    """Plot of the values by trial, with the best value so far."""
    score = METRICS[study.metric].score
    last = max(len(study.trials) - 1, 1)
    frame = _frame(study, "Trials", Axis("trial", (-0.04 * last, 1.04 * last), whole=True))
    steps: list[tuple[float, float]] = []
    for one in study.trials:
        if one.value is not None and (not steps or score(one.value) > score(steps[-1][1])):
            steps += [(one.number, steps[-1][1])] if steps else []
            steps.append((one.number, one.value))
    steps.append((last, steps[-1][1]))
    inside = frame.path(steps, f"line {_BEST}") + _drawn(study, frame, lambda one: one.number)
    return frame.svg(inside, legend=_legend(study))


def _evaluations(study: Study, trials: Sequence[Trial]) -> Any:
    """Plot of each trial's evaluations, which the pruner compares."""
    points = [point for one in trials for point in _finite(one)]
    if not points:
        return ""
    title = "Evaluations during training"
    up = _metric_axis(study, [value for _, value in points], 0.06)
    ends = (min(at for at, _ in points) - 0.2, max(at for at, _ in points) + 0.2)
    frame, parts = Frame(title, Axis("evaluation", ends, whole=True), up), []
    for one in sorted(trials, key=lambda trial: (trial.value is not None, _kind(study, trial))):
        kind, values = _kind(study, one), _finite(one)
        if len(values) > 1:
            parts.append(frame.path(values, f"line {kind}"))
        parts += [
            frame.dot(*point, kind, f"trial {one.number}: {number(point[1])}") for point in values
        ]
    return frame.svg("".join(parts), legend=_legend(study))


def _finite(trial: Trial) -> list[tuple[int, float]]:
    return sorted(one for one in trial.evaluations.items() if math.isfinite(one[1]))


def _axis(study: Study, key: str) -> tuple[Axis, Callable[[Trial], float | None]]:
    """Return the axis of a tuned key, and the place of a trial on it."""
    values = [one.params[key] for one in study.trials if key in one.params]
    if key not in study.choices:
        axis = Axis.of(values, key, room=0.05, log=key in study.log_scaled)
        return axis, lambda one: one.params.get(key)
    numeric = all(isinstance(value, int | float) for value in values)
    # By their text: 1 and true are equal in a set.
    ordered = sorted(values, key=None if numeric else str)
    names = list(dict.fromkeys(map(_plain, ordered)))
    return (
        Axis.choices(names, key),
        lambda one: names.index(_plain(one.params[key])) if key in one.params else None,
    )


def _by_key(study: Study, key: str) -> Any:
    """Plot of the values by one tuned key."""
    axis, place = _axis(study, key)
    frame = _frame(study, key.rpartition(".")[2], axis)
    return frame.svg(_drawn(study, frame, place), legend=_legend(study))


def _parallel(study: Study) -> Any:
    """Parallel coordinates: a column for each tuned key and the metric, a line for each trial."""
    columns = [_axis(study, key) for key in study.keys]
    columns.append((Axis.of(_values(study), study.metric), lambda trial: trial.value))
    names = [*(key.rpartition(".")[2] for key in study.keys), study.metric]
    short = [cut(name, max(4, 48 // len(names))) for name in names]
    frame = Frame("All keys together", Axis.choices(short), Axis.choices(["least", "most"]))
    parts = []
    finished = [one for one in study.trials if one.value is not None]
    for one in sorted(finished, key=lambda trial: _kind(study, trial)):
        places = [(axis, place(one)) for axis, place in columns]
        points = [(n, axis.part(at)) for n, (axis, at) in enumerate(places) if at is not None]
        parts.append(frame.path(points, f"line {_kind(study, one)}"))
    return frame.svg("".join(parts), legend=_legend(study)[:2])
