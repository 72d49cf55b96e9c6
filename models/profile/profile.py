"""A profile: counts of a model's inputs and outputs over a set of rows.

All counts are whole numbers, so parts that were counted separately (by Spark's tasks, or a server's
hours) add up to exactly the profile of all rows, in any order. It contains no text, only which
tokens occurred and how often the most frequent ones did.

    reference = reference_of(model_directory)         # profile.json of the export
    part = Profile.like(reference)
    part.add(served.scores_of_ids(ids_N), ids_N)      # each batch
    part.add_failed(empty=3)
    total = Profile.like(reference)
    total.merge(Profile.from_dict(part.as_dict()))    # each part

The file has at most some 40 kB (without the label names), for 10 rows or for a billion.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from howdah import storage
from howdah.errors import DataError, ModelError, NotFound
from howdah.models.export_info import read_info
from howdah.models.profile.bins import ANEW, NANO, SKIPPED, Bins, Known, damaged, pack, unpack
from howdah.models.registry import decision_hash, profile_path

PROFILE = "profile.json"
"""Name of the file in an export, and beside a scored partition's marker."""
NO_PROFILE = f"no {PROFILE}"
"""The most frequent reason that `find_reference` returns."""
FORMAT_VERSION = 1


@dataclass(kw_only=True)
class Counts:
    """Whole numbers that can be added: the counts of two sets of rows are those of their union."""

    rows: int = 0
    """Rows with a prediction."""
    empty: int = 0
    """Rows without text, which have no prediction."""
    errors: int = 0
    """Rows that failed otherwise."""
    labels: np.ndarray
    """int64 [C]: rows that each label was predicted for."""
    confidence: np.ndarray
    """int64 [bins of confidence]: rows in each bin."""
    confidence_nano: int = 0
    """Sum of the rows' confidences in units of 1e-9; each row's is rounded."""
    calibrated_nano: int = 0
    """Sum of their calibrated confidences in the same units."""
    squared_nano: int = 0
    """Sum of the squares of the calibrated confidences in the same units."""
    texts: int = 0
    """Rows whose tokens are counted."""
    length: np.ndarray
    """int64 [bins of length]: rows in each bin."""
    ids: int = 0
    """Tokens, special ones included."""
    tokens: int = 0
    """Tokens, special ones left out."""
    unseen: int = 0
    """Tokens that never occurred in training."""
    unknown: int = 0
    """Tokens for text that the vocabulary cannot spell ([UNK])."""
    cells: np.ndarray
    """int64 [SKIPPED]: tokens in each cell (models/profile/bins.py)."""

    @classmethod
    def none(cls, bins: Bins) -> Counts:
        """The counts of an empty set of rows."""
        tokens = bool(bins.vocabulary)
        return cls(
            labels=np.zeros(bins.classes, np.int64),
            confidence=np.zeros(len(bins.confidence) + 1, np.int64),
            length=np.zeros(len(bins.length) + 1 if tokens else 0, np.int64),
            cells=np.zeros(SKIPPED if tokens else 0, np.int64),
        )

    def add(self, other: Counts) -> None:
        """Add another set's counts."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        lists = {name: values[name].tolist() for name in ("labels", "confidence", "length")}
        return values | lists | {"cells": pack(self.cells, "<i8")}

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any], bins: Bins | None) -> Counts:
        """The counts that `as_dict` wrote.

        Args:
            bins: the bins whose shapes the counts must have; None: the bins are not available.
        Raises:
            KeyError, TypeError, ValueError: the entries are not valid.
        """
        values: dict[str, Any] = {}
        for each in fields(cls):
            value = entries[each.name]
            if each.name == "cells":
                value = unpack(value, "<i8", SKIPPED)
            elif isinstance(value, list):
                if any(type(count) is not int for count in value):
                    raise ValueError(f"{each.name} holds more than counts")
                value = np.array(value, np.int64)
            elif not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"{each.name} is {value!r}")
            if np.min(value, initial=0) < 0:
                raise ValueError(f"{each.name} is negative")
            values[each.name] = value
        result = cls(**values)
        shapes = cls.none(bins) if bins is not None else result
        for name in ("labels", "confidence", "length", "cells"):
            counts, expected = getattr(result, name), getattr(shapes, name)
            if not isinstance(counts, np.ndarray) or counts.shape != expected.shape:
                raise ValueError(f"{name} has {np.size(counts)} bins instead of {len(expected)}")
        return result


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The part that only a model's profile has: facts of training that other profiles are compared
    with."""

    known_tokens: Known
    """The tokens that occurred in training."""
    split: str
    """The split of `rows`, `labels` and `confidence`: validation, unless there was none."""
    right: int | None = None
    """Rows of the split with a right prediction; None for a regression."""
    answered: int | None = None
    """Rows of the split that got an answer, among which `right` counts; None: all (the decision
    does not reject)."""
    unseen: tuple[int, int, float] = (0, 0, 0.0)
    """(tokens of the split, those that never occurred in training, spread of a row's share of them
    (models/profile/reference.py))."""
    spread: tuple[tuple[float, float, float], ...] = ()
    """(tokens, mean, standard deviation), by ascending number of tokens: the distance of token
    counts between a sample of that size from one half of the training rows and the other half."""
    expected_empty: float = 0.0
    """Share of empty rows in the source of the training data."""
    sampled_tokens: int | None = None
    """Number of tokens if the cells count scored rows; None: they count the training split."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Run id, hash of the dataset, rows that were read; only informative."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "known": self.known_tokens.as_dict(),
            "split": self.split,
            "right": self.right,
            **({} if self.answered is None else {"answered": self.answered}),
            "unseen": list(self.unseen),
            "spread": [list(size) for size in self.spread],
            "expected_empty": self.expected_empty,
            **({} if self.sampled_tokens is None else {"sampled_tokens": self.sampled_tokens}),
            "about": dict(self.about),
        }

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> Reference:
        """The reference that `as_dict` wrote.

        Raises:
            KeyError, TypeError, ValueError: the entries are not valid.
        """
        tokens, unseen, spread = entries["unseen"]
        return cls(
            known_tokens=Known.from_dict(entries["known"]),
            split=str(entries["split"]),
            right=None if entries["right"] is None else int(entries["right"]),
            answered=None if entries.get("answered") is None else int(entries["answered"]),
            unseen=(int(tokens), int(unseen), float(spread)),
            spread=tuple((float(n), float(mean), float(sd)) for n, mean, sd in entries["spread"]),
            expected_empty=float(entries["expected_empty"]),
            sampled_tokens=entries.get("sampled_tokens"),
            about=dict(entries["about"]),
        )


class Profile:
    """Counts of rows, in a model's bins.

    Args:
        bins: the model's bins; None: only their `bins_id` is known (a part that was read again).
        reference: the additional part of a model's profile; None: a profile of other rows.
        known_tokens: the tokens that occurred in training; None: those of `reference`. Without
            either, profiles can be added, but not rows.
    """

    def __init__(
        self,
        bins: Bins | None,
        *,
        counts: Counts | None = None,
        reference: Reference | None = None,
        known_tokens: Known | None = None,
        bins_id: str | None = None,
    ) -> None:
        if bins is None and (counts is None or bins_id is None):
            raise ValueError("counts without bins need their id")
        self.bins = bins
        self.bins_id = bins_id if bins is None else bins.id
        self.counts = counts if counts is not None else Counts.none(bins)
        self.reference = reference
        if known_tokens is None and reference is not None:
            known_tokens = reference.known_tokens
        self._known_tokens = known_tokens

    @classmethod
    def like(cls, reference: Profile) -> Profile:
        """An empty profile with the bins and the known tokens of `reference`."""
        if reference.bins is None:
            raise ValueError("a part that was read again has no bins: take the model's profile")
        return cls(reference.bins, known_tokens=reference._known_tokens)

    @property
    def rows(self) -> int:
        """Number of rows, those without a prediction included."""
        return self.counts.rows + self.counts.empty + self.counts.errors

    def add(self, scores_NC: np.ndarray, ids_N: Sequence[np.ndarray] | None = None) -> None:
        """Count predicted rows.

        Args:
            scores_NC: the result of `ServedModel.scores_of_ids`: probabilities, or the numbers of a
                regression. Rows with NaN or infinity count as errors.
            ids_N: the rows' token ids, the result of `ServedModel.encode`; None for images.
        """
        if self.bins is None:
            raise ValueError("rows are added to a profile of Profile.like(reference)")
        scores_NC = np.asarray(scores_NC)
        if scores_NC.ndim != 2 or scores_NC.shape[1] != max(1, len(self.bins.labels)):
            raise ValueError(f"scores of shape {scores_NC.shape} for {self.bins.labels}")
        if ids_N is not None and len(ids_N) != len(scores_NC):
            raise ValueError(f"{len(ids_N)} texts, {len(scores_NC)} scores")
        finite_N = np.isfinite(scores_NC).all(axis=1)
        self.counts.errors += int((~finite_N).sum())
        self._add_scores(scores_NC[finite_N])
        if ids_N is not None and self.bins.vocabulary:
            self._add_tokens([ids for ids, good in zip(ids_N, finite_N, strict=True) if good])

    def _add_scores(self, scores_NC: np.ndarray) -> None:
        if not len(scores_NC):
            return
        counts, bins = self.counts, self.bins
        labels_C, confidence_N = bins.outputs(scores_NC)
        counts.rows += len(scores_NC)
        counts.labels = counts.labels + labels_C
        place_N = np.searchsorted(bins.confidence, confidence_N, side="right")
        counts.confidence = counts.confidence + np.bincount(
            place_N, minlength=len(bins.confidence) + 1
        )
        if bins.task == "regression":
            return
        calibrated_N = bins.calibrated(confidence_N)
        counts.confidence_nano += _nano(confidence_N)
        counts.calibrated_nano += _nano(calibrated_N)
        counts.squared_nano += _nano(calibrated_N**2)

    def _add_tokens(self, ids_N: Sequence[np.ndarray]) -> None:
        if not len(ids_N):
            return
        if self._known_tokens is None:
            raise ValueError("tokens are added to a profile of Profile.like(reference)")
        counts, bins = self.counts, self.bins
        length_N = np.array([len(ids) for ids in ids_N], np.int64)
        ids = np.concatenate(ids_N).astype(np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < bins.vocabulary:
            raise DataError(
                "a token is not in the vocabulary of the model's profile",
                expected=f"0 to {bins.vocabulary - 1}",
                got=f"{ids.min()} to {ids.max()}",
                remedy="restore the export's files: its profile.json belongs to another export",
            )
        cell = bins.cells[ids]
        counted = ids[cell != SKIPPED]
        counts.texts += len(ids_N)
        place_N = np.searchsorted(bins.length, length_N, side="right")
        counts.length = counts.length + np.bincount(place_N, minlength=len(bins.length) + 1)
        counts.ids += len(ids)
        counts.tokens += len(counted)
        counts.unseen += int((~self._known_tokens.has(counted)).sum())
        if bins.unknown is not None:
            counts.unknown += int((counted == bins.unknown).sum())
        counts.cells = counts.cells + np.bincount(cell, minlength=SKIPPED + 1)[:SKIPPED]

    def add_failed(self, *, empty: int = 0, errors: int = 0) -> None:
        """Count rows without a prediction: those without text, and those that failed otherwise."""
        if empty < 0 or errors < 0:
            raise ValueError("counts must not be negative")
        self.counts.empty += int(empty)
        self.counts.errors += int(errors)

    def merge(self, other: Profile) -> None:
        """Add the counts of another profile in the same bins.

        Raises:
            DataError: its bins belong to another model.
        """
        if other.bins_id != self.bins_id:
            raise DataError(
                "profiles of different model versions cannot be added",
                expected=f"bins {self.bins_id}",
                got=f"bins {other.bins_id}",
            )
        self.counts.add(other.counts)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON. Only a model's profile holds the bins themselves; others hold their id."""
        written: dict[str, Any] = {"format_version": FORMAT_VERSION, "bins_id": self.bins_id}
        if self.reference is not None and self.bins is not None:
            written["bins"] = self.bins.as_dict()
            written["reference"] = self.reference.as_dict()
        return written | {"counts": self.counts.as_dict()}

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any], *, where: str | None = None) -> Profile:
        """The profile that `as_dict` wrote: with bins if it is a model's, else only the counts.

        Args:
            where: location for the error.
        Raises:
            ModelError: the entries are not valid, or have another format.
        """
        try:
            if entries["format_version"] != FORMAT_VERSION:
                raise ValueError(f"format {entries['format_version']!r}")
            bins = Bins.from_dict(entries["bins"]) if "bins" in entries else None
            if bins is not None and bins.id != entries["bins_id"]:
                raise ValueError(f"bins {bins.id} instead of {entries['bins_id']}")
            reference = entries.get("reference")
            return cls(
                bins,
                counts=Counts.from_dict(entries["counts"], bins),
                reference=None if reference is None else Reference.from_dict(reference),
                bins_id=str(entries["bins_id"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            got = f"no {error}" if isinstance(error, KeyError) else error
            raise damaged(where, got) from None

    def to_bytes(self) -> bytes:
        """The file's contents."""
        return (json.dumps(self.as_dict(), sort_keys=True, ensure_ascii=False) + "\n").encode()


def _nano(values_N: np.ndarray) -> int:
    # Each row is rounded separately, so that the sum does not depend on how rows were batched.
    return int(np.rint(values_N * NANO).astype(np.int64).sum())


def read(path: str) -> Profile:
    """The profile in a file.

    Raises:
        NotFound: there is no such file.
        ModelError: it is not a profile.
    """
    entries = storage.read_object(path, kind=ModelError, remedy=ANEW)
    return Profile.from_dict(entries, where=path)


def find_reference(model_directory: str) -> tuple[Profile | None, str]:
    """(the export's profile that was counted with its current decision, ""); without one, (None,
    the reason).

    A profile that was counted with another decision (before a temperature was fitted) holds other
    scores than the model's: compared with it, unchanged rows would seem to have drifted.

    Args:
        model_directory: an export on any storage: a run's `export`, or a version `v=N`.
    Raises:
        ModelError: the file is not a model's profile.
    """
    # A profile made later for a published version lies beside the versions and takes precedence.
    paths = [profile_path(model_directory, PROFILE), storage.join(model_directory, PROFILE)]
    why = NO_PROFILE
    for path in dict.fromkeys(paths):
        try:
            profile = read(path)
        except NotFound:
            continue
        if profile.reference is None:
            raise damaged(path, "a partition's profile")
        if profile.bins.decision.hash == _decision_of(model_directory):
            return profile, ""
        why = f"{path} was counted with another decision than the export's current one"
    return None, why


def reference_of(model_directory: str) -> Profile | None:
    """`find_reference` without the reason."""
    return find_reference(model_directory)[0]


def _decision_of(model_directory: str) -> str | None:
    try:
        return decision_hash(read_info(model_directory))
    except NotFound:  # a third-party model
        return None
