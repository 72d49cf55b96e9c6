"""The data report of a dataset version: report.json, and report.html that needs nothing else."""

from __future__ import annotations

import json
from collections import Counter
from importlib.resources import files
from typing import Protocol

from howdah import storage
from howdah.data.manifest import DatasetManifest, ShardEntry

JSON = "report.json"
HTML = "report.html"
FILES = (JSON, HTML)
_MOST_CLASSES = 40


class Samples(Protocol):
    """Beginnings of texts: of rows by label, of rejected rows by reason."""

    samples: dict[str, list[str]]
    reject_samples: dict[str, list[str]]


def write(version: str, manifest: DatasetManifest, built: Samples) -> None:
    """Write both files into a version directory (each whole or not at all)."""
    value = contents(manifest, built)
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    storage.write_whole(storage.join(version, JSON), text.encode("utf-8", "replace"))
    storage.write_whole(storage.join(version, HTML), page(value).encode("utf-8", "replace"))


def contents(manifest: DatasetManifest, built: Samples) -> dict:
    """What the report says, as JSON."""
    splits = {}
    for name, shards in manifest.splits.items():
        classes: Counter[str] = Counter()
        histogram: Counter[int] = Counter()
        for shard in shards:
            for number, count in shard.class_counts.items():
                classes[manifest.labels[int(number)]] += count
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
            "class_counts": {label: classes[label] for label in manifest.labels},
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
        "samples": built.samples,
        "reject_samples": built.reject_samples,
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


def page(value: dict) -> str:
    """The report as one HTML page: no script, no network, every text escaped."""
    from jinja2 import Environment

    template = files(__package__).joinpath("report.html.j2").read_text("utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["thousands"] = lambda number: f"{number:,}"
    splits = value["splits"]
    totals = {
        label: sum(split["class_counts"][label] for split in splits.values())
        for label in value["labels"]
    }
    shown = sorted(totals, key=lambda label: -totals[label])[:_MOST_CLASSES]
    lengths: Counter[int] = Counter()
    for split in splits.values():
        lengths.update({int(k): n for k, n in split["length_histogram"].items()})
    return environment.from_string(template).render(
        report=value,
        classes=[(label, totals[label]) for label in shown],
        classes_left_out=len(totals) - len(shown),
        class_bars=_bars([(label, totals[label]) for label in shown]),
        drop_bars=_bars(list(value["quality"]["drops"].items())),
        columns=_columns(lengths, value["max_length"]),
    )


def _bars(items: list[tuple[str, int]]) -> list[dict]:
    """Horizontal bars: name, count, width in percent of the largest."""
    most = max((count for _, count in items), default=1) or 1
    return [
        {"name": name, "count": count, "width": round(100 * count / most, 2)}
        for name, count in items
    ]


def _columns(histogram: Counter[int], max_length: int, bins: int = 32) -> dict:
    """A histogram as SVG columns in a box of 640 x 160: {bars: [...], step: tokens a column}."""
    step = max(8, 8 * -(-max_length // (8 * bins)))
    merged: Counter[int] = Counter()
    for bound, count in histogram.items():
        merged[-(-bound // step)] += count
    last = max(merged, default=1)
    most = max(merged.values(), default=1)
    width = 640 / last
    bars = [
        {
            "x": round((n - 1) * width, 2),
            "y": round(160 * (1 - merged[n] / most), 2),
            "width": round(width * 0.9, 2),
            "height": round(160 * merged[n] / most, 2),
            "title": f"{(n - 1) * step + 1} to {n * step} tokens: {merged[n]:,} rows",
        }
        for n in range(1, last + 1)
    ]
    return {"bars": bars, "step": step, "last": last * step, "most": most}
