"""Exports: transformers loads them, wrong ones are refused, a failure leaves no half."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from howdah import storage
from howdah.config.loader import from_dict
from howdah.data.manifest import DatasetManifest, RecordEntry, ShardEntry, TokenizerEntry, commit
from howdah.data.manifest import load_dataset as load
from howdah.errors import AlreadyExists, CheckpointError, DataError, ModelError, StorageError
from howdah.models.export.export import INFO, export, with_decision
from howdah.models.export.run_info import RunInfo, describe_run
from howdah.models.metrics.metrics import classification_metrics
from howdah.models.opened.opened import open_model
from howdah.models.runs.identity import Identity
from howdah.models.runs.run_json import freeze_config
from howdah.models.version import open_version
from howdah.models.weights.pretrained import load_base
from howdah.training.checkpoint.fence import Fence
from howdah.training.checkpoint.manager import Checkpoints
from howdah.training.export_run import export_run

LABELS = ["cat", "dog", "owl & co"]


def weights_for(base, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    head = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in base.family.head_shapes(base.config, len(LABELS)).items()
    }
    return dict(base.weights) | head


def make_dataset(
    directory: str, *, created: str = "2030-01-01T00:00:00+00:00", version: str = "1", source=None
):
    shard = ShardEntry(
        name="s", index_name="i", rows=7, bytes=1, crc32c=0, index_crc32c=0, tokens=9,
        class_counts={"0": 7}, length_histogram={"8": 7},
    )  # fmt: skip
    manifest = DatasetManifest(
        dataset_hash=version, created=created, etl_version="1", labels=LABELS, max_length=48,
        tokenizer=TokenizerEntry(hash="tok", vocab_size=1013, pad_id=0, source="tiny"),
        record=RecordEntry(ids_dtype="uint16", columns={}), splits={"train": [shard]},
        source=source or {}, seed=1, split_rule={},
        cleaning={"unicode_nfc": True, "html_tags": False},
    )  # fmt: skip
    path = os.path.join(directory, f"v={version}")
    os.makedirs(path)
    commit(path, manifest)
    return load(path)


@pytest.fixture(scope="module")
def base(tiny_model_dir):
    return load_base(tiny_model_dir)


@pytest.fixture
def info(tmp_path, base, tiny_model_dir) -> RunInfo:
    config = from_dict({"run": {"name": "zoo"}, "model": {"base": tiny_model_dir}})
    labels, logits = np.array([0, 1, 2, 0]), np.random.default_rng(0).standard_normal((4, 3))
    return describe_run(
        config=config, dataset=make_dataset(str(tmp_path / "data")), base=base, run_id="run-1",
        step=12, metrics={"test": classification_metrics(labels, logits, LABELS)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"columns": {"text": ["title", "body"], "label": "topic"}}, ["title", "body"]),
        ({}, ["configured"]),
    ],
)
def test_the_texts_columns_are_those_of_the_dataset(tmp_path, base, source, text):
    config = from_dict({"data": {"columns": {"text": "configured"}}})
    dataset = make_dataset(str(tmp_path), source=source)
    info = describe_run(config=config, dataset=dataset, base=base, run_id="r", step=1, metrics={})
    assert info.columns["text"] == text


def write(target: str, base, info: RunInfo, **changes) -> str:
    arguments = {
        "weights": weights_for(base), "base_config": base.config,
        "tokenizer_files": base.tokenizer_files, "label_names": LABELS, "run_info": info,
    }  # fmt: skip
    return export(target, **(arguments | changes))


# Loads the export with transformers alone and compares with a forward pass over the same weights.
PIPELINE = """
import json, sys
import numpy as np, torch
from transformers import (AutoTokenizer, DistilBertConfig, DistilBertForSequenceClassification,
    pipeline)
from safetensors.torch import load_file
directory, texts = sys.argv[1], json.loads(sys.argv[2])
classify = pipeline("text-classification", model=directory, truncation=True, top_k=None)
got = [{row["label"]: row["score"] for row in rows} for rows in classify(texts)]
model = DistilBertForSequenceClassification(DistilBertConfig.from_pretrained(directory)).eval()
model.load_state_dict(load_file(directory + "/model.safetensors"), strict=True)
tokenizer = AutoTokenizer.from_pretrained(directory)
want = []
for text in texts:
    encoded = tokenizer(text, truncation=True, return_tensors="pt")
    with torch.no_grad():
        want.append(model(**encoded).logits[0].softmax(0).tolist())
print(json.dumps({"got": got, "want": want, "tokens": [len(tokenizer(t, truncation=True).input_ids)
    for t in texts], "class": type(tokenizer).__name__}))
"""


def test_transformers_pipeline_gives_the_weights_probabilities(tmp_path, base, info):
    target = write(str(tmp_path / "export"), base, info)
    texts = ["the cat and the dog", "", "no more of that " * 60]
    environment = os.environ | {"USE_TF": "0", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PIPELINE, target, json.dumps(texts)],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    for got, want in zip(result["got"], result["want"], strict=True):
        assert [got[name] for name in LABELS] == pytest.approx(want, abs=1e-6)
    assert max(result["tokens"]) == info.max_length  # the pipeline truncates as training did


def test_the_files_and_their_contents(tmp_path, base, info):
    target = write(str(tmp_path / "export"), base, info)
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
            "vocab.txt", "README.md", INFO} <= set(os.listdir(target))  # fmt: skip
    config = storage.read_json(os.path.join(target, "config.json"))
    assert config["id2label"] == {"0": "cat", "1": "dog", "2": "owl & co"}
    assert config["label2id"]["owl & co"] == 2
    assert config["architectures"] == ["DistilBertForSequenceClassification"]
    record = storage.read_json(os.path.join(target, INFO))
    assert record["run_id"] == "run-1"
    assert record["clean"]["unicode_nfc"] is True
    assert record["clean"]["whitespace"] is False  # the manifest does not list it
    assert record["max_length"] == 48
    assert record["base"]["hash"] == base.hash
    with open(os.path.join(target, "model.safetensors"), "rb") as file:
        assert hashlib.sha256(file.read()).hexdigest() == record["weights_sha256"]
    card = storage.read_text(os.path.join(target, "README.md"))
    metrics = info.metrics["test"]
    accuracy = f"| accuracy | {metrics['accuracy']:.4f} |"
    for part in ("run-1", "owl & co", accuracy, "zoo", "| rows | 4 |", "unicode_nfc",
                 "train: 7 rows", record["weights_sha256"]):  # fmt: skip
        assert part in card
    assert os.stat(os.path.join(target, "model.safetensors")).st_mode & 0o044  # others may read


def test_an_export_is_a_base_again_with_its_classifier(tmp_path, base, info):
    target = write(str(tmp_path / "export"), base, info)
    again = load_base(target, label_names=LABELS)
    expected = weights_for(base)
    assert sorted(again.weights) == sorted(expected)
    assert all(np.array_equal(again.weights[n], expected[n]) for n in expected)


def test_card_without_metrics_or_dataset(tmp_path, base):
    info = RunInfo(
        run_id="x", max_length=16, clean={}, base={"source": "b", "hash": "h"}, tokenizer_hash="t"
    )
    target = write(str(tmp_path / "export"), base, info)
    card = storage.read_text(os.path.join(target, "README.md"))
    assert "without an evaluation" in card
    assert "Not recorded" in card


def test_a_label_cannot_break_the_cards_tables(tmp_path, base, info):
    labels = ["a|b", "c", "d"]
    metrics = classification_metrics(np.array([0, 1]), np.eye(3)[:2], labels)
    changed = replace(info, metrics={"test": metrics})
    target = write(str(tmp_path / "export"), base, changed, label_names=labels)
    assert "| a\\|b | 1.0000 |" in storage.read_text(os.path.join(target, "README.md"))


def test_on_another_storage(base, info):
    target = "memory://exports/zoo"
    try:
        write(target, base, info)
        write(target, base, info)  # replaced
        assert load_base(target, label_names=LABELS).hash
        assert [entry.name for entry in storage.list_dir("memory://exports")] == ["zoo"]
    finally:
        storage.remove("memory://exports", recursive=True)


def test_an_export_of_the_same_run_is_replaced_and_of_another_is_not(tmp_path, base, info):
    target = str(tmp_path / "export")
    write(target, base, info)
    write(target, base, info, weights=weights_for(base, seed=2))
    assert np.array_equal(
        load_base(target, label_names=LABELS).weights["classifier.bias"],
        weights_for(base, seed=2)["classifier.bias"],
    )
    assert sorted(os.listdir(tmp_path)) == ["data", "export"]
    other = replace(info, run_id="run-2")
    with pytest.raises(AlreadyExists) as caught:
        write(target, base, other)
    assert "run-1" in caught.value.got


def test_a_slash_at_the_end_of_the_directory_is_no_part_of_its_name(tmp_path, base, info):
    target = str(tmp_path / "export")
    for _ in range(2):
        assert write(target + "/", base, info) == target
        with_decision(target + "/", {"temperature": 2.0})
    assert storage.read_json(f"{target}/{INFO}")["decision"] == {"temperature": 2.0}
    assert sorted(os.listdir(tmp_path)) == ["data", "export"]


def test_a_foreign_directory_is_not_replaced(tmp_path, base, info):
    target = tmp_path / "export"
    target.mkdir()
    (target / "thesis.txt").write_text("years of work")
    with pytest.raises(AlreadyExists, match="something else"):
        write(str(target), base, info)
    assert (target / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("call", [1, 2])
def test_a_failed_rename_leaves_the_old_export(tmp_path, base, info, monkeypatch, call):
    target = str(tmp_path / "export")
    write(target, base, info)
    before = storage.read_bytes(os.path.join(target, "model.safetensors"))
    rename, calls = storage.rename_dir, []

    def failing(source, destination):
        calls.append(source)
        if len(calls) == call:
            raise StorageError("cannot publish", where=destination)
        rename(source, destination)

    monkeypatch.setattr(storage, "rename_dir", failing)
    with pytest.raises(StorageError):
        write(target, base, info, weights=weights_for(base, seed=2))
    assert storage.read_bytes(os.path.join(target, "model.safetensors")) == before
    assert sorted(os.listdir(tmp_path)) == ["data", "export"]


def test_leftovers_of_a_killed_export_are_swept(tmp_path, base, info):
    target = str(tmp_path / "export")
    for name in ("export.new-0123abcd", "export.old-0123abcd", "export.newer"):
        (tmp_path / name).mkdir()
    write(target, base, info)
    assert sorted(os.listdir(tmp_path)) == ["data", "export", "export.newer"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: {n: a for n, a in w.items() if n != "classifier.bias"}, "do not fit"),
        (lambda w: w | {"classifier.weight": np.zeros((2, 32), np.float32)}, "do not fit"),
        (lambda w: w | {"stray": np.zeros(1, np.float32)}, "do not fit"),
        (lambda w: w | {"classifier.bias": np.full(3, np.nan, np.float32)}, "NaN"),
    ],
)
def test_wrong_weights_are_refused_and_nothing_is_written(tmp_path, base, info, change, message):
    target = str(tmp_path / "export")
    with pytest.raises(ModelError, match=message):
        write(target, base, info, weights=change(weights_for(base)))
    assert not os.path.exists(target)


def test_an_export_is_opened_by_its_path_or_its_run(tmp_path, base, info):
    target = write(str(tmp_path / "run" / "export"), base, info)
    assert open_version(target).path == target
    assert open_version(str(tmp_path / "run")).path == target
    with pytest.raises(ModelError, match="no such model"):
        open_version(str(tmp_path / "data"))
    with pytest.raises(ModelError, match="no such model"):
        open_version(str(tmp_path / "nowhere"))


# --------------------------------------------------------------------- from a run's checkpoints
@pytest.fixture
def run(tmp_path, base, tiny_model_dir):
    """A run directory with checkpoints at steps 5 (the best), 10; and its configuration."""
    dataset = make_dataset(str(tmp_path / "data"))
    config = from_dict(
        {
            "run": {"name": "zoo", "directory": str(tmp_path / "run")},
            "data": {"dataset": str(tmp_path / "data")},
            "model": {"base": tiny_model_dir},
        }
    )
    identity = Identity(base.hash, dataset.manifest_hash, "tok", tuple(LABELS), "plan")
    checkpoints = Checkpoints(
        config.checkpoint_directory, keep=3, fence=Fence.take(config.run.directory)
    )
    for step, score in ((5, 0.9), (10, 0.8)):
        tensors = {f"model/{n}": a for n, a in weights_for(base, seed=step).items()}
        tensors["adam_m/classifier.bias"] = np.zeros(3, np.float32)
        checkpoints.save(step, tensors, {}, identity=identity, score=score, wait=True)
    return config


def exported_bias(directory: str) -> np.ndarray:
    return load_base(directory, label_names=LABELS).weights["classifier.bias"]


def test_export_of_a_run_takes_the_best_checkpoint(run, base):
    path = export_run(run)
    assert path == os.path.join(run.run.directory, "export")
    assert np.array_equal(exported_bias(path), weights_for(base, seed=5)["classifier.bias"])
    record = storage.read_json(os.path.join(path, INFO))
    assert record["step"] == 5
    assert record["dataset"]["hash"] == "1"


def test_export_of_a_given_checkpoint_to_a_given_directory(run, base, tmp_path):
    checkpoint = os.path.join(run.checkpoint_directory, "step-10")
    path = export_run(run, checkpoint=checkpoint, output=str(tmp_path / "out"))
    assert np.array_equal(exported_bias(path), weights_for(base, seed=10)["classifier.bias"])


def test_export_finds_the_dataset_version_that_was_trained_on(run, tmp_path):
    make_dataset(str(tmp_path / "data"), version="2", created="2031-01-01T00:00:00+00:00")
    record = storage.read_json(os.path.join(export_run(run), INFO))
    assert record["dataset"]["hash"] == "1"


def test_export_refuses_another_base_or_a_lost_dataset(run, tmp_path):
    from tests.support.models.tiny_model import write_tiny_model

    other = write_tiny_model(str(tmp_path / "other"), seed=9)
    changed = run.model_copy(update={"model": run.model.model_copy(update={"base": other})})
    with pytest.raises(CheckpointError, match="another base model"):
        export_run(changed)
    make_dataset(str(tmp_path / "data"), version="2")
    storage.remove(str(tmp_path / "data" / "v=1"), recursive=True)
    with pytest.raises(CheckpointError, match="dataset"):
        export_run(run)


def test_export_takes_a_moved_dataset_and_base_from_the_command(
    run, base, tmp_path, tiny_model_dir
):
    shutil.copytree(tiny_model_dir, tmp_path / "base")
    model = run.model.model_copy(update={"base": str(tmp_path / "base")})
    freeze_config(run.model_copy(update={"model": model}), run.run.directory)
    # The run's own paths win while they can be read: the user's file may have changed since.
    changed = {"data": {"dataset": "elsewhere"}, "model": {"base": "elsewhere"}}
    changed["run"] = {"name": "zoo", "directory": run.run.directory}
    assert storage.exists(export_run(from_dict(changed)))
    for name in ("data", "base"):
        os.rename(tmp_path / name, tmp_path / f"{name}-moved")
    with pytest.raises(DataError):
        export_run(from_dict({"run": changed["run"]}))
    changed["data"]["dataset"] = str(tmp_path / "data-moved")
    changed["model"]["base"] = str(tmp_path / "base-moved")
    lines = []
    path = export_run(from_dict(changed), progress=lines.append)
    assert np.array_equal(exported_bias(path), weights_for(base, seed=5)["classifier.bias"])
    assert [part for part in ("data.dataset", "model.base") if part in " ".join(lines)]
    record = storage.read_json(os.path.join(path, INFO))
    assert record["dataset"]["path"] == str(tmp_path / "data-moved" / "v=1")
    from tests.support.models.tiny_model import write_tiny_model

    changed["model"]["base"] = write_tiny_model(str(tmp_path / "other"), seed=9)
    with pytest.raises(CheckpointError, match="another base model"):
        export_run(from_dict(changed))


def test_export_without_checkpoints(run):
    storage.remove(run.checkpoint_directory, recursive=True)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        export_run(run)


def test_export_of_a_moved_run_is_of_the_moved_one(run, base, tmp_path):
    """Its frozen configuration has the directories that it was trained in."""
    below = run.checkpoint.model_copy(update={"directory": run.checkpoint_directory})
    freeze_config(run.model_copy(update={"checkpoint": below}), run.run.directory)
    moved = str(tmp_path / "moved")
    os.rename(run.run.directory, moved)
    config = run.model_copy(update={"run": run.run.model_copy(update={"directory": moved})})
    assert export_run(config) == os.path.join(moved, "export")
    assert not os.path.exists(run.run.directory)
    storage.write_whole(os.path.join(moved, "config.yaml"), b"\n")
    with pytest.raises(ModelError, match="configuration is empty"):
        export_run(config)


def test_an_empty_directory_is_written_to(tmp_path, base, info):
    (tmp_path / "export").mkdir()
    write(str(tmp_path / "export"), base, info)
    assert (tmp_path / "export" / INFO).exists()


@pytest.mark.parametrize("body", ["[]", "{"])
def test_a_directory_whose_record_is_damaged_is_not_replaced(tmp_path, base, info, body):
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / INFO).write_text(body)
    with pytest.raises(AlreadyExists, match="something else"):
        write(str(tmp_path / "export"), base, info)
    assert (tmp_path / "export" / INFO).read_text() == body


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("config.json", 5, "no JSON object"),
        ("config.json", {"id2label": 5}, "has no labels"),
        (INFO, 5, "no JSON object"),
        (INFO, {"max_length": "x"}, "is malformed"),
        (INFO, {"clean": 5}, "is malformed"),
        (INFO, {"columns": {"text": 5}}, "is malformed"),
        (INFO, {"framework": ["torch"]}, "is malformed"),
        (INFO, {"formats": {"onnx": 5}}, "is malformed"),
    ],
)
def test_an_export_whose_json_is_of_another_shape_is_refused(
    tmp_path, base, info, name, fields, message
):
    target = export(
        str(tmp_path / "export"), weights=weights_for(base), base_config=base.config,
        tokenizer_files=base.tokenizer_files, label_names=LABELS, run_info=info,
    )  # fmt: skip
    path = f"{target}/{name}"
    body = storage.read_json(path) | fields if isinstance(fields, dict) else fields
    storage.write_whole(path, json.dumps(body).encode())
    with pytest.raises(ModelError, match=message) as caught:
        open_model(target, framework="onnx")
    assert caught.value.where.startswith(path) and caught.value.remedy
    version = open_version(target)
    with pytest.raises(ModelError, match=message):
        assert version.info and version.labels
