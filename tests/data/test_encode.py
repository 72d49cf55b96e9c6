"""The encoder gives the ids of transformers' fast tokenizer, and user text is never special."""

import itertools
import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest

from howdah.data.clean import joined
from howdah.data.encode import Encoder, most_characters
from howdah.data.modelfiles import fetch
from howdah.errors import ModelError
from tools.demo import corpus

VOCABULARY = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n"
SPECIAL = ["[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]"]
NASTY = [
    "",
    " ",
    "a",
    "Stra\u00dfe NAI\u0308VE caf\u00e9 \u00c5ngstr\u00f6m",
    "\u4e2d\u6587 mixed \u65e5\u672c\u8a9e text",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 emoji \U0001f600",
    "x" * 150 + " " + "word " * 300,
    "no_blank_at_all_" * 200,
    "tab\tand\nnewline\r\nand\x00null\u200b",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea",
    "\u0301\u0301 leading accents " + "\u0301" * 900 + " end",
    "a " + "\u3000" * 2000 + " b",
    "!" * 700,
]


def damaged(keys, value):
    """A tokenizer.json in which one field is another."""
    state = json.loads(Encoder({"vocab.txt": VOCABULARY}, "whole")._tokenizer.to_str())
    inner = state
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    return json.dumps(state).encode()


REFERENCE = """
import json, os, sys
os.environ.update(USE_TORCH="0", USE_TF="0", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
from transformers import AutoTokenizer
job = json.load(open(sys.argv[1]))
out = {}
for directory in job["directories"]:
    tokenizer = AutoTokenizer.from_pretrained(directory, use_fast=True)
    assert tokenizer.is_fast
    for length in job["lengths"]:
        ids = tokenizer(job["texts"], truncation=True, max_length=length)["input_ids"]
        out[f"{directory}@{length}"] = ids
json.dump(out, open(sys.argv[2], "w"))
"""


def _variant(base, target, *, keep, config=None):
    """A copy of a model directory with some files, and another tokenizer_config.json."""
    os.makedirs(target)
    for name in keep:
        with open(os.path.join(base, name), "rb") as source:
            content = source.read()
        with open(os.path.join(target, name), "wb") as file:
            file.write(content)
    if config is not None:
        with open(os.path.join(target, "tokenizer_config.json"), "w") as file:
            json.dump(config, file)
    return str(target)


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.full)])
def test_ids_are_those_of_the_fast_tokenizer(tiny_model_dir, tmp_path, every):
    both = ["config.json", "tokenizer.json", "vocab.txt"]
    cased = {"tokenizer_class": "DistilBertTokenizer", "do_lower_case": False}
    directories = [
        tiny_model_dir,
        _variant(tiny_model_dir, tmp_path / "vocab", keep=["config.json", "vocab.txt"]),
        _variant(tiny_model_dir, tmp_path / "cased", keep=both, config=cased),
        _variant(
            tiny_model_dir,
            tmp_path / "accents",
            keep=["config.json", "vocab.txt"],
            config={
                "tokenizer_class": "BertTokenizer",
                "do_lower_case": True,
                "strip_accents": False,
                "tokenize_chinese_chars": False,
            },
        ),
    ]
    prose = [text for _, text, _ in corpus.corpus(["networkx", "requests"])]
    texts = NASTY + prose[::every]
    texts = [text for text in texts if not any(token in text for token in SPECIAL)]
    assert len(texts) > 1_500 // every
    lengths = [16, 128]
    job, out = tmp_path / "job.json", tmp_path / "out.json"
    job.write_text(json.dumps({"directories": directories, "lengths": lengths, "texts": texts}))
    subprocess.run([sys.executable, "-c", REFERENCE, str(job), str(out)], check=True, timeout=240)
    reference = json.loads(out.read_text())
    for directory in directories:
        encoder = Encoder.load(directory)
        for length in lengths:
            expected = reference[f"{directory}@{length}"]
            got = encoder.encode(texts, length)
            different = [
                text for text, a, b in zip(texts, got, expected, strict=True) if a.tolist() != b
            ]
            assert not different, f"{directory}, {length}: {different[:3]!r}"


def test_special_tokens_in_user_text_are_text(tiny_model_dir):
    encoder = Encoder.load(tiny_model_dir)
    plain = encoder.encode(["x"], 16)[0]
    cls, sep = plain[0], plain[-1]
    special = {encoder._tokenizer.token_to_id(token) for token in SPECIAL} - {
        encoder._tokenizer.token_to_id("[UNK]")
    }
    for token in SPECIAL:
        ids = encoder.encode([f"a {token} b{token}"], 64)[0]
        assert ids[0] == cls and ids[-1] == sep
        assert not special & set(ids[1:-1].tolist()), token


def test_shape_truncation_and_lone_surrogates(tiny_model_dir):
    encoder = Encoder.load(tiny_model_dir)
    ids = encoder.encode(["", "word " * 1000, "\ud800 odd"], 12)
    assert [len(row) for row in ids][:2] == [2, 12]
    assert all(row.dtype == np.uint32 and row.ndim == 1 for row in ids)
    assert encoder.encode([], 12) == []
    assert len(encoder.encode(["word " * 1000], 20)[0]) == 20


def test_hash_is_of_what_makes_ids(tiny_model_dir, tmp_path):
    encoder = Encoder.load(tiny_model_dir)
    assert Encoder.load(tiny_model_dir).hash == encoder.hash
    encoder.encode(["a"], 9)
    assert Encoder(encoder.files, "elsewhere").hash == encoder.hash
    cased = _variant(
        tiny_model_dir,
        tmp_path / "cased",
        keep=["tokenizer.json", "vocab.txt"],
        config={"do_lower_case": False},
    )
    assert Encoder.load(cased).hash != encoder.hash


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({}, "no tokenizer"),
        ({"tokenizer.json": b"{"}, "tokenizer.json cannot be read"),
        ({"tokenizer.json": b'{"model": {"type": "None"}}'}, "tokenizer.json cannot be read"),
        ({"vocab.txt": b"\xff\xfe"}, "not UTF-8"),
        ({"vocab.txt": b"hello\nworld\n"}, "lacks special tokens"),
        ({"vocab.txt": b"[PAD]\n", "tokenizer_config.json": b"nope"}, "not JSON"),
        ({"vocab.txt": VOCABULARY, "tokenizer_config.json": b'{"do_lower_case": null}'}, "be used"),
        ({"vocab.txt": VOCABULARY, "tokenizer_config.json": b'{"cls_token": 1}'}, "be used"),
        ({"vocab.txt": VOCABULARY, "tokenizer_config.json": b'{"pad_token": [1]}'}, "be used"),
        ({"tokenizer.json": damaged(["model", "vocab"], {"a": 0, "[PAD]": 1})}, "be used"),
        ({"tokenizer.json": damaged(["post_processor", "special_tokens"], {})}, "cannot be"),
    ],
)
def test_unusable_tokenizers_are_refused(files, what):
    with pytest.raises(ModelError, match=what):
        Encoder(files, "somewhere")


def test_a_text_that_the_tokenizer_cannot_spell_is_a_model_error():
    """Without the unknown token in the vocabulary the library raises a bare Exception."""
    state = json.loads(damaged(["model", "unk_token"], "[GONE]"))
    state["model"]["vocab"]["b"] = 6
    encoder = Encoder({"tokenizer.json": json.dumps(state).encode()}, "somewhere")
    assert len(encoder.encode(["a b"], 8)[0]) == 4
    with pytest.raises(ModelError, match="failed on a text"):
        encoder.encode(["z"], 8)


def test_max_length_must_leave_room(tiny_model_dir):
    with pytest.raises(ModelError, match="no room"):
        Encoder.load(tiny_model_dir).encode(["a"], 2)


# ---------------------------------------------------------------------------------- modelfiles
def test_fetch_gives_a_directory_as_it_is(tmp_path):
    (tmp_path / "vocab.txt").write_text("x")
    assert fetch(str(tmp_path), patterns=["vocab.txt"]) == str(tmp_path)
    with pytest.raises(ModelError, match="none of the files"):
        fetch(str(tmp_path), patterns=["*.safetensors"])
    with pytest.raises(ModelError, match="no revisions"):
        fetch(str(tmp_path), patterns=["vocab.txt"], revision="main")
    with pytest.raises(ModelError, match="is a file"):
        fetch(str(tmp_path / "vocab.txt"), patterns=["vocab.txt"])
    with pytest.raises(ModelError, match="does not exist"):
        fetch(str(tmp_path / "nothing"), patterns=["vocab.txt"])


def test_fetch_copies_remote_directories_once_per_state(tmp_path):
    from howdah import storage

    base = f"memory://fetch-{tmp_path.name}/model"
    storage.write_whole(f"{base}/vocab.txt", b"one")
    storage.write_whole(f"{base}/weights.bin", b"big")
    cache = str(tmp_path / "cache")
    first = fetch(base, patterns=["*.txt"], cache_dir=cache)
    assert sorted(os.listdir(first)) == ["vocab.txt"]
    assert fetch(base, patterns=["*.txt"], cache_dir=cache) == first
    storage.write_whole(f"{base}/vocab.txt", b"second")
    second = fetch(base, patterns=["*.txt"], cache_dir=cache)
    with open(os.path.join(second, "vocab.txt"), "rb") as file:
        assert file.read() == b"second"
    assert second != first and sorted(os.listdir(cache)) == sorted(
        os.path.basename(path) for path in (first, second)
    )
    with pytest.raises(ModelError, match="does not exist"):
        fetch(f"memory://fetch-{tmp_path.name}/none", patterns=["*"], cache_dir=cache)


def test_an_unknown_hub_name_offline_is_one_clear_error(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError) as caught:
        fetch("no-such/model-here", patterns=["vocab.txt"])
    assert "no-such/model-here" in str(caught.value) and "model directory" in str(caught.value)


PAIRS = """
import json, os, sys
os.environ.update(USE_TORCH="0", USE_TF="0", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
from transformers import AutoTokenizer
job = json.load(open(sys.argv[1]))
tokenizer = AutoTokenizer.from_pretrained(job["directory"], use_fast=True)
first, second = zip(*job["pairs"])
json.dump(
    [
        tokenizer(list(first), list(second), truncation="longest_first", max_length=n)["input_ids"]
        for n in job["lengths"]
    ],
    open(sys.argv[2], "w"),
)
"""


def test_pairs_are_cut_as_the_fast_tokenizer_cuts_them(tiny_model_dir, tmp_path):
    random = np.random.default_rng(7)
    words = ["water", "the", "unbelievably", "qz", "3.14", "[SEP]", "\u6771\u4eac", "a-b"]
    texts = [" ".join(random.choice(words, n)) for n in (1, 2, 5, 6, 7, 8, 30, 200)] + NASTY[:5]
    special = [pair for pair in itertools.product(texts, texts) if "[SEP]" in "".join(pair)]
    pairs = [pair for pair in itertools.product(texts, texts) if "[SEP]" not in "".join(pair)]
    lengths = [8, 9, 15, 16, 33, 64]
    job = {"directory": tiny_model_dir, "pairs": pairs, "lengths": lengths}
    (tmp_path / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-c", PAIRS, str(tmp_path / "job.json"), str(tmp_path / "out.json")]
    subprocess.run(command, check=True, timeout=240)
    encoder = Encoder.load(tiny_model_dir)
    for length, expected in zip(
        lengths, json.loads((tmp_path / "out.json").read_text()), strict=True
    ):
        assert [row.tolist() for row in encoder.encode_pairs(pairs, length)] == expected
        for row in encoder.encode_pairs(special, length):  # in a text it is text
            assert row.tolist().count(3) == 2 and row[-1] == 3 and len(row) <= length
    joined_rows = [joined(*pair) for pair in pairs[:9]]
    both = encoder.encode_rows(joined_rows, 16, pairs=True), encoder.encode_pairs(pairs[:9], 16)
    assert [row.tolist() for row in both[0]] == [row.tolist() for row in both[1]]


def test_the_beginning_of_a_long_text_has_the_ids_of_all_of_it(tiny_model_dir):
    """A head ends before a blank or a punctuation mark; what follows changes no token before it."""
    heads, whole = Encoder.load(tiny_model_dir), Encoder.load(tiny_model_dir)
    whole._prefix_stable = False
    parts = ["the", "cat", " ", ",", ".", "-", "'s", "[MASK]", "\u0301", ",\u0301", "\u3002",
             "\u3001", "\uff0c", "\u4e2d", "é", "e\u0301", "\U0001f600", "\n", "ß",
             "x" * 90]  # fmt: skip
    draw = random.Random(5)
    texts = ["".join(draw.choices(parts, k=draw.randrange(40, 400))) for _ in range(400)]
    texts += [part * 3000 for part in parts]
    for length in (8, 16):
        for text, one, other in zip(
            texts, heads.encode(texts, length), whole.encode(texts, length), strict=True
        ):
            assert np.array_equal(one, other), ascii(text[:200])


def test_what_no_model_reads_of_a_text_is_not_encoded(tiny_model_dir):
    encoder = Encoder.load(tiny_model_dir)
    most = most_characters(16)
    assert most_characters(8192) > most >= 3 * 20_000  # the longest text of a dataset, by default
    beginning = "x" * (most - 3) + "the"  # one word
    [cut] = encoder.encode([beginning + " cat " * 100], 16)
    [alone] = encoder.encode([beginning], 16)
    assert np.array_equal(cut, alone)
    [pair] = encoder.encode_pairs([(beginning + " cat", "the cat")], 16)
    [same] = encoder.encode_pairs([(beginning, "the cat")], 16)
    assert np.array_equal(pair, same)
