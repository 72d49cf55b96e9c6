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
from howdah.core.activity import Progress
from howdah.errors import DataError, HowdahError, NotFound
from howdah.models.runs import hours, record
from howdah.models.runs.metrics_log import read_metrics
from howdah.models.runs.run_json import CONFIG, RunFile
from howdah.models.runs.settings import described
from howdah.pages import figures as forms
from howdah.pages import page as pages
from howdah.run_files import COMPARISON, REPORT, RUNS
from howdah.serving.report import view
from howdah.serving.report.findings import compared
from howdah.serving.report.findings.compared import Judgement
from howdah.serving.report.findings.material import Material, figures, gather


def write(
    run_directory: str,
    check: Callable[[], None] = lambda: None,
    *,
    texts: str | None = None,
    progress: Progress = lambda line: None,
) -> str:
    """Write report.html into a run directory (any storage), and a finished run's verdict into its
    run.json; return the page's path.

    The recorded verdict stays, and a line says so, if what it was based on cannot be read.

    Args:
        check: called before the page is written; raises if this process must not write any more.
        texts: masked, plain or none, in place of the run's own report.texts.
        progress: called with a line.
    Raises:
        DataError: not a run directory.
    """
    judgement = judged(run_directory)
    if judgement is not None and judgement.kept:
        progress(f"warning: {judgement.kept}")
    if judgement is not None and not _is_recorded(judgement, run_directory):
        RunFile(run_directory, check).update(verdict=judgement.recorded)
    contents = page(run_directory, texts=texts)
    check()
    path = storage.join(run_directory, REPORT)
    storage.write_whole(path, contents)
    return path


def renew(run_directory: str, progress: Progress) -> Judgement | None:
    """Judge a run as it is now, after its gate or baseline, and write its page and run.json again
    where they have another verdict. None: no evaluated split.

    Raises:
        DataError: not a run directory.
    """
    judgement = judged(run_directory)
    if judgement is not None and judgement.kept:
        progress(f"warning: {judgement.kept}")
    if judgement is not None and not _is_recorded(judgement, run_directory):
        try:
            progress(f"report renewed: {storage.absolute(write(run_directory))}")
        except HowdahError as error:  # another user's run
            progress(f"the report keeps its earlier verdict: {error.what} ({error.where})")
    return judgement


def _is_recorded(judgement: Judgement, run_directory: str) -> bool:
    """True if run.json has this verdict, or belongs to the run that is under way."""
    run = read_run(run_directory)
    return run.get("status") != "finished" or run.get("verdict") == judgement.recorded


def page(run_directory: str, *, texts: str | None = None) -> bytes:
    """Return the contents of a run's report.html.

    Args:
        texts: masked, plain or none, in place of the run's own report.texts.
    Raises:
        DataError: not a run directory.
    """
    run, config = read_run(run_directory), config_text(run_directory)
    material = gather(run_directory, run, config, texts=texts)
    lines = read_metrics(run_directory)
    return render(run, lines, config, material, run_directory).encode("utf-8", "replace")


def judged(run_directory: str) -> Judgement | None:
    """Judge a run as its report does; None: no evaluated split.

    Raises:
        DataError: not a run directory.
    """
    run, config = read_run(run_directory), config_text(run_directory)
    material = gather(run_directory, run, config, texts="none", verdict_alone=True)
    metrics = (run.get("metrics") or {}).get(material.split)
    if not metrics:
        return None
    kind = material.findings.kind if material.findings is not None else {}
    return compared.judged(material, metrics, kind)


def read_run(run_directory: str) -> dict[str, Any]:
    """Read a run directory's run.json.

    Raises:
        DataError: not a run directory, or its run.json is damaged.
    """
    try:
        return record.read(run_directory)
    except NotFound:
        raise DataError("not a run directory: it has no run.json", where=run_directory) from None


def config_text(run_directory: str) -> str:
    """Return a run's config.yaml; "" if it cannot be read: a page then lacks the configuration."""
    try:
        return storage.read_text(storage.join(run_directory, CONFIG))
    except HowdahError:
        return ""


def render(
    run: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    config: str,
    material: Material | None = None,
    run_directory: str = "",
) -> str:
    """Render the page as HTML.

    Args:
        run: run.json.
        lines: metrics.jsonl: logged steps, and evaluations (those with `split`).
        config: config.yaml's text.
        material: all other material; None: there is none.
        run_directory: where the page will lie; "": it has no links to other pages.
    """
    return pages.render(
        __package__,
        "report.html.j2",
        links=_links(run_directory, run, material) if run_directory else (),
        directory=run_directory,
        script=files(__package__).joinpath("report.js").read_text("utf-8"),
        run=run,
        status=_status(run),
        facts=_facts(run),
        config=config,
        stages=described(run.get("attempts") or ()),
        **view.context(run, lines, material or figures(run, config)),
    )


def _links(
    run_directory: str, run: Mapping[str, Any], material: Material | None
) -> list[pages.Link]:
    """Return the other pages that exist: of the data, the model, and other runs."""
    above = storage.parent(run_directory)
    targets = [
        ("Model card", storage.join(run_directory, "export", "README.md")),
        ("All runs", storage.join(above, RUNS)),
        ("Comparison", storage.join(above, COMPARISON)),
    ]
    if material is not None and material.manifest is not None:
        dataset = run.get("dataset") or (run.get("attempts") or [{}])[-1].get("dataset")
        targets.insert(0, ("Data report", storage.join(dataset, REPORT)))
    return links_to(run_directory, targets)


def links_to(directory: str, targets: Sequence[tuple[str, str]]) -> list[pages.Link]:
    """Return links from a page in a directory to those of (text, path) that exist."""
    links = []
    for text, target in targets:
        try:
            with storage.waiting_at_most(5.0):
                address = storage.exists(target) and pages.link(directory, target)
        except HowdahError:  # a link is no reason to leave a run without its report
            continue
        if address:
            links.append((text, address))
    return links


def _status(run: Mapping[str, Any]) -> str:
    """Return run.json's status; "finished" for a running run that has its metrics.

    Such a run is writing this page, as its last step.
    """
    status = str(run.get("status") or "unknown")
    return "finished" if status == "running" and run.get("metrics") else status


def _facts(run: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return (name, value) pairs that identify the run: hashes, versions, git state, attempts."""
    facts = []
    for key in (
        "run_id", "created", "finished", "dataset", "dataset_hash", "model_hash", "config_hash",
        "best_step", "stopped_early", "mlflow_run_id",
    ):  # fmt: skip
        if run.get(key) is not None:
            moment = key in ("created", "finished")
            facts.append((key, forms.moment(run[key]) if moment else str(run[key])))
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


def _attempt(one: Mapping[str, Any]) -> Any:
    """Describe an attempt in one line; a killed one has no end."""
    from markupsafe import Markup

    user, host = (one.get(key) or "unknown" for key in ("user", "host"))
    ranks, seconds = one.get("world_size"), one.get("seconds")
    end = "no end on record" if seconds is None else f"{one.get('status')} after"
    length = "" if seconds is None else f" {forms.duration(seconds)}"
    text = Markup("{}, {} on {}, {} ranks, {}{}")
    return text.format(forms.moment(one.get("started")), user, host, ranks, end, length)
