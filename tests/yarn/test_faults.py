"""Faults of jobs on YARN, done for real: what is lost, how soon training goes on, what is left.

`make test` does one of each class to a torch job; the full matrix does all of them in both
frameworks, and writes docs/faults.md.
"""

import os
import re
import time
import uuid

import pytest

from howdah import storage
from howdah.models.runs.metrics_log import read_metrics
from tests.fixtures.dataset import build_dataset
from tests.runs import fault_table
from tests.runs.jobs.cluster_jobs import ClusterJob, command, runs, stop
from tests.runs.jobs.local_jobs import kill, parent
from tests.support.waiting import wait_until
from tools.minicluster.settings import PREEMPTION

pytestmark = pytest.mark.hadoop

full = pytest.mark.full
FRAMEWORKS = ["torch", pytest.param("tensorflow", marks=full)]
GOES_ON, IN_MEMORY = "newest checkpoint", "memory"


@pytest.fixture(scope="module")
def data(cluster, tiny_model_dir):
    """A base model and a dataset on HDFS."""
    path = f"/test/faults-{uuid.uuid4().hex[:8]}"  # others may use the same running cluster
    home = cluster.hdfs_url + path
    cluster.make_dir(path)
    storage.make_dirs(f"{home}/model")
    for entry in storage.list_dir(tiny_model_dir):
        storage.upload(entry.path, f"{home}/model/{entry.name}")
    rows = {"train": 960, "validation": 24}
    build_dataset(f"{home}/data", model_dir=tiny_model_dir, rows=rows)
    yield {"base": f"{home}/model", "dataset": f"{home}/data"}
    cluster.remove(path)


@pytest.fixture
def submit(healthy_cluster, hadoop_env, hdfs_dir, data, tmp_path):
    """Submits jobs, and ends them."""
    made = []

    def make(framework, *, elastic=True, **settings):
        knobs = {
            "training.framework": framework,
            "checkpoint.every_steps": fault_table.SETTINGS["checkpoint"],
            "job.hang_seconds": fault_table.SETTINGS["hang"],
            "job.commit_every": fault_table.SETTINGS["commit"],
            "job.max_restarts": 100,
        }
        if elastic:
            knobs |= {"job.min_workers": 1, "job.max_workers": 3}
        one = ClusterJob(
            healthy_cluster, f"{hdfs_dir}/run{len(made)}", tmp_path / f"{len(made)}.yaml",
            **data, **(knobs | settings),
        )  # fmt: skip
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


def measure(job, fault, harm, framework, *, gone=(), attempt=0):
    """Do it, wait until training goes on as before, and write down what it cost.

    Args:
        harm: does it.
        gone: (job) -> processes that must be gone in the end.
        attempt: of the application, that training goes on in; 0: the same as before.
    """
    status = job.trains(2, attempt=attempt - 1 if attempt else 0)
    generation, step = status["generation"], status["step"]
    doomed = list(gone(job)) if gone else []
    started = time.monotonic()
    harm()

    def later(s):
        return s["attempt"] > status["attempt"] or s["generation"] > generation

    again = job.wait(
        lambda s: later(s) and s["world_size"] and s["step"]
        and (s["step"] > step or s["attempt"] > status["attempt"]),
        f"training after: {fault}",
    )  # fmt: skip
    again_seconds = time.monotonic() - started
    whole = job.trains(2, generation, attempt=attempt)
    whole_seconds = time.monotonic() - started
    words = [event["what"] for event in whole["events"]]
    first = next(w for w in words if w.startswith(f"generation {generation + 1}:")) if (
        attempt == 0
    ) else ""  # fmt: skip
    kept = re.search(r"the state of step (\d+)", first)
    saved = (status["last_checkpoint"] or {"step": 0})["step"]
    state, resumed = (IN_MEMORY, int(kept[1])) if kept else (GOES_ON, saved)
    left = sum(map(runs, doomed)) if doomed else None
    row = fault_table.Row(
        framework, fault, max(0, step - resumed), round(again_seconds, 1),
        round(whole_seconds, 1), state, left,
    )  # fmt: skip
    fault_table.add(row)
    print(row, again["step"])
    assert not left
    return row


def check_metrics(job, resumed):
    """Every step is there once: none lost, none doubled.

    What a killed rank 0 had logged in its last ten seconds is not on HDFS yet: lines may lack just
    before the checkpoint (`resumed`) that the next attempt has gone on from.
    """
    steps = [line["step"] for line in read_metrics(job.directory) if "split" not in line]
    before = [step for step in steps if step <= resumed]
    after = [step for step in steps if step > resumed]
    assert before == list(range(1, len(before) + 1))
    assert after == list(range(resumed + 1, resumed + 1 + len(after)))


def resumed(job):
    """The step of the checkpoint that the application's last attempt has begun with."""
    lines = [line for line in read_metrics(job.directory) if "split" not in line]
    last = lines[-1]["attempt"]
    return min(line["step"] for line in lines if line["attempt"] == last) - 1


def kill_rank(job, *ranks):
    for pid in [job.rank(rank)["pid"] for rank in ranks]:
        kill(pid)


HARMS = {
    "training process of rank 1 killed": lambda job: kill_rank(job, 1),
    "training process of rank 0 killed": lambda job: kill_rank(job, 0),
    "agent killed": lambda job: kill(parent(job.rank(1)["pid"])),
    "container killed": lambda job: job.kill_container(job.rank(1)["container"]),
    "rank stopped (SIGSTOP)": lambda job: stop(job.rank(1)["pid"]),
    "all training processes killed": lambda job: kill_rank(job, 0, 1),
}
QUICK = ("training process of rank 0 killed", "container killed", "rank stopped (SIGSTOP)")


def elastic_faults(job, framework, faults):
    for fault in faults:
        ranks = (0, 1) if "all" in fault else (0,) if "rank 0" in fault else (1,)
        row = measure(
            job, fault, lambda name=fault: HARMS[name](job), framework,
            gone=lambda job, ranks=ranks: [job.rank(rank)["pid"] for rank in ranks],
        )  # fmt: skip
        if row.state == IN_MEMORY:
            assert row.repeated <= fault_table.SETTINGS["commit"] + 1


def driver_killed(job, framework):
    victims = lambda job: [p for p in job.processes() if "driver" not in command(p)]  # noqa: E731
    measure(job, "driver killed", job.kill_driver, framework, gone=victims, attempt=2)


@pytest.mark.timeout(600)  # four faults in one job
def test_one_of_each_class(submit):
    """Process, container, hang and driver: the quick run's share."""
    job = submit("torch")
    elastic_faults(job, "torch", QUICK)
    driver_killed(job, "torch")
    job.howdah("kill", job.application, "--save")
    report, _ = job.end()
    assert "KILLED" in report
    check_metrics(job, resumed(job))
    job.gone()


@full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_all_faults_of_an_elastic_job(submit, framework):
    job = submit(framework)
    elastic_faults(job, framework, HARMS)
    driver_killed(job, framework)
    job.howdah("kill", job.application, "--save")
    job.end()
    check_metrics(job, resumed(job))


@full
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_application_master_killed(submit, framework):
    job = submit(framework)
    victims = lambda job: job.processes()  # noqa: E731
    measure(job, "application master killed", job.kill_master, framework, gone=victims, attempt=2)


@full
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_resource_manager_restarts(submit, cluster, framework):
    """Work-preserving: nothing of the job notices."""
    job = submit(framework)
    before = job.trains(2)
    pids = [job.rank(rank)["pid"] for rank in (0, 1)]
    cluster.kill("resourcemanager")
    cluster.start("resourcemanager")
    after = job.wait(lambda s: (s["step"] or 0) > before["step"] + 20, "more steps")
    assert after["generation"] == before["generation"]
    assert [job.rank(rank)["pid"] for rank in (0, 1)] == pids
    kill(pids[1])
    job.trains(2, after["generation"])
    fault_table.add(fault_table.undisturbed(framework, "ResourceManager killed, back"))


AWAY_SECONDS = 180


@full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_namenode_away_for_three_minutes(submit, cluster, framework):
    """18 times hang_seconds, with saves in the middle of the steps: rank 0 waits for storage inside
    a step, the others wait for rank 0, and none of them is lost."""
    job = submit(framework, **{"checkpoint.every_steps": 20})
    before = job.trains(2)
    pids = [job.rank(rank)["pid"] for rank in (0, 1)]
    cluster.kill("namenode")
    back = time.monotonic() + AWAY_SECONDS
    wait_until(lambda: time.monotonic() >= back, seconds=AWAY_SECONDS + 60)
    cluster.start("namenode")
    saved = before["step"] + 100
    after = job.wait(
        lambda s: ((s["last_checkpoint"] or {}).get("step") or 0) > saved, "a save after it", 300
    )
    assert (after["generation"], after["attempt"]) == (before["generation"], before["attempt"])
    assert [job.rank(rank)["pid"] for rank in (0, 1)] == pids
    fault = f"NameNode away for {AWAY_SECONDS} s, saves in the steps"
    fault_table.add(fault_table.undisturbed(framework, fault))


ONE_AT_A_TIME = {"yarn.scheduler.capacity.per-node-heartbeat.multiple-assignments-enabled": "false"}


@full
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
@pytest.mark.parametrize("comes_back", [True, False])
def test_node_manager_killed(submit, cluster, framework, comes_back):
    # By itself YARN may put all of a job on the first node that asks.
    cluster.reconfigure("resourcemanager", {"capacity-scheduler": ONE_AT_A_TIME})
    for _ in range(5):  # also then both workers may be the driver's neighbours
        job = submit(framework)
        job.trains(2)
        nodes = [d for d in ("nodemanager-0", "nodemanager-1") if _hosts(job, d) == "a worker"]
        if nodes:
            break
        job.close()
    (node,) = nodes

    def harm():
        cluster.kill(node)
        if comes_back:
            cluster.start(node)

    if comes_back:  # its containers go on
        before = job.trains(2)
        harm()
        after = job.wait(lambda s: (s["step"] or 0) > before["step"] + 20, "more steps")
        assert after["generation"] == before["generation"]
        row = fault_table.undisturbed(framework, "NodeManager killed, back")
        fault_table.add(row)
    else:
        measure(job, "NodeManager killed, gone for good", harm, framework)


def _hosts(job, daemon):
    """The part of the job on a NodeManager: its driver, only workers, or nothing."""
    folders = [os.path.basename(path) for path in job.containers(daemon)]
    if any(name.endswith("_000001") for name in folders):
        return "the driver"
    return "a worker" if folders else "nothing"


@full
@pytest.mark.timeout(900)  # two jobs
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_preempted_by_another_queue(submit, cluster, framework):
    """Three workers have three quarters of the cluster; the other queue wants its half back."""
    cluster.reconfigure("resourcemanager", {"yarn-site": PREEMPTION})
    large = {"job.worker.memory": "3 GiB"}
    job = submit(framework, **large, **{"job.workers": 3, "yarn.queue": "default"})
    status = job.trains(3, seconds=240)
    started = time.monotonic()
    other = submit(framework, elastic=False, **{
        "job.workers": 1, "job.worker.memory": "2560 MiB", "yarn.queue": "batch",
        "training.max_steps": 20, "evaluation.splits": [],
    })  # fmt: skip
    after = job.wait(lambda s: s["preemptions"] and s["world_size"] in (1, 2), "preemption", 240)
    seconds = time.monotonic() - started
    step = after["step"]
    job.wait(lambda s: s["step"] > step, "steps of those that are left")
    assert after["restarts"] == 0
    report, _ = other.end(240)
    assert "Final-State : SUCCEEDED" in report, other.story()
    whole = job.trains(3, status["generation"], 240)
    assert whole["restarts"] == 0
    fault = "container preempted (from the other queue's submission)"
    row = fault_table.Row(framework, fault, None, round(seconds, 1), None, IN_MEMORY, None)
    fault_table.add(row)


@full  # without YARN in every run: tests/jobs/test_local.py
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_static_job_ends_with_its_cause(submit, framework):
    job = submit(framework, elastic=False, **{"job.max_restarts": 0})
    job.trains(2)
    victim = job.rank(1)
    started = time.monotonic()
    kill(victim["pid"])
    report, status = job.end(60)
    seconds = time.monotonic() - started
    assert status["exit_code"] == 6
    assert "killed by signal 9" in status["error"]["what"]
    assert victim["node"] in status["error"]["what"]
    assert "Final-State : FAILED" in report
    assert status["error"]["what"].split(":")[0] in report
    job.gone()
    row = fault_table.Row(framework, "static job: rank 1 killed, it ends", None, None,
                          round(seconds, 1), "-", len(job.processes()))  # fmt: skip
    fault_table.add(row)


@full
@pytest.mark.timeout(900)
def test_two_jobs_that_each_half_fit_both_end_well(submit):
    """Each node has room for one worker: a job that holds one of two must give it back."""
    settings = {
        "job.worker.memory": "4 GiB", "job.gang_seconds": 20,
        "training.max_steps": 10, "evaluation.splits": [],
    }  # fmt: skip
    jobs = [submit("torch", elastic=False, **settings) for _ in range(2)]
    for job in jobs:
        report, status = job.end(400)
        assert status["state"] == "finished", report
        assert "Final-State : SUCCEEDED" in report


@full
def test_the_table_is_written():
    """Last of this file: all that was measured goes into docs/faults.md."""
    fault_table.write()
    assert fault_table.PAGE.read_text().count("\n|") > 2
