"""A vision transformer from images to predictions: real ETL, real ranks, on scikit-learn's digits.

The commands that a user types, each in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from howdah.config.loader import dump_yaml, from_dict
from tests import ROOT
from tests.runs.training_runs import Finished
from tools.demo import images

pytestmark = [pytest.mark.spark, pytest.mark.full]
LIMIT = 280  # seconds; detects a hang


def command(*words: str, stdin: str | None = None, code: int = 0) -> str:
    """What a command printed, stdout and stderr together."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        input=stdin, capture_output=True, text=True, timeout=LIMIT, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + ("" if stdin else done.stderr)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """(directory, configuration file): 1,797 digits made to a dataset, and a random ViT."""
    place = tmp_path_factory.mktemp("digits")
    images.write_folder(str(place / "digits"), images.digits())
    images.write_vit(str(place / "vit"), side=16, patch=4, width=64, layers=2)
    config = from_dict(
        {
            "run": {"directory": str(place / "run")},
            "data": {
                "kind": "image",
                "source": str(place / "digits"),
                "dataset": str(place / "dataset"),
                "split": {"validation": 0.1, "test": 0.15},
                "spark": {"master": "local[2]", "driver_memory": "1g"},
            },
            "model": {"base": str(place / "vit")},
            "training": {
                "framework": "torch", "precision": "fp32", "threads_per_rank": 1,
                "global_batch_size": 64, "max_steps": 320, "learning_rate": 2e-3,
                "lr_scheduler_type": "constant", "warmup_ratio": 0.1,
            },
            "checkpoint": {"every_steps": 80, "keep": 4},
            "evaluation": {"metric": "accuracy", "every_steps": 160},
            "tracking": {"tensorboard": False},
        }
    )  # fmt: skip
    path = place / "run.yaml"
    path.write_text(dump_yaml(config))
    command("howdah.cli", "etl", "--config", str(path))
    return place, str(path)


def train(digits, comm: str, np_: int = 2, **settings) -> Finished:
    """A finished run, its sums carried by `comm`."""
    place, config = digits
    directory = settings.pop("run.directory", str(place / f"run-{comm}"))
    words = [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
    output = command(
        "howdah.cli", "train", "--config", config, f"--set=run.directory={directory}", *words,
        "--np", str(np_), f"--set=training.comm={comm}",
    )  # fmt: skip
    return Finished(directory, 0, output)


@pytest.fixture(scope="module")
def trained(digits) -> Finished:
    return train(digits, "torch")


def test_a_divided_state_takes_the_same_steps(digits):
    """ZeRO-1 has the bits; FSDP2's sums have another order."""
    place, _ = digits
    short = {"training.max_steps": 12, "training.logging_steps": 1, "evaluation.every_steps": None}
    losses = {}
    for shard in ("none", "optimizer", "full"):
        settings = {"training.parallel.shard": shard, "run.directory": str(place / f"run-{shard}")}
        losses[shard] = train(digits, "torch", **short, **settings).losses()
    assert len(losses["none"]) == 12
    assert losses["optimizer"] == losses["none"]
    assert losses["full"] == pytest.approx(losses["none"], abs=1e-5)


def test_two_ranks_learn_the_digits(trained):
    record = trained.run_json()
    assert record["status"] == "finished"
    assert record["metrics"]["test"]["accuracy"] > 0.85
    assert record["metrics"]["test"]["ece"] is not None


def test_mpirun_trains_to_the_same_bits(digits, trained):
    other = train(digits, "mpirun")
    mine, theirs = other.tensors(320), trained.tensors(320)
    assert mine.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_array_equal(mine[name], array, err_msg=name)


def test_a_run_that_goes_on_has_the_bits_of_one_that_was_not_stopped(digits, trained):
    place, _ = digits
    settings = {"run.directory": str(place / "resumed")}
    train(digits, "torch", **settings, **{"training.max_steps": 80})
    again = train(digits, "torch", **settings)
    assert len(again.run_json()["attempts"]) == 2
    theirs = trained.tensors(320)
    for name, array in again.tensors(320).items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def test_the_export_is_the_same_model_in_transformers(digits, trained, monkeypatch):
    monkeypatch.setenv("USE_TF", "0")
    from transformers import AutoModelForImageClassification, pipeline

    place, _ = digits
    export = os.path.join(trained.directory, "export")
    model = AutoModelForImageClassification.from_pretrained(export)
    assert model.config.id2label == {n: str(n) for n in range(10)}
    assert not hasattr(model.config, "image_mean")
    out = str(place / "pred.parquet")
    command(
        "howdah.cli", "predict", "--model", trained.directory, "--source", str(place / "digits"),
        "--output", out,
    )  # fmt: skip
    rows = pq.read_table(out).to_pylist()
    assert len(rows) == 1797
    right = sum(row["id"].split("/")[0] == row["label"] for row in rows)
    assert right > 0.85 * len(rows)
    classify = pipeline("image-classification", model=export, top_k=10)
    for row in rows[::600]:
        theirs = {x["label"]: x["score"] for x in classify(str(place / "digits" / row["id"]))}
        for label, score in zip("0123456789", row["scores"], strict=True):
            assert score == pytest.approx(theirs[label], abs=1e-5)


def test_predictions_of_parquet_and_of_paths_and_a_broken_image(digits, trained):
    place, _ = digits
    images.write_parquet(str(place / "table"), images.digits())
    out = str(place / "table.jsonl")
    command(
        "howdah.cli", "predict", "--model", trained.directory, "--id-column", "id",
        "--source", str(place / "table" / "images.parquet"), "--output", out,
    )  # fmt: skip
    with open(out, encoding="utf-8") as file:
        first = json.loads(file.readline())
    assert first["id"] == "00000" and len(first["scores"]) == 10
    broken = place / "broken.png"
    broken.write_bytes(b"no image")
    path = str(place / "digits" / "0" / "00000.png")
    output = command(
        "howdah.cli", "predict", "--model", trained.directory, "--stdin",
        stdin=f"{path}\n{broken}\n{place}/missing.png\n",
    )  # fmt: skip
    lines = [json.loads(line) for line in output.splitlines()]
    assert lines[0]["scores"] == pytest.approx(first["scores"], abs=1e-6)
    assert lines[1]["label"] is None and "undecodable" in lines[1]["error"]
    assert lines[2]["label"] is None and "cannot be read" in lines[2]["error"]


def test_what_has_no_model_of_images_says_so(digits, trained):
    _, config = digits
    model = ("--model", trained.directory, "--source", ".", "--output", "x.parquet")
    message = command("howdah.cli", "predict", *model, "--master", "local[1]", code=2)
    assert "not with Spark" in message
    message = command("howdah.cli", "evaluate", "--baseline", "--config", config, code=2)
    assert "the dataset holds images" in message
    message = command(
        "howdah.cli", "train", "--config", config, "--set=training.framework=tensorflow", code=2
    )
    assert "set training.framework to torch" in message and "Traceback" not in message


def test_commands_that_read_any_dataset_read_images(digits, trained):
    _, config = digits
    run = f"--set=run.directory={trained.directory}"
    planned = json.loads(
        command("howdah.cli", "plan", "--config", config, "--np", "2", "--json", stdin=" ")
    )
    rows = planned["rows"]["train"]
    assert planned["tokens_per_epoch"] == 17 * rows  # 16 patches and the class
    # All that is padded are the rows that complete an epoch's last batch.
    assert planned["padding_ratio"] == round(64 * planned["steps_per_epoch"] / rows, 4)
    metrics = trained.run_json()["metrics"]["test"]
    output = command("howdah.cli", "evaluate", "--config", config, run, "--json", stdin=" ")
    assert json.loads(output)["metrics"]["accuracy"] == metrics["accuracy"]
    gate = f"--set=gate.minimum={{accuracy: {metrics['accuracy'] + 0.01}}}"
    command("howdah.cli", "gate", "--config", config, run, gate, code=1)
    report = os.path.join(trained.directory, "report.html")
    assert os.path.getsize(report) > 10_000
