"""`howdah evaluate --baseline`: measured on the dataset's splits, in the report, or refused."""

from __future__ import annotations

import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from howdah import storage
from howdah.cli import app, run
from howdah.config.loader import dump_yaml, from_dict
from howdah.config.metric_table import metrics_of
from howdah.data.splits.shards import ShardSet
from howdah.errors import ConfigError, DataError, ModelError, PermissionDenied
from howdah.models.runs import baseline as results
from howdah.serving.baseline import local
from howdah.serving.baseline import run as baseline_run
from howdah.serving.baseline.run import measure_baseline
from howdah.serving.report import report
from tests.fixtures.dataset import build_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, tiny_model_dir):
    path = str(tmp_path_factory.mktemp("baseline") / "v=7")
    rows = {"train": 400, "validation": 60, "test": 60}
    return build_dataset(path, model_dir=tiny_model_dir, rows=rows, seed=7)


def weights_like(weight: float) -> dict:
    """A training section whose class weights make the baseline another one than other tests'."""
    return {"class_weights": {"stars": weight}}


def config(dataset, directory, **sections):
    return from_dict(
        {"data": {"dataset": dataset.path}, "run": {"directory": str(directory)}, **sections}
    )


def measured(dataset, directory, **sections):
    lines: list[str] = []
    result = measure_baseline(config(dataset, directory, **sections), progress=lines.append)
    return result, lines


def finished_run(directory, dataset_path: str, metrics: dict) -> None:
    run_json = {
        "run_id": "r-1", "name": "r", "status": "finished", "metrics": metrics,
        "attempts": [{"attempt": 1, "dataset": dataset_path}],
    }  # fmt: skip
    storage.write_whole(storage.join(str(directory), "run.json"), json.dumps(run_json).encode())


def test_a_baseline_is_measured_on_the_splits_of_the_dataset(dataset, tmp_path, capsys):
    words = ["--set", f"data.dataset={dataset.path}", "--set", f"run.directory={tmp_path}/run"]
    code = run(
        lambda: app(["evaluate", "--baseline", *words, "--json"], standalone_mode=False),
        as_json=True,
    )
    output = json.loads(capsys.readouterr().out)
    assert code == 0
    stored = storage.read_json(f"{tmp_path}/run/baseline.json")
    assert stored == {k: v for k, v in output.items() if k != "path"}
    assert {name: m["rows"] for name, m in output["metrics"].items()} == {
        "validation": 60, "test": 60,
    }  # fmt: skip
    assert output["dataset_hash"] == dataset.manifest.dataset_hash
    assert set(metrics_of("single_label")) <= set(output["metrics"]["test"])
    assert output["metrics"]["test"]["accuracy"] > 0.8  # four classes, words tell them apart
    assert set(output["tried"]) == {"1", "10"} and output["converged"] is True
    assert f"{output['c']:g}" == max(output["tried"], key=output["tried"].get)
    assert sorted(os.listdir(tmp_path / "run")) == ["baseline.json", "baseline.npz"]


def table_of(setting, capsys) -> list[str]:
    path = f"{setting.run.directory}.yaml"
    storage.write_whole(path, dump_yaml(setting).encode())
    command = ["evaluate", "--baseline", "--config", path]
    assert run(lambda: app(command, standalone_mode=False), as_json=False) == 0
    return capsys.readouterr().out.splitlines()


def test_the_report_of_a_finished_run_shows_it(dataset, tmp_path, capsys):
    result, _ = measured(dataset, tmp_path / "other")
    finished_run(tmp_path / "other", dataset.path, result["metrics"])
    _, lines = measured(dataset, tmp_path / "other")
    assert any("report renewed" in line for line in lines)
    page = storage.read_text(f"{tmp_path}/other/report.html")
    value = result["metrics"]["test"]["accuracy"]
    assert f"test accuracy: baseline {value:.4f}, model {value:.4f} (not better)" in page
    recorded = storage.read_json(f"{tmp_path}/other/run.json")["verdict"]
    assert recorded["verdict"] in page and recorded["verdict_reason"]
    setting = config(dataset, tmp_path / "other")
    head, *rows, path = table_of(setting, capsys)
    assert head.split() == ["split", "metric", "baseline", "model"]
    assert ["test", "accuracy", f"{value:.4f}", f"{value:.4f}"] in [row.split() for row in rows]
    assert len(rows) <= 12 and path == f"baseline: {tmp_path}/other/baseline.json"
    finished_run(tmp_path / "other", "elsewhere/v=8", result["metrics"])
    page = storage.read_text(report.write(str(tmp_path / "other")))
    assert "of another dataset" in page and "not better" not in page


def test_it_is_measured_on_the_version_that_the_run_has(tiny_model_dir, tmp_path):
    rows = {"train": 30, "test": 10}
    for number in (1, 2):
        build_dataset(
            f"{tmp_path}/data/v={number}", model_dir=tiny_model_dir, rows=rows, seed=number
        )
    options = from_dict(
        {
            "data": {"dataset": f"{tmp_path}/data"}, "run": {"directory": f"{tmp_path}/run"},
        }
    )  # fmt: skip
    os.makedirs(tmp_path / "run")
    for number in (1, 2):
        finished_run(tmp_path / "run", f"{tmp_path}/data/v={number}", {})
        result = measure_baseline(options, progress=lambda line: None)
        assert result["dataset"].endswith(f"v={number}")


def test_a_dataset_of_another_task_is_refused_whatever_its_metric(tiny_model_dir, tmp_path):
    rows = {"train": 30, "test": 10}
    made = build_dataset(f"{tmp_path}/v=1", model_dir=tiny_model_dir, rows=rows, task="multi_label")
    for more in ({}, {"evaluation": {"metric": "micro_f1"}}):
        with pytest.raises(ConfigError, match=r"one label a row.* multi_label"):
            measured(made, tmp_path / "run", data={"dataset": made.path, "task": "multi_label"},
                     **more)  # fmt: skip


def test_a_run_that_goes_on_keeps_its_report(dataset, tmp_path):
    os.makedirs(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text('{"status": "running"}')
    _, lines = measured(dataset, tmp_path / "run")
    assert sorted(os.listdir(tmp_path / "run")) == [
        "baseline.json", "baseline.npz", "run.json",
    ]  # fmt: skip
    assert not any("report" in line for line in lines)


def test_it_is_measured_once_for_a_dataset_version_and_found_by_other_runs(
    dataset, tmp_path, monkeypatch
):
    options = {"training": weights_like(0.5)}
    first, _ = measured(dataset, tmp_path / "a", **options)
    monkeypatch.setattr(local, "measure", lambda *of: pytest.fail("it is measured already"))
    second, lines = measured(dataset, tmp_path / "b", **options)
    assert {**second, "path": None} == {**first, "path": None}
    assert any("measured on this dataset version before" in line for line in lines)
    # A run that never asked for it is compared with it, row by row.
    settings = config(dataset, tmp_path / "c", **options)
    earlier = results.find(
        str(tmp_path / "c"), dataset.path, dataset.manifest.dataset_hash, settings
    )
    labels = np.concatenate([ShardSet(dataset, "test").labels[n] for n in range(1)])
    predicted = earlier.predicted("test")
    assert len(predicted) == 60
    assert (predicted[: len(labels)] == labels).mean() > 0.7
    # Other options, or another dataset, are another baseline.
    other = config(dataset, tmp_path / "c", training=weights_like(0.25))
    assert results.find(str(tmp_path / "c"), dataset.path, earlier.dataset_hash, other) is None
    assert results.find(str(tmp_path / "c"), dataset.path, "other", settings) is None


def test_predictions_of_another_measurement_are_not_taken(dataset, tmp_path):
    measured(dataset, tmp_path / "run", training=weights_like(2.0))
    stored = results.read(str(tmp_path / "run"))
    assert stored.predicted("test") is not None
    os.remove(tmp_path / "run" / "baseline.npz")
    assert stored.predicted("test") is None
    np.savez(tmp_path / "run" / "baseline.npz", test=np.zeros(60, np.int32))
    assert stored.predicted("test") is None


def test_class_weights_are_the_models(dataset, tmp_path):
    heavy = {"class_weights": {"stars": 1e6}}
    plain, _ = measured(dataset, tmp_path / "a")
    heavy_result, _ = measured(dataset, tmp_path / "b", training=heavy)
    recall = {
        name: one["metrics"]["test"]["per_class"]["stars"]["recall"]
        for name, one in (("plain", plain), ("heavy", heavy_result))
    }
    assert recall["heavy"] == 1.0
    assert heavy_result["metrics"]["test"]["accuracy"] < plain["metrics"]["test"]["accuracy"]


def test_what_memory_does_not_hold_is_refused_with_both_sizes(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(local, "MAX_BYTES", 2**20)
    with pytest.raises(ConfigError) as caught:
        measured(dataset, tmp_path / "run", training=weights_like(3.0))  # measured by no other test
    error = caught.value
    assert error.where == "howdah evaluate --baseline" and "0.000977 GiB" in error.expected
    assert "400 rows" in error.got and "4 classes" in error.got
    assert "a machine with more memory" in error.remedy
    assert not os.path.exists(tmp_path / "run" / "baseline.json")


def test_a_dataset_without_rows_to_evaluate_is_refused(tiny_model_dir, tmp_path):
    only = build_dataset(str(tmp_path / "v=1"), model_dir=tiny_model_dir, rows={"train": 20})
    with pytest.raises(DataError, match="nothing to evaluate"):
        measured(only, tmp_path / "run")


def test_a_file_that_is_no_baseline_is_refused_and_named_in_the_report(tmp_path):
    (tmp_path / "baseline.json").write_text('{"metrics": 3}')
    with pytest.raises(ModelError, match="not a baseline"):
        results.read(str(tmp_path))
    finished_run(tmp_path, "v=1", {})
    assert "the file is not a baseline" in storage.read_text(report.write(str(tmp_path)))


def test_of_several_runs_that_end_at_once_one_measures_it(dataset, tmp_path, monkeypatch):
    calls, waiting = [], threading.Event()
    measure = local.measure

    def counted(*words):
        calls.append(words)
        assert waiting.wait(60)  # the other one has come, and waits
        return measure(*words)

    def heard(line: str) -> None:
        if "another process is measuring the baseline" in line:
            waiting.set()

    monkeypatch.setattr(local, "measure", counted)
    configs = [
        config(dataset, tmp_path / name, training=weights_like(0.125)) for name in ("d", "e")
    ]
    with ThreadPoolExecutor() as pool:
        made = list(pool.map(lambda one: measure_baseline(one, progress=heard), configs))
    assert len(calls) == 1 and made[0]["metrics"] == made[1]["metrics"]
    beside = results.directory_of(dataset.path, dataset.manifest.dataset_hash, configs[0])
    assert sorted(os.listdir(beside)) == ["baseline.json", "baseline.npz"]


def test_at_the_end_of_a_run_it_is_measured_if_that_is_quick(dataset, tmp_path, monkeypatch):
    options = config(dataset, tmp_path / "f", training=weights_like(0.0625))
    os.makedirs(tmp_path / "f")
    finished_run(tmp_path / "f", dataset.path, {})
    lines: list[str] = []
    monkeypatch.setattr(baseline_run, "MOST_ROWS", 10)
    baseline_run.measure_if_quick(options, progress=lines.append)
    (line,) = lines
    assert line.startswith("no baseline: ") and "`howdah evaluate --baseline` measures it" in line
    monkeypatch.undo()
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "sklearn", None)
        baseline_run.measure_if_quick(options, progress=lines.append)
    assert lines[-1] == (
        "no baseline: scikit-learn is not installed (pip install 'howdah[baseline]')"
    )
    baseline_run.measure_if_quick(options, progress=lines.append)
    assert os.path.exists(tmp_path / "f" / "baseline.json")
    count = len(lines)
    baseline_run.measure_if_quick(options, progress=lines.append)  # it is known
    assert len(lines) == count


def test_where_the_dataset_is_read_only_it_is_kept_in_the_run(dataset, tmp_path, monkeypatch):
    options = config(dataset, tmp_path / "g", training=weights_like(0.03125))
    beside = results.directory_of(dataset.path, dataset.manifest.dataset_hash, options)
    make_dirs = storage.make_dirs

    def refused(path, **more):
        if path == beside:
            raise PermissionDenied("permission denied", where=path)
        return make_dirs(path, **more)

    monkeypatch.setattr(storage, "make_dirs", refused)
    lines: list[str] = []
    measure_baseline(options, progress=lines.append)
    assert any("the baseline is kept only in the run: permission denied" in line for line in lines)
    assert os.path.exists(tmp_path / "g" / "baseline.json") and not os.path.exists(beside)
