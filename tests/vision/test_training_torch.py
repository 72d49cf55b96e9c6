"""One rank on a small dataset of images: trained, exported, evaluated again, predicted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from howdah.config.loader import dump_yaml, from_dict
from howdah.data.manifest import load_dataset
from howdah.models.runs.metrics_log import read_metrics
from tests import ROOT
from tests.support.models.images import build_images, png, write_shapes
from tools.demo.images import write_vit

LIMIT = 200  # seconds; detects a hang


def configuration(place: Path):
    """Configuration of a run whose dataset and base have been built."""
    base, data = str(place / "vit"), str(place / "dataset")
    write_vit(base, side=16, patch=8, width=32, layers=2)
    build_images(data, base, {"train": 100, "validation": 20, "test": 30})
    return from_dict(
        {
            "run": {"directory": str(place / "run")},
            "data": {"kind": "image", "dataset": data},
            "model": {"base": base},
            "training": {
                "framework": "torch", "precision": "fp32", "threads_per_rank": 1,
                "global_batch_size": 24, "per_device_max_tokens": 128, "max_steps": 30,
                "learning_rate": 3e-3, "logging_steps": 1,
            },
            "checkpoint": {"every_steps": 15},
            "evaluation": {"every_steps": 15, "metric": "accuracy"},
            "tracking": {"tensorboard": False},
        }
    )  # fmt: skip


def train(place: Path, config, *words: str) -> None:
    """Train, or say why it could not: a process of its own by `python -m ...`."""
    path = place / "run.yaml"
    path.write_text(dump_yaml(config))
    done = subprocess.run(
        [sys.executable, "-m", *words, "--config", str(path)],
        capture_output=True, text=True, timeout=LIMIT, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(place, configuration) of a finished run."""
    place = tmp_path_factory.mktemp("vision")
    config = configuration(place)
    train(place, config, "training")
    return place, config


@pytest.mark.mpi
@pytest.mark.full
def test_a_rank_with_fewer_images_than_the_other_computes_fillers(tmp_path):
    """One rank has 26 of 51 rows and the other 25, the most that a micro-batch holds."""
    losses = {}
    for shard in ("none", "full"):
        place = tmp_path / shard
        place.mkdir()
        settings = configuration(place).model_dump(mode="json", exclude_unset=True)
        settings["training"] |= {"global_batch_size": 51, "max_steps": 6}
        settings["training"]["parallel"] = {"shard": shard}
        settings["checkpoint"] = settings["evaluation"] = {"every_steps": 3}
        settings["training"]["comm"] = "torch"
        train(place, from_dict(settings), "howdah.cli", "train", "--np", "2")
        lines = read_metrics(str(place / "run"))
        losses[shard] = [line["loss"] for line in lines if "split" not in line]
    assert len(losses["none"]) == 6
    assert losses["full"] == pytest.approx(losses["none"], abs=1e-5)


def test_it_learns_and_counts_tokens_of_patches(run):
    _, config = run
    with open(os.path.join(config.run.directory, "run.json"), encoding="utf-8") as file:
        record = json.load(file)
    assert record["status"] == "finished" and record["metrics"]["test"]["accuracy"] > 0.9
    assert load_dataset(config.data.dataset).manifest.max_length == 5
    steps = [line for line in read_metrics(config.run.directory) if "split" not in line]
    assert len(steps) == 30 and steps[-1]["loss"] < steps[0]["loss"]
    card = Path(config.run.directory, "export", "README.md").read_text("utf-8")
    assert "image-classification" in card and "ViT image classifier with 2 classes" in card
    assert "tokens" not in card and "cleaning" not in card


def test_an_export_predicts_files_and_names_what_is_none(run, tmp_path):
    from howdah.serving.prediction.predict import predict

    _, config = run
    write_shapes(str(tmp_path / "new"), 8, seed=5)
    (tmp_path / "new" / "broken.png").write_bytes(png_of_half())
    out = str(tmp_path / "out.jsonl")
    summary = predict(config.run.directory, str(tmp_path / "new"), out)
    assert (summary["rows"], summary["errors"]) == (9, 1)
    with open(out, encoding="utf-8") as file:
        rows = {row["id"]: row for row in map(json.loads, file)}
    assert rows.pop("broken.png")["error"].startswith("undecodable")
    assert all(row["label"] == key.split("/")[0] for key, row in rows.items())


def png_of_half() -> bytes:
    """The first half of an image file."""
    import numpy as np

    whole = png(np.zeros((64, 64), np.uint8))
    return whole[: len(whole) // 2]


def test_an_evaluation_of_the_export_gives_the_run_s_metrics(run):
    from howdah.training.evaluation.evaluate import evaluate_run

    _, config = run
    metrics = evaluate_run(config)
    with open(os.path.join(config.run.directory, "run.json"), encoding="utf-8") as file:
        assert metrics["loss"] == pytest.approx(
            json.load(file)["metrics"]["test"]["loss"], abs=1e-6
        )


def test_texts_are_not_given_to_a_model_of_images(run):
    from howdah.errors import UsageError
    from howdah.models.opened.opened import open_model
    from howdah.serving.prediction.classify import classify
    from howdah.serving.prediction.rows import Row

    with pytest.raises(UsageError, match="classifies images, not texts"):
        classify(open_model(run[1].run.directory, threads=1), [Row("0", "a text")])
