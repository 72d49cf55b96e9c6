"""`data.expect`: conditions for committing a new version, judged by manifests alone."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from howdah.config.data import ExpectOptions
from howdah.data.manifest import Dataset, DatasetManifest, ShardEntry
from howdah.errors import ExpectationsFailed, HowdahError
from howdah.etl.rows.gate import DUPLICATES

_WORST = 5


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """One expectation and the measured value."""

    key: str
    """Below `data.expect`."""
    bound: float
    found: float | None
    """None: it cannot be judged, `detail` says why."""
    met: bool
    detail: str
    """What contributes most."""


def judge(
    manifest: DatasetManifest, options: ExpectOptions, parent: Dataset | None
) -> list[Expectation]:
    """Each expectation of the configuration.

    Args:
        manifest: of the version to judge.
        parent: the version before, for `max_shift`; None: there is none.
    """
    expectations: list[Expectation] = []
    labels = label_counts(manifest)
    if options.min_rows is not None:
        rows = sum(map(manifest.rows, manifest.splits))
        expectations.append(_least("min_rows", options.min_rows, rows, "in all splits"))
    if options.min_rows_per_class is not None:
        label = min(labels, key=lambda name: (labels[name], name))
        few = [name for name in labels if labels[name] < options.min_rows_per_class]
        named = ", ".join(f"{name} {labels[name]:,}" for name in few[:_WORST] or [label])
        more = f" and {len(few) - _WORST:,} more" if len(few) > _WORST else ""
        expectations.append(
            _least("min_rows_per_class", options.min_rows_per_class, labels[label], named + more)
        )
    if options.max_duplicates is not None:
        drops = manifest.quality.get("drops", {})
        read = manifest.quality.get("read", 0)
        share = sum(drops.get(reason, 0) for reason in DUPLICATES) / max(1, read)
        named = ", ".join(f"{drops[reason]:,} {reason}" for reason in DUPLICATES if reason in drops)
        detail = f"of {read:,} rows: {named or 'none'}"
        expectations.append(_most("max_duplicates", options.max_duplicates, share, detail))
    expectations += _shifts(manifest, options, parent)
    return expectations


def refuse(expectations: list[Expectation], where: str) -> None:
    """Raise if one is not met.

    Raises:
        ExpectationsFailed: with the figures of each that is not.
    """
    missed = [one for one in expectations if not one.met]
    if missed:
        raise ExpectationsFailed(
            "the dataset version is not what data.expect asks for",
            where=where,
            problems=[
                HowdahError(
                    f"data.expect.{one.key} is not met",
                    expected=f"{'at least' if one.key.startswith('min_') else 'at most'}"
                    f" {_number(one.bound)}",
                    got=f"{_number(one.found)}: {one.detail}",
                )
                for one in missed
            ],
            remedy="look at the source; if it is right, change the bounds in data.expect. A new"
            " version that misses one is not committed",
        )


def as_quality(expectations: list[Expectation], parent: Dataset | None) -> dict:
    """The expectations as the manifest and the report show them."""
    before = None if parent is None else parent.manifest.dataset_hash
    return {"parent": before, "found": [asdict(one) for one in expectations]}


def _shifts(
    manifest: DatasetManifest, options: ExpectOptions, parent: Dataset | None
) -> list[Expectation]:
    expectations = []
    before = None if parent is None else parent.manifest
    bound = options.max_shift
    if bound is None:
        return expectations
    for name, counts in (("labels", label_counts), ("length", lengths), ("rejects", fates)):
        if name == "labels" and manifest.task == "regression":
            continue
        key, why = f"max_shift.{name}", None
        if before is None:
            why = "there is no earlier version"
        elif name == "length" and before.tokenizer.hash != manifest.tokenizer.hash:
            why = f"version {before.dataset_hash} has another tokenizer, which counts differently"
        elif name == "length" and before.max_length != manifest.max_length:
            why = f"version {before.dataset_hash} has data.max_length {before.max_length}"
        if why is not None:
            expectations.append(Expectation(key=key, bound=bound, found=None, met=True, detail=why))
            continue
        old, new = counts(before), counts(manifest)
        detail = f"against version {before.dataset_hash}: {_moved(old, new)}"
        expectations.append(_most(key, bound, total_variation(old, new), detail))
    return expectations


def total_variation(a: Mapping[str, int], b: Mapping[str, int]) -> float:
    """Half the sum of the differences of two distributions: 0 the same, 1 nothing in common.

    >>> total_variation({"x": 1, "y": 1}, {"x": 30, "y": 10})
    0.25
    """
    p, q = _shares(a), _shares(b)
    return sum(abs(p.get(key, 0.0) - q.get(key, 0.0)) for key in sorted({*p, *q})) / 2


def class_counts(shards: Iterable[ShardEntry]) -> Counter[int]:
    """{number of a label: rows}."""
    counts: Counter[int] = Counter()
    for shard in shards:
        for number, rows in shard.class_counts.items():
            counts[int(number)] += rows
    return counts


def label_counts(manifest: DatasetManifest) -> Counter[str]:
    """{label: rows} of all splits; labels without rows are in it."""
    counts = class_counts(itertools.chain(*manifest.splits.values()))
    return Counter({label: counts[number] for number, label in enumerate(manifest.labels)})


def lengths(manifest: DatasetManifest) -> Counter[str]:
    """{upper bound of a bin of tokens: rows} of all splits."""
    counts: Counter[str] = Counter()
    for shards in manifest.splits.values():
        for shard in shards:
            counts.update(shard.length_histogram)
    return counts


def fates(manifest: DatasetManifest) -> Counter[str]:
    """{"kept" or the reason: rows} of the rows read."""
    quality = manifest.quality
    return Counter({"kept": quality.get("kept", 0), **quality.get("drops", {})})


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    return {key: count / total for key, count in counts.items()} if total else {}


def _moved(a: Mapping[str, int], b: Mapping[str, int]) -> str:
    """The shares that differ most: "Sports 25.0% -> 40.0%"."""
    p, q = _shares(a), _shares(b)
    order = sorted({*p, *q}, key=lambda key: (-abs(p.get(key, 0) - q.get(key, 0)), key))
    return ", ".join(f"{key} {p.get(key, 0):.1%} -> {q.get(key, 0):.1%}" for key in order[:_WORST])


def _least(key: str, bound: float, value: float, detail: str) -> Expectation:
    return Expectation(key=key, bound=bound, found=value, met=value >= bound, detail=detail)


def _most(key: str, bound: float, value: float, detail: str) -> Expectation:
    value = round(value, 6)
    return Expectation(key=key, bound=bound, found=value, met=value <= bound, detail=detail)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
