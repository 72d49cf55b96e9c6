"""How much memory a worker of a job takes at its peak, from its configuration and its base model.

What a rank holds is arithmetic: copies of the parameters, and the activations of one micro-batch.
The factors in it are measured (`python -m bench memory`: real jobs, the kernel's high-water marks
of training process and agent): docs/decisions/worker-memory.md has the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from howdah.config_model import Config
from howdah.manifest import DatasetManifest

__all__ = ["BASE_SHAPE", "Needed", "needed", "parameters", "shape_of_hub_name"]

BASE_SHAPE: dict[str, int] = {
    "dim": 768, "hidden_dim": 3072, "n_heads": 12, "n_layers": 6,
    "max_position_embeddings": 512, "vocab_size": 30522,
}  # fmt: skip
"""DistilBERT-base's. Source: transformers' DistilBertConfig: what a config.json leaves out."""
_HUB_VOCABULARIES = {
    "distilbert-base-uncased": 30522,
    "distilbert-base-cased": 28996,
    "distilbert-base-german-cased": 31102,
    "distilbert-base-multilingual-cased": 119547,
}
"""Of DistilBERT's own models. Source: their config.json on the hub."""
_FLOAT = 4
_COPY = 3
"""A copy of the state: weights and AdamW's two moments."""


@dataclass(frozen=True)
class _Factors:
    """Of one framework, measured on CPUs."""

    runtime: int
    """Bytes of agent, interpreter, framework and Horovod."""
    copies: float
    """Of the parameters on rank 0 of a static job: weights, gradient, moments, a snapshot being
    saved, and what is read and written at the end."""
    width: float
    """Floats of a token in a whole layer, as multiples of dim."""
    inner: float
    """The same, of hidden_dim."""
    scores: float
    """The same, of heads times the row's length."""
    half: float
    """Share of the activations that is left in bf16 and fp16."""
    recomputed: float
    """Share of them that is left with training.gradient_checkpointing."""


_FACTORS = {
    "torch": _Factors(740 * 2**20, 10.5, 13.7, 3.5, 3.5, 0.48, 0.27),
    "tensorflow": _Factors(1045 * 2**20, 10.45, 11.9, 3.0, 3.2, 0.65, 1.0),
}


@dataclass(frozen=True)
class Needed:
    """Peak resident memory of a worker."""

    parts: dict[str, int]
    """Bytes by what takes them, in words."""

    @property
    def total(self) -> int:
        """Bytes."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{size / 2**20:,.0f} {what}" for what, size in self.parts.items())
        return f"{self.total / 2**20:,.0f} MiB ({parts})"


def parameters(shape: Mapping[str, int], labels: int) -> int:
    """Parameters of DistilBERT for sequence classification.

    Args:
        shape: config.json; what it leaves out is as in BASE_SHAPE.
        labels: classes.
    """
    shape = BASE_SHAPE | dict(shape)
    dim, hidden = shape["dim"], shape["hidden_dim"]
    embeddings = (shape["vocab_size"] + shape["max_position_embeddings"] + 2) * dim
    layer = 4 * (dim * dim + dim) + (dim * hidden + hidden) + (hidden * dim + dim) + 4 * dim
    head = dim * dim + dim + labels * dim + labels
    return embeddings + shape["n_layers"] * layer + head


def shape_of_hub_name(name: str) -> dict[str, int] | None:
    """The shape of a model that is the hub's, without asking it; None: not known.

    >>> shape_of_hub_name("distilbert-base-cased")["vocab_size"]
    28996
    """
    name = name.removeprefix("distilbert/")
    if name not in _HUB_VOCABULARIES:
        return None
    return BASE_SHAPE | {"vocab_size": _HUB_VOCABULARIES[name]}


def needed(config: Config, shape: Mapping[str, int], manifest: DatasetManifest) -> Needed:
    """The peak of the worker that takes most: rank 0, with as few workers as the job may have.

    Args:
        config: of the job; on CPUs (a GPU holds weights and activations in memory of its own).
        shape: the base's config.json; what it leaves out is as in BASE_SHAPE.
        manifest: of the dataset.
    """
    shape = BASE_SHAPE | dict(shape)
    factors = _FACTORS[config.training.framework]
    model = parameters(shape, len(manifest.labels)) * _FLOAT
    parts = {
        "the framework": factors.runtime,
        "weights, gradients, moments and a checkpoint": round(factors.copies * model),
    }
    if config.yarn.elastic:
        parts["an elastic job's copy"] = _COPY * model
    tokens = _micro_batch_tokens(config, manifest.max_length)
    parts[f"activations of {tokens:,} tokens"] = round(
        tokens * _floats_of_token(config, shape, manifest.max_length) * _FLOAT
    )
    return Needed(parts)


def _micro_batch_tokens(config: Config, longest: int) -> int:
    """Most tokens of a rank's micro-batch: a rank's share of a batch, up to the limit."""
    rows = -(-config.training.global_batch_size // config.yarn.fewest)
    return min(config.training.per_device_max_tokens, rows * longest)


def _floats_of_token(config: Config, shape: Mapping[str, int], longest: int) -> float:
    """Of a token of a row of `longest` tokens: what the backward pass needs of it."""
    factors = _FACTORS[config.training.framework]
    layer = (
        factors.width * shape["dim"]
        + factors.inner * shape["hidden_dim"]
        + factors.scores * shape["n_heads"] * longest
    )
    if config.training.gradient_checkpointing:
        layer *= factors.recomputed
    if config.training.precision in ("bf16", "fp16"):  # auto may be fp32: the nodes' own matter
        layer *= factors.half
    # Of the last layer only each row's first token goes through; embeddings make up for it.
    return max(1, shape["n_layers"] - 1) * layer
