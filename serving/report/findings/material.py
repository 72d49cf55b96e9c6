"""Gathers a run's material for its report; what cannot be read becomes a note on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, get_args

from howdah import storage
from howdah.config import loader as configs
from howdah.config import yaml_text
from howdah.config.metric_table import METRICS
from howdah.config.splits import TEST
from howdah.config.tasks import TASKS, Task
from howdah.core import activity
from howdah.data.manifest import DatasetManifest, load_dataset
from howdah.errors import ConfigError, HowdahError
from howdah.models.export_info import read_info
from howdah.models.registry import Published
from howdah.models.runs import baseline
from howdah.models.runs.run_json import CONFIG
from howdah.pages.personal import Shown
from howdah.serving.registry.gate import VERDICT, VERDICT_SHAPE, better_by
from howdah.serving.report.findings.base import Rival
from howdah.serving.report.findings.look import Findings, analyze_predictions, for_verdict
from howdah.serving.report.findings.texts import Texts
from howdah.serving.report.findings.verdict import ReportVerdict, Versus, recorded

BASELINE = "the baseline"
"""Name of the baseline among `Material.against`."""
_PUBLISHED = "published v="
"""Beginning of the published version's name there."""

_WAIT_SECONDS = 5.0
"""Longest wait for an unreachable storage; the page is then written without its contents."""


@dataclass(frozen=True, kw_only=True)
class Material:
    """All facts about a run that are not in run.json and metrics.jsonl."""

    task: Task = "single_label"
    metric: str = ""
    """Main metric (evaluation.metric)."""
    split: str = TEST
    """Split whose metrics the verdict is based on."""
    findings: Findings | None = None
    manifest: DatasetManifest | None = None
    against: Sequence[Versus] = ()
    """Figures of the baseline and the published version, by the main metric on the same rows."""
    bounds: Sequence[Versus] = ()
    """Bounds of the gate."""
    baseline: Sequence[str] = ()
    """Lines about the baseline."""
    decision: Mapping[str, Any] = field(default_factory=dict)
    """Decision of the export (`howdah model threshold`)."""
    notes: Sequence[str] = ()
    recorded: ReportVerdict | None = None
    """Verdict in a finished run's run.json."""
    unread: Sequence[str] = ()
    """What `recorded` was based on and cannot be read: a verdict without it has less to say."""


def figures(run: Mapping[str, Any], config: str) -> Material:
    """Return the material in run.json and config.yaml: task, main metric and judged split."""
    keys, metrics = _keys(config), run.get("metrics") or {}
    task: Task = next((m.get("task") or "single_label" for m in metrics.values()), "single_label")
    split = _at(keys, "gate", "split") or TEST
    metric = _at(keys, "evaluation", "metric")
    return Material(
        task=task,
        metric=metric if metric in METRICS else TASKS[task].metric,
        split=split if split in metrics else next(reversed(metrics), TEST),
    )


def gather(
    run_directory: str,
    run: Mapping[str, Any],
    config: str,
    *,
    texts: str | None = None,
    verdict_alone: bool = False,
) -> Material:
    """Gather a run's material.

    Args:
        config: config.yaml's text.
        texts: masked, plain or none; None: as the configuration says.
        verdict_alone: analyse only the predictions that the verdict needs, of one split.
    """
    keys, metrics = _keys(config), run.get("metrics") or {}
    summary = figures(run, config)
    task, metric, split = summary.task, summary.metric, summary.split
    notes: list[str] = []
    unread: list[str] = []
    path = run.get("dataset") or (run.get("attempts") or [{}])[-1].get("dataset")
    manifest = _manifest(path, run, notes, unread)
    info = _info(run_directory)
    shown = texts or _at(keys, "report", "texts")
    shown = shown if shown in get_args(Shown) else "masked"
    stored_baseline, lines = _baseline(run_directory, run, keys, info, unread)
    findings = None
    rivals = _rivals(stored_baseline, metrics, manifest)
    if metrics and verdict_alone:
        findings = for_verdict(
            storage.join(run_directory, "predictions"), split, metrics[split].get("labels") or [],
            task, rivals.get(split),
        )  # fmt: skip
    elif metrics:
        labels = next(iter(metrics.values())).get("labels") or []
        export = storage.join(run_directory, "export")

        def opened() -> Texts:
            try:
                data = configs.from_dict(dict(keys)).data
            except ConfigError:  # of another version: texts are decoded
                data = None
            return Texts(path, run.get("dataset_hash"), export, data=data)

        with activity.current().doing("evaluate", "looking at the predictions", unit="batches"):
            findings = analyze_predictions(
                storage.join(run_directory, "predictions"),
                list(metrics),
                labels,
                task,
                texts=opened if manifest is not None else None,
                shown=shown,
                rivals=rivals,
                advance=lambda: activity.current().advanced(1),
            )
        if findings is None:
            notes.append("The run has no predictions, so rows and slices are missing")
        elif shown == "none":
            notes.append("Texts are left out (report.texts: none)")
    value = stored_baseline.value(split, metric) if stored_baseline is not None else None
    against = [] if value is None else [Versus(name=BASELINE, value=value)]
    if stored_baseline is not None:
        lines = _about(stored_baseline, metrics)
    against += _published(run, keys, info, split, metric, notes, unread)
    return Material(
        task=task,
        metric=metric,
        split=split,
        findings=findings,
        manifest=manifest,
        against=against,
        bounds=_bounds(run_directory, keys, metrics.get(split) or {}, summary, info, against),
        baseline=lines,
        decision=info.get("decision") or {},
        notes=[*notes, *(findings.notes if findings else ())],
        recorded=recorded(run),
        unread=unread,
    )


def _keys(config: str) -> dict[str, Any]:
    try:
        values = yaml_text.parse(config, CONFIG)
    except ConfigError:
        return {}
    return values if isinstance(values, dict) else {}


def _at(keys: Mapping[str, Any], section: str, key: str, kind: type | UnionType = str) -> Any:
    """Return a key's value; None if it has another type, since a user may have edited the file."""
    values = keys.get(section)
    value = values.get(key) if isinstance(values, dict) else None
    return value if isinstance(value, kind) else None


def _manifest(
    path: str | None, run: Mapping[str, Any], notes: list[str], unread: list[str]
) -> DatasetManifest | None:
    if path is None:
        return None
    try:
        with storage.waiting_at_most(_WAIT_SECONDS):
            dataset = load_dataset(path)
    except HowdahError as error:
        notes.append(f"The dataset cannot be read, so texts are missing: {error.what} ({path})")
        unread.append(f"the dataset ({storage.absolute(path)}: {error.what})")
        return None
    if run.get("dataset_hash") not in (None, dataset.manifest_hash):
        notes.append(f"The dataset has changed since, so texts are missing ({path})")
        unread.append(f"the dataset ({storage.absolute(path)} has changed since)")
        return None
    return dataset.manifest


def _info(run_directory: str) -> dict[str, Any]:
    """Read howdah.json of the run's export; {} if it cannot be read."""
    try:
        return read_info(storage.join(run_directory, "export"))
    except HowdahError:
        return {}


def _baseline(
    run_directory: str,
    run: Mapping[str, Any],
    keys: Mapping[str, Any],
    info: Mapping[str, Any],
    unread: list[str],
) -> tuple[baseline.Baseline | None, list[str]]:
    """Return the baseline of the run's dataset, or lines about why there is none.

    An unreadable file becomes a line, since a finished run must have a report all the same.
    """
    dataset = info.get("dataset") or {}
    try:
        config = configs.from_dict(dict(keys))
    except ConfigError:  # of another version: only the baseline in the run's directory is found
        config = None
    try:
        with storage.waiting_at_most(_WAIT_SECONDS):
            stored = baseline.find(run_directory, dataset.get("path"), dataset.get("hash"), config)
    except HowdahError as error:
        unread.append(f"{BASELINE} ({error.where}: {error.what})")
        return None, [f"baseline: {error.what} ({error.where})"]
    if stored is None and _was_compared(run, BASELINE):
        beside = storage.parent(storage.absolute(dataset.get("path") or run_directory))
        unread.append(f"{BASELINE} (neither in {run_directory} nor below {beside})")
    attempts = run.get("attempts") or [{}]
    path = attempts[-1].get("dataset")
    if stored is not None and path and storage.name(path) != storage.name(stored.dataset):
        return None, [f"baseline: of another dataset ({stored.dataset}), so not compared"]
    return stored, []


def _about(stored: baseline.Baseline, metrics: Mapping[str, Any]) -> list[str]:
    """Describe the baseline in lines: its figures beside the run's, how it was measured."""
    lines = [line for of, each in metrics.items() for line in stored.beside(of, each)]
    keys = ("baseline", "by", "features", "c", "created")
    about = ", ".join(f"{key} {stored.about[key]}" for key in keys if key in stored.about)
    return [*lines, f"measured: {about}"]


def _rivals(
    stored: baseline.Baseline | None, metrics: Mapping[str, Any], manifest: DatasetManifest | None
) -> dict[str, Rival]:
    """Return the baseline's stored predictions of the evaluated splits."""
    if stored is None or manifest is None:
        return {}
    rivals = {}
    for split in metrics:
        try:
            predicted = stored.predicted(split)
        except HowdahError:  # only its figure is compared then
            continue
        rows = [entry.rows for entry in manifest.splits.get(split, [])]
        if (rival := Rival.of(predicted, rows)) is not None:
            rivals[split] = rival
    return rivals


def _was_compared(run: Mapping[str, Any], name: str) -> bool:
    """Return whether the recorded verdict names a figure; run.json has only its sentence."""
    verdict = recorded(run)
    return verdict is not None and not verdict.is_of_gate and name in verdict.sentence


def _published(
    run: Mapping[str, Any],
    keys: Mapping[str, Any],
    info: Mapping[str, Any],
    split: str,
    metric: str,
    notes: list[str],
    unread: list[str],
) -> list[Versus]:
    """Return the current published version's figure, if it was measured on the same dataset."""
    name = _at(keys, "publish", "name") or _at(keys, "run", "name")
    directory = _at(keys, "publish", "directory")
    if not (name and directory):
        return []
    root = storage.join(directory, name)
    try:
        with storage.waiting_at_most(_WAIT_SECONDS):
            now = Published(root).current()
    except HowdahError as error:
        notes.append(f"The published model is not compared: {error.what} ({error.where})")
        unread.append(f"the published model ({storage.absolute(root)}: {error.what})")
        return []
    if now is None:
        if _was_compared(run, _PUBLISHED):
            unread.append(f"the published model ({storage.absolute(root)} has none)")
        return []
    title = f"{_PUBLISHED}{now['version']}"
    if now.get("run_id") == info.get("run_id"):
        notes.append(f"This run's model is {title}")
        return []
    theirs, ours = now.get("dataset") or {}, info.get("dataset") or {}
    if theirs.get("hash") != ours.get("hash"):
        notes.append(f"{title} was measured on another dataset, so it is not compared")
        return []
    value = ((now.get("metrics") or {}).get(split) or {}).get(metric)
    return [] if value is None else [Versus(name=title, value=value)]


def _bounds(
    run_directory: str,
    keys: Mapping[str, Any],
    metrics: Mapping[str, Any],
    summary: Material,
    info: Mapping[str, Any],
    against: Sequence[Versus],
) -> list[Versus]:
    """Return the gate's bounds: of its verdict on this run, else of the configuration."""
    try:
        verdict = storage.read_object(storage.join(run_directory, VERDICT), VERDICT_SHAPE)
    except HowdahError:
        verdict = {}
    same = (verdict.get("run_id"), verdict.get("step")) == (info.get("run_id"), info.get("step"))
    if same and verdict.get("split") == summary.split and verdict.get("checks"):
        return [
            Versus(
                name=str(one["against"]), value=one["bound"], metric=one["metric"],
                got=one.get("got"),
            )
            for one in verdict["checks"]
        ]  # fmt: skip
    bounds = [
        Versus(name="gate.minimum", value=bound, metric=name, got=metrics.get(name))
        for name, bound in (_at(keys, "gate", "minimum", dict) or {}).items()
        if name in METRICS and metrics and isinstance(bound, int | float)
    ]
    got = metrics.get(summary.metric)
    for one in against:
        if one.name == BASELINE:
            key, margin = "min_over_baseline", _at(keys, "gate", "min_over_baseline", int | float)
        else:
            key, margin = "margin", _at(keys, "gate", "margin", int | float) or 0.0
            margin = margin if _at(keys, "gate", "better_than_published", bool) else None
        if margin is not None:
            check = better_by(margin, f"gate.{key}", summary.metric, got, one.name, one.value)
            bounds.append(
                Versus(name=check.against, value=check.bound, metric=check.metric, got=got)
            )
    return bounds
