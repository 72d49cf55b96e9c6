"""The ViT's forward pass and its gradients, against transformers' class."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

os.environ.setdefault("USE_TF", "0")  # where TensorFlow is there too, transformers would load it
import torch
from transformers import ViTForImageClassification, ViTImageProcessor

from howdah.config.model import ModelSection
from howdah.config.training import TrainingSection
from howdah.data.family import VIT
from howdah.data.images import ImageEncoder
from howdah.errors import ModelError
from howdah.models.forward import forward_torch
from howdah.models.weights import parameters
from howdah.models.weights.pretrained import load_base
from tests.support.models.images import png, write_tiny_vit
from tools.demo.images import write_vit

LABELS = ["a", "b", "c"]
NAMED = {"id2label": dict(enumerate(LABELS)), "label2id": {n: i for i, n in enumerate(LABELS)}}


@pytest.fixture(scope="module")
def vit(tmp_path_factory) -> str:
    """A classifier of three labels, as transformers saves it."""
    return write_tiny_vit(str(tmp_path_factory.mktemp("vit") / "model"), side=32, **NAMED)


def build(base, **training):
    section = TrainingSection(framework="torch", **training)
    return forward_torch.build(
        base.config, base.weights, num_labels=3, training=section, model=ModelSection()
    )


def test_logits_are_those_of_transformers_for_images_of_any_size(vit):
    base, encoder = load_base(vit, label_names=LABELS), ImageEncoder.load(vit)
    theirs, processor = (
        one.from_pretrained(vit) for one in (ViTForImageClassification, ViTImageProcessor)
    )
    forward = forward_torch.forward_fn(build(base))
    rng = np.random.default_rng(0)
    from PIL import Image

    for shape in ((32, 32, 3), (50, 20, 3), (40, 90), (8, 8)):
        pixels = rng.integers(0, 256, shape, dtype=np.uint8)
        mine = forward(encoder.decode(png(pixels))[None], np.ones((1, 17), int))
        inputs = processor(Image.fromarray(pixels).convert("RGB"), return_tensors="pt")
        with torch.no_grad():
            expected = theirs.eval()(**inputs).logits.numpy()
        np.testing.assert_allclose(mine, expected, atol=1e-5)


@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_are_those_of_transformers(vit, recompute):
    base = load_base(vit, label_names=LABELS)
    net, theirs = (
        build(base, gradient_checkpointing=recompute),
        ViTForImageClassification.from_pretrained(vit),
    )
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    labels = torch.tensor([0, 1, 2, 1])
    images = forward_torch.on_device(pixels.reshape(4, -1), "cpu")
    logits = net.train()(images, torch.ones(4, 17, dtype=torch.int32))
    torch.nn.functional.cross_entropy(logits, labels).backward()
    inputs = (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
    theirs(pixel_values=inputs, labels=labels).loss.backward()
    expected = dict(theirs.named_parameters())
    parameters = dict(net.named_parameters())
    assert parameters.keys() == expected.keys()
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter.grad, expected[name].grad, atol=1e-5, rtol=1e-4)


def test_a_random_base_of_ours_is_one_that_transformers_loads(tmp_path):
    config = write_vit(str(tmp_path), side=16, patch=4, width=32, layers=1)
    base = load_base(str(tmp_path), label_names=LABELS)
    assert base.weights.keys() == VIT.encoder_shapes(config).keys()
    theirs, report = ViTForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    # The bare encoder's classifier is new; nothing else is missing or left over.
    assert all("classifier" in name for name in report["missing_keys"])
    assert not report["unexpected_keys"]
    for name, tensor in theirs.state_dict().items():
        if "classifier" not in name:
            np.testing.assert_array_equal(base.weights[name], tensor.numpy())


def test_norms_and_biases_do_not_decay(vit):
    names = parameters.trainable_names(load_base(vit).config, ModelSection())
    kept = [name for name in names if not parameters.decays(name)]
    assert all(name.endswith("bias") or "layernorm" in name for name in kept)
    assert sum(name.endswith("layernorm_before.weight") for name in kept) == 2


def test_freezing_goes_by_the_family_s_names(vit):
    frozen = ModelSection(freeze_embeddings=True, freeze_layers=2)
    names = parameters.trainable_names(load_base(vit).config, frozen)
    assert names == [
        "vit.layernorm.weight", "vit.layernorm.bias", "classifier.weight", "classifier.bias"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qkv_bias": False}, "cannot compute a ViT with this"),
        ({"hidden_act": "quick_gelu"}, "activation"),
        ({"image_size": 64}, "not supported"),
        ({"patch_size": 16}, "shapes"),
        ({"num_hidden_layers": 1}, "more layers"),
        ({"num_attention_heads": 5}, "divisible"),
        ({"patch_size": 0}, "sizes"),
    ],
)
def test_what_cannot_be_computed_is_refused(vit, tmp_path, change, message):
    for name in os.listdir(vit):
        with open(os.path.join(vit, name), "rb") as file:
            (tmp_path / name).write_bytes(file.read())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match=message):
        build(load_base(str(tmp_path)))
