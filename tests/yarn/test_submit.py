"""What a job asks of YARN, and the lock of its run directory: without a cluster."""

import hashlib
import json
import os
import shutil
import subprocess
import types
import zipfile
from pathlib import Path

import pytest

from howdah.config import loader
from howdah.errors import ClusterError, ConfigError, UsageError
from howdah.hadoop.conf import HadoopConf
from howdah.jobs import checks
from howdah.packaging import cluster_paths
from howdah.yarn import registry, shipping, spec
from howdah.yarn.cluster import YarnCluster, zip_settings
from howdah.yarn.preflight import capacity
from howdah.yarn.skein_backend import _client_environment, _reason, application_of, attempt_of
from tests.support.jobs.job_keys import sections

HDFS = "hdfs://nn:8020"
APP = "application_1_0001"
WHEEL = "howdah-1-py3-none-any.whl"


def job(**yarn_keys):
    return loader.from_dict(
        {
            "run": {"name": "tiny", "directory": f"{HDFS}/runs/tiny"},
            "data": {"dataset": "hdfs://other:8020/data/set"},
            "model": {"base": f"{HDFS}/models/base"},
            **sections({"python": "/opt/my python/bin/python", **yarn_keys}),
        }
    )


def submitted(settings, secure=True, **more):
    shipment = spec.YarnShipment(
        wheel=spec.ContainerFile(url=f"{HDFS}/packages/howdah-1-py3-none-any.whl"),
        wheel_name=WHEEL,
        wheel_sha256=hashlib.sha256(b"the wheel").hexdigest(),
        **more,
    )
    return spec.application(
        settings, shipment, config_file="/tmp/x/run.yaml", secret_file="/tmp/x/secret",
        hadoop_file="/tmp/x/hadoop-conf.zip", token="ab12", secure=secure,
    )  # fmt: skip


# -------------------------------------------------------------------------------------- config
@pytest.mark.parametrize(
    ("yarn_keys", "text"),
    [
        ({"workers": 4, "max_workers": 2}, "must ascend"),
        ({"min_workers": 3}, "must ascend"),
        ({"controller": "mpi"}, "yarn.python"),
        (
            {"controller": "mpi", "python": "/p", "max_workers": 4},
            "fixed number of workers",
        ),
        ({"keytab": "k"}, "together"),
        ({"ports": "30100-30000"}, "in order"),
        ({"ports": "80-90"}, "1024 to 65535"),
        ({"ports": "all"}, "job.ports"),
        ({"tags": ["a b"]}, "blanks"),
        ({"env": {"a b": "c"}}, "environment variable"),
    ],
)
def test_what_does_not_fit_together_is_refused_with_the_reason(yarn_keys, text):
    with pytest.raises(ConfigError, match=text):
        loader.from_dict(sections(yarn_keys))


def test_either_bound_makes_a_job_elastic():
    assert not job().job.elastic
    assert job(max_workers=3).job.elastic
    grows = job(max_workers=3).job
    shrinks = job(min_workers=1).job
    assert (grows.fewest, grows.most) == (2, 3)
    assert (shrinks.fewest, shrinks.most) == (1, 2)


# ----------------------------------------------------------------------------------------- spec
def test_a_job_asks_for_what_the_configuration_says():
    settings = job(
        workers=3, queue="research", node_label="fast", priority=7, max_restarts=3, tags=["team-a"],
        worker={"memory": "3 GiB", "vcores": 2, "gpus": 1}, driver={"memory": "700 MiB"},
        view_users=["bob"],
    )  # fmt: skip
    app = submitted(settings)
    assert (app.workers, app.queue, app.node_label, app.priority) == (
        3, "research", "fast", 7,
    )  # fmt: skip
    assert (app.attempts, app.view_users, app.page_users) == (4, ("bob",), ("bob",))
    assert submitted(settings, secure=False).page_users == ("*",)
    assert (app.worker.memory_mib, app.worker.vcores, app.worker.gpus) == (3072, 2, 1)
    assert (app.driver.memory_mib, app.driver.vcores, app.driver.gpus) == (700, 1, 0)
    assert app.tags == ("howdah", spec.tag(settings.run.directory), "howdah-ab12", "team-a")
    assert set(app.file_systems) == {"hdfs://nn:8020", "hdfs://other:8020"}
    json.dumps(app.as_dict())


def test_scripts_are_valid_bash(tmp_path):
    app = submitted(job())
    for script in (app.driver.script, app.worker.script):
        assert "'/opt/my python/bin/python' -P -m howdah.yarn" in script
        path = tmp_path / "script.sh"
        path.write_text(script)
        subprocess.run(["bash", "-n", path], check=True)
    archive = submitted(job(python=None), environment=spec.ContainerFile(url="x", kind="archive"))
    assert "exec ./environment/bin/python -P -m howdah.yarn agent" in archive.worker.script
    assert archive.worker.files["environment"].kind == "archive"


def test_a_driver_that_dies_before_it_reports_kills_skeins_master(tmp_path):
    """A python that fails runs as the driver, with a bash as its parent instead of the master."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / WHEEL).write_bytes(b"the wheel")
    python.chmod(0o755)
    script = tmp_path / "driver.sh"
    script.write_text(submitted(job(python=str(python))).driver.script)
    master = f"bash {script}; echo survived"
    died = subprocess.run(["bash", "-c", master], cwd=tmp_path, capture_output=True, text=True)
    assert (died.returncode, died.stdout) == (-9, "")
    (tmp_path / spec.FINISHED).touch()
    lives = subprocess.run(["bash", "-c", master], cwd=tmp_path, capture_output=True, text=True)
    assert (lives.returncode, lives.stdout) == (0, "survived\n")


def test_a_wheel_that_is_not_the_submitted_one_is_not_run(tmp_path):
    (tmp_path / WHEEL).write_bytes(b"the wheeI")
    (tmp_path / "python").write_text("#!/bin/sh\ntouch was-run\n")
    (tmp_path / "python").chmod(0o755)
    app = submitted(job(python=str(tmp_path / "python")))
    for script in (app.driver.script, app.worker.script):
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 5
        assert f"{WHEEL} is not the one that was submitted" in done.stderr
    assert not (tmp_path / "was-run").exists()


def test_a_containers_home_and_temporary_files_are_its_own(tmp_path):
    (tmp_path / WHEEL).write_bytes(b"the wheel")
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$HOME|$TMPDIR|$HOWDAH_CACHE|$HADOOP_CONF_DIR"\n')
    python.chmod(0o755)
    script = submitted(job(python=str(python))).worker.script
    env = {"PATH": os.environ["PATH"], "LOCAL_DIRS": "/disk1/app,/disk2/app"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    directories = f"{tmp_path}/home|{tmp_path}/tmp|/disk1/app/howdah"
    assert done.stdout == f"{directories}|{tmp_path}/hadoop-conf\n"
    env["HADOOP_CONF_DIR"] = "/etc"  # the node's own settings come first
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{directories}|/etc\n"
    assert (tmp_path / "home").is_dir()
    assert (tmp_path / "tmp").is_dir()


def test_containers_trust_what_the_submitter_trusts(tmp_path, monkeypatch):
    certificate = tmp_path / "site.pem"
    certificate.write_text("a certificate")
    os.utime(certificate, (0, 0))  # as in images that are built reproducibly
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    (tmp_path / WHEEL).write_bytes(b"the wheel")
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$REQUESTS_CA_BUNDLE"\n')
    python.chmod(0o755)
    argv = ["bash", "-c", submitted(job(python=str(python))).worker.script]

    def trusted(**env):
        env = {"PATH": os.environ["PATH"], "LOCAL_DIRS": "/disk1/app", **env}
        done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, check=True)
        return done.stdout.decode().strip()

    settings = HadoopConf(None, {"fs.defaultFS": "hdfs://nn:8020"})
    with zipfile.ZipFile(zip_settings(str(tmp_path), settings)) as packed:
        packed.extractall(tmp_path / "hadoop-conf")  # as YARN does
    shipped = f"{tmp_path}/hadoop-conf/authorities.pem"
    assert Path(shipped).read_text() == "a certificate"
    assert trusted() == trusted(REQUESTS_CA_BUNDLE="/not/on/this/node") == shipped
    node = str(certificate)
    assert trusted(REQUESTS_CA_BUNDLE=node) == node  # the node's own come first
    assert trusted(CURL_CA_BUNDLE=node) == ""
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    with zipfile.ZipFile(zip_settings(str(tmp_path), settings)) as packed:
        assert packed.namelist() == ["core-site.xml"]
    shutil.rmtree(tmp_path / "hadoop-conf")
    assert trusted() == ""


def test_a_run_directory_has_one_tag_however_it_is_written():
    assert spec.tag("hdfs://nn:8020/runs/a") == spec.tag("HDFS://nn:8020//runs/a/")
    assert spec.tag("hdfs://nn:8020/runs/a") != spec.tag("hdfs://nn:8020/runs/b")
    assert spec.tag("hdfs://nn:8020/runs/a") == spec.tag("hdfs://nn:8020/runs/a").lower()


def test_local_paths_are_refused_all_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    settings = loader.from_dict(
        {
            "run": {"directory": "runs/x"}, "data": {"dataset": "data/x"},
            "model": {"base": "models", "init_from": "models/news"},
            "checkpoint": {"resume": "runs/y/checkpoints/step-4"},
        }
    )  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        cluster_paths.refuse_local(checks.paths_of_ranks(settings))
    assert caught.value.where == (
        "run.directory, data.dataset, model.base, model.init_from, checkpoint.resume"
    )
    cluster_paths.refuse_local(checks.paths_of_ranks(job()))


def test_files_keep_their_names_and_never_take_a_used_one(tmp_path):
    one, two = tmp_path / "a" / "extra.txt", tmp_path / "b" / "extra.txt"
    for path in (one, two):
        path.parent.mkdir()
        path.write_text(str(path))
    assert spec.file_names(job(files=[str(one)])) == {"extra.txt": str(one)}
    for files in ([str(one), str(two)], ["/x/run.yaml"], ["/x/.skein.sh"]):
        with pytest.raises(ConfigError, match="name is already in use"):
            spec.file_names(job(files=files))
    with pytest.raises(ConfigError, match="is not a file"):
        shipping.plan(job(files=["/no/such/file"], staging=f"file://{tmp_path}"), print)


# ------------------------------------------------------------------------------------- capacity
def node(memory, vcores=8, gpus=0, labels=()):
    resources = [{"name": "yarn.io/gpu", "value": gpus}]
    total = {
        "memory": memory,
        "vCores": vcores,
        "resourceInformations": {"resourceInformation": resources},
    }
    return {"totalResource": total, "nodeLabels": list(labels)}


QUEUE = {
    "queueName": "default", "queuePath": "root.default", "state": "RUNNING", "nodeLabels": ["*"],
    "absoluteCapacity": 50.0, "absoluteMaxCapacity": 100.0, "userLimitFactor": 2.0,
    "maximumAllocation": {"memory": 8192, "vCores": 8},
    "AMResourceLimit": {"memory": 4096, "vCores": 4},
}  # fmt: skip
TWO = [node(8192), node(8192)]


def problems_of(nodes=TWO, queue=QUEUE, labels=(), **yarn_keys):
    return capacity.problems(job(**yarn_keys), queue, nodes, labels)


def test_a_request_that_fits_has_no_problem():
    assert problems_of(workers=3, worker={"memory": "4 GiB"}) == []
    assert problems_of([node(8192, gpus=2)], worker={"gpus": 1, "memory": "2 GiB"}) == []
    fast = [*TWO, node(8192, labels=["fast"])]
    assert problems_of(fast, labels=["fast"], node_label="fast", workers=1) == []


@pytest.mark.parametrize(
    ("yarn_keys", "options", "what", "numbers"),
    [
        ({"worker": {"memory": "9 GiB"}}, {}, "larger than any node", ("9,216", "8,192")),
        ({"worker": {"vcores": 9}}, {}, "larger than any node", ("9 vcores", "8 vcores")),
        ({"worker": {"gpus": 1}}, {}, "larger than any node", ("1 GPUs", "8,192 MiB, 8 vcores")),
        ({"driver": {"memory": "9 GiB"}}, {}, "larger than any node", ("9,216", "8,192")),
        (
            {"worker": {"memory": "6 GiB"}},
            {"queue": {**QUEUE, "maximumAllocation": {"memory": 4096, "vCores": 4}}},
            "gives in one container",
            ("6,144", "4,096"),
        ),
        ({"workers": 4, "worker": {"memory": "4 GiB"}}, {}, "do not fit", ("4", "3")),
        (
            {"workers": 3, "worker": {"gpus": 1, "memory": "1 GiB"}},
            {"nodes": [node(8192, gpus=2)]},
            "do not fit",
            ("3", "2"),
        ),
        (
            {"workers": 3, "worker": {"memory": "4 GiB"}},
            {"queue": {**QUEUE, "absoluteMaxCapacity": 60.0}},
            "never gives one user",
            ("13,312", "9,830", "60%"),
        ),
        (
            {"workers": 3, "worker": {"memory": "4 GiB"}},
            {"queue": {**QUEUE, "userLimitFactor": 1.0}},
            "never gives one user",
            ("13,312", "8,192", "user-limit-factor"),
        ),
        (
            {"driver": {"memory": "5 GiB"}, "worker": {"memory": "1 GiB"}},
            {},
            "never gives a driver",
            ("5,120", "4,096"),
        ),
        ({"node_label": "fast"}, {}, "label does not exist", ("fast", "no labels")),
        (
            {"node_label": "fast"},
            {"labels": ["fast"], "queue": {**QUEUE, "nodeLabels": ["slow"]}},
            "may not use nodes",
            ("fast", "slow"),
        ),
        ({"node_label": "fast"}, {"labels": ["fast"]}, "no node can run", ("fast", "2 nodes")),
        ({}, {"nodes": []}, "no node can run", ("0 nodes",)),
    ],
)
def test_a_request_that_can_never_be_granted_is_refused_with_both_numbers(
    yarn_keys, options, what, numbers
):
    [problem, *_] = problems_of(**options, **yarn_keys)
    assert what in problem.what
    for number in numbers:
        assert number in f"{problem.expected} {problem.got}"


def test_only_the_fewest_workers_of_an_elastic_job_must_fit():
    assert problems_of(workers=4, worker={"memory": "4 GiB"})
    assert not problems_of(workers=4, min_workers=2, worker={"memory": "4 GiB"})


def test_a_queue_is_found_by_name_or_path_and_must_take_applications():
    root = {"queueName": "root", "queuePath": "root", "queues": {"queue": [QUEUE]}}
    stopped = {**QUEUE, "queueName": "old", "queuePath": "root.old", "state": "STOPPED"}
    fair = {"queueName": "root.fair"}  # the fair scheduler's
    queues = [root, QUEUE, stopped, fair]
    assert capacity.find_queue(queues, "default") is QUEUE
    assert capacity.find_queue(queues, "root.default") is QUEUE
    assert capacity.find_queue(queues, "root.fair") is fair
    for name, text in (("nope", "no queue nope"), ("root", "below it"), ("old", "STOPPED")):
        with pytest.raises(ClusterError, match=text) as caught:
            capacity.find_queue(queues, name)
        assert caught.value.where == "yarn.queue"


# --------------------------------------------------------------------------------- registry, ids
def test_a_run_directory_is_found_by_its_applications_id(tmp_path):
    staging = str(tmp_path)
    registry.register(staging, APP, "hdfs://nn/runs/a")
    assert registry.run_directory(staging, APP) == "hdfs://nn/runs/a"
    assert registry.run_directory(staging, "application_1_0002") is None
    with pytest.raises(UsageError):
        registry.run_directory(staging, "../../etc/passwd")


def test_a_job_is_found_by_its_id_wherever_it_stages(tmp_path, monkeypatch):
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    settings = loader.from_dict(
        {"run": {"directory": "hdfs://nn/runs/a"}, "yarn": {"staging": f"file://{tmp_path}/else"}}
    )
    manager = types.SimpleNamespace(application=lambda application: {"user": "alice"})

    def site(default_fs):
        value = f"<property><name>fs.defaultFS</name><value>{default_fs}</value></property>"
        (tmp_path / "core-site.xml").write_text(f"<configuration>{value}</configuration>")

    site(f"file://{tmp_path}/fs")
    directory = settings.run.directory
    assert registry.announce(settings, APP, directory) is None
    cluster = YarnCluster(settings)
    cluster.manager = manager
    assert cluster.by_id(APP).directory == "hdfs://nn/runs/a"
    (tmp_path / "core-site.xml").write_text("<configuration/>")
    assert f"{APP} need --config" in registry.announce(settings, APP, directory)


def test_a_containers_name_holds_application_and_attempt():
    for name in ("container_1410901177871_0001_02_000005",
                 "container_e17_1410901177871_0001_02_000005"):  # fmt: skip
        assert attempt_of(name) == 2
        assert application_of(name) == "application_1410901177871_0001"


@pytest.mark.parametrize(
    ("state", "diagnostics", "reason"),
    [
        ("FAILED", "Container preempted by scheduler", "preempted"),
        ("FAILED", "Container released on a *lost* node", "lost"),
        ("FAILED", "Container failed during execution, see logs for more information.", "failed"),
        ("FAILED", "Container killed by the ApplicationMaster.", "killed"),
        ("KILLED", "Killed by user request.", "killed"),
    ],
)
def test_why_a_container_ended(state, diagnostics, reason):
    assert _reason(state, diagnostics) == reason


def test_skeins_client_finds_yarn_and_gets_no_proxy_user_from_the_environment(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("HADOOP_HOME", "/opt/hadoop")
    monkeypatch.setenv("HADOOP_PROXY_USER", "bob")
    with _client_environment():
        assert os.environ["PATH"] == f"/usr/bin{os.pathsep}/opt/hadoop/bin"
        assert "HADOOP_PROXY_USER" not in os.environ
    assert (os.environ["PATH"], os.environ["HADOOP_PROXY_USER"]) == ("/usr/bin", "bob")
