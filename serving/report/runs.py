"""The list of runs below a directory, and its page: what each run is, how good, how long it took.

A run whose run.json cannot be read has a row that says so. The verdict is the one on the run's
page, since it takes the predictions to judge again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from howdah import storage
from howdah.config.metric_table import METRICS
from howdah.core.terminal import as_table
from howdah.errors import HowdahError, NotFound, UsageError
from howdah.models.runs import record
from howdah.pages import figures
from howdah.pages import page as pages
from howdah.run_files import COMPARISON, REPORT, RUN_JSON, RUNS
from howdah.serving.report.findings.material import figures as figures_of
from howdah.serving.report.report import config_text, links_to

COLUMNS = (
    "run", "started", "state", "metric", "verdict", "dataset", "framework", "ranks", "steps",
    "minutes",
)  # fmt: skip
_DEPTH = 4
_MOST_DIRECTORIES = 5_000
_INSIDE_A_RUN = {"attempts", "checkpoints", "export", "logs", "predictions", "ranks", "tensorboard"}
_MOST_SETTINGS = 6
_HEAD_BYTES = 4096
_VERDICT = re.compile(rb'<meta name="howdah-verdict" content="([^"]{0,40})">')


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A row of the list; None: not known."""

    directory: str
    run: str
    """Directory relative to the listed one."""
    state: str
    started: str | None = None
    """ISO 8601."""
    metric: str | None = None
    """Name of the main metric."""
    split: str | None = None
    value: float | None = None
    verdict: str | None = None
    dataset: str | None = None
    framework: str | None = None
    ranks: int | None = None
    steps: int | None = None
    minutes: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the last attempt that training depends on."""
    report: str | None = None
    """Path of the page."""


def listed(
    directory: str,
    state_of: Callable[[str], str],
    sort: str = "started",
    *,
    say: Callable[[str], None],
) -> list[RunRow]:
    """Return the runs below a directory.

    Args:
        state_of: tells whether a run whose run.json says that it is running still is.
        sort: one of COLUMNS: numbers, times and metrics the largest or best first, texts by name;
            rows without a value are last.
        say: takes a line if there are too many directories to search them all.
    Raises:
        NotFound: there is no such directory.
        UsageError: there is no such column.
    """
    if sort not in COLUMNS:
        expected = ", ".join(COLUMNS)
        raise UsageError("unknown column", where="--sort", expected=expected, got=sort)
    if not storage.is_dir(directory):
        raise NotFound("there is no such directory", where=directory)
    runs = [_read(directory, path, state_of) for path in _directories(directory, say)]
    runs.sort(key=lambda run: run.run)
    with_value = [run for run in runs if _key(run, sort) is not None]
    texts = sort in ("run", "state", "verdict", "dataset", "framework")
    with_value.sort(key=lambda run: _key(run, sort), reverse=not texts)
    return with_value + [run for run in runs if _key(run, sort) is None]


def _key(run: RunRow, column: str) -> Any:
    if column == "metric":
        if run.metric is None or run.value is None:
            return None
        return run.metric, METRICS[run.metric].score(run.value)
    return getattr(run, column)


def _directories(top: str, say: Callable[[str], None]) -> Iterator[str]:
    """Yield the directories of runs at or below a directory, without those inside a dataset."""
    level, seen = [top], 0
    for _ in range(_DEPTH + 1):
        below: list[str] = []
        for directory in level:
            seen += 1
            if seen > _MOST_DIRECTORIES:
                say(
                    f"searched only the first {_MOST_DIRECTORIES:,} directories below {top}: give a"
                    " directory further down to see the rest"
                )
                return
            try:
                entries = storage.list_dir(directory)
            except HowdahError:  # another user's
                continue
            names = {entry.name for entry in entries}
            if RUN_JSON in names:
                yield directory
            if "manifest.json" in names:
                continue
            below += [
                entry.path
                for entry in entries
                if entry.is_dir and entry.name not in _INSIDE_A_RUN and entry.name[0] != "."
            ]
        level = below


def _read(top: str, directory: str, state_of: Callable[[str], str]) -> RunRow:
    name = storage.name(directory)
    if directory != top:
        name = directory.removeprefix(top).strip("/") or name
    try:
        values = record.read(directory)
    except HowdahError as error:
        return RunRow(directory=directory, run=name, state=f"unreadable: {error.what}")
    status = str(values.get("status") or "unknown")
    attempts = values.get("attempts") or [{}]
    settings = attempts[-1].get("settings")
    figure = figures_of(values, config_text(directory))
    value = ((values.get("metrics") or {}).get(figure.split) or {}).get(figure.metric)
    dataset = values.get("dataset") or attempts[-1].get("dataset")
    report = storage.join(directory, REPORT)
    head = _head(report)
    verdict = _VERDICT.search(head or b"")
    return RunRow(
        directory=directory,
        run=name,
        state=state_of(directory).lower() if status == "running" else status,
        started=values.get("created") or attempts[0].get("started"),
        metric=figure.metric if value is not None else None,
        split=figure.split if value is not None else None,
        value=value,
        verdict=verdict[1].decode() if verdict else None,
        dataset=storage.name(dataset) if dataset else None,
        framework=values.get("framework"),
        ranks=values.get("world_size"),
        steps=values.get("steps"),
        minutes=_minutes(values),
        settings=settings if isinstance(settings, dict) else {},  # another program's run.json
        report=report if head is not None else None,
    )


def _head(path: str) -> bytes | None:
    """Return the beginning of a page; None: there is none."""
    try:
        with storage.open_read(path) as file:
            return file.read(_HEAD_BYTES)
    except HowdahError:
        return None


def _minutes(values: Mapping[str, Any]) -> float | None:
    """Return the minutes of all attempts that have ended."""
    wall = (values.get("hours") or {}).get("wall")
    if isinstance(wall, int | float):
        return round(60 * wall, 1)
    seconds = [one.get("seconds") for one in values.get("attempts") or ()]
    ended = [one for one in seconds if one is not None]
    return round(sum(ended) / 60, 1) if ended else None


def as_dict(run: RunRow) -> dict[str, Any]:
    """Return a row as plain JSON."""
    return asdict(run)


def lines(runs: Sequence[RunRow]) -> list[str]:
    """Return the list as a table of text."""
    return as_table([COLUMNS, *(_cells(run) for run in runs)])


def _cells(run: RunRow) -> list[str]:
    started = (run.started or figures.DASH)[:16].replace("T", " ")
    metric = figures.DASH if run.value is None else f"{figures.number(run.value)} {run.metric}"
    return [
        run.run, started, run.state, metric, run.verdict or figures.DASH,
        run.dataset or figures.DASH, run.framework or figures.DASH, figures.number(run.ranks),
        figures.number(run.steps), figures.DASH if run.minutes is None else f"{run.minutes:,.1f}",
    ]  # fmt: skip


def write(directory: str, runs: Sequence[RunRow]) -> str:
    """Write the page into the listed directory and return its path."""
    path = storage.join(directory, RUNS)
    storage.write_whole(path, page(directory, runs).encode("utf-8", "replace"))
    return path


def page(directory: str, runs: Sequence[RunRow]) -> str:
    """Render the page."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    differing = [
        name
        for name in names
        if len({str(run.settings.get(name)) for run in runs if run.settings}) > 1
    ]
    best = {
        (run.metric, run.dataset): run
        for run in sorted(runs, key=lambda run: _key(run, "metric") or ("", 0.0))
        if run.value is not None
    }
    return pages.render(
        __package__,
        "runs.html.j2",
        links=links_to(directory, [("Comparison", storage.join(directory, COMPARISON))]),
        directory=directory,
        runs=runs,
        columns=COLUMNS,
        addresses={r.directory: pages.link(directory, r.report) for r in runs if r.report},
        settings=differing[:_MOST_SETTINGS],
        best=list(best.values()),
        score=lambda run: METRICS[run.metric].score(run.value),
    )
