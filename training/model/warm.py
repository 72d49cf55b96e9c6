"""Begins from another model: its weights, with the classifier's rows matched by label name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from howdah.config.model import Config
from howdah.errors import ModelError
from howdah.models.version import open_version
from howdah.models.weights import parameters
from howdah.models.weights.pretrained import BaseModel, label_names_of, load_base


def begin(
    config: Config, labels: Sequence[str], *, check: Callable[[BaseModel], None] = lambda base: None
) -> BaseModel:
    """The model that a run of this configuration begins with: `model.base`, with the weights of
    `model.init_from` if that is set. The run's checkpoints depend on its hash.

    Args:
        config: the configuration with pinned versions (models/base.py).
        labels: the dataset's labels in their order.
        check: called with `model.base` before the other model is read.
    Raises:
        ModelError: there is no such model, or the models do not fit each other or the labels.
    """
    base = load_base(config.model.base, revision=config.model.revision, label_names=labels)
    check(base)
    if config.model.init_from is None:
        return base
    return start_from(config.model.init_from, base, labels, config.training.seed)


def start_from(address: str, base: BaseModel, labels: Sequence[str], seed: int) -> BaseModel:
    """The base with the weights of the model that `model.init_from` names, classifier included.

    The hash covers both models, so that a run resumes only from checkpoints that began the same
    way.

    Args:
        labels: the dataset's labels in their order: the model's and possibly new ones, whose rows
            of the classifier are drawn with the seed.
    Raises:
        ModelError: the model has another family or shape, or a label that the dataset lacks.
    """
    path = open_version(address, key="model.init_from").path
    base_labels = label_names_of(load_base(path, weights=False).config) or []
    theirs = load_base(path, label_names=base_labels)
    missing = [name for name in base_labels if name not in labels]
    if missing or not base_labels:
        raise ModelError(
            "the model to begin from has labels that the dataset lacks",
            where=f"model.init_from {path}",
            expected=f"only labels among {', '.join(labels)}",
            got=", ".join(base_labels) or "no labels in its config.json",
            remedy="append to the dataset that it was trained on (labels keep their numbers), or"
            " leave model.init_from out",
        )
    _check_shapes(base, theirs, path)
    drawn = parameters.start_weights(
        base.config, {**base.weights, **_no_head(theirs)}, num_labels=len(labels), seed=seed
    )
    head = _head_by_name(theirs, base_labels, labels, drawn)
    new = [name for name in labels if name not in base_labels]
    note = f"begins from {path}" + (f"; new labels: {', '.join(new)}" if new else "")
    both = hashlib.sha256(f"{base.hash}:{theirs.hash}".encode()).hexdigest()[:16]
    return replace(base, weights={**_no_head(theirs), **head}, hash=both, notes=(*base.notes, note))


def _no_head(model: BaseModel) -> dict[str, np.ndarray]:
    return {name: model.weights[name] for name in model.family.encoder_shapes(model.config)}


def _head_by_name(
    theirs: BaseModel,
    base_labels: Sequence[str],
    labels: Sequence[str],
    drawn: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """The classifier: a known label's row is taken by its name, a new label's row from `drawn`."""
    family = theirs.family
    shapes = family.head_shapes(theirs.config, len(labels))
    other = family.head_shapes(theirs.config, len(labels) + 1)
    numbers = [labels.index(name) for name in base_labels]
    head = {}
    for name, shape in shapes.items():
        old = theirs.weights[name]
        if shape == other[name]:  # a tensor without a row per label
            head[name] = old
            continue
        head[name] = np.array(drawn[name])
        head[name][numbers] = old
    return head


def _check_shapes(base: BaseModel, theirs: BaseModel, path: str) -> None:
    ours, shapes = (m.family.encoder_shapes(m.config) for m in (base, theirs))
    if base.family != theirs.family or ours != shapes:
        differ = [name for name in ours if ours[name] != shapes.get(name)]
        raise ModelError(
            "the model to begin from has another family or size than model.base",
            where=f"model.init_from {path}",
            expected=f"a {base.family.title} with the shapes of {base.source}",
            got=theirs.family.title
            + (f", {differ[0]} {shapes.get(differ[0], 'missing')}" if differ else ""),
            remedy="set model.base to the base that it was trained from",
        )
