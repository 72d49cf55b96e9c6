"""`howdah train --folds`: each cluster is tested once, arithmetic, refusals; whole runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from howdah import storage
from howdah.config.data import SplitOptions
from howdah.config.loader import from_dict
from howdah.data.manifest import load_dataset
from howdah.data.splits.shards import ShardSet
from howdah.errors import ConfigError
from howdah.etl.rows.split import rule, split_column, split_of
from howdah.etl.write.adopt import split_of_name
from howdah.tuning.crossval.folds import _of_baseline, cross_validate, fold_config
from howdah.tuning.crossval.summary import summarize, table
from tests import ROOT
from tests.support.rows.word_rows import write_rows
from tests.support.waiting import wait_until

CLUSTERS = [f"cluster-{n}" for n in range(3_000)]


def folds_of(count: int, **options) -> list[SplitOptions]:
    return [SplitOptions(fold=f"{number}/{count}", **options) for number in range(1, count + 1)]


@pytest.mark.parametrize("count", [2, 3, 7, 20])
def test_each_cluster_is_tested_in_one_fold(count):
    validation = 0.1
    splits = [
        [split_of(name, one) for name in CLUSTERS] for one in folds_of(count, validation=validation)
    ]
    tested = np.array([[split == "test" for split in fold] for fold in splits])
    assert (tested.sum(axis=0) == 1).all()
    assert abs(tested.mean(axis=1) - 1 / count).max() < 0.04
    share = np.array([[split == "validation" for split in fold] for fold in splits])
    assert abs(share.mean(axis=1) - validation).max() < 0.03


def test_a_fold_is_a_rule_of_its_own():
    plain, fold = rule(SplitOptions()), rule(SplitOptions(fold="2/5"))
    assert "fold" not in plain and "test" not in fold and fold["fold"] == "2/5"
    assert plain["rule"] != fold["rule"]


@pytest.mark.spark
def test_spark_and_python_agree(spark):
    names = spark.createDataFrame([(name,) for name in CLUSTERS[:400]], "name string")
    for options in (*folds_of(3, validation=0.17), SplitOptions(fold="20/20", seed=4)):
        rows = names.select("name", split_column("name", options).alias("split")).collect()
        assert {row["name"]: row["split"] for row in rows} == {
            name: split_of(name, options) for name in CLUSTERS[:400]
        }


@pytest.mark.parametrize("fold", ["0/5", "6/5", "1/1", "1/21", "2", "a/b", "01/5"])
def test_a_fold_that_there_is_not_is_refused(fold):
    with pytest.raises(ConfigError) as caught:
        from_dict({"data": {"split": {"fold": fold}}})
    assert "data.split" in str(caught.value)
    assert split_of_name("/data/fold-1.tfrecord") is None


def test_folds_must_leave_rows_to_train_on():
    with pytest.raises(ConfigError, match="one fold of 2"):
        from_dict({"data": {"split": {"fold": "1/2", "validation": 0.5}}})


@pytest.mark.parametrize("key", ["base", "init_from"])
def test_a_model_that_has_learnt_the_rows_is_not_cross_validated(key, tmp_path, tiny_model_dir):
    trained = tmp_path / "export"
    shutil.copytree(tiny_model_dir, trained)
    (trained / "howdah.json").write_text('{"run_id": "r"}')
    config = from_dict({
        "run": {"directory": str(tmp_path / "run")},
        "model": {"base": tiny_model_dir} | {key: str(trained)},
    })  # fmt: skip
    with pytest.raises(ConfigError, match="was trained on rows that folds are tested on") as caught:
        cross_validate(config, folds=2, np=1, baseline=False, progress=print)
    assert caught.value.where == f"model.{key}" and not (tmp_path / "run").exists()


def test_mean_and_deviation_of_folds():
    metrics = summarize([{"accuracy": 0.5, "roc_auc": None}, {"accuracy": 0.75, "roc_auc": 0.5}])
    assert metrics["accuracy"] == {
        "mean": 0.625, "std": pytest.approx(0.125 * 2**0.5), "values": [0.5, 0.75],
    }  # fmt: skip
    assert metrics["roc_auc"] == {"mean": None, "std": None, "values": [None, 0.5]}
    each = [{"rows": 1_000}, {"rows": 9}]
    lines = table({"folds": 2, "metrics": metrics, "each": each})
    assert lines[0].split() == ["metric", "mean", "std", "fold", "1", "fold", "2"]
    assert ["accuracy", "0.6250", "0.1768", "0.5000", "0.7500"] in [one.split() for one in lines]
    assert lines[-1].split() == ["rows", "1,000", "9"]
    of = {"of": "model", "metric": "accuracy", "mean": 0.625, "std": 0.1768,
          "baseline": _of_baseline([{"baseline": 0.5}, {"baseline": 0.6}], "accuracy")}  # fmt: skip
    lines = table({"folds": 2, "metrics": metrics, "each": each, **of})
    assert lines[-1] == "accuracy: 0.6250, the baseline's 0.5500 (deviations 0.1768 and 0.0707)"
    assert _of_baseline([{"baseline": 0.5}, {"baseline": None}], "accuracy") is None


def test_a_fold_has_a_dataset_and_a_run_of_its_own():
    config = from_dict(
        {
            "run": {"name": "news", "directory": "runs/news"},
            "checkpoint": {"directory": "elsewhere"},
            "data": {"dataset": "datasets/news", "rejects_table": "a.b"},
            "evaluation": {"splits": ["validation"]},
        }
    )
    made = fold_config(config, 2, 5, "runs/news/crossval-5")
    assert made.data.split.fold == "2/5" and made.run.name == "news-fold-2"
    assert made.data.dataset == "runs/news/crossval-5/dataset-2"
    assert made.run.directory == "runs/news/crossval-5/fold-2"
    assert made.checkpoint_directory == "runs/news/crossval-5/fold-2/checkpoints"
    assert made.evaluation.splits == ["validation", "test"]
    assert made.data.rejects_table is None  # its partitions would be of the same rows


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"data": {"split": {"fold": "1/3"}}}, "data.split.fold"),
        ({"checkpoint": {"resume": "runs/a/checkpoints/step-3"}}, "checkpoint.resume"),
    ],
)
def test_what_cannot_be_folded_is_refused(tmp_path, sections, key):
    config = from_dict({"run": {"directory": str(tmp_path / "run")}, **sections})
    with pytest.raises(ConfigError) as caught:
        cross_validate(config, folds=3, np=1, baseline=True, progress=lambda line: None)
    assert caught.value.where == key
    assert not os.path.exists(tmp_path / "run")


# -------------------------------------------------------------------------------- whole commands
FOLDS = 3


@pytest.fixture
def command(tmp_path, tiny_model_dir) -> list[str]:
    """Words of a `howdah train --folds` over 180 rows."""
    config = {
        "run": {"directory": str(tmp_path / "run")},
        "data": {
            "source": write_rows(tmp_path / "rows.csv", 180), "max_length": 32,
            "dedup": {"near": False}, "spark": {"master": "local[2]", "driver_memory": "1g"},
        },
        "model": {"base": tiny_model_dir},
        "training": {
            "framework": "torch", "global_batch_size": 12, "max_steps": 4,
            "per_device_max_tokens": 128, "threads_per_rank": 1, "precision": "fp32",
        },
        "tracking": {"tensorboard": False},
    }  # fmt: skip
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(config))
    return ["train", "--config", str(path), "--folds", str(FOLDS), "--json"]


def howdah(words: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "howdah.cli", *words], capture_output=True, text=True, timeout=280,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}, cwd=ROOT,
    )  # fmt: skip


@pytest.mark.spark
@pytest.mark.full
def test_folds_of_the_baseline_are_measured_once(command, tmp_path):
    done = howdah([*command, "--baseline"])
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    ids = []
    for fold in output["each"]:
        dataset = load_dataset(fold["dataset"])
        shards = ShardSet(dataset, "test")
        ids += [
            shards.example(shard, row).id
            for shard, lengths in enumerate(shards.lengths)
            for row in range(len(lengths))
        ]
    assert len(ids) == len(set(ids)) == 180  # each row is tested once
    assert output["metrics"]["accuracy"]["mean"] > 0.9 and output["of"] == "baseline"
    again = howdah([*command, "--baseline"])
    assert json.loads(again.stdout)["metrics"] == output["metrics"]
    assert again.stderr.count("finished before") == FOLDS
    assert "start Spark" not in again.stderr
    changed = howdah([*command, "--baseline", "--set", "training.class_weights=balanced"])
    error = json.loads(changed.stdout)
    assert changed.returncode == 2 and "a different configuration" in error["what"]


@pytest.mark.spark
@pytest.mark.full
def test_an_interrupted_fold_goes_on_and_finished_ones_are_kept(command, tmp_path):
    words = [*command, "--set", "training.max_steps=40"]
    log = open(tmp_path / "log", "wb")  # noqa: SIM115 - closed below
    process = subprocess.Popen(
        [sys.executable, "-m", "howdah.cli", *words], stdout=subprocess.PIPE, stderr=log,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}, cwd=ROOT,
        start_new_session=True,
    )  # fmt: skip
    try:
        second = str(tmp_path / "run" / "crossval-3" / "fold-2" / "run.json")
        wait_until(lambda: os.path.exists(second) or process.poll() is not None, 200)
        process.send_signal(signal.SIGINT)
        answer = json.loads(process.communicate(timeout=120)[0])
    finally:
        process.kill()
        log.close()
    assert answer["exit_code"] == 130, answer
    assert answer["what"] == "fold 2 of 3 was stopped"
    assert answer["got"] == "1 folds have finished"
    first = str(tmp_path / "run" / "crossval-3" / "fold-1" / "run.json")
    before = storage.read_bytes(first)
    done = howdah(words)
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    assert storage.read_bytes(first) == before
    assert len(output["metrics"]["accuracy"]["values"]) == FOLDS
    assert output["mean"] == output["metrics"]["macro_f1"]["mean"]
    assert storage.read_json(output["path"])["each"] == output["each"]
