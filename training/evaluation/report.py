"""report.html of a run directory: curves, metrics, confusion, calibration, configuration.

One self-contained file: it can be mailed, and opened without a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from howdah import storage
from howdah.config.metric_table import METRICS, SHOWN
from howdah.config.splits import VALIDATION
from howdah.errors import DataError, HowdahError, NotFound
from howdah.models import baseline
from howdah.runs import hours
from training.evaluation import plots
from training.run.metrics_log import read_metrics
from training.run.run_json import FILE_NAME as RUN_FILE
from training.run.run_json import REPORT

__all__ = ["number", "read_run", "render", "template", "write"]

_TILES = tuple(name for name in SHOWN if name != "loss")
"""The loss has a curve of its own, beside the training's."""


def write(run_directory: str, check: Callable[[], None] = lambda: None) -> str:
    """Write report.html into a run directory (any storage) and return its path.

    Args:
        check: called before it is written; raises where this process must not write any more.
    Raises:
        DataError: not a run directory.
    """
    run = read_run(run_directory)
    try:
        config = storage.read_text(storage.join(run_directory, "config.yaml"))
    except NotFound:  # without config.yaml the report lacks the configuration
        config = ""
    path = storage.join(run_directory, REPORT)
    page = render(
        run, read_metrics(run_directory), config, compared=_compared(run_directory, run)
    ).encode("utf-8")
    check()
    storage.write_whole(path, page)
    return path


def read_run(run_directory: str) -> dict[str, Any]:
    """A run directory's run.json.

    Raises:
        DataError: not a run directory.
    """
    try:
        return storage.read_json(storage.join(run_directory, RUN_FILE))
    except NotFound:
        raise DataError(
            "this is no run directory",
            where=run_directory,
            expected=RUN_FILE,
            remedy="give run.directory of a run that has begun",
        ) from None


def _compared(run_directory: str, run: Mapping[str, Any]) -> list[str]:
    """Lines about the baseline, if the run directory has one.

    A file that cannot be read is no reason for a finished run to have no report: a line says so.
    """
    try:
        found = baseline.read(run_directory)
    except HowdahError as error:
        return [f"baseline: {error.what} ({error.where})"]
    if found is None:
        return []
    attempts = run.get("attempts") or [{}]
    own = attempts[-1].get("dataset")
    if own is not None and storage.name(own) != storage.name(found.dataset):
        return [f"baseline: of another dataset ({found.dataset}), not compared"]
    splits = (run.get("metrics") or {}).items()
    lines = [line for split, metrics in splits for line in found.beside(split, metrics)]
    keys = ("baseline", "by", "features", "c", "created")
    about = ", ".join(f"{key} {found.about[key]}" for key in keys if key in found.about)
    return [*lines, f"measured: {about}"]


def render(
    run: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    config: str,
    *,
    compared: Sequence[str] = (),
) -> str:
    """The page as HTML.

    Args:
        run: run.json.
        lines: metrics.jsonl: logged steps, and evaluations (those with `split`).
        config: config.yaml's text.
        compared: lines about the baseline.
    """
    from markupsafe import Markup

    return template("training.evaluation", "report.html.j2").render(
        run=run,
        status=_status(run),
        tiles=_tiles(run),
        curves=[Markup(svg) for svg in _curves(lines)],
        splits=[_split(name, found) for name, found in (run.get("metrics") or {}).items()],
        scalars=_scalars(run),
        compared=compared,
        facts=_facts(run),
        config=config,
    )


def _scalars(run: Mapping[str, Any]) -> list[str]:
    """The metrics that the run's task has, in the table's order."""
    found = (run.get("metrics") or {}).values()
    return [name for name in METRICS if any(name in metrics for metrics in found)]


def template(package: str, name: str) -> Any:
    """A page's template from a package; it may include page.css, and has the filter `number`."""
    import jinja2

    packages = dict.fromkeys((package, "training.evaluation"))
    loader = jinja2.ChoiceLoader([jinja2.PackageLoader(each, ".") for each in packages])
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    environment.filters["number"] = number
    return environment.get_template(name)


def _status(run: Mapping[str, Any]) -> str:
    """run.json's status; "finished" for a running run with metrics, which writes this page last."""
    status = str(run.get("status") or "unknown")
    return "finished" if status == "running" and run.get("metrics") else status


def number(value: Any) -> str:
    """A figure with four decimals, or a dash."""
    return "–" if value is None else f"{value:.4f}"


def _tiles(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of the figures at the top of the page."""
    tiles = []
    for split, metrics in (run.get("metrics") or {}).items():
        for name in _TILES:
            if metrics.get(name) is not None:
                tiles.append((f"{split} {name}", number(metrics[name])))
    for key, name, shape in (
        ("steps", "steps", "{:,}"),
        ("train_seconds", "seconds of training", "{:,.0f}"),
        ("examples_per_second", "examples/s", "{:,.1f}"),
        ("tokens_per_second", "tokens/s", "{:,.0f}"),
    ):
        if isinstance(run.get(key), int | float):
            tiles.append((name, shape.format(run[key])))
    return tiles


def _curves(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    steps = [line for line in lines if "split" not in line and line.get("loss") is not None]
    judged = [line for line in lines if line.get("split") == VALIDATION and "metrics" in line]
    if not steps:
        return []
    x = [line["step"] for line in steps]
    x_judged = [line["step"] for line in judged]

    def logged(key: str) -> list[float | None]:
        return [line.get(key) for line in steps]

    def measured(key: str) -> list[float | None]:
        return [line["metrics"].get(key) for line in judged]

    loss: list[plots.Series] = [("training", x, logged("loss"))]
    if judged:
        loss.append((VALIDATION, x_judged, measured("loss")))
    out = [plots.curve("Loss", loss), plots.curve("Learning rate", [("lr", x, logged("lr"))])]
    if judged:
        series = [(name, x_judged, measured(name)) for name in _TILES]
        series = [one for one in series if any(value is not None for value in one[2])]
        if series:
            out.append(plots.curve("Validation", series, points=True))
    for title, key in (("Gradient norm", "grad_norm"), ("Examples/s", "examples_per_second")):
        if any(value is not None for value in logged(key)):
            out.append(plots.curve(title, [(key, x, logged(key))]))
    return out


def _split(name: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    from markupsafe import Markup

    if metrics.get("task", "single_label") != "single_label":
        return {
            "name": name,
            "metrics": metrics,
            "confusion": "",
            "reliability": "",
            "confused": [],
        }
    labels, matrix = metrics["labels"], metrics["confusion_matrix"]
    wrong = metrics.get("confused")
    if wrong is None:  # a result of an earlier version
        wrong = [
            (labels[row], labels[column], count)
            for row, counts in enumerate(matrix)
            for column, count in enumerate(counts)
            if count and row != column
        ]
    confusion = plots.confusion_matrix(name, matrix, labels) if matrix is not None else ""
    reliability = plots.reliability_diagram(name, metrics["reliability"], metrics["ece"])
    return {
        "name": name,
        "metrics": metrics,
        "confusion": Markup(confusion),
        "reliability": Markup(reliability),
        "confused": sorted(wrong, key=lambda item: -item[2])[:10],
    }


def _facts(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) pairs that identify the run: hashes, versions, git state, attempts."""
    facts = []
    for key in (
        "run_id", "created", "finished", "dataset", "dataset_hash", "model_hash", "config_hash",
        "best_step", "stopped_early", "mlflow_run_id",
    ):  # fmt: skip
        if run.get(key) is not None:
            facts.append((key, str(run[key])))
    git = run.get("git")
    if git:
        facts.append(("git", git["commit"] + (" (changed since)" if git.get("dirty") else "")))
    facts += [(f"version of {name}", value) for name, value in (run.get("versions") or {}).items()]
    if (base := run.get("base") or {}).get("source"):
        facts.append(("base", str(base["source"])))
    if said := hours.shown(run.get("hours")):
        facts.append(("used", said))
    attempts = run.get("attempts") or []
    facts.append(("attempts", str(len(attempts))))
    facts += [(f"attempt {one.get('attempt', n)}", _attempt(one)) for n, one in enumerate(attempts)]
    return facts


def _attempt(one: Mapping[str, Any]) -> str:
    """How an attempt fared, in one line; one that was killed has no end."""
    user, host = (one.get(key) or "unknown" for key in ("user", "host"))
    ranks, seconds = one.get("world_size"), one.get("seconds")
    end = "no end on record" if seconds is None else f"{one.get('status')} after {seconds:,.0f} s"
    return f"{one.get('started')}, {user} on {host}, {ranks} ranks, {end}"
