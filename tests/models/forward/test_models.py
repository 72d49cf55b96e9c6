"""The two models on the same weights: logits, gradients, optimizer; a process for each."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from howdah.config.model import ModelSection
from howdah.data.family import DISTILBERT, FAMILIES
from howdah.errors import ConfigError, ModelError
from howdah.models.weights import parameters
from howdah.models.weights.pretrained import load_base
from tests import ROOT as REPOSITORY
from tests.workers.model import CLASSES, LEARNING_RATES, WEIGHT_DECAY

ROOT = str(REPOSITORY)
FRAMEWORKS = ("torch", "tensorflow")
UNDEFINED = "attention.k_lin.bias"  # its true gradient is 0: it holds rounding errors


@pytest.fixture(scope="module")
def inputs() -> dict[str, np.ndarray]:
    """A batch with padding and a filler row, and three updates of two tensors."""
    rng = np.random.default_rng(5)
    lengths = np.array([16, 9, 3, 16, 1])
    mask_BT = (np.arange(16) < lengths[:, None]).astype(np.int32)
    values = {
        "ids_BT": (rng.integers(5, 600, (5, 16)) * mask_BT).astype(np.int32),
        "mask_BT": mask_BT,
        "labels_B": np.array([0, 1, 2, 1, 0], np.int32),
        "weights_B": np.array([1.0, 2.5, 1.0, 0.5, 0.0], np.float32),
        "global_weight": np.float32(5.0),
    }
    for name, shape in (("some.weight", (7, 3)), ("some.bias", (7,))):
        values[name] = rng.standard_normal(shape).astype(np.float32)
        for number in range(len(LEARNING_RATES)):
            values[f"{number}/{name}"] = rng.standard_normal(shape).astype(np.float32)
    return values


@pytest.fixture(scope="module")
def results(inputs, tiny_model_dir, tmp_path_factory) -> dict[str, dict[str, np.ndarray]]:
    """Results of tests/workers/model.py, by framework."""
    directory = tmp_path_factory.mktemp("models")
    np.savez(directory / "inputs.npz", **inputs)
    arrays = {}
    for framework in FRAMEWORKS:
        out = directory / f"{framework}.npz"
        done = subprocess.run(
            [sys.executable, "tests/workers/model.py", framework, tiny_model_dir,
             str(directory / "inputs.npz"), str(out)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": ROOT, "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            timeout=240,  # detects a hang
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{framework}:\n{done.stdout}\n{done.stderr}")
        arrays[framework] = dict(np.load(out))
    return arrays


def part(result: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {n.removeprefix(prefix): a for n, a in result.items() if n.startswith(prefix)}


# --------------------------------------------------------------------------------------- models
def test_logits_are_the_same_in_both_frameworks(results):
    torch, tensorflow = (results[name]["logits"] for name in FRAMEWORKS)
    assert torch.shape == (5, CLASSES) and torch.dtype == tensorflow.dtype == np.float32
    assert np.ptp(torch, axis=0).min() > 1e-3  # rows differ: the inputs have an effect
    np.testing.assert_allclose(tensorflow, torch, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", ["", "fused/"])
def test_logits_and_gradients_are_those_of_transformers(results, kind):
    result = results["torch"]
    logits = result["fused"] if kind else result["logits"]
    np.testing.assert_allclose(logits, result["transformers/logits"], atol=1e-6, rtol=1e-5)
    theirs = part(result, "transformers/gradient/")
    ours = part(result, f"{kind}gradient/")
    assert theirs.keys() == ours.keys()
    for name, array in ours.items():
        if UNDEFINED in name:
            assert np.abs(array).max() < 1e-6
            continue
        scale = np.abs(theirs[name]).max()
        assert scale > 0, name
        np.testing.assert_allclose(array, theirs[name], atol=2e-5 * scale, rtol=1e-4, err_msg=name)


def test_activations_are_the_same_in_both_frameworks(results):
    torch, tensorflow = (part(results[name], "activation/") for name in FRAMEWORKS)
    heads = {family.head_activation for family in FAMILIES.values()}
    assert set(torch) == set(tensorflow) == set(DISTILBERT.activations) | heads
    for name, array in torch.items():
        np.testing.assert_allclose(tensorflow[name], array, atol=1e-6, rtol=1e-5, err_msg=name)


def test_an_activation_that_distilbert_does_not_have_is_refused():
    with pytest.raises(ModelError) as raised:
        DISTILBERT.check_activation({"activation": "mish"})
    assert raised.value.got == "mish"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_padding_does_not_change_logits(results, framework):
    result = results[framework]
    np.testing.assert_allclose(result["wider"], result["logits"], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_bf16_logits_are_those_of_fp32_to_its_precision(results, framework):
    result = results[framework]
    assert result["bf16"].dtype == np.float32
    assert not np.array_equal(result["bf16"], result["logits"])
    np.testing.assert_allclose(result["bf16"], result["logits"], atol=0.02)


def test_fp16_logits_are_those_of_fp32_to_its_precision(results):
    """A GPU's precision, here on the CPU: the mask's value is outside its range."""
    np.testing.assert_allclose(results["torch"]["fp16"], results["torch"]["logits"], atol=0.02)


def test_both_start_from_the_same_weights(results, tiny_model_dir):
    base = load_base(tiny_model_dir)
    shapes = DISTILBERT.encoder_shapes(base.config) | DISTILBERT.head_shapes(base.config, CLASSES)
    for framework in FRAMEWORKS:
        start = part(results[framework], "start/")
        assert {name: array.shape for name, array in start.items()} == shapes
        for name, array in base.weights.items():
            np.testing.assert_array_equal(start[name], array)
    for name in DISTILBERT.head_names:
        head = [results[framework][f"start/{name}"] for framework in FRAMEWORKS]
        np.testing.assert_array_equal(*head)


def test_imported_weights_are_exported_unchanged(results):
    start = part(results["tensorflow"], "start/")
    imported = part(results["tensorflow"], "imported/")
    assert start.keys() == imported.keys()
    for name, array in start.items():
        np.testing.assert_array_equal(imported[name], array + 1)


# ------------------------------------------------------------------------------------ gradients
def test_gradients_are_the_same_in_both_frameworks(results):
    torch, tensorflow = (part(results[name], "gradient/") for name in FRAMEWORKS)
    assert torch.keys() == tensorflow.keys()
    for name in torch:
        if UNDEFINED in name:
            assert np.abs(tensorflow[name]).max() < 1e-6
            continue
        scale = np.abs(torch[name]).max()
        assert scale > 0, name
        np.testing.assert_allclose(
            tensorflow[name], torch[name], atol=2e-5 * scale, rtol=1e-4, err_msg=name
        )


def test_bf16_gradients_are_those_of_fp32_to_its_precision(results):
    whole, half = (part(results["torch"], f"{kind}gradient/") for kind in ("", "bf16/"))
    assert whole.keys() == half.keys()
    for name, array in half.items():
        if UNDEFINED in name:
            continue
        off = np.linalg.norm(array - whole[name]) / np.linalg.norm(whole[name])
        assert off < 0.05, name


def test_micro_batches_are_added_up(results):
    result = results["tensorflow"]
    once = part(result, "gradient/")
    for name, array in once.items():
        np.testing.assert_allclose(result["twice/" + name], 2 * array, rtol=1e-6, atol=1e-9)
    norm = np.sqrt(sum(float((array.astype(np.float64) ** 2).sum()) for array in once.values()))
    np.testing.assert_allclose(result["norm"], 2 * norm, rtol=1e-5)


def test_frozen_parts_have_no_gradient_and_do_not_change_other_gradients(results):
    whole = part(results["tensorflow"], "gradient/")
    frozen = part(results["tensorflow"], "frozen/")
    assert not any("embeddings" in name or "layer.0." in name for name in frozen)
    for name in frozen:
        if UNDEFINED not in name:
            np.testing.assert_allclose(frozen[name], whole[name], atol=1e-7, rtol=1e-4)


def test_tensorflow_traces_once_for_every_shape(results):
    assert results["tensorflow"]["traces"].tolist() == [1, 1]


# -------------------------------------------------------------------------------------- dropout
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_dropout_is_a_function_of_the_seed(results, framework):
    first, again, other = results[framework]["dropout/kept"]
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_recomputed_activations_get_the_same_dropout(results):
    kept, again = (results["torch"][f"dropout/{label}"] for label in ("kept", "again"))
    np.testing.assert_allclose(again, kept, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_dropout_drops_its_share_and_keeps_the_mean(results, framework):
    dropped = results[framework]["dropped"]
    share = (dropped == 0).mean(axis=(1, 2))
    np.testing.assert_allclose(share, 0.1, atol=0.003)  # 6 sigma of 400,000 draws
    np.testing.assert_allclose(dropped[dropped > 0], 1 / 0.9, rtol=1e-4)
    np.testing.assert_allclose(dropped.mean(axis=(1, 2)), 1.0, atol=0.004)
    both = ((dropped[0] == 0) & (dropped[1] == 0)).mean()
    np.testing.assert_allclose(both, 0.01, atol=0.001)  # layers draw independently
    beside = ((dropped[:, :, 1:] == 0) & (dropped[:, :, :-1] == 0)).mean()
    np.testing.assert_allclose(beside, 0.01, atol=0.001)  # and so do neighbouring elements


# ------------------------------------------------------------------------------------ optimizer
def test_adamw_is_the_same_update_in_both_frameworks(results, inputs):
    for prefix in ("updated/", "adam_m/", "adam_v/"):
        torch, tensorflow = (part(results[name], prefix) for name in FRAMEWORKS)
        assert set(torch) == set(tensorflow) == {"some.weight", "some.bias"}
        for name in torch:
            np.testing.assert_allclose(tensorflow[name], torch[name], rtol=2e-6, atol=1e-7)
            assert not np.array_equal(torch[name], inputs[name])


def test_adamw_is_the_papers_formula(results, inputs):
    for name in ("some.weight", "some.bias"):
        p = inputs[name].astype(np.float64)
        m = v = 0.0
        for t, lr in enumerate(LEARNING_RATES, start=1):
            gradient = 0.5 * inputs[f"{t - 1}/{name}"].astype(np.float64)
            p = p - lr * (WEIGHT_DECAY if name.endswith("weight") else 0.0) * p
            m = 0.9 * m + 0.1 * gradient
            v = 0.999 * v + 0.001 * gradient**2
            p = p - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        for framework in FRAMEWORKS:
            updated = results[framework][f"updated/{name}"]
            np.testing.assert_allclose(updated, p, rtol=3e-6, atol=1e-6)


# ----------------------------------------------------------------------- parameters (no framework)
def test_a_new_classifier_is_drawn_from_the_seed_alone(tiny_model_dir):
    base = load_base(tiny_model_dir)
    start = [
        parameters.start_weights(base.config, base.weights, num_labels=4, seed=seed)
        for seed in (1, 1, 2)
    ]
    for name in ("pre_classifier.weight", "classifier.weight"):
        np.testing.assert_array_equal(start[0][name], start[1][name])
        assert not np.array_equal(start[0][name], start[2][name])
    drawn = start[0]["pre_classifier.weight"]
    assert abs(drawn.std() / base.config["initializer_range"] - 1) < 0.1
    assert not start[0]["classifier.bias"].any()


def test_a_classifier_of_the_base_is_kept_where_it_fits(tiny_model_dir):
    base = load_base(tiny_model_dir)
    head = parameters.start_weights(base.config, base.weights, num_labels=4, seed=1)
    kept = parameters.start_weights(base.config, head, num_labels=4, seed=2)
    new = parameters.start_weights(base.config, head, num_labels=5, seed=2)
    np.testing.assert_array_equal(kept["classifier.weight"], head["classifier.weight"])
    assert new["classifier.weight"].shape[0] == 5


def test_biases_and_norms_do_not_decay(tiny_model_dir):
    config = load_base(tiny_model_dir).config
    names = [*DISTILBERT.encoder_shapes(config), *DISTILBERT.head_names]
    shapes = DISTILBERT.encoder_shapes(config) | DISTILBERT.head_shapes(config, 2)
    # In this model the matrices decay, and no other tensor.
    assert [n for n in names if parameters.decays(n)] == [n for n in names if len(shapes[n]) == 2]


def test_freezing_more_layers_than_there_are_is_refused(tiny_model_dir):
    config = load_base(tiny_model_dir).config
    names = parameters.trainable_names(config, ModelSection(freeze_layers=config["n_layers"]))
    assert set(DISTILBERT.head_names) <= set(names)
    with pytest.raises(ConfigError) as raised:
        parameters.trainable_names(config, ModelSection(freeze_layers=config["n_layers"] + 1))
    assert raised.value.where == "model.freeze_layers"


def test_dropout_seeds_differ_by_step_micro_step_and_rank():
    seeds = {
        parameters.dropout_seed(seed, step, micro, rank)
        for seed in (0, 42)
        for step in range(20)
        for micro in range(3)
        for rank in range(4)
    }
    assert len(seeds) == 2 * 20 * 3 * 4
    assert all(0 <= seed < 2**63 for seed in seeds)
