"""The baseline in this process: sparse features in memory, scikit-learn's logistic regression."""

from __future__ import annotations

from typing import Any

import numpy as np

from howdah.config.loader import Config
from howdah.config.metric_table import METRICS
from howdah.config.splits import TRAIN, VALIDATION
from howdah.core.activity import Progress
from howdah.data.manifest import Dataset
from howdah.data.splits.class_weights import class_weights
from howdah.data.splits.shards import ShardSet, node_cache
from howdah.errors import ClusterError, ConfigError
from howdah.models.metrics import metrics
from howdah.serving.baseline import linear, ngrams
from howdah.serving.baseline.measured import (
    MAX_FEATURES,
    MIN_ROWS,
    NGRAMS,
    STRENGTHS,
    Measured,
    gib,
    memory_limit,
    splits_to_evaluate,
)


def measure(config: Config, dataset: Dataset, progress: Progress) -> Measured:
    """Measure the baseline of a dataset whose features fit into this process's memory.

    Raises:
        ConfigError: the features do not fit.
        DataError: rows of one class only, or without common n-grams; nothing to evaluate on.
    """
    _require_sklearn()
    _refuse_too_large(config, dataset)
    splits = splits_to_evaluate(config, dataset)
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
        packages=("scikit-learn", "scipy", "numpy"),
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


def _refuse_too_large(config: Config, dataset: Dataset) -> None:
    """Refuse a dataset whose baseline would not fit into memory, before anything is read.

    Raises:
        ConfigError: with the estimate and the limit.
    """
    manifest = dataset.manifest
    limit, named = memory_limit()
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
            expected=f"at most {gib(limit)} ({named})",
            got=f"up to {gib(needed)}: {rows:,} rows with {tokens * NGRAMS:,} n-grams in"
            f" all, {features:,} features, {len(manifest.labels)} classes",
            remedy="run the command on a machine with more memory, or leave gate.min_over_baseline"
            " out",
        )
