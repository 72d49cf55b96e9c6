"""The findings of a run: two passes over each split's predictions, then texts by their place.

The first pass makes sums (pairs of label and prediction, mean scores of labels, histograms, slices)
and an even sample; the second one needs some of them: suspects, examples of the most frequent
confusions, calibration with the temperature that validation's sample gave. Memory does not grow
with the rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from howdah import storage
from howdah.config.splits import TEST, VALIDATION
from howdah.config.tasks import Task
from howdah.errors import HowdahError
from howdah.models.fit_decision import fit_temperature, logits_of
from howdah.serving.report.findings.base import First, Rival, Second
from howdah.serving.report.findings.numbers import FirstOfNumbers, SecondOfNumbers
from howdah.serving.report.findings.one_label import FirstOfOne, SecondOfOne
from howdah.serving.report.findings.predictions import Predictions
from howdah.serving.report.findings.several import FirstOfSeveral, SecondOfSeveral
from howdah.serving.report.findings.sums import Slice, SliceSums, judged
from howdah.serving.report.findings.texts import LONGEST, Texts, script_of

FIRST: dict[Task, type[First]] = {
    "single_label": FirstOfOne,
    "multi_label": FirstOfSeveral,
    "regression": FirstOfNumbers,
}
SECOND: dict[Task, type[Second]] = {
    "single_label": SecondOfOne,
    "multi_label": SecondOfSeveral,
    "regression": SecondOfNumbers,
}
SUSPECTS = 50
_SCRIPT_ROWS = 4_000
_SCRIPT_BYTES = 4 * 2**30
"""Of shards that would be fetched to look at texts of a sample; more: only the shown ones are."""
_SURE = 0.05


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What was found; plain values."""

    split: str
    """That the worst rows and slices are of."""
    kind: Mapping[str, Any] = field(default_factory=dict)
    """The task's own (its second pass)."""
    worst: Sequence[dict] = ()
    suspects: Sequence[dict] = ()
    """Of all splits with predictions."""
    suspect_splits: Sequence[str] = ()
    slices: Sequence[Slice] = ()
    temperature: float | None = None
    sample: tuple[np.ndarray, ...] = ()
    """(labels, scores) of an even sample of the split's rows."""
    notes: Sequence[str] = ()
    """Why something is missing."""


def look(
    predictions: str,
    splits: Sequence[str],
    labels: Sequence[str],
    task: Task,
    *,
    texts: Callable[[], Texts] | None,
    shown: bool = True,
    rivals: Mapping[str, Rival] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Findings | None:
    """Look at a run's predictions.

    Args:
        predictions: directory with a directory of each split.
        splits: that were evaluated; the findings are of test, else of the last one.
        texts: opens the dataset's rows; None: they cannot be had.
        shown: put texts into the rows; False: they are only counted by script.
        rivals: the baseline's predictions by split, where they are known.
        advance: called after each batch of rows.
    Returns:
        None: there are no predictions of any split.
    """
    notes: list[str] = []
    opened: dict[str, Predictions] = {}
    for split in splits:
        try:
            opened[split] = Predictions(storage.join(predictions, split), labels, task)
        except HowdahError as error:
            notes.append(f"{split}: {error.what}")
    main = TEST if TEST in opened else next(reversed(opened), None)
    if main is None:
        return None
    reader, why = _opened(texts)
    notes += why
    firsts = {
        split: FIRST[task](
            split, found, advance, parts=_parts(reader, split), rival=(rivals or {}).get(split)
        )
        for split, found in opened.items()
    }
    temperature = None
    if VALIDATION in firsts and task != "regression" and main != VALIDATION:
        known, scores = firsts[VALIDATION].sample.columns()
        temperature = fit_temperature(task, known, logits_of(task, scores))
    suspects, second = [], None
    for split, found in opened.items():
        of_main = split == main and split != VALIDATION
        one = SECOND[task](
            split,
            found,
            firsts[split],
            advance,
            temperature=temperature if of_main else None,
            validation=firsts.get(VALIDATION) if of_main else None,
        )
        suspects += one.suspects.rows()
        second = one if split == main else second
    suspects = sorted(suspects, key=lambda row: -row["key"])[:SUSPECTS]
    first, worst = firsts[main], firsts[main].worst.rows()
    scripts, of_scripts = _scripts(reader, main, first)
    notes += of_scripts
    if shown:
        notes += _put_texts(reader, [*worst, *suspects, *second.examples()])
    return Findings(
        split=main,
        kind=second.as_dict(),
        worst=worst,
        suspects=suspects,
        suspect_splits=list(opened),
        slices=_marked([*first.slices(), *scripts]),
        temperature=temperature,
        sample=first.sample.columns(),
        notes=notes,
    )


def for_verdict(
    predictions: str, split: str, labels: Sequence[str], task: Task, rival: Rival | None
) -> Findings | None:
    """What the verdict on a split needs of its predictions, by one pass; None: there are none."""
    try:
        reader = Predictions(storage.join(predictions, split), labels, task)
        first = FIRST[task](split, reader, rival=rival)
        return Findings(split=split, kind=first.of_pairs(), sample=first.sample.columns())
    except (HowdahError, ValueError):  # ValueError: a sample of no rows
        return None


def _opened(texts: Callable[[], Texts] | None) -> tuple[Texts | None, list[str]]:
    if texts is None:
        return None, []
    try:
        return texts(), []
    except HowdahError as error:
        return None, [f"texts are not shown: {error.what} ({error.where})"]


def _parts(reader: Texts | None, split: str) -> list[str | None]:
    """The source part of each shard of a split."""
    if reader is None:
        return []
    return [entry.part for entry in reader.dataset.manifest.splits.get(split, [])]


def _marked(slices: Sequence[Slice]) -> list[Slice]:
    """Slices with those marked that are worse than the rest beyond chance (Bonferroni). Confidence
    is no reason: that rows of low confidence are worse is what it is for."""
    asked = sum(one.group != "confidence" for one in slices)
    limit = statistics.NormalDist().inv_cdf(1 - _SURE / (2 * max(1, asked)))
    return [replace(one, worse=one.group != "confidence" and one.z > limit) for one in slices]


def _scripts(reader: Texts | None, split: str, first: First) -> tuple[list[Slice], list[str]]:
    """Slices by the script of an even sample's texts."""
    if reader is None or not reader.readable or first.places is None:
        return [], []
    try:
        shards = reader.shards(split)
        if shards.cached_bytes > _SCRIPT_BYTES:
            return [], ["scripts were not looked at: the shards would have to be fetched"]
        places, values = first.places.columns()
        step = max(1, -(-len(places) // _SCRIPT_ROWS))
        numbers: dict[str, int] = {}
        sums = SliceSums(64)
        for (shard, row), value in zip(places[::step].tolist(), values[::step], strict=True):
            ids = shards.example(shard, row).input_ids
            name = script_of(reader.decode(ids))
            number = numbers.setdefault(name, len(numbers))
            sums.add(np.array([number]), np.array([value]))
        shards.release()
    except HowdahError as error:
        return [], [f"scripts were not looked at: {error.what} ({error.where})"]
    named = [(name, sums.sums[:, number]) for name, number in numbers.items() if number < 64]
    named = sorted(named, key=lambda item: -item[1][0])
    sampled = step * first.places.step > 1
    group = f"script (of {len(places[::step]):,} rows)" if sampled else "script"
    return judged(group, named, share=first.share, lower=first.lower), []


def _put_texts(reader: Texts | None, rows: Sequence[dict]) -> list[str]:
    """Put texts into rows; lines about what is missing."""
    if reader is None or not rows:
        return []
    if not reader.readable:
        return ["rows are images: their ids are shown"]
    notes = []
    for split in sorted({row["split"] for row in rows}):
        own = [row for row in rows if row["split"] == split]
        try:
            lost = [row["id"] for row in own if row["place"] is None]
            located = reader.locate(split, lost) if lost else {}
            if located is None:
                notes.append(f"{split}: texts are not shown: there are too many rows to look for")
                located = {}
            for row in own:
                if row["place"] is None and row["id"] in located:
                    row["place"] = located[row["id"]]
            there = [row for row in own if row["place"] is not None]
            found = reader.of(split, [(*row["place"][:2], row["id"]) for row in there])
        except HowdahError as error:
            notes.append(f"{split}: texts are not shown: {error.what} ({error.where})")
            continue
        for row in own:
            text = found.get(row["id"])
            if text is not None:
                row["text"] = text[:LONGEST] + ("…" if len(text) > LONGEST else "")
    return notes
