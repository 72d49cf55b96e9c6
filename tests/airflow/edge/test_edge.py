"""A worker without Hadoop: jobs are submitted on an edge node by SSH, YARN is asked by HTTP."""

import json
import os
import sys
from pathlib import Path

import pytest

from howdah import storage
from howdah.core.processes import stat_fields
from howdah.hadoop.resourcemanager import LIVE
from tests import ROOT
from tests.runs.jobs.yarn_jobs import place_data, settings
from tests.support.airflow.edge_node import EdgeNode
from tests.support.hadoop.kerberos_users import become_alice
from tests.support.rows.word_rows import write_rows
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.hadoop, pytest.mark.mpi]

HOWDAH = str(Path(sys.executable).parent / "howdah")


@pytest.fixture
def edge(tmp_path):
    node = EdgeNode(tmp_path, {"HOWDAH_CACHE": str(tmp_path / "cache")})
    yield node
    node.stop()


@pytest.fixture
def place(healthy_cluster, hdfs_dir, tiny_model_dir):
    """A directory on HDFS with the data; applications that a test leaves behind are ended."""
    place_data(hdfs_dir, tiny_model_dir)
    yield hdfs_dir
    healthy_cluster.end_applications()


@pytest.fixture
def hook(healthy_cluster, edge, monkeypatch):
    """A hook of a machine that knows of the cluster what its Connection says, nothing else."""
    from howdah.airflow.hook import HowdahHook
    from howdah.hadoop import conf
    from howdah.hadoop.resourcemanager import web_urls

    urls = web_urls(conf.load({"HADOOP_CONF_DIR": str(healthy_cluster.conf_dir)},
                              names=conf.YARN_FILES))  # fmt: skip
    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME", "HADOOP_USER_NAME"):
        monkeypatch.delenv(name, raising=False)
    names = ("HADOOP_CONF_DIR", "HADOOP_HOME", "JAVA_HOME", "PATH")
    extra = {
        "on": "yarn", "ssh_conn_id": "edge", "command": HOWDAH, "resourcemanager": urls,
        "run_root": "hdfs:///runs",
        "environment": {name: str(value) for name, value in healthy_cluster.env.items()
                        if name in names},
    }  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_EDGE", json.dumps(edge.connection()))
    monkeypatch.setenv(
        "AIRFLOW_CONN_HOWDAH_EDGE", json.dumps({"conn_type": "howdah", "extra": extra})
    )
    return HowdahHook("howdah_edge")


def endless(place, name):
    return settings(place, name, training={"max_steps": 1_000_000})


def applications(hook, place, name):
    """Live applications of a run directory."""
    from howdah.yarn import spec

    tag = spec.tag(f"{place}/runs/{name}")
    return hook.resource_manager().applications(applicationTags=tag, states=LIVE)


@pytest.mark.full  # commands by SSH in every run: test_edge_commands.py
def test_a_job_is_submitted_on_the_edge_node_and_looked_after_by_http(hook, place):
    lines = []
    config = endless(place, "far")
    plan = hook.run(["submit", "--dry-run", "--json"], config=config, on_line=lines.append)
    assert plan["application"]["workers"] == 2
    submitted = hook.run(["submit", "--json"], config=config, on_line=lines.append)
    assert any("submitting far" in line for line in lines)
    again = hook.run(["submit", "--json"], config=config)
    assert (again["application"], again["attached"]) == (submitted["application"], True)
    report = hook.resource_manager().application(submitted["application"])
    assert report["state"] in LIVE.split(",")
    assert hook.run(["kill", "--json"], config=config)["state"] == "KILLED"
    assert applications(hook, place, "far") == []


@pytest.mark.full
def test_a_connection_lost_while_it_submits_leaves_one_application_in_the_end(hook, place, edge):
    from howdah.airflow.failures import HowdahCommandFailed, HowdahCommandRefused

    config, guards = endless(place, "lost"), []

    def on_line(line):
        if "submitting lost" in line:
            guards.extend(guard_processes())
            edge.lose_connections()

    with pytest.raises(HowdahCommandFailed, match="the connection was lost") as caught:
        hook.run(["submit", "--json"], config=config, on_line=on_line, task="one/lost")
    assert not isinstance(caught.value, HowdahCommandRefused)
    assert guards
    submitted = hook.run(
        ["submit", "--json"], config=config, task="one/lost"
    )  # waits for the first
    assert all(stat_fields(pid) is None for pid in guards)
    assert [app["id"] for app in applications(hook, place, "lost")] == [submitted["application"]]
    assert hook.run(["kill", "--json"], config=config)["state"] == "KILLED"


def guard_processes():
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            arguments = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"guard" in arguments and b"submit" in arguments and stat_fields(int(name)):
            pids.append(int(name))
    return pids


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_from_rows_to_a_published_model_all_by_the_edge_node(
    airflow_home, hook, healthy_cluster, place, tiny_model_dir, tmp_path, monkeypatch
):
    """The whole DAG on a worker that reaches no HDFS: SSH and the ResourceManager's HTTP alone."""
    from airflow.dag_processing.dagbag import DagBag

    write_rows(tmp_path / "rows.csv")
    storage.upload(str(tmp_path / "rows.csv"), f"{place}/rows.csv")
    connection = json.loads(os.environ["AIRFLOW_CONN_HOWDAH_EDGE"])
    connection["extra"]["run_root"] = f"{place}/runs"
    monkeypatch.setenv("AIRFLOW_CONN_HOWDAH_EDGE", json.dumps(connection))
    values = {
        "conn_id": "howdah_edge", "run.name": "words", "data.source": f"{place}/rows.csv",
        "data.dataset": f"{place}/words", "data.spark.master": "local[1]",
        "data.spark.driver_memory": "1g", "data.dedup.near": False, "model.base": f"{place}/model",
        "publish.directory": f"{place}/models", "training.framework": "torch",
        "training.max_steps": 12, "training.learning_rate": 0.01,
        "training.global_batch_size": 32, "training.precision": "fp32",
        "tracking.tensorboard": False, "gate.minimum": {"accuracy": 0.3},
        "yarn.python": sys.executable, "job.workers": 2,
        "job.worker.memory": "2 GiB", "job.max_restarts": 0,
    }  # fmt: skip
    dag = DagBag(str(ROOT / "dags" / "finetune.py")).dags["howdah_finetune"]
    run = dag.test(run_conf=values)
    done = {ti.task_id: str(ti.state) for ti in run.get_task_instances()}
    assert done.pop("approve") == "skipped"
    assert set(done.values()) == {"success"}, done
    now = storage.read_json(f"{place}/models/words/current.json")
    assert now["version"] == 1
    assert storage.read_json(f"{now['run_directory']}/run.json")["world_size"] == 2


@pytest.mark.full
def test_a_kerberised_resourcemanager_is_asked_with_the_connections_keytab(
    secure_cluster, secure_dir, tiny_model_dir, tmp_path, monkeypatch
):
    """SPNEGO from a keytab that the Connection names; the job's own keytab is in its config."""
    from howdah.airflow.failures import HowdahCommandFailed
    from howdah.airflow.hook import HowdahHook
    from howdah.errors import NotAuthenticated
    from howdah.hadoop import conf
    from howdah.hadoop.resourcemanager import web_urls

    become_alice(secure_cluster, tmp_path, monkeypatch)
    place_data(secure_dir, tiny_model_dir)
    environment = {"HADOOP_CONF_DIR": str(secure_cluster.conf_dir)}
    urls = web_urls(conf.load(environment, names=conf.YARN_FILES))
    keytab = {
        "keytab": str(secure_cluster.keytab("alice")),
        "principal": secure_cluster.principal("alice"),
    }
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/none")
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", "/none")
    monkeypatch.delenv("HADOOP_CONF_DIR")

    def hook(**extra):
        connection = {
            "conn_type": "howdah",
            "extra": {"on": "yarn", "run_root": secure_dir} | extra,
        }
        monkeypatch.setenv("AIRFLOW_CONN_SECURE", json.dumps(connection))
        return HowdahHook("secure")

    without = hook(resourcemanager=urls)
    with pytest.raises((NotAuthenticated, HowdahCommandFailed)):
        without.resource_manager(patience=0.0).info()
    made = hook(resourcemanager=urls, **keytab)
    with made.logged_in():
        assert made.resource_manager().info()["state"] == "STARTED"
    assert os.environ["KRB5CCNAME"] == f"FILE:{tmp_path}/none"  # as before

    config = endless(secure_dir, "kerberos")
    config["yarn"] |= keytab
    made = hook(environment=environment, **keytab)
    lines = []
    submitted = made.run(["submit", "--json"], config=config, on_line=lines.append)
    with made.logged_in():
        report = made.resource_manager().application(submitted["application"])
        assert report["user"] == "alice"
        assert made.resource_manager().kill(submitted["application"])
        wait_until(
            lambda: (
                made.resource_manager().application(submitted["application"])["state"] == "KILLED"
            )
        )
