"""Adapters in torch: a run's first logits, the merged weights' logits, and the gradients."""

from __future__ import annotations

import os

import numpy as np
import pytest

os.environ.setdefault("USE_TF", "0")
import torch

from howdah.config.model import ModelSection
from howdah.config.training import LoraSection, TrainingSection
from howdah.models.forward import forward_torch
from howdah.models.weights import lora, parameters
from howdah.models.weights.pretrained import load_base
from tests.support.models.images import write_tiny_vit
from tests.support.models.tiny_families import FAMILY_NAMES, batch, write_family
from tests.support.models.tiny_model import write_tiny_model

ALL = LoraSection(rank=3, modules=["query", "value", "key", "attended", "inner", "outer"])
NO_DROPOUT = ModelSection(dropout=0.0)


@pytest.fixture(scope="module", params=["distilbert", *FAMILY_NAMES, "vit"])
def base(request, tmp_path_factory):
    place = str(tmp_path_factory.mktemp("lora") / request.param)
    write = {"distilbert": write_tiny_model, "vit": write_tiny_vit}.get(request.param)
    return load_base(write(place) if write else write_family(place, request.param))


def build(base, weights, *, adapters: LoraSection | None = None, model=NO_DROPOUT, **more):
    training = TrainingSection(framework="torch", lora=adapters or LoraSection())
    return forward_torch.build(
        base.config, weights, num_labels=3, training=training, model=model, **more
    )


def inputs(base) -> tuple[np.ndarray, np.ndarray]:
    if base.family.kind == "image":
        side = base.config["image_size"]
        pixels = np.random.default_rng(0).integers(0, 256, (4, side * side * 3), dtype=np.uint8)
        return pixels, np.ones((4, 1), np.int64)
    return batch(base.config["pad_token_id"])[:2]


def grown(base, adapters: LoraSection, **more) -> dict[str, np.ndarray]:
    """A model's weights after some steps: no adapter is zero."""
    names = lora.adapter_shapes(base.config, more.get("model", NO_DROPOUT), adapters)
    start = dict(forward_torch.weights(build(base, base.weights, adapters=adapters, **more)))
    rng = np.random.default_rng(1)
    return {
        name: rng.normal(0, 0.05, array.shape).astype(np.float32) if name in names else array.copy()
        for name, array in start.items()
    }


@pytest.mark.parametrize("modules", [["query", "value"], ["outer"], ALL.modules])
def test_a_run_begins_with_the_base_s_logits_and_exports_what_it_computes(base, modules):
    adapters = LoraSection(rank=3, modules=modules)
    plain = forward_torch.forward_fn(build(base, base.weights))(*inputs(base))
    begun = build(base, base.weights, adapters=adapters)
    # Not the same bits: MKL's depend on where an array lies in memory.
    np.testing.assert_allclose(forward_torch.forward_fn(begun)(*inputs(base)), plain, atol=1e-6)
    weights = grown(base, adapters)
    adapted = forward_torch.forward_fn(build(base, weights, adapters=adapters))(*inputs(base))
    assert np.abs(adapted - plain).max() > 1e-3
    merged = lora.merged(weights)
    theirs = forward_torch.forward_fn(build(base, lora.without_adapters(merged)))(*inputs(base))
    np.testing.assert_allclose(theirs, adapted, atol=2e-6)
    # The merged model with its adapters is what the last evaluation sees.
    zero = forward_torch.forward_fn(build(base, merged, adapters=adapters))(*inputs(base))
    np.testing.assert_allclose(zero, theirs, atol=1e-6)


def gradients(net, base) -> dict[str, np.ndarray]:
    ids_BT, mask_BT = inputs(base)
    net.train()
    logits_BC = net(forward_torch.on_device(ids_BT, "cpu"), torch.from_numpy(mask_BT))
    labels_B = torch.arange(len(ids_BT)) % 3
    torch.nn.functional.cross_entropy(logits_BC, labels_B).backward()
    named = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    return {n: (g.to_dense() if g.is_sparse else g).numpy() for n, g in named.items()}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradients_are_those_of_the_merged_weight_and_nothing_else_has_one(base, precision):
    weights = grown(base, ALL)
    adapted = gradients(build(base, weights, adapters=ALL, precision=precision), base)
    merged = lora.without_adapters(lora.merged(weights))
    whole = gradients(build(base, merged, precision=precision), base)
    names = parameters.trainable_names(base.config, NO_DROPOUT, ALL)
    assert adapted.keys() == set(names)
    close = {"atol": 1e-6} if precision == "fp32" else {"atol": 0.02, "rtol": 0.1}
    for name in names:
        if not name.endswith((lora.A, lora.B)):
            np.testing.assert_allclose(adapted[name], whole[name], err_msg=name, **close)
            continue
        layer = name.rpartition(".")[0]
        of_weight_OI = whole[f"{layer}.weight"] * lora.scale(ALL.rank)
        a_RI, b_OR = weights[layer + lora.A], weights[layer + lora.B]
        expected = of_weight_OI @ a_RI.T if name.endswith(lora.B) else b_OR.T @ of_weight_OI
        np.testing.assert_allclose(adapted[name], expected, err_msg=name, **close)


def test_layers_that_are_frozen_have_no_adapter(base):
    model = ModelSection(freeze_layers=1)
    shapes = lora.adapter_shapes(base.config, model, LoraSection(rank=2))
    first, second = (base.family.layer_name(number) for number in (0, 1))
    assert not any(name.startswith(first) for name in shapes)
    assert sum(name.startswith(second) for name in shapes) == 4
    names = parameters.trainable_names(base.config, model, LoraSection(rank=2))
    assert names == [*shapes, *base.family.classifier_names]
    assert (
        lora.described(model, LoraSection(rank=2)) == "rank 2 on query, value of layers from 1 on"
    )
