"""A run in MLflow: one over all attempts, with what it was made of and its report."""

import getpass
import json
from dataclasses import replace

import pytest

from howdah.errors import ClusterError
from howdah.models.runs.run_json import RunFile
from howdah.serving.report import report
from howdah.training.checkpoint.state import TrainState
from tests.training.run.test_run import IDENTITY, open_run, take_steps


def test_mlflow_gets_one_run_over_two_attempts(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    options = {"tracking": {"mlflow": {"uri": uri}, "tensorboard": False}}
    settings = options | {"training": {"logging_steps": 2}}
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "e")
    monkeypatch.chdir(tmp_path)  # where a database has its artifacts
    for upto, status in ((4, "failed"), (8, "finished")):
        run = open_run(str(tmp_path / "run"), **settings)
        run.owned.file.of(replace(IDENTITY, manifest="d", dataset_path="hdfs://n/dataset/v-1"))
        take_steps(run, TrainState(step=upto - 4), upto)
        report.write(str(tmp_path / "run"))
        run.close(status)
    client = mlflow.MlflowClient(tracking_uri=uri)
    (tracked,) = client.search_runs([client.get_experiment_by_name("e").experiment_id])
    assert tracked.info.status == "FINISHED"
    assert tracked.data.params["training.logging_steps"] == "2"
    history = client.get_metric_history(tracked.info.run_id, "train/loss")
    assert sorted(point.step for point in history) == [2, 4, 6, 8]
    [used] = tracked.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("dataset", "d")
    assert json.loads(used.dataset.source) == {"uri": "hdfs://n/dataset/v-1"}
    assert tracked.data.tags["howdah.run_id"] == RunFile(str(tmp_path / "run")).values["run_id"]
    assert tracked.data.tags["mlflow.user"] == getpass.getuser()
    hours = RunFile(str(tmp_path / "run")).values["hours"]
    assert tracked.data.tags["howdah.hours.cpu"] == f"{hours['cpu']:.4f}" and hours["cpu"] > 0
    assert "pytest" in tracked.data.tags["howdah.command"]
    page = mlflow.artifacts.load_text(f"{tracked.info.artifact_uri}/report.html")
    assert "hdfs://n/dataset/v-1" in page


def test_two_runs_that_begin_an_experiment_at_the_same_time_share_it(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.chdir(tmp_path)
    look_up = mlflow.MlflowClient.get_experiment_by_name

    def look_up_before_the_other_run(client, name):
        monkeypatch.setattr(mlflow.MlflowClient, "get_experiment_by_name", look_up)
        assert look_up(client, name) is None
        client.create_experiment(name)

    monkeypatch.setattr(mlflow.MlflowClient, "get_experiment_by_name", look_up_before_the_other_run)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "study")
    options = {"mlflow": {"uri": uri}, "tensorboard": False}
    run = open_run(str(tmp_path / "run"), tracking=options)
    run.begin(TrainState(), total_steps=1)
    run.close("finished")
    client = mlflow.MlflowClient(tracking_uri=uri)
    assert len(client.search_runs([client.get_experiment_by_name("study").experiment_id])) == 1


def test_an_mlflow_that_is_not_there_is_one_clear_error(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    options = {"tracking": {"mlflow": {"uri": "http://127.0.0.1:9"}, "tensorboard": False}}
    run = open_run(str(tmp_path), **options)
    with pytest.raises(ClusterError, match="MLflow") as caught:
        run.begin(TrainState(), total_steps=1)
    run.close("failed")
    assert "http://127.0.0.1:9" in caught.value.where
