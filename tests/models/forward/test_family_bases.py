"""Bases of BERT, RoBERTa and XLM-RoBERTa as they are found, and those that do not fit."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from howdah.config.loader import from_dict
from howdah.config.model import Config
from howdah.data.family import FAMILIES
from howdah.data.manifest import Dataset
from howdah.errors import ModelError
from howdah.jobs import checks
from howdah.models.opened.opened import open_model
from howdah.models.weights import parameters
from howdah.models.weights.pretrained import load_base
from howdah.training.comm.base import SoloComm
from howdah.training.preparation.base import agreed_base
from tests.fixtures.dataset import build_dataset
from tests.support.models.tiny_families import FAMILY_NAMES, LABELS, write_family

FEW = {"train": 4, "validation": 2, "test": 2}


def check_fit(config: Config, dataset: Dataset) -> None:
    """Check the base against the dataset as a run's only rank does before its first step."""
    agreed_base(config, dataset, SoloComm(), SimpleNamespace(say=print, update=dict))


def rewrite(directory: str, change) -> None:
    path = os.path.join(directory, "model.safetensors")
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def set_config(directory: str, **fields) -> None:
    path = os.path.join(directory, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file) | fields
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)


def _pretrained(name: str, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Weights as the hub has them: other tasks' heads, positions, TensorFlow 1's names of norms."""
    more = {
        "bert": {"cls.predictions.bias": 2, "cls.seq_relationship.weight": 2},
        "roberta": {"lm_head.dense.weight": 3, "roberta.pooler.dense.weight": 3},
        "xlm-roberta": {"lm_head.bias": 1, "roberta.embeddings.position_ids": 1},
    }[name]
    renamed = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): array
        for key, array in weights.items()
    }
    return renamed | {key: np.ones(size, np.float32) for key, size in more.items()}


@pytest.mark.parametrize("name", FAMILY_NAMES)
@pytest.mark.parametrize("bare", [False, True])
def test_pretrained_files_are_read_without_a_warning(name, bare, tmp_path):
    directory = write_family(str(tmp_path), name)
    plain = load_base(directory)
    prefix = FAMILIES[name].prefix
    rewrite(
        directory,
        lambda weights: {
            key.removeprefix(prefix) if bare else key: array
            for key, array in _pretrained(name, weights).items()
        },
    )
    pretrained = load_base(directory)
    assert pretrained.notes == ()
    assert pretrained.weights.keys() == plain.weights.keys()
    for key, array in plain.weights.items():
        np.testing.assert_array_equal(pretrained.weights[key], array)


def test_a_bert_without_a_pooler_gets_a_new_one_and_is_no_classifier(tmp_path):
    directory = write_family(str(tmp_path), "bert", labels=LABELS)
    rewrite(directory, lambda weights: {k: a for k, a in weights.items() if "pooler" not in k})
    base = load_base(directory, label_names=LABELS)
    assert base.notes == ("the base has no bert.pooler.dense: a new one is trained",)
    start = parameters.start_weights(base.config, base.weights, num_labels=3, seed=5)
    assert start["bert.pooler.dense.weight"].std() == pytest.approx(0.1, rel=0.1)
    assert not start["bert.pooler.dense.bias"].any()
    np.testing.assert_array_equal(start["classifier.weight"], base.weights["classifier.weight"])
    with pytest.raises(ModelError, match="no trained classifier") as caught:
        open_model(directory)
    assert "bert.pooler.dense.weight" in caught.value.expected
    rewrite(directory, lambda w: w | {"bert.pooler.dense.bias": np.zeros(32, np.float32)})
    with pytest.raises(ModelError, match="1 of 39 tensors are missing"):
        load_base(directory)


@pytest.mark.parametrize(
    "fields",
    [{"position_embedding_type": "relative_key"}, {"is_decoder": True}, {"hidden_act": "mish"}],
)
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_another_arithmetic_is_refused(name, fields, tmp_path):
    directory = write_family(str(tmp_path), name)
    set_config(directory, **fields)
    with pytest.raises(ModelError) as caught:
        base = load_base(directory)
        base.family.check_activation(base.config)
    ((key, value),) = fields.items()
    assert key in str(caught.value) and str(value) in caught.value.got


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_a_dataset_of_another_family_s_tokenizer_is_refused(name, tmp_path):
    others = [other for other in FAMILY_NAMES if other != name]
    base = load_base(write_family(str(tmp_path / name), name))
    config = from_dict({"model": {"base": base.source}})
    matching = build_dataset(str(tmp_path / "own" / "v=1"), model_dir=base.source, rows=FEW)
    check_fit(config, matching)
    assert matching.manifest.tokenizer.pad_id == (0 if name == "bert" else 1)
    for other in others:
        model_dir = write_family(str(tmp_path / other), other)
        path = str(tmp_path / f"{other}-data" / "v=1")
        dataset = build_dataset(path, model_dir=model_dir, rows=FEW)
        with pytest.raises(ModelError, match="tokenizer is not the dataset's") as caught:
            check_fit(config, dataset)
        assert dataset.manifest.tokenizer.hash in caught.value.expected
        assert model_dir in caught.value.expected and "howdah etl" in caught.value.remedy


def test_rows_longer_than_roberta_s_positions_are_refused(tmp_path):
    """Two of its 66 rows are before the first token's."""
    base = load_base(write_family(str(tmp_path / "base"), "roberta"))
    assert base.config["max_position_embeddings"] == 66
    config = from_dict({"model": {"base": base.source}})
    for length in (64, 65):
        dataset = build_dataset(
            str(tmp_path / f"{length}" / "v=1"), model_dir=base.source, max_length=length, rows=FEW
        )
        if length == 64:
            check_fit(config, dataset)
            continue
        with pytest.raises(ModelError, match="longer than the base model can read") as caught:
            check_fit(config, dataset)
        assert "at most 64" in caught.value.expected


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_a_job_asks_for_the_files_of_its_own_tokenizer(name, tmp_path):
    base = write_family(str(tmp_path), name)
    config = from_dict({"model": {"base": base}})
    checks.model(config, print)
    os.remove(os.path.join(base, "tokenizer.json"))
    other = "vocab.json" if name == "bert" else "vocab.txt"
    for present in (None, other):
        if present is not None:
            (tmp_path / present).write_text("of another kind")
        with pytest.raises(ModelError, match=r"the base model lacks tokenizer\.json") as caught:
            checks.model(config, print)
        assert "tokenizer_config.json" in caught.value.got
