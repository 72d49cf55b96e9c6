"""The findings of a run: two passes over each split's predictions, then texts by their place.

The first pass makes sums (pairs of label and prediction, mean scores of labels, histograms, slices)
and an even sample. The second one uses them for suspects, examples of the most frequent confusions,
and calibration with the temperature fitted on validation's sample. Memory does not grow with the
rows.
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
from howdah.pages.personal import Shown, sample
from howdah.serving.report.findings.base import SUSPECTS, First, Rival, Second
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
_SCRIPT_ROWS = 4_000
_SCRIPT_BYTES = 4 * 2**30
"""Largest total size of shards that are fetched for the texts of a sample; of larger ones, only the
shown texts are."""
_SURE = 0.05


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The findings, as plain values."""

    split: str
    """Split that the worst rows and slices come from; "" if no predictions can be read."""
    kind: Mapping[str, Any] = field(default_factory=dict)
    """Findings of the task's second pass."""
    worst: Sequence[dict] = ()
    suspects: Sequence[dict] = ()
    """Suspects in all splits with predictions."""
    suspect_splits: Sequence[str] = ()
    slices: Sequence[Slice] = ()
    sample: tuple[np.ndarray, ...] = ()
    """(labels, scores) of an even sample of the split's rows."""
    notes: Sequence[str] = ()
    """Reasons why something is missing."""


def analyze_predictions(
    predictions: str,
    splits: Sequence[str],
    labels: Sequence[str],
    task: Task,
    *,
    texts: Callable[[], Texts] | None,
    shown: Shown = "masked",
    rivals: Mapping[str, Rival] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Findings | None:
    """Analyse a run's predictions.

    Args:
        predictions: directory with a directory for each split.
        splits: evaluated splits; the findings come from test, else from the last one.
        texts: opens the dataset's rows; None: there are no texts.
        shown: how texts are put into the rows; none: they are only counted by script.
        rivals: the baseline's predictions by split, as far as they are known.
        advance: called after each batch of rows.
    Returns:
        The findings; None: no split has predictions.
    """
    notes: list[str] = []
    opened: dict[str, Predictions] = {}
    for split in splits:
        try:
            opened[split] = Predictions(storage.join(predictions, split), labels, task)
        except HowdahError as error:
            notes.append(f"{split}: {error.what}")
    if not opened:
        return None
    reader, why = _opened(texts)
    notes += why
    shards = {} if reader is None else reader.dataset.manifest.splits
    firsts: dict[str, First] = {}
    for split, reading in opened.items():
        parts = [entry.part for entry in shards.get(split, [])]
        rival = (rivals or {}).get(split)
        try:
            first = FIRST[task](split, reading, advance, parts=parts, rival=rival)
        except HowdahError as error:
            notes.append(f"{split}: {error.what} ({error.where})")
            continue
        if first.rows:
            firsts[split] = first
        else:
            notes.append(f"{split}: the predictions have no rows ({reading.directory})")
    if not firsts:
        return Findings(split="", notes=notes)
    main = TEST if TEST in firsts else next(reversed(firsts))
    temperature = None
    if VALIDATION in firsts and task != "regression" and main != VALIDATION:
        targets, scores = firsts[VALIDATION].sample.columns()
        temperature = fit_temperature(task, targets, logits_of(task, scores))
    suspects, second = [], None
    for split, each in firsts.items():
        of_main = split == main and split != VALIDATION
        one = SECOND[task](
            split,
            opened[split],
            each,
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
    notes += _put_texts(reader, [*worst, *suspects, *second.examples()], shown)
    return Findings(
        split=main,
        kind=second.as_dict(),
        worst=worst,
        suspects=suspects,
        suspect_splits=list(firsts),
        slices=_marked([*first.slices(), *scripts]),
        sample=first.sample.columns(),
        notes=notes,
    )


def for_verdict(
    predictions: str, split: str, labels: Sequence[str], task: Task, rival: Rival | None
) -> Findings | None:
    """Return the findings that the verdict on a split needs, by one pass; None: no predictions."""
    try:
        reader = Predictions(storage.join(predictions, split), labels, task)
        first = FIRST[task](split, reader, rival=rival)
    except HowdahError:
        return None
    if not first.rows:
        return None
    return Findings(split=split, kind=first.of_pairs(), sample=first.sample.columns())


def _opened(texts: Callable[[], Texts] | None) -> tuple[Texts | None, list[str]]:
    if texts is None:
        return None, []
    try:
        return texts(), []
    except HowdahError as error:
        return None, [f"texts are not shown: {error.what} ({error.where})"]


def _marked(slices: Sequence[Slice]) -> list[Slice]:
    """Mark the slices that are worse than the rest beyond chance (Bonferroni).

    Slices of low confidence are not marked, since they are expected to be worse.
    """
    tests = sum(one.group != "confidence" for one in slices)
    limit = statistics.NormalDist().inv_cdf(1 - _SURE / (2 * max(1, tests)))
    return [replace(one, worse=one.group != "confidence" and one.z > limit) for one in slices]


def _scripts(reader: Texts | None, split: str, first: First) -> tuple[list[Slice], list[str]]:
    """Return the slices by the script of an even sample's texts, and notes."""
    if reader is None or not reader.readable:
        return [], []
    try:
        shards = reader.shards(split)
        if shards.cached_bytes > _SCRIPT_BYTES:
            return [], ["scripts were not checked: the shards would have to be fetched"]
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
        return [], [f"scripts were not checked: {error.what} ({error.where})"]
    named = [(name, sums.sums[:, number]) for name, number in numbers.items() if number < 64]
    named = sorted(named, key=lambda item: -item[1][0])
    sampled = step * first.places.step > 1
    group = f"script (of {len(places[::step]):,} rows)" if sampled else "script"
    return judged(group, named, share=first.share, lower=first.lower), []


def _put_texts(reader: Texts | None, rows: Sequence[dict], shown: Shown) -> list[str]:
    """Put texts into rows; return notes about missing ones."""
    if reader is None or not rows or shown == "none":
        return []
    if not reader.readable:
        return ["rows are images: their ids are shown"]
    notes = []
    for split in sorted({row["split"] for row in rows}):
        of_split = [row for row in rows if row["split"] == split]
        try:
            texts = reader.of(split, [(*row["place"][:2], row["id"]) for row in of_split])
        except HowdahError as error:
            notes.append(f"{split}: texts are not shown: {error.what} ({error.where})")
            continue
        for row in of_split:
            if row["id"] in texts:
                row["text"] = texts[row["id"]]
    originals = reader.originals()
    for row in rows:
        if (text := originals.get(row["id"], row.get("text"))) is not None:
            text = (sample(text, shown) or "").strip()
            row["text"] = text[:LONGEST] + ("…" if len(text) > LONGEST else "")
    if {row["id"] for row in rows if "text" in row} - originals.keys():
        notes.append(
            "some texts are decoded from token ids: case and spacing may differ from the source"
        )
    return notes
