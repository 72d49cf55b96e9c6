"""Runs on several labels and on targets, in both frameworks: what they learn, export and serve."""

from __future__ import annotations

import functools
import json
import os

import numpy as np
import pyarrow.parquet as pq
import pytest

from howdah import storage
from howdah.config import loader
from tests.fixtures.dataset import LABELS, build_dataset
from tests.runs.training_runs import LEARNING, howdah, train

TASKS = ("multi_label", "regression")
ROWS = {"train": 400, "validation": 60, "test": 60}
TEXTS = ["the list of values is not sorted", "water river lake", "a young king"]

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def datasets(tmp_path_factory, tiny_model_dir):
    place = tmp_path_factory.mktemp("tasks")
    return {
        task: build_dataset(
            str(place / task / "v=1"), model_dir=tiny_model_dir, rows=ROWS, seed=3, task=task
        )
        for task in TASKS
    }


@pytest.fixture(scope="module")
def runs(datasets, tiny_model_dir, tmp_path_factory):
    """Runs by (task, framework, ranks), made when they are asked for."""

    @functools.cache
    def of(task: str, framework: str, np_: int = 1):
        return train(
            str(tmp_path_factory.mktemp(f"{task}-{framework}-{np_}") / "run"),
            dataset=datasets[task].path,
            base=tiny_model_dir,
            framework=framework,
            np_=np_,
            settings={
                **LEARNING,
                "data.task": task,
                "training.max_steps": 60,
                "training.learning_rate": 0.004,
                **({"training.class_weights": "balanced"} if task == "multi_label" else {}),
            },
        )

    return of


@pytest.mark.parametrize("task", TASKS)
def test_both_frameworks_learn_the_same(runs, task):
    losses = [np.array(runs(task, framework).losses()) for framework in ("torch", "tensorflow")]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3, abs=1e-4)
    assert losses[0][:3] == pytest.approx(losses[1][:3], rel=1e-5)
    metrics = runs(task, "torch").run_json()["metrics"]["test"]
    if task == "multi_label":
        assert metrics["micro_f1"] > 0.85 and metrics["mean_average_precision"] > 0.85
    else:
        assert metrics["pearson"] > 0.7 and metrics["spearman"] > 0.7 and metrics["r2"] > 0.4


@pytest.mark.mpi
@pytest.mark.parametrize("task", TASKS)
def test_two_ranks_learn_what_one_does(runs, task):
    one, two = runs(task, "torch"), runs(task, "torch", 2)
    assert two.losses() == pytest.approx(one.losses(), rel=2e-3, abs=1e-4)
    metrics = [run.run_json()["metrics"]["test"]["loss"] for run in (one, two)]
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-2)


@pytest.mark.parametrize("task", TASKS)
def test_predictions_have_the_tasks_columns_in_every_format(runs, task, tmp_path):
    export = os.path.join(runs(task, "torch").directory, "export")
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    for suffix in ("jsonl", "parquet", "csv"):
        target = str(tmp_path / f"out.{suffix}")
        howdah("predict", "--model", export, "--source", str(source), "--output", target)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    table = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert len(lines) == len(table) == len(TEXTS)
    for one, row in zip(lines, table, strict=True):
        if task == "regression":
            assert row["value"] == pytest.approx(one["value"], abs=1e-5) and "scores" not in one
        else:
            assert row["labels"] == one["labels"]
            assert one["labels"] == [name for name in LABELS if one["scores"][name] > 0.5]
    head = (tmp_path / "out.csv").read_text().splitlines()[0]
    scored = "".join(f",score_{name}" for name in LABELS) if task == "multi_label" else ""
    assert head == f"id,{'labels' if task == 'multi_label' else 'value'}{scored},run_id,error"
    card = storage.read_text(os.path.join(export, "README.md"))
    assert "macro_f1" in card if task == "multi_label" else "spearman" in card


@pytest.mark.parametrize("task", TASKS)
def test_evaluate_says_what_the_run_said_and_predictions_are_kept(runs, datasets, task):
    run = runs(task, "torch")
    config = os.path.join(run.directory, "given.yaml")
    evaluated = json.loads(howdah("evaluate", "--json", "--split", "test", "--config", config))
    trained = run.run_json()["metrics"]["test"]
    assert evaluated["metrics"]["loss"] == pytest.approx(trained["loss"], abs=1e-6)
    rows = pq.read_table(os.path.join(run.directory, "predictions", "test")).to_pylist()
    assert len(rows) == ROWS["test"]
    if task == "multi_label":
        whole = np.mean([row["label"] == row["predicted"] for row in rows])
        assert whole == pytest.approx(trained["subset_accuracy"])
    else:
        errors = [(row["label"] - row["predicted"]) ** 2 for row in rows]
        assert np.mean(errors) == pytest.approx(trained["mse"], rel=1e-4)
    page = storage.read_text(os.path.join(run.directory, "report.html"))
    assert ("micro_f1" if task == "multi_label" else "pearson") in page


@pytest.mark.parametrize("task", TASKS)
def test_what_has_another_task_is_refused(runs, datasets, task, tmp_path, tiny_model_dir):
    done = train(
        str(tmp_path / "run"), dataset=datasets[task].path, base=tiny_model_dir, check=False
    )
    assert done.returncode == 2 and "made for another task" in done.output
    assert "Traceback" not in done.output
    config = loader.load(os.path.join(runs(task, "torch").directory, "given.yaml"))
    from howdah.errors import ConfigError
    from howdah.serving.baseline.run import measure_baseline

    with pytest.raises(ConfigError, match="one label a row"):
        measure_baseline(
            config.model_copy(
                update={"evaluation": config.evaluation.model_copy(update={"metric": "macro_f1"})}
            ),
            progress=print,
        )
