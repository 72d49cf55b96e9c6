"""A page with several runs side by side: figures, curves, differences of configurations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from howdah.run_files import REPORT, RUNS
from howdah.serving.report import paired, report, view
from howdah.serving.report.findings.material import figures as figures_of

MOST = 12
"""Largest number of runs on a page: the colours of more curves could not be distinguished."""

_FIGURES = (
    ("status", "status", str),
    ("framework", "framework", str),
    ("world_size", "ranks", str),
    ("steps", "steps", figures.number),
    ("best_step", "step of the best weights", figures.number),
    ("train_seconds", "training", figures.duration),
    ("examples_per_second", "rows a second", "{:,.1f}".format),
    ("tokens_per_second", "tokens a second", "{:,.0f}".format),
)
_OWN_PAGE = re.compile(rb"\s*<!DOCTYPE html>.{0,1000}?<title>\d+ runs compared</title>", re.DOTALL)
"""Matches the beginning of a page that `compare` has written, by comparison.html.j2."""


@dataclass(frozen=True)
class _Run:
    title: str
    """Name, after a number where two runs have the same name."""
    directory: str
    values: Mapping[str, Any]
    """run.json."""
    config: Mapping[str, Any]
    """{key: value} of config.yaml, with keys such as `data.source`."""
    text: str
    """config.yaml."""
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
    above = storage.parent(output)
    runs = [_read(directory) for directory in directories]
    if len({run.title for run in runs}) < len(runs):
        runs = [replace(run, title=f"{n} {run.title}") for n, run in enumerate(runs, 1)]
    differing = _differing(runs)
    datasets = {run.dataset for run in runs}
    tested = _tested(runs) if len(datasets) == 1 else None
    targets = [(run.title, storage.join(run.directory, REPORT)) for run in runs]
    page = pages.render(
        __package__,
        "comparison.html.j2",
        links=report.links_to(above, [("All runs", storage.join(above, RUNS))]),
        runs=runs,
        reports=dict(report.links_to(above, targets)),
        one_dataset=len(datasets) == 1,
        tested=tested,
        verdict=_verdict(len(datasets) == 1, tested),
        figures=_figures(runs),
        splits=_splits(runs, tested),
        curves=_curves(runs),
        differing={
            key: [figures.DASH if value is None else str(value) for value in row]
            for key, row in sorted(differing.items(), key=lambda item: _place(item[0]))
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


def _place(key: str) -> tuple[int, str]:
    """Return a key's place in the table: what is learnt first, names and directories last."""
    section = key.partition(".")[0]
    return ({"training": 0, "model": 1, "data": 2, "run": 9}.get(section, 5), key)


def _tested(runs: Sequence[_Run]) -> dict[str, Any] | None:
    """Compare the run that is best by the main metric with each other one.

    Returns:
        {metric, split, lower, state, word, best, rows: [{title, value, difference, interval,
        rows, real}]}; None: fewer than two runs have the metric.
    """
    figure = figures_of(runs[0].values, runs[0].text)
    name, split = figure.metric, figure.split
    metrics = [((run.values.get("metrics") or {}).get(split) or {}) for run in runs]
    values = [each.get(name) for each in metrics]
    scored = [n for n, value in enumerate(values) if value is not None]
    if len(scored) < 2:
        return None
    best = max(scored, key=lambda n: METRICS[name].score(values[n]))
    labels = metrics[best].get("labels") or []
    question = paired.Question(
        metric=name, split=split, task=figure.task, labels=labels,
        rows=int(metrics[best].get("rows") or 0),
    )  # fmt: skip
    ours, rows = paired.read(runs[best].directory, question), []
    for number in [best, *(n for n in scored if n != best)]:
        row: dict[str, Any] = {
            "title": runs[number].title, "value": values[number], "interval": None, "real": None,
            "difference": values[number] - values[best], "rows": None,
        }  # fmt: skip
        if number != best and ours is not None and metrics[number].get("labels") == labels:
            theirs = paired.read(runs[number].directory, question)
            if theirs and (measured := paired.difference(theirs, ours, question)):
                row["interval"], row["rows"] = measured
                row["real"] = not row["interval"][0] <= 0.0 <= row["interval"][1]
        rows.append(row)
    return {
        "metric": name, "split": split, "lower": METRICS[name].lower, "rows": rows,
        "best": runs[best].title, **_summary(rows, name, split),
    }  # fmt: skip


def _summary(rows: Sequence[Mapping[str, Any]], name: str, split: str) -> dict[str, str]:
    """Return {state, word, sentence} about the best run (the first row) and the others."""
    best, others = rows[0], rows[1:]
    tested = [row for row in others if row["real"] is not None]
    if not tested:
        return {
            "state": "unknown",
            "word": "Not tested",
            "sentence": f"{best['title']} has the best {name}. Whether that is more than chance is"
            f" not known: the runs have no predictions of the same rows of {split}.",
        }
    real = [row for row in tested if row["real"]]
    if len(others) == 1:
        low, high = sorted(abs(end) for end in tested[0]["interval"]) if real else (0.0, 0.0)
        more = f" (95 %: {low:.4f} to {high:.4f})" if real else ""
        sentence = (
            f"{best['title']} is better by {abs(tested[0]['difference']):.4f} {name}{more} on"
            f" {tested[0]['rows']:,} rows of {split}: "
        )
        sentence += "more than chance would explain." if real else "chance alone can explain that."
    else:
        sentence = (
            f"{best['title']} has the best {name}. It is better than {len(real)} of {len(others)}"
            f" other runs beyond what chance explains, on the same rows of {split}."
        )
    word = "A real difference" if real else "No real difference"
    return {"state": "good" if real else "unknown", "word": word, "sentence": sentence}


def _verdict(one_dataset: bool, tested: Mapping[str, Any] | None) -> tuple[str, str, str]:
    """Return (state, word, sentence) of the first box."""
    if not one_dataset:
        return (
            "bad",
            "Not comparable",
            "These runs were measured on different datasets, so their figures are not comparable.",
        )
    if tested is None:
        return "unknown", "Not evaluated", "Fewer than two runs have a final evaluation (yet)."
    return tested["state"], tested["word"], tested["sentence"]


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


def _read(directory: str) -> _Run:
    values = report.read_run(directory)
    path = storage.join(directory, CONFIG)
    try:
        text = storage.read_text(path)
        config = yaml_text.parse(text, path)
    except NotFound:
        config, text = {}, ""
    except ConfigError as error:
        raise DataError(
            "the run's configuration cannot be read", where=error.where, got=error.got
        ) from None
    title = values.get("name") or storage.name(directory)
    return _Run(title, directory, values, _leaves(config), text, read_metrics(directory))


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
            cells = [figures.DASH if value is None else shape(value) for value in values]
            rows.append((name, cells))
    datasets = [(run.values.get("attempts") or [{}])[-1].get("dataset") for run in runs]
    if any(datasets):
        names = [figures.DASH if path is None else storage.name(path) for path in datasets]
        rows.append(("dataset", names))
    return rows


def _splits(runs: Sequence[_Run], tested: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return {name, metrics, rows} of each split; metrics are (metric, [(value, is best)]).

    Args:
        tested: the tested metric, whose best value is marked if the difference is real; where
            nothing was tested, the best value of each metric is.
    """
    certain = tested is None or all(row["real"] is None for row in tested["rows"])
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
                marked = certain or (tested["state"] == "good" and metric == tested["metric"])
                several = marked and len(set(defined)) > 1
                cells = [(figures.number(value), several and value == best) for value in values]
                rows.append((metric, cells))
        counted = [each.get(split, {}).get("rows") for each in measured]
        splits.append(
            {
                "name": split,
                "metrics": rows,
                "rows": [figures.number(count) for count in counted],
            }
        )
    return splits


def _curves(runs: Sequence[_Run]) -> list[Any]:
    drawn = []
    training = [
        (run.title, view.thinned([[one["step"], one["loss"]] for one in steps]))
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
            drawn.append(charts.lines(f"{VALIDATION.capitalize()} {metric}", series, marked=True))
    return drawn
