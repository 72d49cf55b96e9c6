"""What a user should look at in a new version, with the YAML that changes it.

The findings are the manifest's `quality.look`, the first box of the data report and the last lines
of the console; a version without any has none of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from howdah.config.data import DataSection
from howdah.config.yaml_text import quoted
from howdah.data.manifest import ShardEntry
from howdah.etl.expect import class_counts
from howdah.etl.rows import gate, labels
from howdah.pages import personal
from howdah.pages.figures import percent

Finding = dict[str, Any]
"""{"kind": a word, "text": one or two sentences, "yaml": lines to paste into the configuration}"""
Splits = Mapping[str, Sequence[ShardEntry]]

_MISSING = frozenset({
    "", "-", "--", "?", "n/a", "na", "nan", "nil", "none", "null", "missing", "unknown",
    "undefined", "(none)", "(null)", "#n/a", "k. a.", "k.a.",
})  # fmt: skip
"""What spreadsheets, pandas and databases write where there is no value."""
_MOST_IN_YAML = 40
_MOST_LISTED = 8
_FEW_IN_ALL = 100
"""Rows of a version below which a model's figures are chance."""
_FEW_OF_A_CLASS = 10
_MUCH_CUT = 0.05
_MUCH_WRONG = 0.01
"""Share of the rows read that have another encoding, or an earlier row's id: fewer are single rows
that were damaged, or delivered twice."""
_MUCH_ALIKE = 0.2
"""Share of the usable rows that are near duplicates: templates and replies that quote make up a few
percent of ordinary messages."""
_LESS_ALIKE = 0.85
"""Value of data.dedup.threshold that keeps texts of a template with other words filled in."""
_MUCH_LEAKED = 0.05
"""Share of the evaluation rows with a near copy in training: a figure may be too good by as much,
more than most changes of a model bring."""
_SOME_PERSONAL = 0.005
_LONGEST = 512
"""Positions of the usual encoders."""


def findings(
    names: Sequence[str],
    splits: Splits,
    quality: Mapping[str, Any],
    data: DataSection,
    texts: Sequence[str],
) -> list[Finding]:
    """All findings, the most important first.

    Args:
        names: of the labels, by number.
        splits: all shards, of each split.
        quality: what was counted: read, kept, drops, leakage, at_max_length.
        texts: a sample of the texts.
    """
    rows = sum(shard.rows for shards in splits.values() for shard in shards)
    parts = list(_of_rows(rows, quality, data))
    if data.task != "regression":
        parts += _of_labels(names, splits, data, few=rows < _FEW_IN_ALL)
    if rows >= _FEW_IN_ALL:
        parts += _of_copies(quality, data)
    parts += [*_of_length(quality, data), *_of_persons(texts)]
    return [{"kind": kind, "text": text, "yaml": yaml} for kind, text, yaml in parts]


def lines(look: Sequence[Finding]) -> Iterator[str]:
    """The findings for a console; nothing of a version that needs no look."""
    if look:
        yield "Look at this:"
    for finding in look:
        yield f"- {finding['text']}"
        yield from (f"      {line}" for line in finding["yaml"])


_Parts = tuple[str, str, list[str]]
"""Kind, text and YAML of a finding."""


def _of_rows(rows: int, quality: Mapping[str, Any], data: DataSection) -> Iterator[_Parts]:
    if rows < _FEW_IN_ALL:
        text = f"{rows:,} rows are too few to train and judge a model: collect a few hundred."
        yield "small", text, []
    wrong, read = quality["drops"].get("wrong_encoding", 0), quality["read"]
    if wrong > _MUCH_WRONG * read:
        yield (
            "encoding",
            f"{wrong:,} of {read:,} rows were dropped: their texts were not written in the"
            " encoding that they were decoded with. Name the right one in data.csv.encoding, or"
            " convert the source to UTF-8; these lines keep the rows as they are, with wrong"
            " letters.",
            ["data:", "  quality: {reject_wrong_encoding: false}"],
        )

    again = quality["drops"].get("duplicate_id", 0)
    if again > _MUCH_WRONG * read:
        name = data.columns.id
        yield (
            "duplicate_ids",
            f"{again:,} of {read:,} rows were dropped: an earlier row has the same {name}"
            " (data.columns.id). Name a column that tells rows apart, or keep them all with these"
            " lines.",
            ["data:", "  columns: {id: null}"],
        )


def _of_copies(quality: Mapping[str, Any], data: DataSection) -> Iterator[_Parts]:
    """Findings about texts that are alike. Rows that leak do not go with lines that keep more near
    duplicates: the figures would be even better than they are."""
    near = quality["drops"].get("near_duplicate", 0)
    usable = quality["kept"] + sum(quality["drops"].get(one, 0) for one in gate.DUPLICATES)
    looked_up = quality.get("leakage") or {"splits": {}}  # of images nothing is looked up
    counts = looked_up["splits"].values()
    leaks, sampled = (sum(one[key] for one in counts) for key in ("found", "sampled"))
    leaked, threshold = leaks > _MUCH_LEAKED * sampled, data.dedup.threshold
    if near > _MUCH_ALIKE * usable:
        raised = not leaked and threshold < _LESS_ALIKE
        yield (
            "near_duplicates",
            f"{percent(near / usable)} of the usable rows ({near:,} of {usable:,}) were dropped as"
            f" near duplicates (data.dedup.threshold {threshold:g}): texts come from few templates"
            " or quote each other." + " These lines keep more of them." * raised,
            ["data:", f"  dedup: {{threshold: {_LESS_ALIKE}}}"] if raised else [],
        )
    if leaked:
        least = looked_up["similarity"]
        lowered = threshold > least or not data.dedup.near
        yield (
            "leakage",
            f"{percent(leaks / sampled)} of the evaluation rows that were looked up ({leaks:,} of"
            f" {sampled:,}) have a training row with similarity >= {least:g}: figures may be too"
            " good. Where a column tells which rows belong together, name it in data.split.group."
            + " These lines drop such rows."
            * lowered,
            ["data:", f"  dedup: {{near: true, threshold: {least:g}}}"] if lowered else [],
        )


def _of_labels(
    names: Sequence[str], splits: Splits, data: DataSection, *, few: bool
) -> Iterator[_Parts]:
    """Findings about the classes; `few`: the version is so small that small classes are no news."""
    counts = {split: class_counts(shards) for split, shards in splits.items() if shards}
    total = sum(counts.values(), Counter())
    twins = labels.similar(names) if data.labels is None else []
    missing = missing_values(names) if data.labels is None else []
    yaml = _yaml(names, total, twins, missing)
    if twins:
        groups = "; ".join(_listed(group) for group in twins[:_MOST_LISTED])
        text = f"These labels look alike but are separate classes: {groups}."
        yield "similar_labels", text, [] if missing else yaml
    if missing:
        text = f"These labels read like a missing value but are classes: {_listed(missing)}."
        yield "missing_labels", text, yaml
    by_splits: dict[str, list[str]] = {}
    for number, name in enumerate(names):
        lacking = [split for split, present in counts.items() if not present[number]]
        if lacking and total[number]:
            by_splits.setdefault(" and ".join(lacking), []).append(name)
    stratify = [] if data.split.given or few else ["data:", "  split: {stratify: 3}"]
    for number, (lacking, absent) in enumerate(by_splits.items()):
        text = (
            f"No row of {_listed(absent)} is in {lacking}: figures over all classes cannot be"
            " compared between splits."
        )
        yield "absent_labels", text, stratify if number == len(by_splits) - 1 else []
    rare = [name for n, name in enumerate(names) if 0 < total[n] < _FEW_OF_A_CLASS]
    if rare and not few:
        text = (
            f"Fewer than {_FEW_OF_A_CLASS} rows have the label {_listed(rare)}: too few to learn"
            " it or to judge it. These lines refuse such data."
        )
        yield "few_rows", text, ["data:", f"  expect: {{min_rows_per_class: {_FEW_OF_A_CLASS}}}"]


def _of_length(quality: Mapping[str, Any], data: DataSection) -> Iterator[_Parts]:
    cut, kept = quality.get("at_max_length", 0), quality["kept"]
    if kept and cut > _MUCH_CUT * kept:
        longer = min(_LONGEST, 2 * data.max_length)
        yield (
            "cut",
            f"{percent(cut / kept)} of the rows ({cut:,} of {kept:,}) have {data.max_length} tokens"
            " or more: the rest of their text is cut off. Longer rows take more time to train.",
            ["data:", f"  max_length: {longer}"] if longer > data.max_length else [],
        )


def _of_persons(texts: Sequence[str]) -> Iterator[_Parts]:
    kinds = Counter(kind for text in texts for kind in personal.kinds(text))
    shares = [
        f"{words} in {percent(kinds[kind] / len(texts))}"
        for kind, words in (("mail", "mail addresses"), ("phone", "phone numbers"))
        if kinds[kind] > _SOME_PERSONAL * len(texts)
    ]
    if shares:
        yield (
            "personal",
            f"Texts hold personal data: {' and '.join(shares)} of a sample of {len(texts):,} rows."
            " Pages mask them by default; these lines keep all texts out of them. The shards have"
            " all texts.",
            ["report:", "  texts: none"],
        )


def missing_values(names: Sequence[str]) -> list[str]:
    """Labels that read like a value that is missing.

    >>> missing_values(["Billing", "N/A", "none", "nonet"])
    ['N/A', 'none']
    """
    return [name for name in names if name.strip().casefold() in _MISSING]


def _listed(names: Sequence[str]) -> str:
    few = ", ".join(map(repr, names[:_MOST_LISTED]))
    return few + (f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else "")


def one_name_each(
    counts: Counter[str], twins: Sequence[Sequence[str]], missing: Sequence[str]
) -> dict[str, str]:
    """{label: its name}: twins have that of the most frequent; missing values are left out."""
    same = {
        name: max(group, key=lambda one: (counts[one], one)) for group in twins for name in group
    }
    return {name: same.get(name, name) for name in counts if name not in missing}


def _yaml(
    names: Sequence[str],
    rows: Counter[int],
    twins: Sequence[Sequence[str]],
    missing: Sequence[str],
) -> list[str]:
    """The mapping that makes twins one class and rejects missing values."""
    counts = Counter({name: rows[number] for number, name in enumerate(names)})
    mapping = one_name_each(counts, twins, missing)
    if len(mapping) > _MOST_IN_YAML:
        return ["data:", "  labels: {LABEL: ITS NAME, ...}   # of all labels"]
    yaml = ["data:"]
    if missing:
        yaml.append("  quality: {unknown_label: reject}")
    yaml.append("  labels:")
    return yaml + [f"    {quoted(label)}: {quoted(name)}" for label, name in mapping.items()]
