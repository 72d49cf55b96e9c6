"""The data report of a dataset version: report.json, and report.html that needs nothing else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from howdah import storage
from howdah.config.splits import SPLITS, TRAIN
from howdah.data.manifest import DatasetManifest, ShardEntry
from howdah.etl.expect import class_counts
from howdah.etl.rows import gate
from howdah.etl.workspace.staging import REPORTS
from howdah.pages import charts, personal
from howdah.pages import page as pages
from howdah.run_files import REPORT, RUNS

JSON, HTML = REPORTS
_MOST_CLASSES = 40
_BINS = 32


class Samples(Protocol):
    """Beginnings of texts: of rows by label, of rejected rows by reason."""

    samples: dict[str, list[str]]
    reject_samples: dict[str, list[str]]


def write(
    version: str,
    manifest: DatasetManifest,
    built: Samples,
    texts: personal.Shown = "masked",
    run_directory: str | None = None,
) -> None:
    """Write both files into a version directory (each whole or not at all).

    Args:
        texts: how samples are shown (report.texts).
        run_directory: the configuration's run (run.directory), whose pages are linked if they are
            there.
    """
    value = contents(manifest, built, texts)
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    storage.write_whole(storage.join(version, JSON), text.encode("utf-8", "replace"))
    html = page(value, _links(version, run_directory) if run_directory else ())
    storage.write_whole(storage.join(version, HTML), html.encode("utf-8", "replace"))


def _links(version: str, run_directory: str) -> list[pages.Link]:
    """Return the addresses of the run's report and of the list of runs, if they are there."""
    links = []
    for text, target in (
        ("Run report", storage.join(run_directory, REPORT)),
        ("All runs", storage.join(storage.parent(run_directory), RUNS)),
    ):
        address = pages.link(version, target)
        if address and storage.exists(target):
            links.append((text, address))
    return links


def contents(
    manifest: DatasetManifest, built: Samples, texts: personal.Shown = "masked"
) -> dict[str, Any]:
    """What the report says, as JSON."""
    splits = {}
    for name, shards in manifest.splits.items():
        classes = class_counts(shards)
        histogram: Counter[int] = Counter()
        for shard in shards:
            for bound, count in shard.length_histogram.items():
                histogram[int(bound)] += count
        rows = sum(shard.rows for shard in shards)
        tokens = sum(shard.tokens for shard in shards)
        splits[name] = {
            "rows": rows,
            "shards": len(shards),
            "bytes": sum(shard.bytes for shard in shards),
            "tokens": tokens,
            "mean_tokens": round(tokens / rows, 2),
            "target": _target(shards),
            "class_counts": {label: classes[n] for n, label in enumerate(manifest.labels)},
            "length_histogram": {str(bound): histogram[bound] for bound in sorted(histogram)},
        }
    quality = {k: v for k, v in manifest.quality.items() if k not in ("reject_files", "look")}
    return {
        "dataset_hash": manifest.dataset_hash,
        "created": manifest.created,
        "source": {"kind": manifest.source["kind"], "name": manifest.source["name"]},
        "tokenizer": manifest.tokenizer.model_dump(),
        "max_length": manifest.max_length,
        "image": manifest.record.image and manifest.record.image.model_dump(),
        "task": manifest.task,
        "labels": manifest.labels,
        "splits": splits,
        "look": manifest.quality.get("look", []),
        "quality": quality,
        "split_rule": manifest.split_rule,
        "cleaning": manifest.cleaning,
        "texts": texts,
        "samples": _shown(built.samples, texts),
        "reject_samples": _shown(built.reject_samples, texts),
    }


def _target(shards: list[ShardEntry]) -> dict | None:
    """Mean, deviation and bounds of a split's targets."""
    targets = [shard.target for shard in shards if shard.target is not None]
    if not targets:
        return None
    rows = sum(shard.rows for shard in shards)
    mean = sum(one.total for one in targets) / rows
    variance = sum(one.squares for one in targets) / rows - mean * mean
    return {
        "mean": round(mean, 6),
        "deviation": round(max(0.0, variance) ** 0.5, 6),
        "least": min(one.least for one in targets),
        "most": max(one.most for one in targets),
    }


def _shown(samples: dict[str, list[str]], texts: personal.Shown) -> dict[str, list[str]]:
    """Return the samples as `report.texts` lets them be seen; those without text are left out."""
    shown = {
        name: [one for text in texts_of if (one := personal.sample(text, texts)) and one.strip()]
        for name, texts_of in samples.items()
    }
    return {name: texts_of for name, texts_of in shown.items() if texts_of}


def page(value: dict[str, Any], links: Sequence[pages.Link] = ()) -> str:
    """Return the report as one HTML page."""
    splits = value["splits"]
    lengths: Counter[int] = Counter()
    for split in splits.values():
        lengths.update({int(k): n for k, n in split["length_histogram"].items()})
    rows = {name: splits[name]["rows"] for name in (*SPLITS, *splits) if name in splits}
    kept = sum(rows.values())
    cut = value["quality"].get("at_max_length") if not value["image"] else None
    return pages.render(
        __package__,
        "report.html.j2",
        links=links,
        report=value,
        quality=value["quality"],
        rows=rows,
        kept=kept,
        verdict=_verdict(value, rows),
        classes=_classes(value, rows),
        most_classes=_MOST_CLASSES,
        cut=None if cut is None else cut / max(1, kept),
        lengths=_lengths(lengths, value["max_length"]),
        drops=sorted(value["quality"]["drops"].items(), key=lambda item: -item[1]),
        reasons=gate.REASONS,
    )


def _verdict(value: dict[str, Any], rows: dict[str, int]) -> tuple[str, str]:
    """Return (state, word) of the first box: can one train on this?"""
    if not rows.get(TRAIN):
        return "bad", "Not usable: there are no training rows"
    kinds = {one["kind"] for one in value["look"]}
    if "small" in kinds:
        return "bad", "Too small to trust a figure"
    return ("unknown", "Check this before training") if kinds else ("good", "Ready for training")


def _classes(value: dict[str, Any], rows: dict[str, int]) -> list[dict[str, Any]]:
    """Return the most frequent classes, with their rows in each split."""
    if value["task"] == "regression":
        return []
    classes = [
        {"name": label, "rows": [value["splits"][name]["class_counts"][label] for name in rows]}
        for label in value["labels"]
    ]
    return sorted(classes, key=lambda one: -sum(one["rows"]))[:_MOST_CLASSES]


def _lengths(histogram: Counter[int], max_length: int) -> Any:
    """Draw the histogram of the lengths, in at most `_BINS` columns."""
    step = max(8, 8 * -(-max_length // (8 * _BINS)))
    merged: Counter[int] = Counter()
    for bound, count in histogram.items():
        merged[-(-bound // step)] += count
    bins = range(1, max(merged, default=1) + 1)
    return charts.histogram(
        "Rows by length",
        [merged[n] for n in bins],
        [0, *(n * step for n in bins)],
        x_label="tokens",
    )
