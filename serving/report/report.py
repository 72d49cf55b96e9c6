"""report.html of a run directory: first whether the model is good, then why, then its training.

One self-contained file: it can be mailed, and opened without a network, with or without scripts.
It is made from the run's files (run.json, metrics.jsonl, predictions, export, dataset, baseline,
the gate's verdict), so that `howdah report` can make it again anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from howdah import storage
from howdah.errors import DataError, NotFound
from howdah.models.runs import hours, record
from howdah.models.runs.metrics_log import read_metrics
from howdah.models.runs.run_json import CONFIG
from howdah.models.runs.settings import described
from howdah.pages import page as pages
from howdah.run_files import REPORT
from howdah.serving.report import view
from howdah.serving.report.findings import compared
from howdah.serving.report.findings.material import Material, figures, gather
from howdah.serving.report.findings.verdict import Verdict


def write(
    run_directory: str, check: Callable[[], None] = lambda: None, *, texts: str | None = None
) -> str:
    """Write report.html into a run directory (any storage) and return its path.

    Args:
        check: called before the page is written; raises if this process must not write any more.
        texts: none or worst, in place of the run's own report.texts.
    Raises:
        DataError: not a run directory.
    """
    contents = page(run_directory, texts=texts)
    check()
    path = storage.join(run_directory, REPORT)
    storage.write_whole(path, contents)
    return path


def page(run_directory: str, *, texts: str | None = None) -> bytes:
    """Return the contents of a run's report.html.

    Args:
        texts: none or worst, in place of the run's own report.texts.
    Raises:
        DataError: not a run directory.
    """
    run = read_run(run_directory)
    try:
        config = storage.read_text(storage.join(run_directory, CONFIG))
    except NotFound:  # without config.yaml the report lacks the configuration
        config = ""
    material = gather(run_directory, run, config, texts=texts)
    return render(run, read_metrics(run_directory), config, material).encode("utf-8", "replace")


def judged(run_directory: str) -> tuple[Verdict, Sequence[str]] | None:
    """Return (a report's verdict, lines about the baseline) of a run; None: no evaluated split.

    Raises:
        DataError: not a run directory.
    """
    run = read_run(run_directory)
    try:
        config = storage.read_text(storage.join(run_directory, CONFIG))
    except NotFound:
        config = ""
    material = gather(run_directory, run, config, texts="none", verdict_alone=True)
    metrics = (run.get("metrics") or {}).get(material.split)
    if not metrics:
        return None
    kind = material.findings.kind if material.findings is not None else {}
    return compared.judged(material, metrics, kind)[0], material.baseline


def read_run(run_directory: str) -> dict[str, Any]:
    """Read a run directory's run.json.

    Raises:
        DataError: not a run directory, or its run.json is damaged.
    """
    try:
        return record.read(run_directory)
    except NotFound:
        raise DataError("not a run directory: it has no run.json", where=run_directory) from None


def render(
    run: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    config: str,
    material: Material | None = None,
) -> str:
    """Render the page as HTML.

    Args:
        run: run.json.
        lines: metrics.jsonl: logged steps, and evaluations (those with `split`).
        config: config.yaml's text.
        material: all other material; None: there is none.
    """
    return pages.render(
        __package__,
        "report.html.j2",
        script=files(__package__).joinpath("report.js").read_text("utf-8"),
        run=run,
        status=_status(run),
        facts=_facts(run),
        config=config,
        stages=described(run.get("attempts") or ()),
        **view.context(run, lines, material or figures(run, config)),
    )


def _status(run: Mapping[str, Any]) -> str:
    """Return run.json's status; "finished" for a running run that has its metrics.

    Such a run is writing this page, as its last step.
    """
    status = str(run.get("status") or "unknown")
    return "finished" if status == "running" and run.get("metrics") else status


def _facts(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (name, value) pairs that identify the run: hashes, versions, git state, attempts."""
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
    if used := hours.shown(run.get("hours")):
        facts.append(("used", used))
    attempts = run.get("attempts") or []
    facts.append(("attempts", str(len(attempts))))
    facts += [(f"attempt {one.get('attempt', n)}", _attempt(one)) for n, one in enumerate(attempts)]
    return facts


def _attempt(one: Mapping[str, Any]) -> str:
    """Describe an attempt in one line; a killed one has no end."""
    user, host = (one.get(key) or "unknown" for key in ("user", "host"))
    ranks, seconds = one.get("world_size"), one.get("seconds")
    end = "no end on record" if seconds is None else f"{one.get('status')} after {seconds:,.0f} s"
    return f"{one.get('started')}, {user} on {host}, {ranks} ranks, {end}"
