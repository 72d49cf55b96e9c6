"""The bins that rows are counted in. A model's reference fixes them for all that is compared with
it.

label        one bin per class, by the model's decision, and one for rows that it rejects
confidence   deciles of the validation split (for a regression: of the predicted number)
length       deciles of the training split's token counts
tokens       the TOP most frequent tokens of training have a cell each; all others share OTHERS
             cells by their number
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import itertools
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, assert_never

import numpy as np

from howdah.config.tasks import Task
from howdah.errors import ModelError
from howdah.models.decision import Decision, Rule

TOP = 1024
"""Number of tokens that have a separate cell."""
OTHERS = 1024
"""Number of cells that all other tokens share: a token's number modulo this."""
SKIPPED = TOP + OTHERS
"""Cell of special tokens, which are not counted."""
KNOWN_BITS = 2**17
"""Tokens of larger vocabularies (XLM-RoBERTa's) share bits by their number modulo this."""
NANO = 10**9
ANEW = (
    "make a model's profile again with `howdah drift --make-reference`, a partition's with"
    " `howdah score`"
)
"""Remedy for a file that is not a profile."""


def pack(values: np.ndarray, dtype: str) -> str:
    """An array as a string for JSON: little-endian, compressed, base64."""
    return base64.b64encode(zlib.compress(values.astype(dtype).tobytes(), 9)).decode("ascii")


def unpack(text: Any, dtype: str, most: int) -> np.ndarray:
    """The array that `pack` wrote.

    Args:
        most: number of values; more are refused before they are decompressed.
    Raises:
        ValueError: the text is not such an array.
    """
    try:
        size = most * np.dtype(dtype).itemsize
        data = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), size + 1)
    except (TypeError, binascii.Error, zlib.error) as error:
        raise ValueError(str(error)) from None
    if len(data) > size or len(data) % np.dtype(dtype).itemsize:
        raise ValueError(f"{len(data)} bytes instead of at most {size}")
    return np.frombuffer(data, dtype).copy()


def damaged(where: str | None, got: object) -> ModelError:
    """The error for a file that is not a profile."""
    return ModelError(
        "the file is not a profile that this version of Howdah reads (format 1)",
        where=where,
        got=str(got),
        remedy=ANEW,
    )


class Known:
    """Which tokens occurred in training, as bits by token number.

    Args:
        bits: bool [min(vocabulary, KNOWN_BITS)].
    """

    def __init__(self, bits: np.ndarray) -> None:
        self.bits = np.asarray(bits, bool)

    @classmethod
    def of(cls, tokens: np.ndarray, vocabulary: int) -> Known:
        """The set of the tokens with these numbers."""
        bits = np.zeros(max(1, min(vocabulary, KNOWN_BITS)), bool)
        bits[np.asarray(tokens, np.int64) % len(bits)] = True
        return cls(bits)

    def has(self, tokens: np.ndarray) -> np.ndarray:
        """True for each token that occurred: bool, with the shape of `tokens`."""
        return self.bits[tokens % len(self.bits)]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"size": len(self.bits), "bits": pack(np.packbits(self.bits), "u1")}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Known:
        """The tokens that `as_dict` wrote."""
        size = int(fields["size"])
        if not 0 < size <= KNOWN_BITS:
            raise ValueError(f"{size} known tokens")
        packed = unpack(fields["bits"], "u1", (size + 7) // 8)
        if len(packed) != (size + 7) // 8:
            raise ValueError(f"bits of {8 * len(packed)} tokens instead of {size}")
        return cls(np.unpackbits(packed, count=size).astype(bool))


@dataclass(frozen=True, kw_only=True, eq=False)
class Bins:
    """The bins of one model. Counts may be added and compared if the `id` is equal."""

    task: Task
    labels: tuple[str, ...]
    """C names by number; for a regression, the column's name."""
    confidence: tuple[float, ...]
    """Ascending edges between bins; a value at an edge belongs to the bin above."""
    slope: float
    intercept: float
    """Probability that a prediction is right = sigmoid(slope x log odds of its confidence +
    intercept), fitted on the validation split."""
    length: tuple[int, ...] = ()
    """Ascending edges, in tokens, special ones included; empty if `vocabulary` is 0."""
    vocabulary: int = 0
    """Number of tokens that exist; 0 for a model without tokens (images)."""
    top: tuple[int, ...] = ()
    """Numbers of the tokens with a separate cell, most frequent first."""
    special: tuple[int, ...] = ()
    """Numbers of the tokens that are not counted: start, end, padding."""
    unknown: int | None = None
    """Number of the token for text that the vocabulary cannot spell; None if there is none."""
    decision: Decision = field(default_factory=Decision)
    """The decision that made the counted scores and that gives each row its label."""

    @cached_property
    def id(self) -> str:
        """Hash of all fields."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:16]

    @cached_property
    def rule(self) -> Rule:
        """The decision for these labels."""
        return self.decision.rule(self.task, self.labels)

    @property
    def classes(self) -> int:
        """Number of label bins (`Rule.counted`); 0 for a regression."""
        return len(self.rule.counted)

    @cached_property
    def cells(self) -> np.ndarray:
        """Cell of each token, int32 [vocabulary]."""
        cells = TOP + np.arange(self.vocabulary, dtype=np.int32) % OTHERS
        cells[list(self.top)] = np.arange(len(self.top), dtype=np.int32)
        cells[list(self.special)] = SKIPPED
        return cells

    def outputs(self, scores_NC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(rows of each label int64 [classes], each row's confidence float64 [N]) of a model's
        scores.

        Confidence is the highest probability; for several labels, that of the least certain label;
        for a regression, the predicted number.
        """
        # float32 as in serving, so that a score at a bin's edge falls on the same side.
        scores_NC = np.asarray(scores_NC, np.float32)
        counts = self.rule.counts(scores_NC)
        scores_NC = scores_NC.astype(np.float64)
        if self.task == "regression":
            return counts, scores_NC[:, 0]
        if self.task == "single_label":
            return counts, scores_NC.max(axis=1)
        if self.task != "multi_label":
            assert_never(self.task)
        return counts, np.maximum(scores_NC, 1 - scores_NC).min(axis=1)

    def calibrated(self, confidence_N: np.ndarray) -> np.ndarray:
        """Probability that each prediction is right, float64 [N]."""
        odds_N = self.slope * log_odds(confidence_N) + self.intercept
        small = np.exp(-np.abs(odds_N))
        return np.where(odds_N >= 0, 1.0, small) / (1.0 + small)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        decision = self.decision.as_dict()
        return {
            **({"decision": decision} if decision else {}),  # existing profiles have no such key
            "task": self.task,
            "labels": list(self.labels),
            "confidence": list(self.confidence),
            "slope": self.slope,
            "intercept": self.intercept,
            "length": list(self.length),
            "vocabulary": self.vocabulary,
            "top": pack(np.array(self.top, np.int64), "<u4"),
            "special": list(self.special),
            "unknown": self.unknown,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Bins:
        """The bins that `as_dict` wrote.

        Raises:
            KeyError, TypeError, ValueError: the fields are not valid.
        """
        task = fields["task"]
        if task not in ("single_label", "multi_label", "regression"):
            raise ValueError(f"task {task!r}")
        unknown, labels = fields["unknown"], tuple(str(label) for label in fields["labels"])
        bins = cls(
            task=task,
            labels=labels,
            decision=Decision.of(fields, labels, task, "profile"),
            confidence=tuple(float(edge) for edge in fields["confidence"]),
            slope=float(fields["slope"]),
            intercept=float(fields["intercept"]),
            length=tuple(int(edge) for edge in fields["length"]),
            vocabulary=int(fields["vocabulary"]),
            top=tuple(unpack(fields["top"], "<u4", TOP).tolist()),
            special=tuple(int(token) for token in fields["special"]),
            unknown=None if unknown is None else int(unknown),
        )
        if not 0 <= bins.vocabulary < 2**31:
            raise ValueError(f"a vocabulary of {bins.vocabulary}")
        if not (math.isfinite(bins.slope) and math.isfinite(bins.intercept)):
            raise ValueError("a calibration that is not finite")
        tokens = (*bins.top, *bins.special)
        if tokens and not 0 <= min(tokens) <= max(tokens) < bins.vocabulary:
            raise ValueError("a token outside the vocabulary")
        for edges in (bins.confidence, bins.length):
            if not all(a < b for a, b in itertools.pairwise(edges)):
                raise ValueError("edges of bins that do not ascend")
        return bins


def log_odds(confidence_N: np.ndarray) -> np.ndarray:
    """log(p / (1 - p)) float64 [N]; finite even where float32 has rounded p to 0 or 1."""
    p = np.clip(np.asarray(confidence_N, np.float64), 1e-7, 1 - 1e-7)
    return np.log(p) - np.log1p(-p)
