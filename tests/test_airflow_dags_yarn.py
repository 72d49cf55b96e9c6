"""The whole DAG on YARN: rows, dataset, run and published model on HDFS, the training deferred."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from howdah import storage
from howdah.models import resolve
from tests.word_rows import write_rows

pytestmark = [pytest.mark.airflow, pytest.mark.hadoop, pytest.mark.full]

ROOT = Path(__file__).resolve().parent.parent
DAG, CONNECTION = "howdah_finetune", "whole_dag_cluster"
LIMIT = 900.0  # to detect a hang


def test_from_rows_to_a_published_model(
    airflow_standalone, cluster, hdfs_dir, tiny_model_dir, tmp_path
):
    airflow = airflow_standalone
    storage.upload(write_rows(tmp_path / "rows.csv"), f"{hdfs_dir}/rows.csv")
    for name in os.listdir(tiny_model_dir):
        storage.upload(os.path.join(tiny_model_dir, name), f"{hdfs_dir}/model/{name}")
    changed = {key: value for key, value in cluster.env.items() if os.environ.get(key) != value}
    airflow.connection(
        CONNECTION,
        {
            "backend": "yarn",
            "environment": changed | {"HOWDAH_CACHE": str(tmp_path / "cache")},
            "run_root": f"{hdfs_dir}/runs",
            "working_directory": str(ROOT),
        },
    )
    run_id = airflow.trigger(
        DAG,
        {
            "conn_id": CONNECTION, "run.name": "words",
            "data.source": f"{hdfs_dir}/rows.csv", "data.dataset": f"{hdfs_dir}/dataset",
            "data.spark.master": "local[1]", "data.spark.driver_memory": "1g",
            "data.dedup.near": False, "model.base": f"{hdfs_dir}/model",
            "training.framework": "torch", "training.max_steps": 12,
            "training.learning_rate": 0.01, "training.precision": "fp32",
            "tracking.tensorboard": False, "yarn.workers": 2, "yarn.worker.memory": "1536 MiB",
            "yarn.environment": "path", "yarn.python": sys.executable,
            "publish.directory": f"{hdfs_dir}/models", "gate.minimum": {"accuracy": 0.3},
        },
    )  # fmt: skip
    airflow.wait_run(DAG, run_id, LIMIT)
    states = {name: task["state"] for name, task in airflow.tasks(DAG, run_id).items()}
    assert states.pop("approve") == "skipped"
    assert set(states.values()) == {"success"}

    trained = airflow.xcom(DAG, run_id, "train")
    assert trained["application"].startswith("application_")
    published = airflow.xcom(DAG, run_id, "publish")
    assert (
        published["path"] == f"{hdfs_dir}/models/words/v=1" == resolve(f"{hdfs_dir}/models/words")
    )
    run = storage.read_json(f"{trained['run_directory']}/run.json")
    assert run["status"] == "finished"
    assert run["world_size"] == 2
    assert published["run_id"] == run["run_id"]
    assert storage.exists(f"{trained['run_directory']}/report.html")
    links = airflow.links(DAG, run_id, "train")
    assert trained["application"] in links["YARN application"]
    assert links["Report"]
