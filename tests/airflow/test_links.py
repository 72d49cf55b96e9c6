"""The links of tasks, pushed while their commands run: of the ETL, of a run in MLflow."""

import json
from types import SimpleNamespace

import pytest

import howdah
from tests.runs.training_runs import SETTINGS
from tests.runs.training_runs import _nested as nested
from tests.support.airflow.browser import link_of, log_in, task_page
from tests.support.waiting import wait_until

pytestmark = pytest.mark.airflow

LIMIT = 240.0
RUN = "0123456789abcdef0123456789abcdef"
TASK = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1)


class Pushed:
    """Stands for the task's XComs, which only a worker has: every value of a key, in order."""

    def __init__(self):
        self.pushed = {}

    def set(self, *, key, value, **task):
        self.pushed.setdefault(key, []).append(value)


@pytest.fixture
def pushed(monkeypatch):
    from howdah.airflow import links

    noted = Pushed()
    monkeypatch.setattr(links, "XCom", noted)
    return noted.pushed


@pytest.fixture
def says(monkeypatch, tmp_path):
    """A Connection whose program writes these lines to stderr and answers with this object."""

    def make(lines, answer, **extra):
        program = tmp_path / "howdah"
        written = "".join(f"echo '{line}' >&2\n" for line in lines)
        program.write_text(
            f"#!/bin/sh\necho 'howdah guard {howdah.__version__} pid 1' >&2\nread line\n"
            f"{written}echo '{json.dumps(answer)}'\n"
        )
        program.chmod(0o755)
        fields = {"command": str(program), "working_directory": str(tmp_path), **extra}
        connection = json.dumps({"conn_type": "howdah", "extra": fields})
        monkeypatch.setenv("AIRFLOW_CONN_HOWDAH_SAYS", connection)
        return "howdah_says"

    return make


MADE = {
    "unchanged": False, "dataset": "hdfs://nn:8020/set/v=1", "rows": {"train": 3},
    "application": "application_17_0001",
}  # fmt: skip


@pytest.mark.parametrize(
    "line", ["submitted application_17_0001", "application application_17_0001"]
)
def test_an_etl_on_yarn_leads_to_its_application_while_it_runs_then_to_its_report(
    says, pushed, line, monkeypatch
):
    from howdah.airflow.operators import EtlOperator

    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME"):
        monkeypatch.delenv(name, raising=False)
    lines = ["packing", line, "application_17_0001 is RUNNING"]
    conn_id = says(lines, MADE, resourcemanager=["http://rm:8088"])
    config = {"data": {"source": "a.csv"}}
    EtlOperator(task_id="etl", conn_id=conn_id, config=config).execute({"ti": TASK})
    # Nothing at first: Airflow asks for every link in the end.
    page = "http://rm:8088/cluster/app/application_17_0001"
    assert pushed["howdah_link_application"] == ["", page]
    report = "http://nn:9870/explorer.html#/set/v%3D1"
    assert pushed["howdah_link_report"] == ["", report]


def test_an_etl_of_a_connection_without_a_cluster_has_no_link_to_one(says, pushed):
    from howdah.airflow.operators import EtlOperator

    made = {**MADE, "dataset": "/runs/set/v=1"}
    conn_id = says(["application_17_0001"], made, run_root="/runs", files_url="http://files")
    config = {"data": {"source": "a.csv"}}
    EtlOperator(task_id="etl", conn_id=conn_id, config=config).execute({"ti": TASK})
    assert pushed["howdah_link_application"] == [""]
    assert pushed["howdah_link_report"] == ["", "http://files/set/v%3D1/report.html"]


def test_local_training_links_its_run_in_mlflow_once_its_id_is_logged(says, pushed):
    from howdah.airflow.train import HowdahTrainOperator

    lines = ["MLflow run: not this", f"MLflow run: {RUN}", "step 1"]
    conn_id = says(lines, {"run": "/runs/r"})
    config = {
        "run": {"directory": "/runs/r"}, "tracking": {"mlflow": {"uri": "http://me:hush@ml/"}},
    }  # fmt: skip
    operator = HowdahTrainOperator(task_id="train", conn_id=conn_id, config=config)
    operator.execute({"ti": TASK})
    assert pushed["howdah_link_mlflow"] == ["", "http://ml/", f"http://ml/#/runs/{RUN}"]
    assert set(pushed["howdah_link_application"]) == {""}


def test_a_link_that_airflow_does_not_take_ends_no_training(says, pushed, monkeypatch):
    from airflow.sdk.exceptions import AirflowException

    from howdah.airflow import links
    from howdah.airflow.train import HowdahTrainOperator

    def refuse(where, link, url):
        if url and "#" in url:
            raise AirflowException("no answer")

    monkeypatch.setattr(links, "push", refuse)
    conn_id = says([f"MLflow run: {RUN}"], {"run": "/runs/r", "steps": 7})
    config = {"run": {"directory": "/runs/r"}, "tracking": {"mlflow": {"uri": "http://ml"}}}
    operator = HowdahTrainOperator(task_id="train", conn_id=conn_id, config=config)
    assert operator.execute({"ti": TASK})["steps"] == 7


# ------------------------------------------------------------------------------- a real MLflow
DAG_FILE = """
import json

from airflow.sdk import DAG

from howdah.airflow.train import HowdahTrainOperator

with DAG("tracked_training", schedule=None, catchup=False):
    HowdahTrainOperator(task_id="train", retries=0, config=json.loads({config!r}))
"""


@pytest.mark.full
@pytest.mark.mpi
@pytest.mark.timeout(900)
def test_the_link_opens_the_run_in_mlflow_while_it_trains(
    airflow_standalone, mlflow_server, browser, tiny_dataset, tiny_model_dir, tmp_path
):
    from mlflow import MlflowClient

    airflow = airflow_standalone
    config = nested(
        SETTINGS
        | {
            "run.name": "looked-at", "run.directory": f"{airflow.files}/tracked",
            "training.framework": "torch", "training.max_steps": 1_000_000,
            "data.dataset": tiny_dataset.path, "model.base": tiny_model_dir,
            "tracking.mlflow.uri": mlflow_server,
        }
    )  # fmt: skip
    (dag,) = airflow.add_dag("tracked_training", DAG_FILE.format(config=json.dumps(config)))
    run = airflow.trigger(dag)
    wait_until(lambda: "#/runs/" in (airflow.links(dag, run, "train")["MLflow run"] or ""), LIMIT)
    client = MlflowClient(tracking_uri=mlflow_server)
    trials = client.get_experiment_by_name("howdah").experiment_id
    wait_until(lambda: client.search_runs([trials])[0].data.metrics.get("train/loss"), LIMIT)
    assert airflow.task(dag, run, "train")["state"] == "running"

    log_in(browser, airflow)
    page = link_of(browser, task_page(airflow, dag, run, "train", "details"), "MLflow run")
    assert page.startswith(mlflow_server)
    browser.open(page)
    browser.see("looked-at")
    browser.see("train/loss")
    browser.picture("mlflow")

    airflow.mark(dag, run, "train", "failed")
    wait_until(lambda: client.search_runs([trials])[0].info.status == "KILLED", LIMIT)
    (only,) = client.search_runs([trials])
    assert only.info.run_id == page.rpartition("/")[2]
    assert only.data.params["training.framework"] == "torch"
