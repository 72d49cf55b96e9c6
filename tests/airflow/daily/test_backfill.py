"""Ten days of the past, in order, each once, with a task killed on the way; then scored.

Hive tables, datasets, runs and models are on the mini cluster; Spark and the training run on this
machine. It takes most of an hour.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from howdah import storage
from howdah.data.manifest import load_dataset
from howdah.spark.classes import SHORT_JVM
from tests import ROOT
from tests.airflow.test_local import guards
from tests.fixtures.spark import INTERPRETED
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.airflow, pytest.mark.hadoop, pytest.mark.full, pytest.mark.timeout(7200),
]  # fmt: skip

DAYS = [f"2026-01-{day:02d}" for day in range(1, 11)]
LIMIT = 5400.0  # to detect a hang
TABLE = "back_fill.news"
# Its last interval is the tenth day: no day but these is ever due.
CRON = "0 0 1-11 1 *"


def defaults(place: str, metastore: str) -> dict:
    """This installation's."""
    conf = {
        "spark.hadoop.hive.metastore.uris": metastore, "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false", "spark.sql.warehouse.dir": f"{place}/warehouse",
        "spark.driver.extraJavaOptions": SHORT_JVM, **INTERPRETED,
    }  # fmt: skip
    return {
        "conn_id": "back_fill",
        "run": {"name": "words"},
        "data": {
            "source": TABLE, "format": "hive", "dataset": f"{place}/dataset",
            "columns": {"id": "id"}, "split": {"validation": 0.2, "test": 0.3}, "max_length": 32,
            "spark": {"master": "local[2]", "driver_memory": "1g", "conf": conf},
            "dedup": {"near": False},
        },
        "model": {"base": f"{place}/model"},
        "training": {
            "framework": "torch", "max_steps": 6, "learning_rate": 0.01, "logging_steps": 2,
            "global_batch_size": 24, "precision": "fp32", "threads_per_rank": 1, "replay": 0.5,
        },
        "tracking": {"tensorboard": False},
        "gate": {"minimum": {"accuracy": 0.1}, "margin": -1.0},
        "publish": {"directory": f"{place}/models"},
        "daily": {
            "schedule": CRON, "on_data": False, "first_pause_seconds": 2.0,
            "retrain": {"schedule": CRON},
        },
    }  # fmt: skip


@pytest.fixture
def dags(airflow_standalone, healthy_cluster, hdfs_dir, tiny_model_dir, tmp_path):
    """The Airflow with both DAGs under ids of their own, paused; the place on HDFS."""
    airflow, cluster = airflow_standalone, healthy_cluster
    for name in os.listdir(tiny_model_dir):
        storage.upload(os.path.join(tiny_model_dir, name), f"{hdfs_dir}/model/{name}")
    argv = [sys.executable, "-m", "tests.workers.daily_table", cluster.metastore_uri]
    argv += [f"{hdfs_dir}/warehouse", TABLE, ",".join(DAYS), "24"]
    subprocess.run(argv, env=cluster.env, check=True, timeout=300, cwd=ROOT)
    changed = {key: value for key, value in cluster.env.items() if os.environ.get(key) != value}
    airflow.connection(
        "back_fill",
        {
            "run_root": f"{hdfs_dir}/runs", "working_directory": str(tmp_path),
            "environment": changed | {"HOWDAH_CACHE": str(tmp_path / "cache")},
        },
    )  # fmt: skip
    path = tmp_path / "defaults.json"
    path.write_text(json.dumps(defaults(hdfs_dir, cluster.metastore_uri)))
    head = f'import os\nos.environ["HOWDAH_AIRFLOW_DEFAULTS"] = "{path}"\n'
    for name in ("daily", "retrain"):
        text = (ROOT / "dags" / f"{name}.py").read_text()
        text = text.replace("from __future__ import annotations\n", "")
        airflow.add_dag(f"fill_{name}", head + text.replace('"howdah_', '"fill_'))
    yield airflow, hdfs_dir
    for dag in ("fill_daily", "fill_retrain"):
        airflow.pause(dag, paused=True)


def back_fill(airflow, dag: str, at_once: int) -> None:
    """Do what `airflow backfill create --dag-id DAG --from-date ... --to-date ...` does."""
    body = {
        "dag_id": dag, "from_date": f"{DAYS[0]}T00:00:00Z", "to_date": f"{DAYS[-1]}T00:00:00Z",
        "max_active_runs": at_once, "reprocess_behavior": "none", "dag_run_conf": {},
    }  # fmt: skip
    airflow.api("POST", "/backfills", json=body)
    airflow.pause(dag, paused=False)


def runs_of(airflow, dag: str) -> dict[str, dict]:
    """{day: its run}; each day has one."""
    runs = airflow.api("GET", f"/dags/{dag}/dagRuns", params={"limit": 100})["dag_runs"]
    by_day = {run["logical_date"][:10]: run for run in runs}
    assert len(by_day) == len(runs)
    return by_day


def over(airflow, dag: str) -> bool:
    runs = runs_of(airflow, dag)
    failed = [run["dag_run_id"] for run in runs.values() if run["state"] == "failed"]
    assert not failed, failed
    return len(runs) == len(DAYS) and {run["state"] for run in runs.values()} == {"success"}


def test_ten_days_are_appended_trained_and_published_in_order_whatever_is_killed(dags):
    airflow, place = dags
    back_fill(airflow, "fill_retrain", at_once=3)

    # ---------------------------------------------- the task of the third day's training is killed
    third = wait_until(lambda: runs_of(airflow, "fill_retrain").get(DAYS[2]), LIMIT)["dag_run_id"]
    airflow.wait_task("fill_retrain", third, "train", {"running"}, LIMIT)
    guard_pids = wait_until(lambda: guards(airflow), 300)
    os.kill(next(iter(guard_pids.values())), signal.SIGKILL)
    wait_until(lambda: airflow.task("fill_retrain", third, "train")["try_number"] == 2, 600)

    wait_until(lambda: over(airflow, "fill_retrain"), LIMIT)
    runs = runs_of(airflow, "fill_retrain")
    versions = [airflow.xcom("fill_retrain", runs[day]["dag_run_id"], "publish") for day in DAYS]
    assert [each["version"] for each in versions] == list(range(1, 11))
    begun = [
        airflow.xcom("fill_retrain", runs[day]["dag_run_id"], "check", "config")["model"][
            "init_from"
        ]
        for day in DAYS
    ]
    model = f"{place}/models/words"
    assert begun == [None, *(f"{model}@{number}" for number in range(1, 10))]

    manifest = load_dataset(f"{place}/dataset").manifest
    assert [part.name for part in manifest.parts] == [f"ds={day}" for day in DAYS]
    assert [part.read for part in manifest.parts] == [240, *([24] * 9)]
    # The frozen test set lies in the first version whole, and is read from there.
    first = {part.version for part in manifest.parts[:1]}
    assert {entry.version for entry in manifest.splits["test"]} == first
    judged = {storage.read_json(f"{model}/v={n}/manifest.json")["dataset"]["rows"]["test"]
              for n in range(1, 11)}  # fmt: skip
    assert len(judged) == 1

    # ------------------------------------------------------------------- every day is scored
    back_fill(airflow, "fill_daily", at_once=2)
    wait_until(lambda: over(airflow, "fill_daily"), LIMIT)
    runs = runs_of(airflow, "fill_daily")
    for day in DAYS:
        scored = airflow.xcom("fill_daily", runs[day]["dag_run_id"], "score")
        (one,) = scored["partitions"]
        tries = airflow.task("fill_daily", runs[day]["dag_run_id"], "score")["try_number"]
        # A try that Airflow gave up may have scored it before: the next one leaves it alone.
        assert one["state"] == "scored" or (tries > 1 and one["state"] == "skipped")
        assert one["partition"] == f"ds={day}"
        assert one["rows"] == (240 if day == DAYS[0] else 24)
        assert scored["version"] == 10
        marker = f"{model}/scored/{TABLE}_scored/ds={day}/done.json"
        assert storage.exists(marker)
