"""Model families: one record that everything reads, held by a second one with other names."""

from __future__ import annotations

import ast
import fnmatch
import json
import os
from pathlib import Path

import numpy as np
import pytest

import howdah
from howdah import storage
from howdah.config.loader import from_dict
from howdah.config.model import ModelSection
from howdah.data.family import BERT, DISTILBERT, FAMILIES, ROBERTA, family_of, hub_config
from howdah.errors import ModelError
from howdah.jobs import checks
from howdah.models.export.export import export
from howdah.models.export.run_info import describe_run
from howdah.models.opened.opened import open_model
from howdah.models.version import open_version
from howdah.models.weights import parameters
from howdah.models.weights.pretrained import load_base
from howdah.policy.rules import Policy
from howdah.serving.prediction import cluster as predict_cluster
from howdah.training.planning import calibrate
from howdah.yarn.preflight import worker_memory
from tests import ROOT
from tests.fixtures.dataset import LABELS, build_dataset
from tests.support.models.other_family import OTHER, other_config, other_weights, write_other_model

KNOWN = "model_type distilbert or bert or roberta or xlm-roberta or vit"


@pytest.fixture
def other(monkeypatch, tmp_path) -> str:
    """A base model of a family with other names."""
    monkeypatch.setitem(FAMILIES, OTHER.model_type, OTHER)
    return write_other_model(str(tmp_path / "other"))


# ------------------------------------------------------------------------------- the records
def test_distilbert_base_has_the_parameters_that_its_authors_count():
    base = DISTILBERT.complete({})
    assert DISTILBERT.parameters(base, 2) == 66_955_010  # of ...-finetuned-sst-2-english
    assert sum(np.prod(shape) for shape in DISTILBERT.encoder_shapes(base).values()) == 66_362_880


@pytest.mark.parametrize(
    ("name", "labels", "parameters"),
    [
        ("bert-base-uncased", 2, 109_483_778),
        ("bert-large-uncased", 2, 335_143_938),
        ("roberta-base", 2, 124_647_170),
        ("roberta-large", 2, 355_361_794),
        ("xlm-roberta-base", 2, 278_045_186),
    ],
)
def test_models_have_the_parameters_that_transformers_classes_count(name, labels, parameters):
    config = hub_config(name)
    assert family_of(config).parameters(config, labels) == parameters


def test_the_first_token_s_position_follows_from_the_padding_s_id():
    config = hub_config("roberta-base")
    assert ROBERTA.first_position(config) == 2 and ROBERTA.longest(config) == 512
    assert ROBERTA.longest(config | {"pad_token_id": 4}) == 509
    assert BERT.longest(hub_config("bert-base-uncased")) == 512


def test_the_pooler_is_bert_s_and_behind_the_last_layer():
    names = parameters.trainable_names(
        BERT.complete({}), ModelSection(freeze_embeddings=True, freeze_layers=12)
    )
    assert names == [
        "bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight",
        "classifier.bias",
    ]  # fmt: skip
    assert ROBERTA.pooler_names == ()
    for family in (BERT, ROBERTA):
        shapes = family.encoder_shapes(family.defaults) | family.head_shapes(family.defaults, 2)
        assert set(family.classifier_names) <= set(shapes)
        table = family.token_type_embeddings
        assert table in shapes
        assert not parameters.decays(f"{family.prefix}embeddings.LayerNorm.weight")
        assert parameters.decays(table)


def test_a_policy_s_default_allows_each_text_family_s_models():
    allowed = Policy().hub_models
    for family in FAMILIES.values():
        for name in family.hub_models if family.kind == "text" else ():
            for spelt in (name, f"{family.hub_owner}/{name}"):
                assert any(fnmatch.fnmatchcase(spelt, each) for each in allowed), spelt


def test_models_of_the_hub_are_known_without_it():
    assert hub_config("distilbert-base-uncased") == DISTILBERT.complete({})
    assert hub_config("distilbert/distilbert-base-cased")["vocab_size"] == 28996
    assert hub_config("another/distilbert-base-cased") is None
    assert hub_config("google-bert/bert-large-uncased")["num_hidden_layers"] == 24
    assert hub_config("FacebookAI/xlm-roberta-base")["vocab_size"] == 250002
    assert hub_config("albert-base-v2") is None


def test_a_file_s_own_values_win_over_the_family_s():
    assert DISTILBERT.complete({"dim": 32})["dim"] == 32
    assert DISTILBERT.complete({"dim": 32})["n_layers"] == 6


@pytest.mark.parametrize("config", [{"model_type": "albert"}, {"model_type": ["x"]}, {}, [], None])
def test_a_family_that_is_not_known_is_refused_with_the_known_ones(config):
    with pytest.raises(ModelError) as caught:
        family_of(config, where="a/config.json")
    assert caught.value.where == "a/config.json"
    assert caught.value.expected == KNOWN
    assert "XLM-RoBERTa or ViT, e.g. distilbert-base-uncased" in caught.value.remedy


@pytest.mark.parametrize(
    "use",
    [
        load_base,
        open_model,
        lambda path: predict_cluster.files_of(open_version(path)),
        checks.base_config,
    ],
)
def test_each_way_to_a_model_refuses_such_a_family(use, tmp_path, tiny_model_dir):
    for entry in storage.list_dir(tiny_model_dir):
        storage.download(entry.path, str(tmp_path / entry.name))
    path = tmp_path / "config.json"
    labels = {"id2label": {"0": "cat"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "albert"} | labels))
    with pytest.raises(ModelError, match="family that is not known") as caught:
        use(str(tmp_path))
    assert caught.value.expected == KNOWN
    assert caught.value.got == "model_type albert"


# ----------------------------------------------------------- one with other names, all the way
def test_a_base_of_another_family_is_loaded(other, tiny_model_dir):
    loaded, plain = load_base(other), load_base(tiny_model_dir)
    assert loaded.family is OTHER
    expected = other_weights(plain.weights, plain.config)
    assert loaded.weights.keys() == expected.keys() == OTHER.encoder_shapes(loaded.config).keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(loaded.weights[name], array)
    assert loaded.notes == ()


def test_its_sizes_are_checked_by_its_own_keys(other):
    path = Path(other, "config.json")
    config = json.loads(path.read_text())
    for change, message in (
        ({"num_attention_heads": 5}, "hidden_size must be divisible by num_attention_heads"),
        ({"num_hidden_layers": 1}, "more layers"),
        ({"words": 50}, "shapes"),
        ({"hidden_size": "32"}, "sizes"),
    ):
        path.write_text(json.dumps(config | change))
        with pytest.raises(ModelError, match=message):
            load_base(other)
    path.write_text(json.dumps({"model_type": "other"}))  # the family's defaults: another size
    with pytest.raises(ModelError, match=r"of 100 tensors are missing") as caught:
        load_base(other)
    assert "tensors of Other" in caught.value.got


def test_order_freezing_and_dropouts_go_by_its_names(other, tiny_model_dir):
    loaded, plain = load_base(other), load_base(tiny_model_dir)
    frozen = ModelSection(freeze_embeddings=True, freeze_layers=1, dropout=0.4)
    names = parameters.trainable_names(loaded.config, frozen)
    theirs = parameters.trainable_names(plain.config, frozen)
    assert len(names) == len(theirs) == 20
    assert names[0] == "other.stack.1.self.query.weight"
    assert tuple(names[-4:]) == OTHER.head_names
    start = parameters.start_weights(loaded.config, loaded.weights, num_labels=3, seed=1)
    assert list(start) == [*OTHER.encoder_shapes(loaded.config), *OTHER.head_names]
    assert start["head.out.weight"].shape == (3, 32)
    trained = parameters.with_dropouts(loaded.config, frozen)
    assert trained == loaded.config | dict.fromkeys(OTHER.dropouts.all(), 0.4)


def test_gradient_messages_and_worker_memory_go_by_its_names(other, tiny_model_dir, tiny_dataset):
    def gradient(base: str):
        run = from_dict({"data": {"dataset": tiny_dataset.path}, "model": {"base": base}})
        return calibrate.Sizes(run).gradient()

    theirs, ours = gradient(tiny_model_dir), gradient(other)
    assert (ours.vocabulary, ours.width) == (theirs.vocabulary, theirs.width)
    assert sum(ours.dense) == sum(theirs.dense) + 4 * 2 * 32  # two more rows of positions
    needed = [
        worker_memory.peak(from_dict({}), checks.base_config(base), tiny_dataset.manifest)
        for base in (tiny_model_dir, other)
    ]
    assert 0 < needed[1].total - needed[0].total < 2**14
    assert predict_cluster.files_of(open_version(other)).hidden_dim == 64


def test_its_export_says_what_it_is(other, tmp_path):
    base = load_base(other)
    dataset = build_dataset(str(tmp_path / "data" / "v=1"), model_dir=other)
    weights = parameters.start_weights(base.config, base.weights, num_labels=len(LABELS), seed=1)
    files = {n: data for n, data in base.tokenizer_files.items() if n != "tokenizer_config.json"}
    config = from_dict({"model": {"base": other}})
    target = export(
        str(tmp_path / "export"), weights=weights, base_config=base.config, tokenizer_files=files,
        label_names=LABELS,
        run_info=describe_run(config=config, dataset=dataset, base=base, run_id="run-1", step=3),
    )  # fmt: skip
    exported = storage.read_json(os.path.join(target, "config.json"))
    assert exported["model_type"] == "other"
    assert exported["architectures"] == ["OtherForSequenceClassification"]
    tokenizer = storage.read_json(os.path.join(target, "tokenizer_config.json"))
    assert tokenizer["tokenizer_class"] == "BertTokenizer"
    card = storage.read_text(os.path.join(target, "README.md"))
    assert "- other\n" in card and "A Other text classifier" in card
    again = load_base(target, label_names=LABELS)
    assert again.weights.keys() == weights.keys()


def test_rows_it_cannot_read_are_those_beyond_its_used_positions():
    config = other_config(DISTILBERT.complete({}))
    assert OTHER.longest(config) == DISTILBERT.longest(DISTILBERT.complete({})) == 512


# ---------------------------------------------------------------------------------- the source
_MAY_NAME_IT = {
    "data/family.py": "the record",
    "howdah/config/model.py": "the default of model.base",
    "howdah/policy/rules.py": "the default of hub_models",
    "data/modelfiles.py": "an example in a message",
    "howdah/airflow/__init__.py": "the provider's description",
    "dags/finetune.py": "the DAG's description",
}


def _code_names(tree: ast.AST) -> set[str]:
    """Identifiers and texts of the code, docstrings left out."""
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set() if id(node) in docstrings else {node.value}
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.alias | ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
    return names


def test_no_other_code_names_a_family():
    naming = {
        path.relative_to(ROOT).as_posix()
        for room in ("howdah", *howdah.ROOMS, "dags")
        for path in (ROOT / room).rglob("*.py")
        if any("distilbert" in name.lower() for name in _code_names(ast.parse(path.read_text())))
    }
    assert naming == set(_MAY_NAME_IT)
