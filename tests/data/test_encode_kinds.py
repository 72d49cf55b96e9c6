"""Byte-level BPE and Unigram: the ids of transformers' fast classes, on texts that are odd."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tokenizers import Tokenizer

from howdah.data.encode import Encoder
from howdah.data.family import FAMILIES
from howdah.errors import ModelError
from tests.data.test_encode import NASTY
from tests.support.models.tiny_families import FAMILY_NAMES, byte_level_bpe, write_family

SPECIAL = ["<s>", "</s>", "<pad>", "<unk>", "<mask>", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"]
TEXTS = [
    *NASTY,
    " leading and trailing ",
    "two  blanks\n\nand lines",
    "e\u0301 combining, \u1100\u1161\u11a8 jamo, \ufb01 ligature, \u2460 circled",
    "\U0001f3f3\ufe0f\u200d\U0001f308 flag",
    "word " * 3000,
    *(f"a {token} b{token}c {token}" for token in SPECIAL),
    "".join(SPECIAL),
]
LENGTHS = [3, 16, 64]

SAVE_AND_ENCODE = """
import json, os, sys
os.environ.update(USE_TORCH="0", USE_TF="0", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
import transformers
from tokenizers import Tokenizer
job = json.load(open(sys.argv[1]))
out = {}
for entry in job["tokenizers"]:
    if "source" in entry:
        made = getattr(transformers, entry["class"])(
            tokenizer_object=Tokenizer.from_file(entry["source"]), **entry["options"])
        made.save_pretrained(entry["directory"])
    # In user text the names of special tokens are text.
    read = transformers.AutoTokenizer.from_pretrained(entry["directory"], split_special_tokens=True)
    assert read.is_fast and type(read).__name__ == entry["class"], type(read)
    for length in job["lengths"]:
        found = read(job["texts"], truncation=True, max_length=length)
        out[f"{entry['directory']}@{length}"] = found["input_ids"]
    out[f"{entry['directory']}@pad"] = read.pad_token_id
json.dump(out, open(sys.argv[2], "w"))
"""


def test_ids_are_those_of_transformers(tmp_path):
    jobs = []
    for name, of_class in zip(
        FAMILY_NAMES, ("BertTokenizerFast", "RobertaTokenizerFast", "XLMRobertaTokenizerFast"),
        strict=True,
    ):  # fmt: skip
        source = os.path.join(
            write_family(str(tmp_path / f"{name}-source"), name), "tokenizer.json"
        )
        jobs.append({"class": of_class, "source": source, "directory": str(tmp_path / name)})
    jobs.append(jobs[1] | {"directory": str(tmp_path / "spaced")})
    for entry in jobs:
        # tokenizer_config.json wins over tokenizer.json, which has it off
        spaced = entry["directory"].endswith("spaced")
        entry["options"] = {"add_prefix_space": True} if spaced else {}
    job, out = tmp_path / "job.json", tmp_path / "out.json"
    files = _without_tokenizer_json(tmp_path / "files")
    jobs.append({"class": "RobertaTokenizerFast", "directory": files})
    job.write_text(json.dumps({"tokenizers": jobs, "lengths": LENGTHS, "texts": TEXTS}))
    subprocess.run(
        [sys.executable, "-c", SAVE_AND_ENCODE, str(job), str(out)], check=True, timeout=240
    )
    reference = json.loads(out.read_text())
    for directory in (entry["directory"] for entry in jobs):
        encoder = Encoder.load(directory)
        assert encoder.pad_id == reference[f"{directory}@pad"]
        for length in LENGTHS:
            got = [ids.tolist() for ids in encoder.encode(TEXTS, length)]
            expected = reference[f"{directory}@{length}"]
            # transformers' Unigram finds special tokens in texts, whatever it is asked
            skipped = ("<",) if directory.endswith("xlm-roberta") else ()
            different = [
                text
                for text, a, b in zip(TEXTS, got, expected, strict=True)
                if a != b and not any(mark in text for mark in skipped)
            ]
            assert not different, f"{directory}, {length}: {different[:3]!r}"
    # the same tokens whichever files they come from
    a, b = (Encoder.load(d) for d in (jobs[1]["directory"], files))
    assert [i.tolist() for i in a.encode(TEXTS, 64)] == [i.tolist() for i in b.encode(TEXTS, 64)]


def _without_tokenizer_json(directory) -> str:
    """vocab.json and merges.txt alone, as the oldest RoBERTas have them."""
    directory.mkdir()
    state = json.loads(byte_level_bpe()[0])["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in state["merges"]]
    (directory / "vocab.json").write_text(json.dumps(state["vocab"]))
    (directory / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    (directory / "config.json").write_text(json.dumps({"model_type": "roberta"}))
    return str(directory)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_a_row_begins_and_ends_with_the_kind_s_own_tokens(name, tmp_path):
    encoder = Encoder.load(write_family(str(tmp_path), name))
    first, last = ("[CLS]", "[SEP]") if name == "bert" else ("<s>", "</s>")
    number = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).token_to_id
    special = {number(token) for token in SPECIAL if number(token) is not None}
    for text in ("", "words and words", "".join(SPECIAL), "x " * 999):
        ids = encoder.encode([text], 24)[0].tolist()
        assert (ids[0], ids[-1]) == (number(first), number(last))
        assert not (special - {number("[UNK]"), number("<unk>")}) & set(ids[1:-1])
    assert encoder.pad_id == number(FAMILIES[name].tokenizer.pad_token)
    assert encoder.pad_id == (0 if name == "bert" else 1)


def test_each_kind_has_a_hash_of_its_own(tmp_path):
    hashes = {Encoder.load(write_family(str(tmp_path / name), name)).hash for name in FAMILY_NAMES}
    assert len(hashes) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"merges.txt": b"a b c\n"}, "are not a byte-level BPE"),
        ({"vocab.json": b"[]"}, "are not a byte-level BPE"),
        ({"vocab.json": b'{"a": 0}'}, "vocab.json has no <s>, <pad>, </s>, <unk>"),
        ({"merges.txt": None}, "has no tokenizer"),
    ],
)
def test_files_that_are_no_bpe_tokenizer_are_refused(change, message, tmp_path):
    directory = _without_tokenizer_json(tmp_path / "files")
    files = {}
    for name in ("vocab.json", "merges.txt"):
        with open(os.path.join(directory, name), "rb") as file:
            files[name] = file.read()
    files = {name: data for name, data in (files | change).items() if data is not None}
    with pytest.raises(ModelError, match=message) as caught:
        Encoder(files, "somewhere")
    assert caught.value.where == "somewhere" and caught.value.remedy
