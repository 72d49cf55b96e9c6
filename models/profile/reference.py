"""Makes a model's profile from its scores on the validation split and the tokens of the training
split.

    outputs      labels, confidence and its calibration, from all rows of validation
    tokens       which tokens occurred, their counts, lengths, from rows of training (a sample if
                 there are more than `MOST_ROWS`)
    noise        unseen tokens: measured on validation's rows. Token counts: measured between
                 samples of one half of the training rows and the other half
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from howdah.config.tasks import Task
from howdah.models.decision import Decision
from howdah.models.profile.bins import SKIPPED, TOP, Bins, Known, log_odds
from howdah.models.profile.profile import Profile, Reference
from howdah.models.profile.statistics import js_distance

MOST_ROWS = 100_000
"""Most rows of each split whose tokens are read; more would not change any limit noticeably."""
_DECILES = np.arange(1, 10) / 10
_ROUNDING = 5
"""Decimals of the edges between bins of confidence. Frameworks agree to six, and a row must not
change its bin because another framework scores it."""
_SIZES = (100, 200, 400, 1000, 2000, 5000, 10_000, 20_000)
"""Numbers of rows of the samples that the noise of token counts is measured with."""
_DRAWS = 40
_DRAWN_TOKENS = 30_000_000
"""Most tokens drawn at each size; large samples are drawn less often."""


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """The facts of a tokenizer that the bins need."""

    vocabulary: int
    special: tuple[int, ...]
    """Numbers of the tokens for start, end and padding."""
    unknown: int | None


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Token ids of rows, one after the other."""

    ids: np.ndarray
    """int [all tokens]"""
    lengths: np.ndarray
    """int [N]"""

    @classmethod
    def of(cls, ids_N: Sequence[np.ndarray]) -> Tokens:
        """The tokens of a list of rows."""
        flat = np.concatenate(ids_N) if len(ids_N) else np.zeros(0, np.int64)
        return cls(ids=flat, lengths=np.array([len(ids) for ids in ids_N], np.int64))


def make(
    scores_NC: np.ndarray,
    right_N: np.ndarray | None,
    *,
    task: Task,
    labels: Sequence[str],
    split: str,
    decision: Decision | None = None,
    train: Tokens | None = None,
    held_out: Tokens | None = None,
    tokenizer: Tokenizer | None = None,
    expected_empty: float = 0.0,
    about: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Profile:
    """The profile of a model.

    Args:
        scores_NC: `Decision.scores` of the rows of `split`.
        right_N: bool, True if a row's answer is right (`Rule.right`); None for a regression.
        labels: C names.
        split: the split that was scored: validation, unless there was none.
        decision: the model's decision; None: the default.
        train, held_out, tokenizer: tokens of the training split and of `split`; None for images.
        expected_empty: share of rows without text in the source of the training data.
        about: only informative.
        seed: seed of the samples that noise is measured with.
    """
    bins = replace(
        _output_bins(scores_NC, right_N, task, labels, decision or Decision()),
        **_token_bins(train, tokenizer),
    )
    token_ids = np.zeros(0, np.int64) if train is None else np.unique(train.ids)
    known_tokens = Known.of(token_ids, bins.vocabulary)
    counting = Profile(bins, known_tokens=known_tokens)
    counting._add_scores(np.asarray(scores_NC))
    if train is not None:
        counting._add_tokens(_rows_of(train))
    right, answered = _right(bins, scores_NC, right_N)
    reference = Reference(
        known_tokens=known_tokens,
        split=split,
        right=right,
        answered=answered,
        unseen=_unseen(bins, known_tokens, held_out),
        spread=_spread(bins, train, seed),
        expected_empty=expected_empty,
        about=about or {},
    )
    return Profile(bins, counts=counting.counts, reference=reference)


def redecided(
    profile: Profile,
    scores_NC: np.ndarray,
    right_N: np.ndarray | None,
    *,
    split: str,
    decision: Decision,
) -> Profile:
    """The profile of the same model with another decision: outputs are counted again, counts of
    tokens stay.

    Args:
        profile: the model's profile with the previous decision.
        scores_NC, right_N, split, decision: see `make`.
    """
    if profile.bins is None or profile.reference is None:
        raise ValueError("the profile must be a model's own")
    old = profile.bins
    outputs = _output_bins(scores_NC, right_N, old.task, old.labels, decision)
    fit = {name: getattr(outputs, name) for name in ("confidence", "slope", "intercept")}
    bins = replace(old, **fit, decision=decision)
    counting = Profile(bins, known_tokens=profile.reference.known_tokens)
    counting._add_scores(np.asarray(scores_NC))
    counts = counting.counts
    for name in ("texts", "length", "ids", "tokens", "unseen", "unknown", "cells"):
        setattr(counts, name, getattr(profile.counts, name))
    right, answered = _right(bins, scores_NC, right_N)
    return Profile(
        bins,
        counts=counts,
        reference=replace(profile.reference, split=split, right=right, answered=answered),
    )


def from_partitions(profile: Profile, partitions: Sequence[Profile]) -> Profile:
    """The profile of a model with counts of scored rows in place of its dataset's: later partitions
    are then compared with rows as they arrive, duplicates included.

    Bins, calibration and the facts of training stay.

    Args:
        profile: the model's profile.
        partitions: profiles that were counted with it.
    """
    if profile.bins is None or profile.reference is None:
        raise ValueError("the profile must be a model's own")
    total = Profile.like(profile)
    for one in partitions:
        total.merge(one)
    counts, origin = total.counts, profile.reference
    tokens, unseen, spread = origin.unseen
    if counts.tokens:
        tokens, unseen = counts.tokens, counts.unseen
    # Accuracy by labels stays that of validation: the true labels of these rows are unknown.
    answered = profile.counts.rows if origin.answered is None else origin.answered
    reference = replace(
        origin,
        answered=None if origin.right is None else answered,
        unseen=(tokens, unseen, spread),
        expected_empty=counts.empty / max(1, total.rows),
        sampled_tokens=counts.tokens or None,
    )
    return Profile(profile.bins, counts=counts, reference=reference)


def _output_bins(
    scores_NC: np.ndarray,
    right_N: np.ndarray | None,
    task: Task,
    labels: Sequence[str],
    decision: Decision,
) -> Bins:
    """Bins of confidence and its calibration, without those of tokens."""
    fixed = {"task": task, "labels": tuple(labels), "decision": decision}
    probe = Bins(**fixed, confidence=(), slope=1.0, intercept=0.0)
    confidence_N = probe.outputs(scores_NC)[1]
    slope, intercept = (1.0, 0.0) if right_N is None else fit_calibration(confidence_N, right_N)
    return replace(probe, confidence=_edges(confidence_N), slope=slope, intercept=intercept)


def _right(
    bins: Bins, scores_NC: np.ndarray, right_N: np.ndarray | None
) -> tuple[int | None, int | None]:
    """(`right`, `answered`) of `Reference`."""
    if right_N is None:
        return None, None
    answered_N = bins.rule.answered(np.asarray(scores_NC, np.float32))
    rejects = bins.decision.reject_below is not None
    return int((right_N & answered_N).sum()), int(answered_N.sum()) if rejects else None


def _edges(values_N: np.ndarray) -> tuple[float, ...]:
    """Edges between the deciles of values; there are fewer bins if many values are equal."""
    values_N = np.round(np.asarray(values_N, np.float64), _ROUNDING)
    half = 0.5 * 10.0**-_ROUNDING
    edges = np.unique(np.quantile(values_N, _DECILES, method="higher"))
    # Half a rounding step below: values that round to an edge lie above it without being rounded.
    upper_edges = [float(edge - half) for edge in edges if edge > values_N.min()]
    # If all values are equal, there are empty bins below and above them.
    only = float(values_N.min())
    return tuple(upper_edges) or (only - half, only + half)


def _length_edges(lengths_N: np.ndarray) -> tuple[int, ...]:
    edges = np.unique(np.quantile(lengths_N, _DECILES, method="higher")).astype(int)
    upper_edges = tuple(int(edge) for edge in edges if edge > lengths_N.min())
    only = int(lengths_N.min())
    return upper_edges or (only, only + 1)


def _token_bins(train: Tokens | None, tokenizer: Tokenizer | None) -> dict[str, Any]:
    if train is None or tokenizer is None:
        return {}
    counts_V = np.bincount(train.ids, minlength=tokenizer.vocabulary)
    special = tuple(sorted(set(tokenizer.special)))
    counts_V[list(special)] = 0
    top = np.argsort(-counts_V, kind="stable")[:TOP]
    return {
        "length": _length_edges(train.lengths),
        "vocabulary": tokenizer.vocabulary,
        "top": tuple(int(token) for token in top if counts_V[token]),
        "special": special,
        "unknown": tokenizer.unknown,
    }


def _rows_of(tokens: Tokens) -> list[np.ndarray]:
    return np.split(tokens.ids, np.cumsum(tokens.lengths)[:-1])


def fit_calibration(confidence_N: np.ndarray, right_N: np.ndarray) -> tuple[float, float]:
    """(slope, intercept) of Platt's scaling: P(right) = sigmoid(slope x log odds + intercept).

    Maximum likelihood with Platt's targets, so that a split without a wrong row has a finite
    answer (Platt 1999; Newton's method as in Lin, Lin and Weng 2007). The mean of the calibrated
    confidence then equals the accuracy, except for the targets. A slope below 0 (more confident
    rows are more often wrong) is rejected: every row gets the mean then.
    """
    x_N = log_odds(confidence_N)
    wins, losses = float(np.sum(right_N)), float(len(right_N) - np.sum(right_N))
    target_N = np.where(right_N, (wins + 1) / (wins + 2), 1 / (losses + 2))
    mean = float(target_N.mean())
    flat = math.log(mean / (1 - mean))
    if len(x_N) < 2 or float(np.ptp(x_N)) == 0.0:
        return 0.0, flat
    slope, intercept = 1.0, 0.0

    def loss(a: float, b: float) -> float:
        z_N = a * x_N + b
        return float((np.logaddexp(0, z_N) - target_N * z_N).sum())

    now = loss(slope, intercept)
    for _ in range(100):
        with np.errstate(over="ignore"):  # an infinite exponential is a probability of 0
            p_N = 1 / (1 + np.exp(-(slope * x_N + intercept)))
        w_N = p_N * (1 - p_N)
        gradient = np.array([((p_N - target_N) * x_N).sum(), (p_N - target_N).sum()])
        hessian = np.array(
            [[(w_N * x_N * x_N).sum(), (w_N * x_N).sum()], [(w_N * x_N).sum(), w_N.sum()]]
        ) + 1e-9 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        while size > 1e-6:
            a, b = slope - size * step[0], intercept - size * step[1]
            new = loss(a, b)
            if new < now:
                break
            size /= 2
        else:
            break
        done = now - new < 1e-10 * abs(now)
        slope, intercept, now = float(a), float(b), new
        if done:
            break
    return (slope, intercept) if slope > 0 else (0.0, flat)


def _unseen(bins: Bins, known_tokens: Known, held_out: Tokens | None) -> tuple[int, int, float]:
    """(tokens, unseen tokens, spread): the share of unseen tokens in n rows varies by spread /
    sqrt(n) around unseen / tokens (the variance of a ratio of two means)."""
    if held_out is None or not len(held_out.lengths):
        return (0, 0, 0.0)
    counted = bins.cells[held_out.ids] != SKIPPED
    new = counted & ~known_tokens.has(held_out.ids.astype(np.int64))
    row = np.repeat(np.arange(len(held_out.lengths)), held_out.lengths)
    tokens_N = np.bincount(row, counted, len(held_out.lengths))
    unseen_N = np.bincount(row, new, len(held_out.lengths))
    total, unseen = int(tokens_N.sum()), int(unseen_N.sum())
    if not total:
        return (0, 0, 0.0)
    residual_N = unseen_N - unseen / total * tokens_N
    spread = math.sqrt(float((residual_N**2).mean())) / float(tokens_N.mean())
    return (total, unseen, spread)


def _spread(bins: Bins, train: Tokens | None, seed: int) -> tuple[tuple[float, float, float], ...]:
    """The noise of token counts by sample size. Whole rows are drawn, since the words of a text do
    not occur independently."""
    if train is None or len(train.lengths) < 2 * _SIZES[0]:
        return ()
    random = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(train.lengths)])
    cell = bins.cells[train.ids]
    order = random.permutation(len(train.lengths))
    half, other = order[: len(order) // 2], order[len(order) // 2 :]

    def counts(rows: np.ndarray) -> np.ndarray:
        lengths = train.lengths[rows]
        at = np.repeat(starts[rows] - (np.cumsum(lengths) - lengths), lengths)
        return np.bincount(cell[at + np.arange(len(at))], minlength=SKIPPED + 1)[:SKIPPED]

    others = counts(other)
    mean_length = float(train.lengths.mean())
    noise = []
    for size in _SIZES:
        if size > len(half):
            break
        draws = max(8, min(_DRAWS, int(_DRAWN_TOKENS / (size * mean_length))))
        samples = [counts(random.choice(half, size)) for _ in range(draws)]
        if not others.sum() or not all(sample.sum() for sample in samples):
            return ()
        distances = [js_distance(others, sample) for sample in samples]
        tokens = float(np.mean([sample.sum() for sample in samples]))
        noise.append((tokens, float(np.mean(distances)), float(np.std(distances, ddof=1))))
    return tuple(noise)
