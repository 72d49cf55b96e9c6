"""The whole DAG on YARN from the form: the ETL and the training are applications, all on HDFS."""

from __future__ import annotations

import os
import sys
import threading

import pytest
import yaml

from howdah import storage
from howdah.airflow.form import trigger_form
from howdah.models.version import open_version
from tests import ROOT
from tests.fixtures.etl_yarn import SPARK
from tests.support.airflow.browser import link_of, log_in, open_form, send, task_page
from tests.support.rows.word_rows import write_rows
from tests.support.waiting import wait_until
from tools.local_airflow.file_pages import Pages

pytestmark = [
    pytest.mark.airflow, pytest.mark.hadoop, pytest.mark.full, pytest.mark.timeout(1800),
]  # fmt: skip

DAG, CONNECTION = "finetune_on_yarn", "whole_dag_cluster"
LIMIT = 900.0  # to detect a hang


@pytest.fixture
def place(airflow_standalone, cluster, hdfs_dir, tiny_model_dir, tmp_path):
    """A directory on HDFS with rows and a base model, a Connection to the cluster."""
    storage.upload(write_rows(tmp_path / "rows.csv"), f"{hdfs_dir}/rows.csv")
    for name in os.listdir(tiny_model_dir):
        storage.upload(os.path.join(tiny_model_dir, name), f"{hdfs_dir}/model/{name}")
    pages = Pages(hdfs_dir, 0)
    threading.Thread(target=pages.serve_forever, daemon=True).start()
    changed = {key: value for key, value in cluster.env.items() if os.environ.get(key) != value}
    airflow_standalone.connection(
        CONNECTION,
        {
            "on": "yarn",
            "environment": changed | {"HOWDAH_CACHE": str(tmp_path / "cache")},
            "run_root": hdfs_dir,
            # As `make airflow` has it: the mini cluster's NameNode has no pages of its own.
            "files_url": f"http://127.0.0.1:{pages.server_port}",
            "working_directory": str(ROOT),
        },
    )
    yield hdfs_dir
    pages.shutdown()
    pages.server_close()


def defaults(place, mlflow):
    """What the form shows at first, as `make airflow CLUSTER=1` has it."""
    return {
        "conn_id": CONNECTION,
        "run": {"name": "words"},
        "data": {
            "source": f"{place}/rows.csv", "dataset": f"{place}/dataset",
            "spark": {**SPARK, "deploy_mode": "cluster"},
        },
        "model": {"base": f"{place}/model"},
        "training": {
            "framework": "torch", "max_steps": 1500, "global_batch_size": 24,
            "learning_rate": 0.003, "precision": "fp32",
        },
        "tracking": {"mlflow": {"uri": mlflow}},
        "gate": {"minimum": {"accuracy": 0.3}},
        "publish": {"directory": f"{place}/models"},
        "yarn": {"python": sys.executable},
        "job": {"worker": {"memory": "1536 MiB"}},
    }  # fmt: skip


@pytest.fixture
def dag(airflow_standalone, place, mlflow_server, tmp_path):
    """The DAG with this installation's defaults of the form."""
    path = tmp_path / "defaults.yaml"
    path.write_text(yaml.safe_dump(defaults(place, mlflow_server)))
    text = (ROOT / "dags" / "finetune.py").read_text()
    line = "DEFAULTS = trigger_form.installed_defaults()"
    assert line in text
    here = f'import os\n\nos.environ["{trigger_form.DEFAULTS}"] = {str(path)!r}'
    text = text.replace(line, f"{here}\n{line}")
    airflow_standalone.add_dag(DAG, text.replace("howdah_finetune", DAG))
    airflow_standalone.pause(DAG, paused=False)


def opens(browser, airflow, run, task, name, *texts):
    """A task's link leads to a page that shows these texts; its URL."""
    page = link_of(browser, task_page(airflow, DAG, run, task, "details"), name)
    browser.open(page)
    for text in texts:
        browser.see(text)
    return page


def test_from_the_form_to_a_published_model(airflow_standalone, place, dag, browser):
    airflow = airflow_standalone
    log_in(browser, airflow)
    open_form(browser, airflow, DAG)
    browser.picture("yarn-form")
    run = send(browser)
    browser.open("about:blank")  # the run's page asks all the time

    # ------------------------------------------------------------------ the ETL, while it runs
    wait_until(lambda: links(airflow, run, "etl.build").get("YARN application"), LIMIT)
    page = opens(browser, airflow, run, "etl.build", "YARN application", "howdah etl")
    made = page.rpartition("/")[2]

    # ------------------------------------------------------------- the training, while it runs
    airflow.wait_task(DAG, run, "train", {"deferred"}, LIMIT)
    wait_until(lambda: "#/runs/" in links(airflow, run, "train")["MLflow run"], LIMIT)
    job = opens(browser, airflow, run, "train", "Training job", "words", "rank")
    page = opens(browser, airflow, run, "train", "YARN application", "RUNNING")
    trained = page.rpartition("/")[2]
    assert trained != made and f"/proxy/{trained}/" in job
    opens(browser, airflow, run, "train", "Logs on YARN", "application.driver.log")
    opens(browser, airflow, run, "train", "Report", "run.json", "metrics.jsonl")
    opens(browser, airflow, run, "train", "MLflow run", "words")
    browser.picture("yarn-mlflow")
    assert airflow.task(DAG, run, "train")["state"] == "deferred"

    # ------------------------------------------------------------------------------ afterwards
    airflow.wait_run(DAG, run, LIMIT)
    states = {name: task["state"] for name, task in airflow.tasks(DAG, run).items()}
    assert states.pop("approve") == "skipped"
    assert set(states.values()) == {"success"}
    assert airflow.xcom(DAG, run, "etl.build")["application"] == made
    result = airflow.xcom(DAG, run, "train")
    assert result["application"] == trained
    published = airflow.xcom(DAG, run, "publish")
    assert (
        published["path"]
        == f"{place}/models/words/v=1"
        == open_version(f"{place}/models/words").path
    )
    record = storage.read_json(f"{result['run_directory']}/run.json")
    assert record["status"] == "finished"
    assert record["world_size"] == 2
    assert published["run_id"] == record["run_id"]
    # The reports; YARN's page and the logs of what has ended; MLflow's run.
    opens(browser, airflow, run, "etl.build", "Report", "240")
    opens(browser, airflow, run, "etl.build", "YARN application", "SUCCEEDED")
    page = opens(browser, airflow, run, "train", "Report", "words", "accuracy")
    assert page.endswith("/report.html")
    browser.picture("yarn-report")
    opens(browser, airflow, run, "train", "YARN application", "SUCCEEDED")
    opens(browser, airflow, run, "train", "Logs on YARN", "application.driver.log")
    page = opens(browser, airflow, run, "train", "MLflow run", "words", "Finished")
    assert page.endswith(record["mlflow_run_id"])


def links(airflow, run, task):
    """The task's links as the page shows them now; "": not yet."""
    return {name: url or "" for name, url in airflow.links(DAG, run, task).items()}
