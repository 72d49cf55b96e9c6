"""What a user should look at in a new version: its labels, with the YAML that changes them.

Said last on the console. The facts are in the manifest's `quality`: `similar_labels`,
`missing_value_labels` and `labels_absent`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from howdah.config.data import DataSection
from howdah.data.manifest import DatasetManifest, ShardEntry

_MISSING = frozenset({
    "", "-", "--", "?", "n/a", "na", "nan", "nil", "none", "null", "missing", "unknown",
    "undefined", "(none)", "(null)", "#n/a", "k. a.", "k.a.",
})  # fmt: skip
"""What spreadsheets, pandas and databases write where there is no value."""
_MOST_IN_YAML = 40
_MOST_LISTED = 8


def missing_values(names: Sequence[str]) -> list[str]:
    """Labels that read like a value that is missing.

    >>> missing_values(["Billing", "N/A", "none", "nonet"])
    ['N/A', 'none']
    """
    return [name for name in names if name.strip().casefold() in _MISSING]


def absent(
    names: Sequence[str], splits: Mapping[str, Sequence[ShardEntry]]
) -> dict[str, list[str]]:
    """{label: splits that have rows, but none of it}, of the labels of which that is so."""
    present = {split: _counts(shards) for split, shards in splits.items() if shards}
    missing_splits = {
        name: [split for split, counts in present.items() if not counts[number]]
        for number, name in enumerate(names)
    }
    return {name: lacking for name, lacking in missing_splits.items() if lacking}


def lines(manifest: DatasetManifest, data: DataSection) -> Iterator[str]:
    """The lines for the console; none of a version whose labels need no look."""
    quality = manifest.quality
    twins = quality.get("similar_labels", []) if data.labels is None else []
    missing = quality.get("missing_value_labels", []) if data.labels is None else []
    lacking = quality.get("labels_absent", {})
    for group in twins[:_MOST_LISTED]:
        names = ", ".join(map(repr, group))
        yield f"check the labels: these look alike but are separate classes: {names}"
    if missing:
        names = ", ".join(map(repr, missing[:_MOST_LISTED]))
        yield f"check the labels: these are classes but read like a missing value: {names}"
    by_splits: dict[str, list[str]] = {}
    for name, splits in lacking.items():
        by_splits.setdefault(" and ".join(splits), []).append(name)
    for splits, names in by_splits.items():
        few = ", ".join(map(repr, names[:_MOST_LISTED]))
        more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
        yield (
            f"check the labels: no row in {splits} of {few}{more}: metrics over classes cannot be"
            " compared between splits; data.split.stratify: 3 gives each split a row of classes"
            " with at least 3"
        )
    if twins or missing:
        yield from _yaml(manifest, twins, missing)


def _yaml(
    manifest: DatasetManifest, twins: Sequence[Sequence[str]], missing: Sequence[str]
) -> Iterator[str]:
    """The mapping that makes twins one class and rejects missing values."""
    rows = _counts([shard for shards in manifest.splits.values() for shard in shards])
    number = {name: n for n, name in enumerate(manifest.labels)}
    same = {
        name: max(group, key=lambda one: (rows[number[one]], one))
        for group in twins
        for name in group
    }
    kept = [name for name in manifest.labels if name not in missing]
    if len(kept) > _MOST_IN_YAML:
        yield "    data.labels: a mapping of all labels changes that, {label: its name}"
        return
    yield "    to change that, paste into the configuration:"
    yield "    data:"
    if missing:
        yield "      quality: {unknown_label: reject}"
    yield "      labels:"
    for name in kept:
        written = (json.dumps(one, ensure_ascii=False) for one in (name, same.get(name, name)))
        yield "        " + ": ".join(written)


def _counts(shards: Sequence[ShardEntry]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for shard in shards:
        for number, rows in shard.class_counts.items():
            counts[int(number)] += rows
    return counts
