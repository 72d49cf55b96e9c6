"""Runs that began from another model or replay older rows: what they learn from is found again."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from howdah import storage
from howdah.config.loader import from_dict, load
from howdah.data.manifest import load_dataset
from howdah.errors import HowdahError
from howdah.models.base import learnt_parts, with_pinned_base
from howdah.models.replay import training_rows
from howdah.models.runs.identity import Identity
from howdah.models.runs.run_json import CONFIG
from howdah.serving.report.findings.material import gather
from howdah.training.checkpoint.fence import Fence
from howdah.training.checkpoint.manager import Checkpoints
from howdah.training.export_run import _dataset_of, export_run
from tests.runs.training_runs import train
from tests.support.rows.appended import build_appended, ids_of

_SHORT = {
    "training.global_batch_size": 6, "training.max_steps": 2, "evaluation.splits": ["validation"],
    "checkpoint.every_steps": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def begun(tmp_path_factory, tiny_model_dir):
    """A run on two days, and one that begins from it, on four days with few of the older rows."""
    place = tmp_path_factory.mktemp("begun")
    root = str(place / "data")
    build_appended(root, model_dir=tiny_model_dir, days=4)
    second = storage.join(root, f"v={1:016x}")
    first = train(str(place / "a"), dataset=second, base=tiny_model_dir, settings=_SHORT)
    again = _SHORT | {
        "model.init_from": os.path.join(first.directory, "export"), "training.replay": 0.5,
    }  # fmt: skip
    return train(str(place / "b"), dataset=root, base=tiny_model_dir, settings=again)


def config_of(run):
    return load(os.path.join(run.directory, "given.yaml"))


def test_days_that_the_model_before_has_not_seen_are_all_new(begun):
    dataset = load_dataset(config_of(begun).data.dataset)
    chosen = training_rows(dataset, config_of(begun))
    parts = [entry.part for entry in chosen.manifest.splits["train"]]
    assert parts[-2:] == ["day-2", "day-3"] and len(parts) == 3
    assert "18 rows, 3 steps per epoch" in begun.output
    assert begun.run_json()["base"]["parts"] == ["day-0, 12 rows", "day-1, 12 rows"]


def test_a_model_whose_dataset_is_gone_leaves_the_newest_day_new(begun, tmp_path):
    config = with_pinned_base(config_of(begun))
    config = config.model_copy(
        update={"run": config.run.model_copy(update={"directory": str(tmp_path / "other")})}
    )
    dataset = load_dataset(config.data.dataset)
    assert learnt_parts(config, dataset) == ["day-0, 12 rows", "day-1, 12 rows"]
    export = str(tmp_path / "export")
    storage.make_dirs(export)
    storage.write_whole(
        f"{export}/howdah.json", b'{"dataset": {"path": "/gone/v=77", "hash": "77"}}'
    )
    model = config.model.model_copy(update={"init_from": export})
    gone = config.model_copy(update={"model": model})
    assert learnt_parts(gone, dataset) is None
    parts = [entry.part for entry in training_rows(dataset, gone).manifest.splits["train"]]
    assert parts[-1] == "day-3" and len(parts) == 3  # half of 18 older rows: two shards of 6


def test_such_a_run_is_exported_again(begun, tmp_path):
    target = export_run(config_of(begun), output=str(tmp_path / "again"))
    before = storage.read_bytes(os.path.join(begun.directory, "export", "model.safetensors"))
    assert storage.read_bytes(f"{target}/model.safetensors") == before


def test_its_report_has_texts_and_does_not_say_that_the_dataset_changed(begun):
    run = begun.run_json()
    assert run["dataset_hash"] == load_dataset(run["dataset"]).manifest_hash
    material = gather(
        begun.directory, run, storage.read_text(os.path.join(begun.directory, CONFIG))
    )
    assert not [note for note in material.notes if "changed" in note]
    assert material.findings is not None and ids_of(load_dataset(run["dataset"]))


def test_a_damaged_version_beside_the_dataset_does_not_hide_it(tmp_path, tiny_model_dir):
    """`howdah export` looks for the version that the run has learnt from among all of them."""
    root = str(tmp_path / "data")
    build_appended(root, model_dir=tiny_model_dir, days=3)
    versions = [storage.join(root, f"v={number:016x}") for number in range(3)]
    config = from_dict({"run": {"directory": str(tmp_path)}, "data": {"dataset": versions[2]}})
    checkpoint = str(tmp_path / "step-1")
    identity = {"dataset": load_dataset(versions[1]).identity}
    manifest = {"format": 1, "step": 1, "files": {}, "identity": identity}
    storage.write_whole(storage.join(checkpoint, "manifest.json"), json.dumps(manifest).encode())
    storage.write_whole(storage.join(versions[0], "manifest.json"), b"{")
    assert _dataset_of(config, checkpoint).path == versions[1]


def test_export_says_that_it_falls_back_on_an_older_checkpoint(tmp_path):
    config = from_dict({
        "run": {"directory": str(tmp_path)}, "data": {"dataset": str(tmp_path / "none")},
        "model": {"base": str(tmp_path / "none")},
    })  # fmt: skip
    fence = Fence.take(str(tmp_path))
    checkpoints = Checkpoints(config.checkpoint_directory, fence=fence)
    identity = Identity(base_model="b", dataset="d", tokenizer="t", labels=("x",), plan="p")
    for step in (1, 2):
        tensors = {"model/w": np.full(4, step, np.float32)}
        checkpoints.save(step, tensors, {"step": step}, identity=identity, wait=True)
    path = os.path.join(checkpoints.path_of(2), "model.safetensors")
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    lines = []
    with pytest.raises(HowdahError):  # there is no base
        export_run(config, progress=lines.append)
    assert any("step-2 is corrupt" in line for line in lines)
