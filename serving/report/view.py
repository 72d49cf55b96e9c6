"""The variables of the report's template, from a run's figures and findings. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from howdah.config.metric_table import METRICS, SHOWN, TILES
from howdah.config.splits import TRAIN, VALIDATION
from howdah.data.clean import PAIR
from howdah.data.manifest import DatasetManifest
from howdah.pages import charts, figures
from howdah.serving.report.findings import compared
from howdah.serving.report.findings.intervals import differs
from howdah.serving.report.findings.material import Material
from howdah.serving.report.findings.verdict import FEWEST

_MOST_IN_MATRIX = 20
_MOST_CURVES = 6
_MOST_POINTS = 300
_SURE = 3.29
"""z beyond which a label's share differs; by chance, 1 of 1,000 labels is beyond it."""
_REJECTED = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)

Metrics = Mapping[str, Any]


def context(
    run: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], material: Material
) -> dict[str, Any]:
    """Return the template's variables."""
    measured: Mapping[str, Metrics] = run.get("metrics") or {}
    findings, split = material.findings, material.split
    metrics = measured.get(split) or {}
    kind = findings.kind if findings is not None and findings.split == split else {}
    return {
        "task": material.task,
        "main": _main(material, metrics, kind) if metrics else None,
        "errs": _errs(material, metrics, kind),
        "split": split,
        "splits": [{"name": name, "metrics": each} for name, each in measured.items()],
        "scalars": _scalars(measured),
        "tiles": _tiles(run, metrics, material.metric),
        "worst": [_row(row) for row in (findings.worst if findings else ())],
        "suspects": [_row(row) for row in (findings.suspects if findings else ())],
        "suspect_splits": findings.suspect_splits if findings else (),
        "slices": _slices(material),
        "slice_value": "mean absolute error" if material.task == "regression" else "right",
        "confusion": _confusion(metrics, kind),
        "pairs": _pairs(metrics, kind),
        "classes": _classes(metrics),
        "class_curves": _class_curves(metrics, kind),
        "calibration": _calibration(metrics, kind),
        "coverage": _coverage(kind),
        "numbers": _numbers(kind),
        "thresholds": kind.get("thresholds"),
        "decision": material.decision,
        "data": _data(material.manifest, split),
        "cost": _cost(run),
        "curves": curves(lines),
        "compared": material.baseline,
        "notes": material.notes,
    }


# --------------------------------------------------------------------------------- the first screen
def _main(material: Material, metrics: Metrics, kind: Mapping[str, Any]) -> dict[str, Any]:
    one = compared.judged(material, metrics, kind)
    marks = [(other.name, other.value) for other in one.against]
    marks += [(f"bound {b.name}", b.value) for b in material.bounds if b.metric == one.metric]
    drawn = one.value is not None
    return {
        **vars(one),
        "rows": int(metrics.get("rows") or 0),
        "lower": METRICS[one.metric].lower,
        "bounds": material.bounds,
        "ruler": charts.ruler(one.metric, one.value, one.interval, marks) if drawn else "",
    }


def _errs(material: Material, metrics: Metrics, kind: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return where the model errs most, as {text, at}: `at` is the section with the details."""
    errs = []
    if pairs := _pairs(metrics, kind):
        first = pairs[0]
        errs.append({
            "text": f"{first['label']} is taken for {first['predicted']} in {_rows(first['rows'])}"
            f" ({figures.percent(first['share'])} of the label's)", "at": "pair-0",
        })  # fmt: skip
    having = [row for row in _classes(metrics) if row["support"] >= FEWEST]
    if len(having) > 2 and (last := min(having, key=lambda row: row["f1"])):
        text = f"{last['name']} has the lowest F1, {last['f1']:.3f} ({_rows(last['support'])})"
        errs.append({"text": text, "at": "classes"})
    slices = material.findings.slices if material.findings is not None else ()
    for one in [each for each in slices if each.worse][:2]:
        value = (
            f"mean absolute error {figures.number(one.value)}"
            if material.task == "regression"
            else f"{figures.percent(one.value)} right"
        )
        text = f"{one.group} {one.name}: {value} in {_rows(one.rows)}, worse than elsewhere"
        errs.append({"text": text, "at": "slices"})
    if material.findings is not None and (count := len(material.findings.suspects)):
        errs.append({"text": f"{_rows(count)} may have a wrong label", "at": "suspects"})
    return errs


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _tiles(run: Mapping[str, Any], metrics: Metrics, main: str) -> list[tuple[str, str]]:
    """Return (name, value) of the figures beside the main one."""
    tiles = [
        (name, figures.number(metrics[name]))
        for name in TILES
        if name not in ("loss", main) and metrics.get(name) is not None
    ]
    if isinstance(run.get("steps"), int):
        tiles.append(("steps", figures.number(run["steps"])))
    if isinstance(run.get("train_seconds"), int | float):
        tiles.append(("training", figures.duration(run["train_seconds"])))
    if run.get("skipped_steps"):
        tiles.append(("steps skipped by fp16", f"{run['skipped_steps']:,}"))
    return tiles


def _scalars(measured: Mapping[str, Metrics]) -> list[str]:
    """List the defined metrics, in the table's order."""
    return [
        name
        for name in METRICS
        if any(metrics.get(name) is not None for metrics in measured.values())
    ]


# ------------------------------------------------------------------------------------ rows, slices
def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    text = row.get("text")
    return {**row, "text": None if text is None else text.replace(PAIR, "  ⏐  ")}


def _slices(material: Material) -> list[dict[str, Any]]:
    findings = material.findings
    if findings is None:
        return []
    ends = [one.interval[1] for one in findings.slices]
    most = max(filter(np.isfinite, ends), default=1)
    scale = 1.0 if material.task != "regression" else (most or 1.0)
    groups: dict[str, list[dict]] = {}
    for one in findings.slices:
        low, high = (min(max(end / scale, 0.0), 1.0) for end in one.interval)
        bar = {
            "left": round(100 * low, 2),
            "width": max(0.6, round(100 * (high - low), 2)),
            "at": round(100 * min(one.value / scale, 1.0), 2),
        }
        groups.setdefault(one.group, []).append({"of": one, "bar": bar})
    return [{"group": name, "rows": rows} for name, rows in groups.items()]


# ----------------------------------------------------------------------------------------- classes
def _confusion(metrics: Metrics, kind: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the matrix as rows of cells; None: too many labels, or another task."""
    matrix, labels = metrics.get("confusion_matrix"), metrics.get("labels") or []
    if matrix is None or len(labels) > _MOST_IN_MATRIX:
        return None
    pairs = {(p["label"], p["predicted"]): n for n, p in enumerate(kind.get("pairs", ()))}
    rows = []
    for label, counts in zip(labels, matrix, strict=True):
        total = sum(counts)
        cells = [
            {
                "count": count,
                "shade": round(100 * count / total) if total else 0,
                "right": label == predicted,
                "pair": pairs.get((label, predicted)),
            }
            for predicted, count in zip(labels, counts, strict=True)
        ]
        rows.append({"label": label, "cells": cells, "rows": total})
    return {"labels": labels, "rows": rows}


def _pairs(metrics: Metrics, kind: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the most frequent confusions, with examples if there are predictions."""
    per_class = metrics.get("per_class") or {}
    pairs = kind.get("pairs")
    if pairs is None:
        pairs = [
            {"label": label, "predicted": predicted, "rows": rows, "examples": []}
            for label, predicted, rows in metrics.get("confused") or []
        ][:_MOST_IN_MATRIX]
    return [
        {
            **pair,
            "examples": [_row(row) for row in pair["examples"]],
            "share": pair["rows"] / max(1, (per_class.get(pair["label"]) or {}).get("support", 1)),
        }
        for pair in pairs
    ]


def _classes(metrics: Metrics) -> list[dict[str, Any]]:
    """Return the labels, the one with the most missed and wrongly assigned rows first."""
    classes = []
    for name, row in (metrics.get("per_class") or {}).items():
        support, recall, precision = row["support"], row["recall"], row["precision"]
        hits = recall * support
        assigned = hits / precision if precision else 0.0
        classes.append(
            {**row, "name": name, "missed": round(support - hits), "extra": round(assigned - hits)}
        )
    # A precision of 0 does not tell the number of wrongly assigned rows; the matrix does.
    matrix = metrics.get("confusion_matrix")
    if matrix is not None:
        columns = np.asarray(matrix).sum(axis=0)
        for number, row in enumerate(classes):
            row["extra"] = int(columns[number] - matrix[number][number])
    return sorted(classes, key=lambda row: -(row["missed"] + row["extra"]))


def _class_curves(metrics: Metrics, kind: Mapping[str, Any]) -> list[Any]:
    """Draw precision over recall, and the ROC, of the labels with the most errors."""
    curves_of = kind.get("curves") or {}
    shown = [
        row["name"] for row in _classes(metrics) if row["support"] and curves_of.get(row["name"])
    ][:_MOST_CURVES]
    if not shown:
        return []
    unit = (0.0, 1.0)
    return [
        charts.lines("Precision and recall", [(n, curves_of[n]["pr"]) for n in shown],
                     x=charts.Axis("recall"), y_label="precision", y=unit),
        charts.lines("ROC", [(n, curves_of[n]["roc"]) for n in shown], diagonal=True,
                     x=charts.Axis("false positive rate"), y_label="recall", y=unit),
    ]  # fmt: skip


def _calibration(metrics: Metrics, kind: Mapping[str, Any]) -> dict[str, Any] | None:
    measured = kind.get("calibration")
    if measured is None and metrics.get("reliability") and metrics.get("ece") is not None:
        measured = {"before": {"bins": metrics["reliability"], "ece": metrics["ece"]}}
    if measured is None:
        return None
    series = [
        (f"{name} (ECE {measured[key]['ece']:.3f})", [
            [one["confidence"], one["accuracy"]] for one in measured[key]["bins"] if one["rows"]
        ])
        for key, name in (("before", "as it is"), ("after", "with temperature"))
        if key in measured
    ]  # fmt: skip
    svg = charts.lines(
        "Calibration", series, x=charts.Axis("confidence"), y_label="share that is right",
        y=(0.0, 1.0), marked=True, diagonal=True,
    )  # fmt: skip
    return {**measured, "svg": svg}


def _coverage(kind: Mapping[str, Any]) -> dict[str, Any] | None:
    points = kind.get("coverage")
    if not points:
        return None
    table = []
    for rejected in _REJECTED:
        best = min(points, key=lambda point: abs(point[0] - (1 - rejected)))
        if not table or best != table[-1]["point"]:
            share, accuracy, least = best
            row = {"rejected": 1 - share, "accuracy": accuracy, "least": least}
            table.append({"point": best, **row})
    low = min(point[1] for point in points)
    svg = charts.lines(
        "Accuracy of the rows that are kept", [("accuracy", [[1 - p[0], p[1]] for p in points])],
        x=charts.Axis("share rejected"), y_label="accuracy", y=(max(0.0, low - 0.02), 1.0),
    )  # fmt: skip
    return {"svg": svg, "table": table, "points": points}


def _numbers(kind: Mapping[str, Any]) -> list[Any]:
    """Draw charts of predicted numbers."""
    if "dots" not in kind:
        return []
    residuals = kind["residuals"]
    return [
        charts.dots("Predicted over target", kind["dots"], x_label="target", y_label="predicted"),
        charts.histogram("Residuals", residuals["counts"], residuals["edges"],
                         x_label="predicted less target"),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------ data and cost
def _data(manifest: DatasetManifest | None, split: str) -> dict[str, Any] | None:
    if manifest is None:
        return None
    labels: dict[str, Counter[str]] = {}
    lengths: dict[str, Counter[int]] = {}
    for name, shards in manifest.splits.items():
        labels[name], lengths[name] = Counter(), Counter()
        for shard in shards:
            for number, count in shard.class_counts.items():
                labels[name][manifest.labels[int(number)]] += count
            for bound, count in shard.length_histogram.items():
                lengths[name][int(bound)] += count
    quality = manifest.quality
    drops = {name: n for name, n in (quality.get("drops") or {}).items() if n}
    return {
        "hash": manifest.dataset_hash,
        "source": manifest.source.get("name") or manifest.source.get("kind"),
        "read": quality.get("read"),
        "kept": quality.get("kept"),
        "drops": drops,
        "cut": quality.get("at_max_length"),
        "splits": [
            {
                "name": name,
                "rows": manifest.rows(name),
                "tokens": _middle(lengths[name], 0.5),
                "long": _middle(lengths[name], 0.95),
            }
            for name in manifest.splits
        ],
        "labels": _shares(manifest, labels, split),
        "compared": split,
        "lengths": _length_chart(lengths, split),
    }


def _middle(histogram: Counter[int], share: float) -> int | None:
    """Return the bin's upper bound up to which a share of the rows lies."""
    total, seen = sum(histogram.values()), 0
    for bound in sorted(histogram):
        seen += histogram[bound]
        if seen >= share * total:
            return bound
    return None


def _shares(
    manifest: DatasetManifest, labels: Mapping[str, Counter[str]], split: str
) -> list[dict[str, Any]]:
    """Return the most frequent labels' shares in training and in the split."""
    if TRAIN not in labels or split not in labels or manifest.task == "regression":
        return []
    rows = [max(1, manifest.rows(TRAIN)), max(1, manifest.rows(split))]
    shares = []
    for name in manifest.labels:  # a label of no training row is the most striking one
        train, other = labels[TRAIN][name] / rows[0], labels[split][name] / rows[1]
        z = differs(other, other, rows[1], (train, train, rows[0]))
        shares.append({"name": name, "train": train, "other": other, "differs": abs(z) > _SURE})
    return sorted(shares, key=lambda row: (not row["differs"], -row["train"]))[:_MOST_IN_MATRIX]


def _length_chart(lengths: Mapping[str, Counter[int]], split: str) -> Any:
    series = []
    for name in (TRAIN, split):
        total = sum(lengths.get(name, {}).values())
        if total:
            series.append(
                (name, [[bound, lengths[name][bound] / total] for bound in sorted(lengths[name])])
            )
    return charts.lines("Lengths", series, x_label="tokens", y_label="share of rows", marked=True)


def _cost(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (name, value) of the resources that the run took."""
    costs: list[tuple[str, str]] = []
    hours = run.get("hours") or {}
    for key, name in (
        ("wall", "hours"), ("cpu", "CPU hours"), ("gpu", "GPU hours"),
        ("vcore", "vcore hours (YARN)"), ("gib", "GiB hours (YARN)"),
    ):  # fmt: skip
        if isinstance(hours.get(key), int | float):
            costs.append((name, f"{hours[key]:,.3f}"))
    attempts = run.get("attempts") or []
    seconds = [one["seconds"] for one in attempts if one.get("seconds") is not None]
    if seconds and "wall" not in hours:
        costs.append(("hours of all attempts", f"{sum(seconds) / 3600:,.3f}"))
    for key, name, shape in (
        ("world_size", "ranks", "{:,}"), ("train_seconds", "seconds of training", "{:,.0f}"),
        ("examples_per_second", "examples/s", "{:,.1f}"),
        ("tokens_per_second", "tokens/s", "{:,.0f}"),
    ):  # fmt: skip
        if isinstance(run.get(key), int | float):
            costs.append((name, shape.format(run[key])))
    return costs


# ----------------------------------------------------------------------------------------- training
def curves(lines: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Draw charts of the training, from metrics.jsonl."""
    steps = [line for line in lines if "split" not in line and line.get("loss") is not None]
    judged = [line for line in lines if line.get("split") == VALIDATION and "metrics" in line]
    if not steps:
        return []

    def logged(key: str) -> list[list[float]]:
        return [[line["step"], line[key]] for line in steps if line.get(key) is not None]

    def measured(key: str) -> list[list[float]]:
        points = [(line["step"], line["metrics"].get(key)) for line in judged]
        return [[step, value] for step, value in points if value is not None]

    loss = [("training", thinned(logged("loss")))]
    if measured("loss"):
        loss.append((VALIDATION, measured("loss")))
    out = [charts.lines("Loss", loss)]
    series = [(name, measured(name)) for name in SHOWN if name != "loss" and measured(name)]
    if series:
        out.append(charts.lines("Validation", series, marked=True))
    for title, key in (
        ("Learning rate", "lr"), ("Gradient norm", "grad_norm"),
        ("Examples/s", "examples_per_second"),
    ):  # fmt: skip
        if logged(key):
            out.append(charts.lines(title, [(key, thinned(logged(key)))]))
    return out


def thinned(points: list[list[float]]) -> list[list[float]]:
    """Return every n-th point and the last one."""
    step = max(1, -(-len(points) // _MOST_POINTS))
    kept = points[::step]
    return kept if not points or kept[-1] is points[-1] else [*kept, points[-1]]
