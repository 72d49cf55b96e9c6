"""Preflight checks on local storage, with a stand-in for the ResourceManager."""

import os
import time

import pytest
import yaml

from howdah import storage
from howdah.cli import jobs as commands
from howdah.config import loader
from howdah.config.job import JobSection
from howdah.errors import (
    ClusterError,
    ConfigError,
    DataError,
    HowdahError,
    ModelError,
    NotAuthenticated,
    PermissionDenied,
    StorageFull,
)
from howdah.hadoop.conf import HadoopConf
from howdah.jobs import record
from howdah.jobs import submit as submission
from howdah.jobs.submit import fingerprint
from howdah.yarn import cluster as of_yarn
from howdah.yarn import skein_backend
from howdah.yarn.cluster import YarnCluster
from howdah.yarn.preflight import preflight
from tests.support.jobs.job_keys import sections
from tests.yarn.test_submit import QUEUE, node


class Manager:
    """A stand-in for the ResourceManager."""

    urls, user = ("http://rm:8088",), None

    def __init__(self, conf=None, skew=0.0):
        self.conf = HadoopConf("/conf", conf or {})
        self.skew, self.refusal = skew, None
        self.held = [node(8192), node(8192)]

    def clock(self):
        return float(int(time.time() + self.skew))

    def queues(self):
        return [QUEUE]

    def nodes(self):
        return self.held

    def labels(self):
        return []

    def refused_submission(self, queue, user):
        return self.refusal

    def applications(self, **filters):
        return []

    def settings_page(self, name):
        return None


@pytest.fixture
def job(tmp_path, tiny_model_dir):
    from tests.fixtures.dataset import build_dataset

    build_dataset(str(tmp_path / "set" / "v=1"), model_dir=tiny_model_dir, rows={"train": 400})
    os.symlink(tiny_model_dir, tmp_path / "model")

    def made(**sections):
        held = {
            "run": {"directory": f"file://{tmp_path}/run"},
            "data": {"dataset": f"file://{tmp_path}/set"},
            "model": {"base": f"file://{tmp_path}/model"},
            "training": {"global_batch_size": 512},
            "yarn": {"staging": f"file://{tmp_path}/staging"},
            "job": {"worker": {"memory": "2 GiB"}},
        }
        for name, values in sections.items():
            held[name] = {**held.get(name, {}), **values}
        return loader.from_dict(held)

    return made


def checked(job, manager=None):
    lines = []
    preflight.check(job, manager or Manager(), lines.append)
    return lines


@pytest.mark.parametrize(
    ("workers", "parts"),
    [
        (128, []),
        (400, ["a world of 400 ranks may take 47 s to form", "give job.hang_seconds 70 or more"]),
        (1000, ["1,000 workers are more than were tested", "may take 117 s to form"]),
    ],
)
def test_a_job_larger_than_any_tried_is_reported(job, workers, parts):
    lines = []
    large = job(job={"workers": workers}, training={"global_batch_size": 1024})
    preflight._report_limits(large, HadoopConf("/conf", {}), lines.append)
    assert bool(lines) == bool(parts)
    assert all(part in " ".join(lines) for part in parts)


def shard(tmp_path):
    return next(p for p in (tmp_path / "set" / "v=1").rglob("*.tfrecord"))


def test_a_valid_job_passes_and_no_file_stays(job, tmp_path):
    assert checked(job()) == []
    assert os.listdir(tmp_path / "run") in ([], ["checkpoints"])
    assert os.listdir(tmp_path / "staging" / "packages") == []


def test_a_staging_directory_that_others_may_write_to_is_refused(job, tmp_path):
    (tmp_path / "staging").mkdir()
    (tmp_path / "staging").chmod(0o777)
    with pytest.raises(ConfigError, match="other users may write") as caught:
        checked(job())
    assert caught.value.where.startswith("yarn.staging")


def test_torch_distributed_is_taken_but_not_with_a_range_of_ports(job):
    training = {"framework": "torch", "comm": "torch"}
    checked(job(training=training))
    with pytest.raises(ConfigError) as caught:
        checked(job(training=training, job={"ports": "30000-30100"}))
    assert caught.value.where == "job.ports: 30000-30100"


def test_a_shard_that_is_cut_or_gone_is_named_with_its_size(job, tmp_path):
    path = shard(tmp_path)
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.truncate(size - 7)
    with pytest.raises(DataError, match="is incomplete") as caught:
        checked(job())
    assert path.name in caught.value.where
    assert f"{size:,}" in caught.value.expected
    assert f"{size - 7:,}" in caught.value.got
    path.unlink()
    with pytest.raises(DataError, match="is missing"):
        checked(job())


def test_a_model_that_lacks_a_file_is_refused(job, tmp_path):
    (tmp_path / "model").unlink()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="the base model lacks") as caught:
        checked(job())
    assert "tokenizer.json, *.safetensors" in caught.value.what
    hub = {"base": "distilbert-base-uncased"}
    small = {"per_device_max_tokens": 512, "global_batch_size": 512}
    [line] = checked(job(model=hub, training=small, job={"worker": {"memory": "4 GiB"}}))
    assert "hub" in line


def test_directories_that_cannot_be_written_are_all_named(job, tmp_path):
    for name in ("run", "staging"):
        (tmp_path / name).write_text("a file in the way")
    with pytest.raises(HowdahError) as caught:
        checked(job())
    text = str(caught.value)
    assert "run.directory" in text
    assert "yarn.staging" in text


def test_too_little_space_for_checkpoints_is_refused(job, monkeypatch):
    monkeypatch.setattr(storage, "free_bytes", lambda path: 2**20)
    with pytest.raises(StorageFull) as caught:
        checked(job())
    assert "MiB" in caught.value.expected
    assert "1 MiB free" in caught.value.got


def test_a_queue_that_does_not_take_the_user_is_named(job):
    manager = Manager()
    manager.refusal = "no right"
    with pytest.raises(ClusterError, match="may not submit") as caught:
        checked(job(), manager)
    assert caught.value.got == "no right"


@pytest.mark.parametrize(
    ("hosts", "keys", "needed"),
    [
        # Gloo: a port for each peer of a rank, and the driver's where no host has fewer workers.
        ((8192, 8192), {"workers": 2}, 2),
        ((8192, 8192, 512), {"workers": 2}, 1),
        ((8192, 8192), {"workers": 3}, 4),
        ((16384,), {"workers": 3}, 7),
        ((2048, 2048, 16384), {"workers": 6}, 20),
        ((8192, 8192), {"workers": 1}, 1),
        ((8192, 8192), {"workers": 2, "max_workers": 4}, 7),  # what it may grow to
        ((8192, 8192), {"workers": 2, "max_workers": 400}, 29),  # of which 8 have room
        ((8192, 8192), {"workers": 3, "controller": "mpi",
                        "python": "x"}, 4),
    ],
)  # fmt: skip
def test_a_range_of_ports_that_is_too_small_is_refused_with_both_numbers(job, hosts, keys, needed):
    manager = Manager()
    manager.held = [node(memory) | {"nodeHostName": f"h{n}"} for n, memory in enumerate(hosts)]
    checked(job(**sections({**keys, "ports": f"30000-{30000 + needed - 1}"})), manager)
    if needed == 1:
        return  # no range has fewer
    with pytest.raises(ClusterError, match="range of ports") as caught:
        checked(job(**sections({**keys, "ports": f"30000-{30000 + needed - 2}"})), manager)
    assert f"at least {needed} ports" in caught.value.expected
    assert caught.value.got == f"{needed - 1} ports"


def test_two_nodemanagers_of_one_host_share_its_ports(job):
    manager = Manager()
    manager.held = [one | {"nodeHostName": "same"} for one in manager.held]
    with pytest.raises(ClusterError, match="range of ports") as caught:
        checked(job(job={"ports": "30000-30001"}), manager)
    assert "at least 3 ports" in caught.value.expected


def test_a_range_that_is_too_small_for_some_placements_is_reported(job):
    [line] = checked(job(job={"workers": 3, "ports": "30000-30003"}))
    assert "has 4 ports; 3 workers and the driver need 7" in line
    assert checked(job(job={"workers": 3, "ports": "30000-30006"})) == []


def test_all_problems_are_reported_at_once(job, tmp_path):
    shard(tmp_path).unlink()
    with pytest.raises(ClusterError) as caught:
        checked(job(yarn={"driver": {"memory": "80 GiB"}}, job={"worker": {"memory": "90 GiB"}}))
    kinds = [type(problem) for problem in caught.value.problems]
    assert kinds == [ClusterError, ClusterError, DataError]


def test_clocks_may_differ_a_little(job):
    assert "differs from the cluster's" in checked(job(), Manager(skew=100))[0]
    with pytest.raises(ClusterError, match="clock differs from the cluster's") as caught:
        checked(job(), Manager({"hadoop.security.authentication": "kerberos"}, skew=-1000))
    assert "300 s" in caught.value.expected


def test_without_authentication_no_other_problem_is_reported(job, tmp_path):
    shard(tmp_path).unlink()
    manager = Manager()

    def refuse():
        raise NotAuthenticated("no ticket", remedy="kinit")

    manager.queues = refuse
    with pytest.raises(NotAuthenticated):
        checked(job(), manager)


def test_later_limits_are_reported(job):
    conf = {
        "yarn.resourcemanager.am.max-attempts": "2",
        "hadoop.security.authentication": "kerberos",
        "dfs.namenode.delegation.token.max-lifetime": "7200000",
    }
    lines = checked(job(job={"max_restarts": 5}), Manager(conf))
    assert any("at most 2 times, fewer than the job" in line for line in lines)
    assert any("expire after 2.0 h" in line for line in lines)


# ------------------------------------------------------------------------------------ submitting
class Yarn(Manager):
    """A stand-in for the ResourceManager that has what `submit` sends to skein."""

    def __init__(self):
        super().__init__()
        self.requests, self.killed, self.fails = [], [], False

    def send(self, request, *, keytab, principal):
        self.requests.append(request)
        if self.fails:
            raise ClusterError("YARN refused the application")
        return f"application_1_{len(self.requests):04}"

    def application(self, application):
        state = "KILLED" if application in self.killed else "RUNNING"
        return {"id": application, "state": state, "user": "ada"}

    def applications(self, *, applicationTags=None, user="ada", states=None):
        ids = [f"application_1_{n:04}" for n, request in enumerate(self.requests, 1)
                 if applicationTags in (None, *request.tags)]  # fmt: skip
        return [{"id": one, "user": user} for one in ids if one not in self.killed]

    def kill(self, application, why=""):
        self.killed.append(application)

    def job_page(self, report):
        return f"http://rm/{report['id']}/"


@pytest.fixture
def yarn(monkeypatch, tmp_path):
    manager = Yarn()
    name = f"<name>fs.defaultFS</name><value>file://{tmp_path}/fs</value>"
    site = f"<configuration><property>{name}</property></configuration>"
    (tmp_path / "core-site.xml").write_text(site)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("HADOOP_USER_NAME", "ada")
    monkeypatch.setattr(YarnCluster, "manager", manager)
    monkeypatch.setattr(skein_backend, "submit", manager.send)
    return manager


ON_NODES = {"python": "/usr/bin/python3"}


def submit(config, say):
    return submission.submit(
        YarnCluster(config), say, lambda name: commands.cluster_of(name, config)
    )


def test_a_submission_is_recorded_and_a_second_one_attaches(job, yarn, tmp_path):
    config, lines = job(yarn=ON_NODES), []
    cluster = YarnCluster(config)
    shown = cluster.plan_lines(submission.dry_run(cluster, lines.append))
    assert any(line.startswith("to upload: howdah-") for line in shown), shown
    assert (yarn.requests, record.read(config.run.directory)) == ([], None)
    first = submit(config, lines.append)
    assert (first.application.id, first.attached) == ("application_1_0001", False)
    assert record.read(config.run.directory).application == first.application.id
    [request] = yarn.requests
    assert all(storage.exists(source.url) for name, source in request.worker.files.items()
               if name.endswith(".whl"))  # fmt: skip
    second = submit(config, lines.append)
    assert (second.application.id, second.attached) == (first.application.id, True)
    assert len(yarn.requests) == 1
    with pytest.raises(ClusterError, match="another job is using"):
        submit(job(yarn=ON_NODES, training={"seed": 7}), lines.append)


def test_a_submission_that_fails_is_killed_and_releases_the_run_directory(job, yarn):
    yarn.fails, config = True, job(yarn=ON_NODES)
    with pytest.raises(ClusterError, match="refused"):
        submit(config, print)
    assert yarn.killed == ["application_1_0001"]  # YARN had accepted it
    assert record.read(config.run.directory) is None


# ------------------------------------------------------------------------------------ afterwards
def test_a_priority_that_yarn_does_not_give_is_reported_and_no_error():
    lines = []

    class Manager:
        def set_priority(self, application, priority):
            if priority >= 8:
                raise PermissionDenied("no", got="why" if priority == 9 else None)
            return min(priority, 5)

    for priority in (9, 7, 5, 8):
        of_yarn._set_priority(Manager(), "application_1_1", priority, lines.append)
    assert len(lines) == 3
    assert "why" in lines[0]
    assert "priority 5, not 7" in lines[1]
    assert lines[2] == "priority 8 was not set: no"


def test_fingerprints_of_different_configurations_differ(job, monkeypatch):
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    assert fingerprint(job()) == fingerprint(job())
    assert fingerprint(job()) != fingerprint(job(training={"seed": 7}))
    for directory, also in (("/etc/hadoop", False), ("", True)):
        monkeypatch.setenv("HADOOP_CONF_DIR", directory)
        with pytest.raises(ConfigError, match="every node sees") as caught:
            YarnCluster(job(run={"directory": "runs/x"})).check(print)
        assert ("set HADOOP_CONF_DIR to" in caught.value.remedy) is also


def test_containers_get_no_keytab_and_no_proxied_user(job):
    config = job(
        run={"user": "bob"}, yarn={"keytab": "/etc/secret.keytab", "principal": "me@REALM"}
    )
    shipped = loader.from_dict(yaml.safe_load(of_yarn.shipped(config)))
    assert (shipped.run.user, shipped.yarn.keytab, shipped.yarn.principal) == (None, None, None)
    assert shipped.yarn.staging == config.yarn.staging


def test_fewer_rows_than_the_most_workers_are_refused(job):
    with pytest.raises(DataError, match="fewer rows to train on than workers") as caught:
        checked(job(job={"workers": 2, "max_workers": 401}))
    assert caught.value.expected.startswith("at least 401 rows in train")
    assert caught.value.got == "400"
    checked(job(job={"workers": 2, "max_workers": 400}))


def test_fewer_rows_in_a_step_than_workers_are_refused_without_a_section_job_too(job):
    config = job()
    one_row = config.training.model_copy(update={"global_batch_size": 1})
    default = config.model_copy(update={"job": JobSection(), "training": one_row})
    with pytest.raises(HowdahError) as caught:
        checked(default)
    problems = caught.value.problems or [caught.value]
    (problem,) = (e for e in problems if e.where == "training.global_batch_size")
    assert problem.exit_code == 2 and problem.got == "1" and "job.workers" in problem.expected


def test_a_workers_memory_below_its_peak_is_refused_with_both_numbers(job):
    hub = {"base": "distilbert-base-uncased"}
    full = {"global_batch_size": 512, "per_device_max_tokens": 8192}
    manager = Manager()
    manager.held = [node(32768), node(32768)]
    for framework in ("tensorflow", "torch"):
        training = full | {"framework": framework}
        with pytest.raises(ConfigError, match="NodeManager would kill it") as caught:
            checked(job(model=hub, training=training, job={"worker": {"memory": "4 GiB"}}))
        error = caught.value
        assert error.where == "job.worker.memory"
        assert error.got == "4,096 MiB"
        assert "activations of 8,192 tokens" in error.expected
        needed = float(error.remedy.removeprefix("set job.worker.memory to ").split(" GiB")[0])
        checked(
            job(model=hub, training=training, job={"worker": {"memory": f"{needed} GiB"}}), manager
        )
        with pytest.raises(ConfigError):
            less = {"memory": f"{needed - 1} GiB"}
            checked(job(model=hub, training=training, job={"worker": less}), manager)
    gpu = {"memory": "4 GiB", "gpus": 1}
    manager.held = [node(32768, gpus=1), node(32768, gpus=1)]
    checked(job(model=hub, training=full, job={"worker": gpu}), manager)  # not measured there


def test_the_defaults_have_memory_for_the_default_model(job):
    held = job(model={"base": loader.from_dict({}).model.base})
    default = held.model_copy(
        update={"yarn": loader.from_dict({}).yarn.model_copy(update={"staging": held.yarn.staging}),
                "job": loader.from_dict({}).job, "training": loader.from_dict({}).training}
    )  # fmt: skip
    manager = Manager()
    manager.held = [node(32768), node(32768)]
    for framework in ("tensorflow", "torch"):
        training = default.training.model_copy(update={"framework": framework})
        checked(default.model_copy(update={"training": training}), manager)
