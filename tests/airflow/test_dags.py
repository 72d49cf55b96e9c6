"""The DAGs of `dags/`: they parse fast and light, hang together, and do the whole work for real."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from howdah import storage
from howdah.config import form_keys
from tests import ROOT
from tests.support.rows.word_rows import write_rows
from tests.support.waiting import wait_until

pytestmark = pytest.mark.airflow

DAGS = ROOT / "dags"
IDS = {
    "howdah_finetune", "howdah_finetune_on_data", "howdah_score", "howdah_tune", "howdah_daily",
    "howdah_retrain",
}  # fmt: skip


@pytest.fixture(scope="module")
def dags(airflow_home):
    """The DAGs by their ids, as the DAG processor finds them."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(DAGS))
    assert bag.import_errors == {}
    return bag.dags


# ------------------------------------------------------------------------------------- parsing
_PARSE = """
import json, runpy, sys, time
import airflow.providers.standard.operators.hitl, airflow.sdk.execution_time.xcom, airflow.sdk.log
from airflow.sdk import DAG, Asset, BaseHook, BaseOperator, BaseOperatorLink, Param, TaskGroup
from airflow.sdk import AssetAny, AssetOrTimeSchedule, BaseNotifier, BaseSensorOperator
from airflow.sdk import CronDataIntervalTimetable, ResumableJobMixin, Variable
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger
there, began = set(sys.modules), time.process_time()
runpy.run_path(sys.argv[1])
seconds = time.process_time() - began
new = sorted({name.partition(".")[0] for name in set(sys.modules) - there})
print(json.dumps({"seconds": seconds, "new": new}))
"""


@pytest.mark.parametrize("name", ["finetune.py", "score.py", "tune.py", "daily.py", "retrain.py"])
def test_a_file_loads_nothing_but_airflow_and_howdah(airflow_home, name):
    done = subprocess.run(
        [sys.executable, "-c", _PARSE, str(DAGS / name)],
        capture_output=True, text=True, cwd=ROOT, timeout=120, check=True,
    )  # fmt: skip
    measured = json.loads(done.stdout.splitlines()[-1])
    print(f"{name}: {measured['seconds']:.3f} s of CPU, beyond Airflow's own import")
    new = {each for each in measured["new"] if each.lstrip("_") not in sys.stdlib_module_names}
    assert new - {"pyexpat", "_elementtree"} <= {"airflow", "howdah"}


def test_the_dags_are_there_without_import_errors(dags):
    assert set(dags) == IDS


@pytest.mark.parametrize("dag", sorted(IDS))
def test_the_last_try_of_a_task_begins_after_an_outage_of_ten_minutes(dags, dag):
    for task in dags[dag].tasks:
        base, factor = task.retry_delay.total_seconds(), task.retry_exponential_backoff
        longest = task.max_retry_delay.total_seconds()
        pauses = [min(longest, base * factor**n) for n in range(task.retries)]  # Airflow's least
        assert factor > 1 and sum(pauses) >= 600, task.task_id
        assert max(pauses) < 1800, task.task_id


def test_bad_defaults_of_an_installation_are_an_import_error(airflow_home, tmp_path, monkeypatch):
    from airflow.dag_processing.dagbag import DagBag

    path = tmp_path / "defaults.yaml"
    path.write_text("training: {sed: 3}\n")
    monkeypatch.setenv("HOWDAH_AIRFLOW_DEFAULTS", str(path))
    errors = DagBag(str(DAGS / "finetune.py")).import_errors
    assert "did you mean training.seed?" in str(errors)


# ------------------------------------------------------------------------------------- the shape
def test_the_tasks_in_their_order(dags):
    for dag_id in ("howdah_finetune", "howdah_finetune_on_data"):
        dag = dags[dag_id]
        order = [task.task_id for task in dag.topological_sort()]
        assert order == [
            "check", "preflight", "etl.build", "etl.quality", "train", "evaluate", "gate",
            "approve", "publish", "teardown",
        ]  # fmt: skip
        publish, teardown = dag.get_task("publish"), dag.get_task("teardown")
        assert publish.trigger_rule == "none_failed"  # also without an approval
        assert publish.upstream_task_ids == {"check", "gate", "approve"}
        assert [asset.name for asset in publish.outlets] == ["howdah_model"]
        assert dag.get_task("preflight").is_setup
        assert teardown.is_teardown
        assert not teardown.on_failure_fail_dagrun


def test_the_form_is_whole_and_its_defaults_are_checked(dags):
    keys = [*form_keys.OWN, *form_keys.OPEN, "set"]
    for dag_id in ("howdah_finetune", "howdah_finetune_on_data"):
        assert list(dags[dag_id].params) == keys
        dags[dag_id].params.validate()
    one, other = (dags[dag_id].params for dag_id in ("howdah_finetune", "howdah_finetune_on_data"))
    assert one.get_param("run.name") is not other.get_param("run.name")


def test_the_schedules_of_the_dags(dags):
    assert dags["howdah_finetune"].schedule is None
    (asset,) = dags["howdah_finetune_on_data"].schedule
    assert asset.name == "howdah_data"
    assert dags["howdah_retrain"].schedule.name == "howdah_drift"


# ------------------------------------------------------------------------------- for real
@pytest.fixture(scope="module")
def source(tmp_path_factory) -> str:
    """A CSV of two classes that a tiny model tells apart."""
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.csv")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("place")


@pytest.fixture
def here(place, monkeypatch):
    """The default Connection: this machine, run directories in `place`."""
    extra = {"run_root": str(place / "runs"), "working_directory": str(place)}
    connection = json.dumps({"conn_type": "howdah", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_HOWDAH_DEFAULT", connection)
    return place


def sent(source: str, place: Path, model: str, **more) -> dict:
    return {
        "run.name": "words", "data.source": source, "data.dataset": str(place / "dataset"),
        "data.spark.master": "local[1]", "data.spark.driver_memory": "1g", "data.dedup.near": False,
        "model.base": model, "publish.directory": str(place / "models"),
        "training.framework": "torch", "training.max_steps": 12, "training.learning_rate": 0.01,
        "training.global_batch_size": 32, "training.logging_steps": 4,
        "training.precision": "fp32", "training.threads_per_rank": 1,
        "tracking.tensorboard": False, "gate.minimum": {"accuracy": 0.3, "loss": 2.0},
    } | more  # fmt: skip


def states(run) -> dict[str, str]:
    return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


@pytest.mark.full  # by the form, in a browser, in every run: test_browser.py
def test_from_rows_to_a_published_model_and_its_predictions(
    dags, here, source, tiny_model_dir, tmp_path, monkeypatch
):
    """Every command of it under a policy that allows what it needs, and no more."""
    policy = {
        "keys": [
            "run.name", "data.source", "data.dataset", "data.spark.driver_memory",
            "data.spark.master", "data.dedup.near", "model.base", "publish", "training",
            "tracking.tensorboard", "gate",
        ],
        "roots": [str(here), str(Path(source).parent), tiny_model_dir], "masters": ["local[1]"],
    }  # fmt: skip
    (tmp_path / "policy.yaml").write_text(json.dumps(policy))
    monkeypatch.setenv("HOWDAH_AIRFLOW_POLICY", str(tmp_path / "policy.yaml"))
    form = sent(source, here, tiny_model_dir, **{"gate.min_over_baseline": -1.0})
    run = dags["howdah_finetune"].test(run_conf=form)
    done = states(run)
    assert done.pop("approve") == "skipped"
    assert set(done.values()) == {"success"}, done
    assert run.state == "success"

    model = str(here / "models" / "words")
    now = storage.read_json(f"{model}/current.json")
    assert now["version"] == 1
    assert now["gate"]["passed"] is True
    assert any("baseline" in check["against"] for check in now["gate"]["checks"])
    recorded = storage.read_json(f"{now['run_directory']}/run.json")
    assert Path(now["run_directory"]).parent == here / "runs" / "howdah_finetune"
    assert now["metrics"]["test"]["accuracy"] == recorded["metrics"]["test"]["accuracy"]
    extra = last_event("howdah_model")
    assert extra["version"] == 1
    assert extra["run_id"] == recorded["run_id"]
    assert extra["metrics"]["test"]["accuracy"] == recorded["metrics"]["test"]["accuracy"]

    scored = dags["howdah_score"].test(run_conf={"model": model, "source": source})
    assert set(states(scored).values()) == {"success"}
    (output,) = (here / "runs" / "howdah_score").glob("*/predictions.parquet")
    import pyarrow.parquet as pq

    table = pq.read_table(output)
    assert table.num_rows == 240
    assert set(table.column("run_id").to_pylist()) == {recorded["run_id"]}


def test_what_is_sent_to_score_reaches_the_command(dags, here, monkeypatch):
    """The command itself on YARN: tests/serving/prediction/test_yarn.py."""
    from howdah.airflow.hook import HowdahHook

    calls = []
    monkeypatch.setattr(
        HowdahHook,
        "run",
        lambda hook, arguments, **more: calls.append((arguments, more)) or {"rows": 1},
    )
    # Airflow keeps in the DAG what was sent to it before: the one that sends least comes first.
    done = states(dags["howdah_score"].test(run_conf={"model": "m", "source": "rows.csv"}))
    assert set(done.values()) == {"success"}, done
    ((arguments, more),) = calls
    assert arguments[arguments.index("--output") + 1].endswith("predictions.parquet")
    assert "--overwrite" in arguments  # a retry replaces what its run's earlier try left

    calls.clear()
    sent = {
        "model": "hdfs://nn/models/m", "source": "news.texts", "output": "table:news.scored",
        "batch": "2026-11-01", "master": "yarn", "spark": {"queue": "batch", "executors": 4},
    }  # fmt: skip
    done = states(dags["howdah_score"].test(run_conf=sent))
    assert set(done.values()) == {"success"}, done
    ((arguments, more),) = calls
    assert arguments[:1] == ["predict"] and "--json" in arguments and "--overwrite" not in arguments
    assert arguments[arguments.index("--master") + 1] == "yarn"
    assert arguments[arguments.index("--batch") + 1] == "2026-11-01"
    assert more["config"] == {"data": {"spark": {"queue": "batch", "executors": 4}}}

    bad = {"model": "m", "source": "t", "master": "yarn", "spark": {"queu": "batch"}}
    done = states(dags["howdah_score"].test(run_conf=bad))
    assert done["check"] == "failed" and len(calls) == 1


@pytest.mark.full
@pytest.mark.timeout(900)  # two whole runs of the DAG
def test_a_model_that_misses_the_gate_is_not_published_and_the_run_is_cleaned_up(
    dags, here, source, tiny_model_dir, tmp_path
):
    changes = {
        "gate.minimum": {"accuracy": 1.5}, "data.dataset": str(tmp_path / "dataset"),
        "publish.directory": str(tmp_path / "models"),
    }  # fmt: skip
    values = sent(source, here, tiny_model_dir, **changes)
    for state in ("written", "unchanged"):  # the second run finds the first one's dataset
        run = dags["howdah_finetune"].test(run_conf=values)
        done = states(run)
        assert run.state == "failed"
        assert done["gate"] == "failed"
        assert done["evaluate"] == done["teardown"] == "success"
        assert done["approve"] == done["publish"] == "upstream_failed"
        quality = next(ti for ti in run.get_task_instances() if ti.task_id == "etl.quality")
        assert quality.xcom_pull(task_ids="etl.quality")["state"] == state
        assert not (tmp_path / "models").exists()


@pytest.mark.full  # two minutes, for tasks that other tests run
def test_new_data_starts_a_run_with_the_configuration_of_its_event(airflow_standalone):
    airflow, dag_id = airflow_standalone, "howdah_finetune_on_data"
    airflow.pause(dag_id, paused=False)
    (asset,) = [
        asset
        for asset in airflow.api("GET", "/assets", params={"limit": 100})["assets"]
        if asset["name"] == "howdah_data"
    ]
    # A table that is not there: the run is to go no further than its first tasks.
    extra = {"rows": 5, "howdah": {"data.format": "hive", "data.source": "no.such_table"}}
    airflow.api("POST", "/assets/events", json={"asset_id": asset["id"], "extra": extra})
    runs = wait_until(lambda: airflow.api("GET", f"/dags/{dag_id}/dagRuns")["dag_runs"])
    run_id = runs[0]["dag_run_id"]
    airflow.wait_task(dag_id, run_id, "check", {"success"}, 120)
    checked = airflow.xcom(dag_id, run_id, "check")
    assert checked["config"]["data"]["source"] == "no.such_table"
    assert checked["run_directory"].startswith(f"{airflow.files}/{dag_id}/")
    airflow.pause(dag_id, paused=True)
    path = f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}"
    airflow.api("PATCH", path, json={"state": "failed"})  # skips what has not begun
    wait_until(lambda: airflow.state(dag_id, run_id) in ("failed", "success"), 240)


def last_event(asset: str) -> dict:
    """The extra of an Asset's newest event."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        return session.scalars(
            select(AssetEvent)
            .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
            .where(AssetModel.name == asset)
            .order_by(AssetEvent.id.desc())
        ).first().extra  # fmt: skip


def test_what_was_sent_wrong_ends_in_the_first_task(dags, here, source, tiny_model_dir, capfd):
    values = sent(source, here, tiny_model_dir, **{"training.learning_rte": 1, "seed": 2})
    run = dags["howdah_finetune"].test(run_conf=values)
    assert run.state == "failed"
    done = states(run)
    assert done["check"] == "failed"
    assert set(done.values()) <= {"failed", "upstream_failed", "skipped"}, done
    text = "".join(capfd.readouterr())
    assert "did you mean training.learning_rate?" in text
    assert "unknown key 'seed'" in text
