"""Planted secrets of jobs on the mini cluster: other users can read none of them."""

import json
import os
import stat

import pytest

from howdah import storage
from howdah.faults import local_user
from howdah.hadoop.resourcemanager import ResourceManager
from tests.fixtures.etl_yarn import wait_for
from tests.runs.jobs.yarn_jobs import LIMIT, Jobs, place_data, settings
from tests.support.hadoop import planted
from tests.support.waiting import wait_until

ENV = {"HF_TOKEN": f"hf_{planted.MARK}", "PGPASSWORD": f"{planted.MARK} 'quoted' $HOME"}


@pytest.fixture
def jobs(healthy_cluster, hdfs_dir, tiny_model_dir, tmp_path, monkeypatch):
    """The command line; applications that a test leaves behind are ended."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(healthy_cluster.conf_dir))
    place_data(hdfs_dir, tiny_model_dir)
    yield Jobs(healthy_cluster, tmp_path)
    healthy_cluster.end_applications()


def mode(path):
    return stat.S_IMODE(storage.entry(path).mode)


def yarn_reports(application):
    """All that the ResourceManager reports of an application, as text."""
    manager = ResourceManager()
    attempts = manager.attempts(application)
    return json.dumps([manager.application(application), attempts,
                       [manager.containers(application, a["appAttemptId"]) for a in attempts
                        if a.get("appAttemptId")]])  # fmt: skip


def check_container_files(cluster, application):
    """No launch script holds a secret, and files that do are private; the names of all files."""
    files = list(planted.container_files(cluster, application))
    for path in files:
        if planted.holds_secret(path):
            assert path.name not in planted.SCRIPTS, path
            assert not planted.open_to_others(path, cluster.directory), path
    return {path.name for path in files}


@pytest.mark.full  # the ETL's and a local run's are in every run
@pytest.mark.hadoop
@pytest.mark.mpi
def test_a_training_jobs_secrets_are_nowhere_but_with_its_processes(jobs, hdfs_dir, tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text(planted.MARK)
    netrc.chmod(0o600)
    spark = {"conf": planted.SPARK_CONF}
    held = settings(
        hdfs_dir, "secrets", training={"max_steps": 100_000},
        data={"dataset": f"{hdfs_dir}/set", "max_length": 64, "spark": spark},
        yarn={"files": [str(netrc)], "staging": f"{hdfs_dir}/staging"},
        job={"secret_env": [*ENV], "workers": 1},
    )  # fmt: skip
    config = jobs.config(held)
    refused = jobs.json("submit", "--config", config, code=2)
    assert "HF_TOKEN, PGPASSWORD" in refused["expected"]
    with planted.ArgumentLists() as lists:
        answer = jobs.run("submit", "--config", config, "--dry-run", **ENV)
        assert planted.MARK not in answer.stdout + answer.stderr
        application = jobs.json("submit", "--config", config, **ENV)["application"]
        jobs.wait_for_step(application, 2)
        running = jobs.processes(application)
        having = [pid for pid in running if _environment(pid, ENV)]
        assert [("-m howdah.training" in running[pid]) for pid in having] == [True]
        names = check_container_files(jobs.cluster, application)
        assert {"launch_container.sh", ".skein.sh", ".howdah.secret", "netrc"} <= names
        assert planted.MARK not in yarn_reports(application)
        skeins = f"{jobs.cluster.hdfs_url}/user/{local_user()}/.skein/{application}"
        for place in (f"{hdfs_dir}/staging/packages", skeins):
            assert mode(place) == 0o700
        for place in (f"{hdfs_dir}/staging", skeins):
            open_ones = [e.path for e, others in planted.remote_files(place) if others]
            assert not [path for path in open_ones if planted.MARK in _text(path)]
        (shipped,) = [e for e, _ in planted.remote_files(f"{hdfs_dir}/staging")
                      if e.name.endswith("-netrc")]  # fmt: skip
        assert shipped.mode == 0o600
        status = json.dumps(jobs.status(application))
        jobs.run("kill", application)
        jobs.wait_until_gone(application, LIMIT)
    assert planted.MARK not in status
    assert lists.seen and not lists.found
    assert planted.MARK not in yarn_reports(application)
    assert planted.MARK not in jobs.run("logs", application).stdout
    left = [entry.path for entry, _ in planted.remote_files(held["run"]["directory"])]
    assert {"config.yaml", "run.json", "status.json"} <= {os.path.basename(path) for path in left}
    assert not [path for path in left if planted.MARK in _text(path)]


def _environment(pid, variables):
    with open(f"/proc/{pid}/environ", "rb") as file:
        held = file.read().split(b"\0")
    return any(f"{name}={value}".encode() in held for name, value in variables.items())


def _names(directory):
    entries = storage.list_dir(directory) if storage.exists(directory) else []
    return {entry.name for entry in entries}


def _text(path):
    return storage.read_bytes(path).decode(errors="replace")


@pytest.mark.hadoop
@pytest.mark.spark
@pytest.mark.full  # a training job's, above, are looked for in every run
def test_an_etls_secrets_are_in_no_argument_list_script_log_or_open_file(yarn_etl):
    spark = {"deploy_mode": "cluster", "conf": planted.SPARK_CONF}
    config = yarn_etl.config(source=yarn_etl.put_rows(400), spark=spark)
    cluster = yarn_etl.cluster
    staging = f"{cluster.hdfs_url}/user/{local_user()}/.howdah"
    before = _names(f"{staging}/runs")  # other tests on the same cluster have left some
    with planted.ArgumentLists() as lists:
        process = yarn_etl.start(config)
        try:
            running = wait_for(lambda: yarn_etl.applications(states="RUNNING"), process)
            (application,) = running
            open_ones = [e.path for e, others in planted.remote_files(staging) if others]
            assert not [path for path in open_ones if planted.MARK in _text(path)]
            (run,) = _names(f"{staging}/runs") - before
            assert mode(f"{staging}/runs/{run}") == 0o700
            assert mode(f"{staging}/packages") == 0o700
            sparks = f"{cluster.hdfs_url}/user/{local_user()}/.sparkStaging/{application}"
            assert mode(sparks) == 0o700
            names = check_container_files(cluster, application)
            assert "launch_container.sh" in names
            assert planted.MARK not in yarn_reports(application)
            code, answer, err = yarn_etl.finish(process)
        finally:
            process.kill()
    assert code == 0, err
    assert planted.MARK not in err + json.dumps(answer)
    assert lists.seen and not lists.found
    assert planted.MARK not in yarn_reports(application)
    argv = ("yarn", "logs", "-applicationId", application)
    logs = wait_until(  # YARN aggregates them after the application has ended
        lambda: "LogType" in (text := cluster.run(*argv, check=False).stdout) and text, 120
    )
    assert planted.MARK not in logs
    assert run not in _names(f"{staging}/runs")  # the description is gone
