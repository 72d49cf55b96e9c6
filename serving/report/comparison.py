"""A page with several runs side by side: figures, curves, differences of configurations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from howdah import storage
from howdah.config import yaml_text
from howdah.config.metric_table import METRICS, SHOWN
from howdah.config.splits import VALIDATION
from howdah.errors import AlreadyExists, ConfigError, DataError, NotFound, UsageError
from howdah.models.runs.metrics_log import read_metrics
from howdah.models.runs.run_json import CONFIG
from howdah.pages import charts, figures
from howdah.pages import page as pages
from howdah.serving.report import report

MOST = 12
"""Largest number of runs on a page: the colours of more curves could not be distinguished."""

_FIGURES = (
    ("status", "status", "{}"),
    ("framework", "framework", "{}"),
    ("world_size", "ranks", "{}"),
    ("steps", "steps", "{:,}"),
    ("best_step", "step of the best weights", "{:,}"),
    ("train_seconds", "seconds of training", "{:,.0f}"),
    ("examples_per_second", "examples/s", "{:,.1f}"),
    ("tokens_per_second", "tokens/s", "{:,.0f}"),
)
_OWN_PAGE = re.compile(rb"\s*<!DOCTYPE html>.{0,1000}?<title>\d+ runs compared</title>", re.DOTALL)
"""Matches the beginning of a page that `compare` has written, by comparison.html.j2."""

_UNDEFINED = "–"
_POINTS = 300
"""Approximate number of points of a curve."""


@dataclass(frozen=True)
class _Run:
    title: str
    """Number and name, since two runs may have the same name."""
    directory: str
    values: Mapping[str, Any]
    """run.json."""
    config: Mapping[str, Any]
    """{key: value} of config.yaml, with keys such as `data.source`."""
    lines: Sequence[Mapping[str, Any]]
    """metrics.jsonl."""

    @property
    def dataset(self) -> str | None:
        """Identity of the dataset."""
        attempts = self.values.get("attempts") or [{}]
        return self.values.get("dataset_hash") or attempts[-1].get("dataset")


def compare(directories: Sequence[str], output: str) -> dict[str, Any]:
    """Write the page of some runs (any storage).

    Args:
        directories: run directories, at least two and at most MOST; the columns have their order.
        output: the page's path; an earlier page of compared runs is replaced.
    Returns:
        {path, same_dataset, runs: [{run, run_id, status, metrics}], differing: {key: [value of
        each run]}}.
    Raises:
        AlreadyExists: the output exists and is not such a page.
        DataError: one of them is not a run directory.
        UsageError: there are too many runs.
    """
    if len(directories) > MOST:
        raise UsageError(f"a page cannot show more than {MOST} runs", got=f"{len(directories)}")
    _refuse_to_replace(output)
    runs = [_read(number, directory) for number, directory in enumerate(directories, 1)]
    differing = _differing(runs)
    datasets = {run.dataset for run in runs}
    page = pages.render(
        __package__,
        "comparison.html.j2",
        runs=runs,
        one_dataset=len(datasets) == 1,
        figures=_figures(runs),
        splits=_splits(runs),
        curves=_curves(runs),
        differing={
            key: [_UNDEFINED if value is None else str(value) for value in row]
            for key, row in differing.items()
        },
    )
    storage.write_whole(output, page.encode())
    return {
        "path": output,
        "same_dataset": len(datasets) == 1 and None not in datasets,
        "runs": [
            {
                "run": run.directory,
                "run_id": run.values.get("run_id"),
                "status": run.values.get("status"),
                "metrics": {
                    split: {name: metrics.get(name) for name in METRICS if name in metrics}
                    for split, metrics in (run.values.get("metrics") or {}).items()
                },
            }
            for run in runs
        ],
        "differing": differing,
    }


def _refuse_to_replace(output: str) -> None:
    """Raise AlreadyExists if anything except a page of compared runs would be replaced."""
    if not storage.exists(output):
        return
    if not storage.is_dir(output):
        with storage.open_read(output) as file:
            if _OWN_PAGE.match(file.read(4096)):
                return
    raise AlreadyExists(
        "the output exists already, and is not a page of compared runs",
        where=output,
        remedy="give another name, or remove it",
    )


def _read(number: int, directory: str) -> _Run:
    values = report.read_run(directory)
    try:
        config = yaml_text.read(storage.join(directory, CONFIG)) or {}
    except NotFound:
        config = {}
    except ConfigError as error:
        raise DataError(
            "the run's configuration cannot be read", where=error.where, got=error.got
        ) from None
    title = f"{number} {values.get('name') or storage.name(directory)}"
    return _Run(title, directory, values, _leaves(config), read_metrics(directory))


def _leaves(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten {"a": {"b": 1}} to {"a.b": 1}."""
    if not isinstance(value, dict) or not value:
        return {prefix: value} if prefix else {}
    leaves: dict[str, Any] = {}
    for key, item in value.items():
        leaves |= _leaves(item, f"{prefix}.{key}" if prefix else str(key))
    return leaves


def _differing(runs: Sequence[_Run]) -> dict[str, list[Any]]:
    """Return the keys whose values differ; a run without the key has null."""
    keys = sorted({key for run in runs for key in run.config})
    rows = {key: [run.config.get(key) for run in runs] for key in keys}
    return {key: row for key, row in rows.items() if any(value != row[0] for value in row)}


def _figures(runs: Sequence[_Run]) -> list[tuple[str, list[str]]]:
    """Return (name, [a text for each run]) of the run's size, length and speed."""
    rows = []
    for key, name, shape in _FIGURES:
        values = [run.values.get(key) for run in runs]
        if any(value is not None for value in values):
            cells = [_UNDEFINED if value is None else shape.format(value) for value in values]
            rows.append((name, cells))
    datasets = [(run.values.get("attempts") or [{}])[-1].get("dataset") for run in runs]
    if any(datasets):
        rows.append(("dataset", [_UNDEFINED if d is None else storage.name(d) for d in datasets]))
    return rows


def _splits(runs: Sequence[_Run]) -> list[dict[str, Any]]:
    """Return {name, metrics, rows} of each split; metrics are (metric, [(value, is best)])."""
    measured = [run.values.get("metrics") or {} for run in runs]
    names = dict.fromkeys(split for each in measured for split in each)
    splits = []
    for split in names:
        rows = []
        for metric in SHOWN:
            values = [each.get(split, {}).get(metric) for each in measured]
            defined = [value for value in values if value is not None]
            if defined:
                best = max(defined) if METRICS[metric].better == "higher" else min(defined)
                several = len(set(defined)) > 1
                cells = [(figures.number(value), several and value == best) for value in values]
                rows.append((metric, cells))
        counted = [each.get(split, {}).get("rows") for each in measured]
        splits.append(
            {
                "name": split,
                "metrics": rows,
                "rows": [_UNDEFINED if n is None else f"{n:,}" for n in counted],
            }
        )
    return splits


def _curves(runs: Sequence[_Run]) -> list[Any]:
    drawn = []
    training = [
        (run.title, [[one["step"], one["loss"]] for one in steps[:: max(1, len(steps) // _POINTS)]])
        for run in runs
        if (steps := [e for e in run.lines if "split" not in e and e.get("loss") is not None])
    ]
    if training:
        drawn.append(charts.lines("Training loss", training))
    for metric in SHOWN:
        series = []
        for run in runs:
            lines = [
                [line["step"], line["metrics"][metric]]
                for line in run.lines
                if line.get("split") == VALIDATION
                and (line.get("metrics") or {}).get(metric) is not None
            ]
            if lines:
                series.append((run.title, lines))
        if series:
            drawn.append(charts.lines(f"{VALIDATION} {metric}", series, marked=True))
    return drawn
