"""Beginning from a published model: which weights are taken over, and what is refused."""

import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from howdah.data.family import DISTILBERT
from howdah.errors import ModelError
from howdah.models.version import find_version, open_version
from howdah.models.weights import parameters
from howdah.models.weights.pretrained import load_base
from howdah.training.model.warm import start_from
from tests.support.models.tiny_model import write_tiny_model

OLD = ["cat", "dog"]


def exported(directory, labels=OLD, add=1.0) -> str:
    """A tiny model with a classifier for these labels, and weights unlike the base's."""
    path = write_tiny_model(str(directory))
    with open(os.path.join(path, "config.json")) as file:
        config = json.load(file)
    config["id2label"] = {str(n): name for n, name in enumerate(labels)}
    with open(os.path.join(path, "config.json"), "w") as file:
        json.dump(config, file)
    weights = {name: w + np.float32(add) for name, w in _weights(path).items()}
    rng = np.random.default_rng(0)
    for name, shape in DISTILBERT.head_shapes({"dim": 32}, len(labels)).items():
        weights[name] = rng.standard_normal(shape).astype(np.float32)
    save_file(weights, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    return path


def _weights(path):
    return load_file(os.path.join(path, "model.safetensors"))


@pytest.fixture
def base(tmp_path):
    return load_base(write_tiny_model(str(tmp_path / "base")))


def test_all_weights_are_taken_over_and_the_classifier_by_names(base, tmp_path):
    path = exported(tmp_path / "old")
    theirs = _weights(path)
    got = start_from(path, base, ["owl", "dog", "cat"], seed=1)
    for name in DISTILBERT.encoder_shapes(base.config):
        np.testing.assert_array_equal(got.weights[name], theirs[name])
    for name in ("classifier.weight", "classifier.bias"):  # cat was 0 and is 2
        np.testing.assert_array_equal(got.weights[name][[2, 1]], theirs[name])
    np.testing.assert_array_equal(
        got.weights["pre_classifier.weight"], theirs["pre_classifier.weight"]
    )
    drawn = parameters.start_weights(base.config, base.weights, num_labels=3, seed=1)
    np.testing.assert_array_equal(
        got.weights["classifier.weight"][0], drawn["classifier.weight"][0]
    )
    assert "new labels: owl" in got.notes[-1]
    start = parameters.start_weights(got.config, got.weights, num_labels=3, seed=9)
    np.testing.assert_array_equal(start["classifier.weight"], got.weights["classifier.weight"])


def test_the_hash_is_of_both_models(base, tmp_path):
    one = start_from(exported(tmp_path / "a"), base, OLD, seed=1)
    same = start_from(exported(tmp_path / "b"), base, OLD, seed=1)
    other = start_from(exported(tmp_path / "c", add=2.0), base, OLD, seed=1)
    assert one.hash == same.hash != other.hash and one.hash != base.hash


def test_a_label_that_the_dataset_has_not_is_refused(base, tmp_path):
    with pytest.raises(ModelError) as caught:
        start_from(exported(tmp_path / "old"), base, ["cat", "owl"], seed=1)
    assert "cat, dog" in str(caught.value) and caught.value.exit_code == 4


def test_a_model_of_another_size_is_refused(base, tmp_path):
    other = write_tiny_model(str(tmp_path / "wide"), dim=64)
    weights = _weights(other)
    for name, shape in DISTILBERT.head_shapes({"dim": 64}, 2).items():
        weights[name] = np.zeros(shape, np.float32)
    save_file(weights, os.path.join(other, "model.safetensors"), metadata={"format": "pt"})
    path = os.path.join(other, "config.json")
    with open(path) as file:
        config = json.load(file) | {"id2label": {"0": "cat", "1": "dog"}}
    with open(path, "w") as file:
        json.dump(config, file)
    with pytest.raises(ModelError) as caught:
        start_from(other, base, OLD, seed=1)
    assert "family or size" in str(caught.value)


def test_a_published_model_is_found_by_its_pointer_or_its_version(tmp_path):
    root = tmp_path / "models" / "news"
    for number in (1, 2):
        (root / f"v={number}").mkdir(parents=True)
        (root / f"v={number}" / "manifest.json").write_text("{}")
    (root / "current.json").write_text('{"version": 2}')
    assert find_version(str(root)).path == str(root / "v=2")
    assert find_version(f"{root}@1").path == str(root / "v=1")
    with pytest.raises(ModelError) as caught:
        find_version(f"{root}@3")
    assert "one of 1, 2" in str(caught.value)
    with pytest.raises(ModelError):
        open_version(str(tmp_path / "none"))
