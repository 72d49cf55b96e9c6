"""BERT, RoBERTa and XLM-RoBERTa in torch: transformers' logits, directories and gradients."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

os.environ.setdefault("USE_TF", "0")  # where TensorFlow is there too, transformers would load it
import torch
import transformers

from howdah.config.loader import from_dict
from howdah.config.model import ModelSection
from howdah.config.training import TrainingSection
from howdah.data.encode import Encoder
from howdah.data.family import FAMILIES
from howdah.models.export.export import export
from howdah.models.export.run_info import describe_run
from howdah.models.forward import forward_torch, kernels_torch
from howdah.models.opened.opened import open_model
from howdah.models.weights import parameters
from howdah.models.weights.pretrained import load_base
from tests.fixtures.dataset import build_dataset
from tests.support.models.tiny_families import (
    FAMILY_NAMES,
    LABELS,
    LOGITS,
    batch,
    tiny_config,
    tiny_weights,
    write_family,
)  # fmt: skip

STILL = ModelSection(dropout=0.0)


def plain(name: str) -> transformers.PreTrainedModel:
    """transformers' own classifier with the tiny weights."""
    family = FAMILIES[name]
    config = tiny_config(family)
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(name, **fields, num_labels=len(LABELS))
    net = getattr(transformers, family.architecture)(settings).eval()
    weights = tiny_weights(family, config, classes=len(LABELS))
    net.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()})
    return net


def ours(name: str, model: ModelSection = STILL) -> forward_torch.EncoderClassifier:
    family = FAMILIES[name]
    config = tiny_config(family)
    weights = tiny_weights(family, config, classes=len(LABELS))
    return forward_torch.build(
        config, weights, num_labels=len(LABELS), training=TrainingSection(framework="torch"),
        model=model,
    )  # fmt: skip


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_logits_and_gradients_are_those_of_transformers(name):
    family, net, our_net = FAMILIES[name], plain(name), ours(name)
    config = tiny_config(family)
    ids_BT, mask_BT, types_BT = batch(config["pad_token_id"])
    ids, mask, types = (torch.from_numpy(a).long() for a in (ids_BT, mask_BT, types_BT))
    forward = forward_torch.forward_fn(our_net)

    expected = net(input_ids=ids, attention_mask=mask).logits
    np.testing.assert_allclose(expected.detach().numpy(), LOGITS[name], atol=1e-5)
    np.testing.assert_allclose(forward(ids_BT, mask_BT), expected.detach().numpy(), atol=1e-5)
    if config["type_vocab_size"] > 1:
        typed = net(input_ids=ids, attention_mask=mask, token_type_ids=types).logits
        typed = typed.detach().numpy()
        np.testing.assert_allclose(typed, LOGITS[f"{name}, two types"], atol=1e-5)
        np.testing.assert_allclose(forward(ids_BT, mask_BT, types_BT), typed, atol=1e-5)
    else:  # the other types' rows do not exist
        np.testing.assert_array_equal(forward(ids_BT, mask_BT, types_BT), forward(ids_BT, mask_BT))

    answers = torch.tensor([0, 2, 1, 1])
    torch.nn.functional.cross_entropy(expected, answers).backward()
    torch.nn.functional.cross_entropy(our_net(ids, mask), answers).backward()
    theirs = dict(net.named_parameters())
    assert theirs.keys() == dict(our_net.named_parameters()).keys()
    for key, parameter in our_net.named_parameters():
        gradient = parameter.grad.to_dense()
        torch.testing.assert_close(gradient, theirs[key].grad, atol=1e-5, rtol=1e-4, msg=key)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_a_directory_of_transformers_is_read_and_one_of_ours_is_too(name, tmp_path):
    net = plain(name)
    net.config.id2label = dict(enumerate(LABELS))
    net.save_pretrained(tmp_path / "saved")
    write_family(str(tmp_path / "saved-tokenizer"), name)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        os.link(tmp_path / "saved-tokenizer" / file, tmp_path / "saved" / file)
    base = load_base(str(tmp_path / "saved"), label_names=LABELS)
    assert base.notes == () and base.family is FAMILIES[name]
    assert base.weights.keys() == net.state_dict().keys()
    our_net = forward_torch.build(
        base.config, base.weights, num_labels=len(LABELS),
        training=TrainingSection(framework="torch"), model=ModelSection(),
    )  # fmt: skip
    ids_BT, mask_BT, _ = batch(base.config["pad_token_id"])
    logits = forward_torch.forward_fn(our_net)(ids_BT, mask_BT)
    np.testing.assert_allclose(logits, LOGITS[name], atol=1e-5)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_an_export_has_the_same_scores_in_a_pipeline(name, tmp_path):
    source = write_family(str(tmp_path / "base"), name, labels=LABELS)
    base = load_base(source, label_names=LABELS)
    dataset = build_dataset(str(tmp_path / "data" / "v=1"), model_dir=source, max_length=40)
    config = from_dict({"model": {"base": source}})
    info = describe_run(config=config, dataset=dataset, base=base, run_id="r", step=1)
    target = export(
        str(tmp_path / "export"), weights=base.weights,
        base_config=parameters.with_dropouts(base.config, ModelSection()),
        tokenizer_files=base.tokenizer_files, label_names=LABELS, run_info=info,
    )  # fmt: skip
    texts = ["the country and the town", "", "more and more " * 60, "\u4e2d\u6587 \U0001f600"]
    classify = transformers.pipeline(
        "text-classification", model=target, truncation=True, top_k=None, device="cpu"
    )
    assert type(classify.model).__name__ == FAMILIES[name].architecture
    theirs = [{row["label"]: row["score"] for row in rows} for rows in classify(texts)]
    scores = open_model(target, framework="torch").scores(texts)
    expected = [[row[label] for label in LABELS] for row in theirs]
    np.testing.assert_allclose(scores, expected, atol=1e-6)


@pytest.mark.parametrize(("name", "head"), [("bert", ["c"]), ("roberta", ["c", "c"])])
def test_dropout_is_where_bert_and_roberta_have_it(monkeypatch, name, head):
    rates = {"h": 0.11, "a": 0.12, "c": 0.13}
    monkeypatch.setattr(parameters, "dropout_rates", lambda *_: tuple(rates.values()))
    net = ours(name).train()
    met = []

    def record(x: torch.Tensor, rate: float) -> torch.Tensor:
        met.append(next(key for key, ours in rates.items() if ours == rate))
        return x

    for module in (forward_torch, kernels_torch):
        monkeypatch.setattr(module, "dropped", record)
    net(*(torch.from_numpy(a).long() for a in batch(1)[:2]))
    # embeddings; of each layer the weights, what the attention gives and what the layer gives
    assert met == ["h", *["a", "h", "h"] * 2, *head]


def test_without_a_rate_of_its_own_the_classifier_has_the_transformer_s(tmp_path):
    path = write_family(str(tmp_path / "bert"), "bert")
    config = load_base(path).config
    assert config["classifier_dropout"] is None
    assert parameters.dropout_rates(config, ModelSection()) == (0.1, 0.1, 0.1)
    assert parameters.dropout_rates(config, ModelSection(dropout=0.3)) == (0.3, 0.3, 0.3)
    chosen = parameters.with_dropouts(config, ModelSection(dropout=0.3))
    assert (chosen["hidden_dropout_prob"], chosen["classifier_dropout"]) == (0.3, 0.3)
    assert json.dumps(chosen)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_token_types_of_pairs_follow_from_the_token_between_the_texts(name, tmp_path):
    """Records hold ids alone; in a row of one text all types are 0."""
    base = load_base(write_family(str(tmp_path), name, labels=LABELS), label_names=LABELS)
    encoder = Encoder(base.tokenizer_files, str(tmp_path))
    plain = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    pairs = [("the first text", "another"), ("the", "first text, another one")]
    rows = encoder.encode_pairs(pairs, 16)
    first, second = zip(*pairs, strict=True)
    theirs = plain(
        first, second, return_token_type_ids=True, truncation="longest_first", max_length=16
    )
    assert [row.tolist() for row in rows] == theirs["input_ids"]
    two = base.config.get("type_vocab_size", 1) > 1
    assert (encoder.first_type_ends is not None) == any(1 in t for t in theirs["token_type_ids"])
    width = max(map(len, rows))
    ids_BT = np.full((len(rows), width), base.config["pad_token_id"], np.int32)
    mask_BT, types_BT = np.zeros_like(ids_BT), np.zeros_like(ids_BT)
    for at, (row, types) in enumerate(zip(rows, theirs["token_type_ids"], strict=True)):
        ids_BT[at, : len(row)], mask_BT[at, : len(row)], types_BT[at, : len(row)] = row, 1, types
    by_separator, whole = (
        forward_torch.forward_fn(
            forward_torch.build(
                base.config, base.weights, num_labels=len(LABELS), model=ModelSection(),
                training=TrainingSection(framework="torch"), first_type_ends=ends,
            )
        )
        for ends in (encoder.first_type_ends, None)
    )  # fmt: skip
    logits, untyped = by_separator(ids_BT, mask_BT), whole(ids_BT, mask_BT)
    np.testing.assert_array_equal(logits, whole(ids_BT, mask_BT, types_BT))
    assert (np.abs(logits - untyped).max() > 1e-3) == (two and encoder.first_type_ends is not None)


def test_rows_without_padding_get_no_mask_and_the_same_logits(monkeypatch):
    """A GPU can then choose flash attention."""
    net = ours("bert").eval()
    masks, attend = [], kernels_torch.attend_plainly

    def noted(query, key, value, blocked_BT, rate):
        masks.append(blocked_BT)
        return attend(query, key, value, blocked_BT, rate)

    monkeypatch.setattr(forward_torch, "attend_plainly", noted)
    ids_BT = np.random.default_rng(0).integers(5, 20, (3, 7)).astype(np.int32)
    ones_BT = np.ones_like(ids_BT)
    logits_BC = forward_torch.forward_fn(net)(ids_BT, ones_BT)
    assert masks and all(mask is None for mask in masks)
    with torch.no_grad():
        masked_BC = net(torch.from_numpy(ids_BT).long(), torch.from_numpy(ones_BT))
    assert np.array_equal(logits_BC, masked_BC.numpy())
