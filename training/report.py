"""report.html of a run directory: curves, metrics, confusion, calibration, configuration.

One file without anything from outside: it can be mailed, or opened where there is no network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howdah import storage
from howdah.errors import DataError, NotFound
from training import plots
from training.metrics import SCALARS
from training.metricslog import read_metrics
from training.runfile import FILE_NAME as RUN_FILE

__all__ = ["render", "write"]

REPORT = "report.html"


def write(run_directory: str) -> str:
    """Write report.html into a run directory (any storage) and return its path.

    Raises:
        DataError: it is no run directory.
    """
    try:
        run = storage.read_json(storage.join(run_directory, RUN_FILE))
    except NotFound:
        raise DataError(
            "this is no run directory",
            where=run_directory,
            expected=RUN_FILE,
            remedy="give run.directory of a run that has begun",
        ) from None
    try:
        config = storage.read_text(storage.join(run_directory, "config.yaml"))
    except NotFound:  # a report without its configuration is better than none
        config = ""
    path = storage.join(run_directory, REPORT)
    storage.write_whole(path, render(run, read_metrics(run_directory), config).encode("utf-8"))
    return path


def render(run: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], config: str) -> str:
    """The page.

    Args:
        run: run.json.
        lines: metrics.jsonl: logged steps, and evaluations (those with `split`).
        config: config.yaml's text.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("training", "."), autoescape=True, trim_blocks=True
    )
    environment.filters["number"] = _number
    return environment.get_template("report.html.j2").render(
        run=run,
        status=_status(run),
        tiles=_tiles(run),
        curves=[Markup(svg) for svg in _curves(lines)],
        splits=[_split(name, found) for name, found in (run.get("metrics") or {}).items()],
        scalars=SCALARS,
        facts=_facts(run),
        config=config,
    )


def _status(run: Mapping[str, Any]) -> str:
    """The page is written as the last thing of a run, before its status says so."""
    status = str(run.get("status") or "unknown")
    return "finished" if status == "running" and run.get("metrics") else status


def _number(value: Any) -> str:
    return "–" if value is None else f"{value:.4f}"


def _tiles(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures that one looks for first."""
    tiles = []
    for split, metrics in (run.get("metrics") or {}).items():
        for name in ("accuracy", "macro_f1"):
            if metrics.get(name) is not None:
                tiles.append((f"{split} {name}", _number(metrics[name])))
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
    judged = [line for line in lines if line.get("split") == "validation" and "metrics" in line]
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
        loss.append(("validation", x_judged, measured("loss")))
    out = [plots.curve("Loss", loss), plots.curve("Learning rate", [("lr", x, logged("lr"))])]
    if judged:
        shown = ("accuracy", "macro_f1")
        series = [(name, x_judged, measured(name)) for name in shown]
        out.append(plots.curve("Validation", series, points=True))
    for title, key in (("Gradient norm", "grad_norm"), ("Examples/s", "examples_per_second")):
        if any(value is not None for value in logged(key)):
            out.append(plots.curve(title, [(key, x, logged(key))]))
    return out


def _split(name: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    from markupsafe import Markup

    labels, matrix = metrics["labels"], metrics["confusion_matrix"]
    wrong = [
        (labels[row], labels[column], count)
        for row, counts in enumerate(matrix)
        for column, count in enumerate(counts)
        if count and row != column
    ]
    confusion = plots.confusion_matrix(name, matrix, labels)
    reliability = plots.reliability_diagram(name, metrics["reliability"], metrics["ece"])
    return {
        "name": name,
        "metrics": metrics,
        "confusion": Markup(confusion),
        "reliability": Markup(reliability),
        "confused": sorted(wrong, key=lambda item: -item[2])[:10],
    }


def _facts(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What identifies the run, flat: hashes, versions, git state, attempts."""
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
    facts.append(("attempts", str(len(run.get("attempts") or []))))
    return facts
