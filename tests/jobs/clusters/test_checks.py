"""What `howdah submit --on ...` refuses before anything is started, and how jobs are found."""

import dataclasses
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time

import pytest

from howdah import storage
from howdah.cli import app, run
from howdah.cli import jobs as commands
from howdah.config import loader
from howdah.core.processes import boot_id, process_start
from howdah.errors import (
    ClusterError,
    ConfigError,
    HowdahError,
    JobLost,
    NotFound,
    StorageFull,
    UsageError,
)
from howdah.jobs import checks, record
from howdah.jobs import submit as submission
from howdah.jobs.clusters import application as control
from howdah.jobs.clusters.application import ProcessApplication, listed
from howdah.jobs.clusters.spark_cluster import for_spark
from tests.runs.jobs.submitted_jobs import NO_HOROVOD

ENCRYPTED = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}


@pytest.fixture
def config(tmp_path, monkeypatch, tiny_dataset, tiny_model_dir):
    monkeypatch.setenv("HOWDAH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def make(on="local", spark=None, **sections):
        held = {
            "run": {"directory": "runs/one"}, "model": {"base": tiny_model_dir},
            "data": {"dataset": tiny_dataset.path, "max_length": 64, "spark": spark or {}},
        }  # fmt: skip
        held["job"] = {"on": on, "workers": 2, **sections.pop("job", {})}
        return loader.from_dict({**held, **sections})

    return make


def test_one_rank_has_room_for_its_checkpoints_as_a_job_has(
    tmp_path, monkeypatch, capsys, tiny_dataset, tiny_model_dir
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(storage, "free_bytes", lambda path: 2**10)
    words = ["train", "--set", f"data.dataset={tiny_dataset.path}",
             "--set", f"model.base={tiny_model_dir}"]  # fmt: skip
    assert run(lambda: app(words, standalone_mode=False)) == 5
    assert "not enough space for the checkpoints" in capsys.readouterr().err
    assert not os.path.exists("runs")  # nothing has begun


def test_the_space_is_for_what_is_trained_and_not_there_yet(config, monkeypatch):
    whole = config()
    lora = config(training={"lora": {"rank": 2}, "framework": "torch"})
    size = checks._checkpoint_size(whole)
    assert checks._checkpoint_size(lora) < size / 5
    monkeypatch.setattr(storage, "free_bytes", lambda path: size)
    checks.free_space(lora)
    with pytest.raises(StorageFull, match="not enough space") as caught:
        checks.free_space(whole)
    assert "for 5 checkpoints" in caught.value.expected
    for step in (10, 20, 30, 40):
        os.makedirs(f"{whole.checkpoint_directory}/step-{step}")
    checks.free_space(whole)  # one more fits


def dry_run(config, say, etl=False):
    return submission.dry_run(commands.cluster_of(config.job.on, config, etl=etl), say)


def submit(config):
    cluster = commands.cluster_of(config.job.on, config)
    return submission.submit(cluster, print, lambda name: commands.cluster_of(name, config))


def refused(config, *, etl=False):
    with pytest.raises((ConfigError, ClusterError)) as caught:
        dry_run(config, print, etl=etl)
    return str(caught.value)


@pytest.mark.parametrize(
    ("section", "key", "text"),
    [
        ("model", "init_from", "there is no such model"),
        ("checkpoint", "resume", "this checkpoint does not exist"),
    ],
)
def test_what_a_run_begins_from_is_looked_for_before_it_is_submitted(
    config, tiny_model_dir, section, key, text
):
    """Each worker would fail of it, attempt after attempt."""
    sections = {"model": {"base": tiny_model_dir}} | {section: {key: "runs/none/x"}}
    sections["model"] = {"base": tiny_model_dir} | sections["model"]
    with pytest.raises(HowdahError, match=text):
        dry_run(config(**sections), print, etl=False)


@pytest.mark.parametrize(
    ("spark", "job", "text"),
    [
        ({"master": "yarn"}, {}, "every node sees"),
        ({"master": "yarn", "conf": {"spark.authenticate": "false"}}, {}, "authenticate=true"),
        ({"master": "yarn", "deploy_mode": "cluster"}, {}, "deploy_mode"),
        ({"master": "spark://h:7077"}, {}, "spark.authenticate, spark.network.crypto.enabled"),
        ({"master": "spark://h:7077", "conf": {"spark.authenticate": "true"}}, {}, "crypto"),
        ({"master": "local[1]"}, {}, "data.spark.master=local[2]"),
        ({"master": "local"}, {}, "fewer cores"),
        ({"master": "local[4]"}, {"worker": {"vcores": 4}}, "at least 8"),
        ({"master": "local-cluster[1,1,1024]"}, {}, "fewer cores"),
        ({"master": "local[2]", "conf": {"spark.task.maxFailures": "4"}}, {}, "maxFailures=1"),
        ({"master": "local[2]"}, {"worker": {"gpus": 1}}, "discoveryScript"),
    ],
)
def test_a_spark_that_cannot_hold_the_job_is_refused(config, spark, job, text):
    assert text in refused(config("spark", spark, job=job))


def test_a_dataset_is_made_by_a_job_on_spark_alone_and_from_a_source_that_is_there(config):
    for on in ("local", "ray"):
        with pytest.raises(UsageError, match="expected: --on spark"):
            dry_run(config(on), print, etl=True)
    spark = {"master": "local[2]"}
    assert "names no source" in refused(config("spark", spark), etl=True)


def test_the_command_refuses_to_make_a_dataset_on_yarn(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text("job: {on: yarn}")
    words = ["submit", "--config", str(path), "--etl"]
    assert run(lambda: app(words, standalone_mode=False), as_json=False) == 2
    assert "expected: --on spark" in capsys.readouterr().err


def test_a_spark_on_yarn_of_kerberos_is_refused(config, tmp_path, monkeypatch):
    name, value = "hadoop.security.authentication", "kerberos"
    setting = f"<property><name>{name}</name><value>{value}</value></property>"
    (tmp_path / "core-site.xml").write_text(f"<configuration>{setting}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert "howdah submit --on yarn" in refused(config("spark", {"master": "yarn"}))


def test_a_session_on_yarn_has_an_executor_a_worker_and_encrypts(config):
    job = {"workers": 2, "max_workers": 3, "worker": {"memory": "2 GiB"}}
    made = for_spark(config("spark", {"master": "yarn"}, job=job), etl=False)
    assert made["spark.authenticate"] == made["spark.network.crypto.enabled"] == "true"
    assert made["spark.executor.instances"] == "3"
    assert made["spark.executor.memoryOverhead"] == "2048m"


def test_a_spark_that_can_is_not(config):
    spark = {"master": "local-cluster[2,1,1024]"}
    assert dry_run(config("spark", spark), print)["where"].endswith(spark["master"])
    lines = []
    far = {"master": "spark://h:7077", "conf": ENCRYPTED}
    dry_run(config("spark", far), lines.append)
    assert any("every machine must have this path" in line for line in lines)


def test_a_ray_of_others_is_joined_with_a_warning(config):
    lines = []
    plan = dry_run(config("ray", ray={"address": "head:6379"}), lines.append)
    assert plan["where"] == "Ray, head:6379"
    assert any(line.startswith("WARNING") and "RAY_USE_TLS" in line for line in lines)


@pytest.mark.parametrize("here", [True, False])
def test_a_model_is_divided_among_the_ranks_of_torch_distributed_only(here):
    divided = {"framework": "torch", "parallel": {"shard": "full"}}
    job = {"workers": 2}
    with pytest.raises(ConfigError) as caught:
        checks.carrier(loader.from_dict({"training": divided, "job": job}), here=here)
    assert caught.value.where == "training.parallel.shard: full"
    assert "training.comm to torch" in caught.value.remedy
    moments_alone = divided | {"parallel": {"shard": "optimizer"}}
    over_torch = divided | {"comm": "torch"}
    for training in (moments_alone, over_torch):
        checks.carrier(loader.from_dict({"training": training, "job": job}), here=here)


@pytest.mark.parametrize("on", ["local", "spark", "ray"])
@pytest.mark.parametrize("comm", ["auto", "torch"])
def test_ranks_of_torch_need_no_horovod_wherever_a_job_runs(config, no_horovod, on, comm):
    training = {"framework": "torch", "comm": comm}
    dry_run(config(on, {"master": "local[2]"}, training=training), print)
    dry_run(config(on, {"master": "local[2]"}, training=training,
                              job={"min_workers": 1}), print)  # fmt: skip


@pytest.mark.parametrize("here", [True, False])
def test_torch_distributed_takes_no_range_of_ports_and_no_mpi(here):
    training = {"framework": "torch", "comm": "torch"}
    for key, value in (("ports", "30000-30100"), ("controller", "mpi")):
        held = loader.from_dict({
            "training": training, "job": {"workers": 2, key: value},
            "yarn": {"python": "/p"},
        })  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            checks.carrier(held, here=here)
        assert caught.value.where == f"job.{key}: {value}"


@pytest.fixture
def no_horovod(monkeypatch):
    """This process is one of an environment without Horovod."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    runpy.run_path(os.path.join(NO_HOROVOD, "sitecustomize.py"))
    monkeypatch.delitem(sys.modules, "horovod", raising=False)


@pytest.mark.parametrize("on", ["local", "spark", "ray"])
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_job_of_several_ranks_without_their_horovod_is_refused(config, no_horovod, on, framework):
    def made(**job):
        training = {"framework": framework, "comm": "horovod"}
        return config(on, {"master": "local[2]"}, job=job, training=training)

    with pytest.raises(ConfigError, match=f"Horovod for {framework} is not installed") as caught:
        dry_run(made(), print)
    assert f"tools/build_horovod.py --python {sys.executable}" in caught.value.remedy
    assert ("torch.distributed needs no" in caught.value.remedy) == (framework == "torch")
    assert "Horovod for" in refused(made(workers=1, max_workers=2))
    dry_run(made(workers=1), print)  # a world of one sums over nothing


def test_what_is_installed_elsewhere_is_not_asked_here(config, no_horovod, monkeypatch):
    dry_run(config("spark", {"master": "spark://h:7077", "conf": ENCRYPTED}), print)
    dry_run(config("ray", ray={"address": "head:6379"}), print)
    dry_run(config(job={"env": {"PYTHONPATH": "/somewhere"}}), print)
    monkeypatch.setenv("PYSPARK_PYTHON", "/another/python")
    dry_run(config("spark", {"master": "local[2]"}), print)


def test_what_is_yarn_s_alone_is_refused_and_all_problems_come_at_once(config):
    assert "only YARN runs a job as another user" in refused(
        config(run={"directory": "r", "user": "bob"})
    )
    mpi = {"controller": "mpi"}
    yarn = {"python": "/p"}
    assert "only on YARN and on this machine" in refused(config("ray", job=mpi, yarn=yarn))
    text = refused(config("spark", {"master": "local[1]"}, model={"base": "file:///nowhere"}))
    assert "fewer cores" in text and "base model lacks config.json" in text
    with pytest.raises(ConfigError, match=r"job\.on"):
        config("slurm")


def test_paths_of_a_job_are_absolute(config, tmp_path):
    plan = dry_run(config(checkpoint={"directory": "c"}), print)
    assert plan["run_directory"] == str(tmp_path / "runs" / "one")
    assert (tmp_path / "c").is_dir()


@pytest.mark.parametrize(
    ("on", "master", "seconds"),
    [("local", "local[2]", 300), ("spark", "local[2]", 300), ("ray", "yarn", 300),
     ("spark", "yarn", 300 + 10 * 1000)],
)  # fmt: skip
def test_a_driver_waits_in_a_queue_of_yarn_as_long_as_its_workers_would(
    config, on, master, seconds
):
    held = config(on, {"master": master}, job={"gang_seconds": 1000})
    cluster = commands.cluster_of(on, held)
    assert cluster.start_seconds + cluster.queue_seconds() == seconds


def test_a_driver_that_does_not_start_is_named_with_its_limit(config, tmp_path):
    held = config("spark", {"master": "yarn"}, job={"gang_seconds": 0.02})
    lines = []
    with subprocess.Popen(["sleep", "60"]) as driver:
        one = kept(tmp_path, on="spark", pid=driver.pid, start=process_start(driver.pid))
        cluster = commands.cluster_of("spark", held)
        cluster.start_seconds, cluster._started = 0.1, (one, driver)
        with pytest.raises(ClusterError, match=r"not written a status within 0\.3 s") as caught:
            cluster.announce(cluster.application(one), lines.append)
        driver.kill()
    assert "job.gang_seconds" in caught.value.remedy
    assert lines == ["starting a Spark session: for at most 0.3 s, while its queue on YARN is full"]


# ------------------------------------------------------------------------------- finding jobs
def kept(tmp_path, **values):
    """A record of a job whose driver is this process."""
    directory = tmp_path / "cache" / "jobs" / "local-1"
    directory.mkdir(parents=True, exist_ok=True)
    fields = {
        "token": "t", "application": "local-1", "on": "local",
        "run_directory": str(tmp_path / "run"), "directory": str(directory),
        "fingerprint": "f", "submitted": time.time(),
        "host": socket.gethostname(), "boot": boot_id(), "pid": os.getpid(),
        "start": process_start(os.getpid()),
    }  # fmt: skip
    one = record.Record(**{**fields, **values})
    one.write(private=True)
    return one


def test_a_job_is_found_by_id_and_by_run_directory(config, tmp_path):
    one = kept(tmp_path)
    held = config(run={"directory": str(tmp_path / "run")})
    for job, of in (("local-1", None), (one.run_directory, None), (None, held)):
        assert commands.find(job, of).record == one
    for job in ("local-2", str(tmp_path / "other")):
        with pytest.raises(NotFound, match="no job has this id"):
            commands.find(job, None)
    assert ProcessApplication(one).status()["state"] == "STARTING"
    assert [job["application"] for job in listed(finished=False)] == ["local-1"]


def test_a_driver_whose_process_is_another_now_is_dead(config, tmp_path):
    assert kept(tmp_path).driver_lives
    for changed in ({"start": 1}, {"boot": "another"}):
        one = kept(tmp_path, **changed)
        assert not one.driver_lives
        job = ProcessApplication(one)
        assert job.status()["state"] == "LOST"
        assert job.kill(save=True, save_seconds=9, progress=print) == "LOST"
        with pytest.raises(ClusterError, match="over"):
            job.scale(3)
        with pytest.raises(JobLost) as caught:
            job.wait(print)
        assert caught.value.what == "the job ended as LOST"
        ours = record.Record.of_this_process(token="y", on="yarn", run_directory=one.run_directory)
        assert yarn_claims(one.run_directory, config()).acquire(ours) == ours
        assert record.read(one.run_directory) == ours


def yarn_claims(run_directory, config):
    """The claims of a submission to a YARN that has no application."""

    class Yarn:
        name, directory = "yarn", run_directory

        def unrecorded(self, present):
            return None

    return submission.Claims(Yarn(), lambda name: commands.cluster_of(name, config))


def set_clock(monkeypatch, seconds):
    """Do to psutil what a step of the clock does: it changes /proc/stat's btime."""
    from psutil import _pslinux

    boot = _pslinux.boot_time()
    monkeypatch.setattr(_pslinux, "boot_time", lambda: boot + seconds)


@pytest.mark.parametrize("seconds", [-3600.0, 1.0, 3600.0])
def test_a_driver_lives_on_when_the_clock_is_set(config, tmp_path, monkeypatch, seconds):
    with subprocess.Popen(["sleep", "60"]) as driver:
        one = kept(tmp_path, pid=driver.pid, start=process_start(driver.pid))
        set_clock(monkeypatch, seconds)
        try:
            assert one.driver_lives and record.read(one.run_directory).driver_lives
            job = ProcessApplication(one)
            assert job.status()["state"] == "STARTING"
            job.scale(3)
            with pytest.raises(ClusterError, match="another job is using this run directory"):
                submit(config(run={"directory": one.run_directory}))
            monkeypatch.setattr(control, "_STOP_SECONDS", 0.1)  # it reads no request
            monkeypatch.setattr(control, "_SIGNAL_SECONDS", 0.1)
            job.kill(save=False, save_seconds=0, progress=print)
            assert driver.wait(10) == -signal.SIGTERM
        finally:
            driver.kill()


def test_a_run_directory_has_one_job(config, tmp_path):
    one = kept(tmp_path)
    held = config(run={"directory": one.run_directory})
    with pytest.raises(ClusterError, match="another job is using this run directory"):
        submit(held)
    ours = record.Record.of_this_process(token="y", on="yarn", run_directory=one.run_directory)
    assert yarn_claims(one.run_directory, held).acquire(ours) == one
    parent = os.getppid()  # a submission that another process has begun
    dataclasses.replace(
        one, application="", directory="", pid=parent, start=process_start(parent)
    ).write()
    with pytest.raises(ClusterError, match="at this moment"):
        submit(held)


def test_a_job_on_yarn_that_writes_to_the_run_directory_keeps_it(config, tmp_path):
    held = config(run={"directory": str(tmp_path / "run")})
    status = tmp_path / "run" / "job" / "status.json"
    status.parent.mkdir(parents=True)
    fields = {"application": "application_1_0001", "state": "running", "updated": time.time()}
    status.write_text(json.dumps(fields))
    cluster = commands.cluster_of("local", held)
    with pytest.raises(ClusterError, match="another job is using") as caught:
        submit(held)
    assert "howdah kill application_1_0001" in caught.value.remedy
    assert caught.value.got == "application_1_0001"  # not "on" the machine that submits
    status.write_text(json.dumps({**fields, "state": "finished"}))
    assert cluster.unrecorded(None) is None


def test_a_recorded_job_on_yarn_lives_by_its_status_where_yarn_is_not_configured(
    config, tmp_path, monkeypatch
):
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    one = kept(tmp_path, application="application_1_0001", on="yarn", directory="")
    held = config(run={"directory": one.run_directory})
    with pytest.raises(ClusterError, match="another job is using"):
        submit(held)
    status = {"application": one.application, "state": "finished", "updated": time.time()}
    (tmp_path / "run" / "job" / "status.json").write_text(json.dumps(status))
    assert not commands.cluster_of("yarn", held).is_live(one)


def test_settings_of_a_session_leave_restarts_to_the_job(config):
    held = config("spark", job={"worker": {"vcores": 2, "gpus": 1}})
    assert "spark.task.maxFailures" not in for_spark(held, etl=True)  # the ETL's tasks
    made = for_spark(held, etl=False)
    assert made["spark.task.maxFailures"] == "1"
    assert made["spark.task.cpus"] == "2"
    assert made["spark.task.resource.gpu.amount"] == "1"


def test_a_rank_without_a_log_is_named(config, tmp_path):
    with pytest.raises(NotFound, match="no log"):
        ProcessApplication(kept(tmp_path)).rank_log(7, follow=False, out=print)
