"""A worker's peak memory, computed from the job's configuration and its base model.

A rank holds copies of the parameters and the activations of one micro-batch. The factors are
measured (`python -m bench memory`: real jobs, the kernel's high-water marks of training process and
agent): docs/decisions/worker-memory.md has the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from howdah.config.model import Config
from howdah.data.family import family_of
from howdah.data.manifest import DatasetManifest

_FLOAT = 4
_COPY = 3
"""Tensors in a copy of the state: weights and AdamW's two moments."""
_MOMENTS = 2
_PREDICTIONS_WAITING, _PREDICTIONS_IN_FILE = 16 * 2**20, 64 * 2**20


@dataclass(frozen=True)
class _Factors:
    """Measured factors of one framework, on CPUs."""

    runtime: int
    """Bytes of agent, interpreter, framework and Horovod."""
    copies: float
    """Copies of the parameters on rank 0 of a static job: weights, gradient, moments, a snapshot
    being saved, and the final export."""
    width: float
    """Floats per token and layer, as a multiple of the model's width."""
    inner: float
    """Floats per token and layer, as a multiple of the feed-forward layers' width."""
    scores: float
    """Floats per token and layer, as a multiple of heads times the row's length."""
    half: float
    """Share of the activations that remains in bf16 and fp16."""
    recomputed: float
    """Share of the activations that remains with training.gradient_checkpointing."""


_FACTORS = {
    "torch": _Factors(740 * 2**20, 10.5, 13.7, 3.5, 3.5, 0.48, 0.27),
    "tensorflow": _Factors(1045 * 2**20, 10.45, 11.9, 3.0, 3.2, 0.65, 1.0),
}


@dataclass(frozen=True)
class Peak:
    """Peak resident memory of a worker."""

    parts: dict[str, int]
    """{purpose: bytes}."""

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{size / 2**20:,.0f} {what}" for what, size in self.parts.items())
        return f"{self.total / 2**20:,.0f} MiB ({parts})"


def peak(config: Config, base: Mapping[str, Any], manifest: DatasetManifest) -> Peak:
    """The peak of the largest worker: rank 0 of the smallest world that the job may have.

    Args:
        config: the configuration of a job on CPUs (a GPU has weights and activations in its own
            memory).
        base: the base model's complete config.json.
        manifest: the dataset's manifest.
    """
    factors = _FACTORS[config.training.framework]
    model = family_of(base).parameters(base, len(manifest.labels)) * _FLOAT
    copies = factors.copies
    if config.training.parallel.shard == "optimizer":
        # Rank 0 has a part of the moments, and no snapshot, since a checkpoint goes through disk.
        copies -= _COPY + _MOMENTS * (1 - 1 / config.job.fewest)
    parts = {
        "the framework": factors.runtime,
        "weights, gradients, moments and a checkpoint": round(copies * model),
    }
    if config.job.elastic:
        parts["an elastic job's copy"] = _COPY * model
    # The most tokens of a micro-batch: a rank's share of the batch, up to the limit.
    rows = -(-config.training.global_batch_size // config.job.fewest)
    tokens = min(config.training.max_tokens(), rows * manifest.max_length)
    parts[f"activations of {tokens:,} tokens"] = round(
        tokens * _floats_of_token(config, base, manifest.max_length) * _FLOAT
    )
    if (predictions := _predictions(config, manifest)) > 0:
        parts["predictions until they are written"] = predictions
    return Peak(parts)


def _predictions(config: Config, manifest: DatasetManifest) -> int:
    """Bytes of the last evaluation's rows that wait to be written to a file, and of the part of
    that file in memory; both are bounded (training/evaluation/evaluate.py)."""
    rows = max((manifest.rows(split) for split in config.evaluation.splits), default=0)
    size = -(-rows // config.job.fewest) * len(manifest.labels) * _FLOAT
    # Twice, since Arrow makes one table of the batches that wait.
    return min(size, _PREDICTIONS_IN_FILE) + 2 * min(size, _PREDICTIONS_WAITING)


def _floats_of_token(config: Config, base: Mapping[str, Any], longest: int) -> float:
    """Floats kept for the backward pass for each token of a row of `longest` tokens."""
    factors = _FACTORS[config.training.framework]
    family = family_of(base)
    keys = family.keys
    layer = (
        factors.width * base[keys.width]
        + factors.inner * base[keys.inner]
        + factors.scores * base[keys.heads] * longest
    )
    rate = config.model.dropout
    if family.attended_dropout and (base[family.dropouts.hidden] if rate is None else rate):
        # The factors are measured on DistilBERT, which has no dropout on the attention's output.
        # On a CPU a dropout keeps its factor for each element, but not its result.
        layer += base[keys.width]
    if config.training.gradient_checkpointing:
        layer *= factors.recomputed
    if config.training.precision in ("bf16", "fp16"):  # auto may be fp32 on the nodes
        layer *= factors.half
    # Only each row's first token passes the last layer, which saves about what embeddings take.
    return max(1, base[keys.layers] - 1) * layer
