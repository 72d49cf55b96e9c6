"""What is counted into which bin: fixed by a model's reference, for all that is compared with it.

label        one bin a class, by the model's decision; one for rows that it rejects
confidence   deciles of the validation split (of a regression: of the predicted number)
length       deciles of the training split's token counts
tokens       the TOP most frequent tokens of training have a cell each, all others share OTHERS
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
"""Tokens with a cell of their own."""
OTHERS = 1024
"""Cells that all other tokens share: a token's number modulo this."""
SKIPPED = TOP + OTHERS
"""Cell of special tokens, which are not counted."""
KNOWN_BITS = 2**17
"""Tokens of larger vocabularies (XLM-RoBERTa's) share bits, by their number modulo this."""
NANO = 10**9


def pack(values: np.ndarray, dtype: str) -> str:
    """An array as JSON holds it: little-endian, compressed, base64."""
    return base64.b64encode(zlib.compress(values.astype(dtype).tobytes(), 9)).decode("ascii")


def unpack(text: Any, dtype: str, most: int) -> np.ndarray:
    """The array that `pack` wrote.

    Args:
        most: values; more are refused before they are decompressed.
    Raises:
        ValueError: it is not one.
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
    """The error for a file that is no profile."""
    return ModelError(
        "this is no profile that this version of Howdah reads",
        where=where,
        expected="a profile.json of format 1",
        got=str(got),
        remedy="make the model's again with `howdah drift --make-reference`, a partition's with"
        " `howdah score`",
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
        """Of the numbers of tokens that occurred."""
        bits = np.zeros(max(1, min(vocabulary, KNOWN_BITS)), bool)
        bits[np.asarray(tokens, np.int64) % len(bits)] = True
        return cls(bits)

    def has(self, tokens: np.ndarray) -> np.ndarray:
        """Whether each token occurred: bool, of the shape of `tokens`."""
        return self.bits[tokens % len(self.bits)]

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"size": len(self.bits), "bits": pack(np.packbits(self.bits), "u1")}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Known:
        """What `as_dict` gave."""
        size = int(fields["size"])
        if not 0 < size <= KNOWN_BITS:
            raise ValueError(f"{size} known tokens")
        packed = unpack(fields["bits"], "u1", (size + 7) // 8)
        if len(packed) != (size + 7) // 8:
            raise ValueError(f"bits of {8 * len(packed)} tokens instead of {size}")
        return cls(np.unpackbits(packed, count=size).astype(bool))


@dataclass(frozen=True, kw_only=True, eq=False)
class Bins:
    """The bins of one model. Equal `id`: counts may be added and compared."""

    task: Task
    labels: tuple[str, ...]
    """C names by number; of a regression, its column's."""
    confidence: tuple[float, ...]
    """Ascending edges between bins; a value at an edge belongs to the bin above."""
    slope: float
    intercept: float
    """Probability that a prediction is right = sigmoid(slope x log odds of its confidence +
    intercept), fitted on the validation split."""
    length: tuple[int, ...] = ()
    """Ascending edges, in tokens, special ones included; empty with no `vocabulary`."""
    vocabulary: int = 0
    """Tokens that exist; 0: a model without tokens (of images)."""
    top: tuple[int, ...] = ()
    """Numbers of the tokens with a cell of their own, most frequent first."""
    special: tuple[int, ...] = ()
    """Numbers of the tokens that are not counted: start, end, padding."""
    unknown: int | None = None
    """Number of the token for what the vocabulary cannot spell; None: there is none."""
    decision: Decision = field(default_factory=Decision)
    """What made the scores that are counted, and gives each row its label."""

    @cached_property
    def id(self) -> str:
        """Hash of all of it."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:16]

    @cached_property
    def rule(self) -> Rule:
        """The decision for these labels."""
        return self.decision.rule(self.task, self.labels)

    @property
    def classes(self) -> int:
        """Bins of labels (`Rule.counted`); 0 of a regression, which has none."""
        return len(self.rule.counted)

    @cached_property
    def cells(self) -> np.ndarray:
        """Cell of each token, int32 [vocabulary]."""
        cells = TOP + np.arange(self.vocabulary, dtype=np.int32) % OTHERS
        cells[list(self.top)] = np.arange(len(self.top), dtype=np.int32)
        cells[list(self.special)] = SKIPPED
        return cells

    def outputs(self, scores_NC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What is counted of a model's output: rows of each label int64 [classes], and each row's
        confidence float64 [N].

        Confidence is the highest probability; of several labels that of the least certain one; of a
        regression the predicted number.
        """
        scores_NC = np.asarray(scores_NC, np.float32)  # as served: an edge decides alike
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
        """As JSON."""
        decision = self.decision.as_dict()
        return {
            **({"decision": decision} if decision else {}),  # else the id is that of older profiles
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
        """What `as_dict` gave.

        Raises:
            KeyError, TypeError, ValueError: it is not that.
        """
        task = fields["task"]
        if task not in ("single_label", "multi_label", "regression"):
            raise ValueError(f"task {task!r}")
        unknown, labels = fields["unknown"], tuple(str(label) for label in fields["labels"])
        made = cls(
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
        if not 0 <= made.vocabulary < 2**31:
            raise ValueError(f"a vocabulary of {made.vocabulary}")
        if not (math.isfinite(made.slope) and math.isfinite(made.intercept)):
            raise ValueError("a calibration that is not finite")
        tokens = (*made.top, *made.special)
        if tokens and not 0 <= min(tokens) <= max(tokens) < made.vocabulary:
            raise ValueError("a token outside the vocabulary")
        for edges in (made.confidence, made.length):
            if not all(a < b for a, b in itertools.pairwise(edges)):
                raise ValueError("edges of bins that do not ascend")
        return made


def log_odds(confidence_N: np.ndarray) -> np.ndarray:
    """log(p / (1 - p)) float64 [N], of probabilities that float32 rounded to 1, too."""
    p = np.clip(np.asarray(confidence_N, np.float64), 1e-7, 1 - 1e-7)
    return np.log(p) - np.log1p(-p)
