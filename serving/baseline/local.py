"""The baseline in this process: sparse features in memory, scikit-learn's logistic regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from howdah.config.metric_table import METRICS
from howdah.config.model import Config
from howdah.config.splits import TRAIN, VALIDATION
from howdah.core import machine
from howdah.core.activity import Progress
from howdah.data.manifest import Dataset
from howdah.data.splits.class_weights import class_weights
from howdah.data.splits.shards import ShardSet, node_cache
from howdah.errors import ClusterError, ConfigError, DataError
from howdah.models.metrics import metrics
from howdah.serving.baseline import linear, ngrams

NGRAMS = 2
"""Longest n-grams of token ids: single ids and pairs. Triples would multiply the memory, and a
baseline must be cheap."""
MIN_ROWS = 2
"""N-grams in fewer training rows are left out: they do not help with other rows."""
MAX_FEATURES = 200_000
"""Largest number of n-grams: those in most rows are used."""
STRENGTHS = (1.0, 10.0)
"""Inverse strengths of the L2 regularisation to choose from, by evaluation.metric on validation."""
MAX_BYTES = 8 * 2**30
"""The baseline is refused if its estimated memory is larger: a comparison must not take a machine
from the training that it is compared with."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The result of measuring a baseline."""

    features: int
    c: float
    """Chosen inverse regularisation strength."""
    tried: dict[str, float | None]
    """{c: score by which the best one was chosen}."""
    chosen_by: str
    converged: bool
    metrics: dict[str, dict[str, Any]]
    predicted: dict[str, np.ndarray]
    """{split: int[N], predicted class of each row in the order of the shards}."""


def measure(config: Config, dataset: Dataset, progress: Progress) -> Measured:
    """Measure the baseline of a dataset whose features fit into this process's memory.

    Raises:
        ConfigError: the features do not fit.
        DataError: rows of one class only, or without common n-grams; nothing to evaluate on.
    """
    _require_sklearn()
    _refuse_too_large(dataset)
    splits = _splits_to_evaluate(config, dataset)
    manifest = dataset.manifest
    train = _shards(config, dataset, TRAIN)
    words = ngrams.learn(
        train, ngrams=NGRAMS, vocab_size=manifest.tokenizer.vocab_size,
        min_rows=MIN_ROWS, max_features=MAX_FEATURES,
    )  # fmt: skip
    progress(f"{train.rows:,} rows, {len(words.keys_F):,} features (single words and pairs)")
    matrix, labels_N = _matrix(train, words)
    weights_C = class_weights(config.training, train)

    def fitted(c: float) -> linear.Linear:
        progress(f"fitting with c = {c:g}")
        return linear.fit(matrix, labels_N, c=c, classes=len(manifest.labels), weights_C=weights_C)

    name = config.evaluation.metric
    tried: dict[str, float | None] = {}
    if manifest.rows(VALIDATION):
        chosen_by = f"{name} on {VALIDATION}"
        best: tuple[float, float, linear.Linear] | None = None
        for value in STRENGTHS:
            model = fitted(value)
            metric_value = _evaluated(config, dataset, VALIDATION, words, model)[0][name]
            tried[f"{value:g}"] = metric_value
            score = METRICS[name].score(metric_value) if metric_value is not None else -np.inf
            if best is None or score > best[0]:
                best = (score, value, model)
        _, c, model = best
    else:
        c, chosen_by = STRENGTHS[0], f"default: {VALIDATION} has no rows to choose by"
        progress(f"c = {c:g}, {chosen_by}")
        model = fitted(c)
    if not model.converged:
        progress("the regression has not converged: its metrics may be a little low")
    evaluated = {split: _evaluated(config, dataset, split, words, model) for split in splits}
    return Measured(
        features=len(words.keys_F),
        c=c,
        tried=tried,
        chosen_by=chosen_by,
        converged=model.converged,
        metrics={split: figures for split, (figures, _) in evaluated.items()},
        predicted={split: predicted for split, (_, predicted) in evaluated.items()},
    )


def _require_sklearn() -> None:
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise ClusterError(
            "scikit-learn is not installed", remedy="pip install 'howdah[baseline]'"
        ) from None


def _shards(config: Config, dataset: Dataset, split: str) -> ShardSet:
    shards = ShardSet(dataset, split, cache=node_cache(config.training))
    if shards.cached_bytes + shards.files.index_bytes <= config.training.shard_cache_bytes:
        shards.verify()  # otherwise each shard is checked when it is fetched
    return shards


def _matrix(shards: ShardSet, words: ngrams.Vocabulary) -> tuple[Any, np.ndarray]:
    """Return (csr_matrix[N, F], labels int64[N]) of a whole split."""
    from scipy.sparse import vstack

    parts, labels = [], []
    for chunk in ngrams.chunks(shards):
        parts.append(words.matrix(chunk))
        labels.append(chunk.labels_N.astype(np.int64))
    return vstack(parts, format="csr"), np.concatenate(labels)


def _evaluated(
    config: Config, dataset: Dataset, split: str, words: ngrams.Vocabulary, model: linear.Linear
) -> tuple[dict[str, Any], np.ndarray]:
    """Return (metrics over a split, int32[N] predicted class of each row).

    The features of one chunk at a time are in memory.
    """
    labels, logits = [], []
    for chunk in ngrams.chunks(_shards(config, dataset, split)):
        labels.append(chunk.labels_N)
        logits.append(model.logits(words.matrix(chunk)))
    logits_NC = np.concatenate(logits)
    values = metrics.classification_metrics(
        np.concatenate(labels), logits_NC, dataset.manifest.labels
    )
    return values, logits_NC.argmax(axis=1).astype(np.int32)


def _splits_to_evaluate(config: Config, dataset: Dataset) -> list[str]:
    """List the splits to evaluate: those of the model's last evaluation that have rows.

    Raises:
        DataError: none of them has rows.
    """
    splits = [split for split in config.evaluation.splits if dataset.manifest.rows(split)]
    if not splits:
        have = [name for name in dataset.manifest.splits if dataset.manifest.rows(name)]
        raise DataError(
            "there is nothing to evaluate the baseline on",
            where=dataset.path,
            expected=f"rows in one of evaluation.splits ({', '.join(config.evaluation.splits)})",
            got=f"rows in {', '.join(have) or 'no split'}",
        )
    return splits


def _refuse_too_large(dataset: Dataset) -> None:
    """Refuse a dataset whose baseline would not fit into memory, before anything is read.

    Raises:
        ConfigError: with the estimate and the limit.
    """
    manifest = dataset.manifest
    available = machine.memory_bytes()[0]
    limit, limit_name = min((MAX_BYTES, "its limit"), (available, "this machine's memory"))
    rows = manifest.rows(TRAIN)
    tokens = sum(shard.tokens for shard in manifest.splits.get(TRAIN, []))
    needed, features = ngrams.estimated_bytes(
        rows=rows, tokens=tokens, classes=len(manifest.labels), ngrams=NGRAMS,
        max_features=MAX_FEATURES,
    )  # fmt: skip
    if needed > limit:
        raise ConfigError(
            "the baseline would take too much memory",
            where="howdah evaluate --baseline",
            expected=f"at most {limit / 2**30:.3g} GiB ({limit_name})",
            got=f"up to {needed / 2**30:.3g} GiB: {rows:,} rows with {tokens * NGRAMS:,} n-grams in"
            f" all, {features:,} features, {len(manifest.labels)} classes",
            remedy="run the command on a machine with more memory, or leave gate.min_over_baseline"
            " out",
        )
