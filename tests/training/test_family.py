"""A family with other names trains like DistilBERT: the same losses, its own names on disk."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from howdah.data.family import DISTILBERT
from tests.runs.training_runs import ROOT, train
from tests.support.models.other_family import OTHER, other_config, other_weights
from tests.support.models.tiny_model import write_tiny_model

WITH_OTHER = {
    "PYTHONPATH": os.pathsep.join([os.path.join(ROOT, "tests", "workers", "other"), ROOT])
}


def write_classifier(directory: str, labels: list[str], *, other: bool) -> str:
    """The tiny model with a classifier: a new one would depend on its tensors' names."""
    write_tiny_model(directory)
    config_path, weights_path = (
        os.path.join(directory, name) for name in ("config.json", "model.safetensors")
    )
    with open(config_path, encoding="utf-8") as file:
        config = json.load(file) | {"id2label": dict(enumerate(labels))}
    rng = np.random.default_rng(3)
    weights = load_file(weights_path) | {
        name: (0.02 * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in DISTILBERT.head_shapes(config, len(labels)).items()
    }
    if other:
        weights, config = other_weights(weights, config), other_config(config)
    save_file(weights, weights_path, metadata={"format": "pt"})
    with open(config_path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    return directory


@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.full)])
def test_a_family_with_other_names_has_the_same_losses(tmp_path, tiny_dataset, framework):
    labels = tiny_dataset.manifest.labels
    plain, other = (
        train(
            str(tmp_path / name),
            dataset=tiny_dataset.path,
            base=write_classifier(str(tmp_path / f"{name}-base"), labels, other=name == "other"),
            framework=framework,
            settings={"training.max_steps": 4, "model.freeze_layers": 1},
            env=WITH_OTHER,
        )
        for name in ("plain", "other")
    )
    np.testing.assert_allclose(other.losses(), plain.losses(), rtol=1e-5)
    assert len(other.losses()) == 4
    exported = load_file(os.path.join(other.directory, "export", "model.safetensors"))
    names = [*OTHER.encoder_shapes(other_config(_config(plain.directory))), *OTHER.head_names]
    assert sorted(exported) == sorted(names)
    saved = other.tensors(4)
    trained = {f"model/{name}" for name in names if not name.startswith("other.stack.0.")}
    assert {name for name in saved if name.startswith("model/")} == trained
    assert "adam_m/other.stack.1.up.weight" in saved
    assert "adam_m/other.stack.0.up.weight" not in saved  # frozen
    assert _config(other.directory)["model_type"] == "other"


def _config(run_directory: str) -> dict:
    with open(os.path.join(run_directory, "export", "config.json"), encoding="utf-8") as file:
        return json.load(file)
