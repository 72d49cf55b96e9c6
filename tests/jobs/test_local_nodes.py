"""A full disk and a broken GPU on one of several nodes, with real processes: a worker is lost, not
the job. First with light workers, then with real training."""

import json
import os
import subprocess
from contextlib import contextmanager, nullcontext

import pytest

from howdah.attempts import newest_fence
from howdah.models.runs.metrics_log import read_metrics
from tests.fixtures.dataset import build_dataset
from tests.runs.jobs.local_jobs import LocalJob, kill, parent
from tests.runs.training_runs import NO_DROPOUT, ROOT, SETTINGS, _nested
from tests.support.jobs.steps import check_state
from tests.support.waiting import wait_until

ENDLESS = 10**6


@contextmanager
def small_disk(directory, kilobytes=512):
    """A file system of its own, of so much room."""
    directory.mkdir(parents=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(directory)],
        capture_output=True, text=True, check=False,
    ) if os.geteuid() == 0 else None  # fmt: skip
    if made is None or made.returncode != 0:
        pytest.skip("no small file system can be mounted here: that takes root")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@contextmanager
def job(directory, fault, *, steps=ENDLESS, nodes="a,b,c", **job_keys):
    one = LocalJob(
        directory, nodes=nodes, env={"FAULT": json.dumps(fault)}, training={"max_steps": steps},
        job={"commit_every": 5, **job_keys},
    )  # fmt: skip
    with one:
        yield one


def elastic(directory, fault):
    return job(directory, fault, workers=3, min_workers=1, max_workers=3, node_failures=1)


def events_with(one, words):
    return [event for event in one.events() if words in event]


def test_a_full_disk_ends_one_worker_of_an_elastic_job(tmp_path):
    with small_disk(tmp_path / "job1" / "nodes" / "b"):
        with elastic(tmp_path, {"do": "disk", "step": 20}) as one:
            status = one.wait(lambda s: s.get("restarts") == 1, "the loss")
            status = one.trains(3, 1)
            assert "b" not in {rank["node"] for rank in status["ranks"]}
            assert events_with(one, "node b is excluded; failures of workers there: 1,")
            assert "No space left on device" in events_with(one, "node b is excluded")[0]
            survivors = {row["pid"] for row in one.did() if row["generation"] == 1}
            assert len(survivors & {rank["pid"] for rank in status["ranks"]}) == 2
            # The next container lies on that node again: it is given back, and another one asked.
            kill(parent(one.rank(2)["pid"]))
            one.wait(lambda s: events_with(one, "is released: node b is excluded"), "a refusal")
            status = one.trains(3, status["generation"] + 1)
            assert "b" not in {rank["node"] for rank in status["ranks"]}
            assert status["restarts"] <= 2
            check_state(one)
        wait_until(lambda: not one.processes())


@pytest.mark.full  # in every run: elastic, above; static with a broken GPU, below
def test_a_full_disk_sends_a_static_job_to_other_nodes(tmp_path):
    with small_disk(tmp_path / "job1" / "nodes" / "b"):
        fault = {"do": "disk", "step": 20}
        with job(tmp_path, fault, steps=60, workers=2, max_restarts=1, node_failures=1) as one:
            code, verdict, status = one.end()
            assert (code, verdict["status"], status["tries"]) == (0, "SUCCEEDED", 2)
            assert events_with(one, "node b is excluded")
            worlds = {row["env"]["HOROVOD_HOSTNAME"] for row in one.did()
                      if row["what"] == "world" and row["generation"] == 2}  # fmt: skip
            assert worlds == {"a", "c"}
            check_state(one)


@pytest.mark.full  # in every run: a full disk, above, and a broken GPU under real training, below
def test_a_broken_gpu_ends_one_of_three_workers_of_an_elastic_job(tmp_path):
    with elastic(tmp_path, {"do": "gpu", "rank": 1, "step": 20}) as one:
        status = one.trains(3, 1)
        assert (status["restarts"], status["error"]) == (1, None)
        assert "uncorrectable ECC error" in events_with(one, "is excluded")[0]
        assert events_with(one, "is being replaced")
        survivors = {row["pid"] for row in one.did() if row["generation"] == 1}
        assert len(survivors & {rank["pid"] for rank in status["ranks"]}) == 2
        check_state(one)


@pytest.mark.full  # in every run with real training: below
def test_a_broken_gpu_costs_a_static_job_a_try(tmp_path):
    fault = {"do": "gpu", "rank": 1, "step": 20}
    with job(tmp_path, fault, steps=60, workers=3, max_restarts=1) as one:
        code, _, status = one.end()
        assert (code, status["tries"], status["state"]) == (0, 2, "finished")
        assert len(events_with(one, "is being replaced")) == 1
        check_state(one)


def test_the_same_error_at_the_same_step_on_another_node_ends_the_job(tmp_path):
    fault = {"do": "gpu", "rank": 1, "step": 20, "always": 1}
    with job(tmp_path, fault, workers=2, max_restarts=4) as one:
        code, verdict, status = one.end()
        assert (code, verdict["status"], status["tries"]) == (6, "FAILED", 2)
        assert "uncorrectable ECC" in status["error"]["what"]
        assert "at the same step (20)" in status["error"]["where"]
        assert "the same on node" in status["error"]["where"]


# ------------------------------------------------------------------------------ real training
def disk_of_b(tmp_path, small):
    """A disk of node b's own, full or not: what lies there tells its processes, too."""
    directory = tmp_path / "job" / "job1" / "nodes" / "b"
    if small:
        return small_disk(directory)
    directory.mkdir(parents=True)
    return nullcontext()


@pytest.mark.mpi
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        # With light workers in every run: above.
        pytest.param("full disk", "elastic", marks=pytest.mark.full),
        ("broken GPU", "static"),
        pytest.param("full disk", "static", marks=pytest.mark.full),
        pytest.param("broken GPU", "elastic", marks=pytest.mark.full),
    ],
)
def test_real_training_goes_on_without_the_node(tmp_path, tiny_model_dir, fault, kind):
    """Compressed shards are unpacked into a cache on the disk of node b, which has no room."""
    build_dataset(
        str(tmp_path / "data"), model_dir=tiny_model_dir, rows={"train": 9600, "validation": 24},
        compression="gzip",
    )  # fmt: skip
    values = SETTINGS | NO_DROPOUT | {
        "data.dataset": str(tmp_path / "data"), "model.base": tiny_model_dir,
        "training.framework": "torch", "training.max_steps": 40, "training.num_train_epochs": 10**6,
        "checkpoint.every_steps": 10, "evaluation.splits": [],
    }  # fmt: skip
    path = os.pathsep.join([os.path.join(ROOT, "tests", "workers", "broken"), str(ROOT)])
    env = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path, "HOWDAH_CACHE": str(tmp_path / "cache")}
    job_keys = {"workers": 3, "commit_every": 5, "node_failures": 1}
    if fault == "broken GPU":
        env["BROKEN"] = "b:15"
    job_keys |= {"min_workers": 1, "max_workers": 3} if kind == "elastic" else {"max_restarts": 1}
    with disk_of_b(tmp_path, fault == "full disk"):
        with LocalJob(
            tmp_path / "job", light=False, nodes="a,b,c", env=env, job=job_keys, **_nested(values)
        ) as one:
            code, verdict, status = one.end(500)
            assert (code, verdict["status"], status["state"]) == (0, "SUCCEEDED", "finished")
            message = "uncorrectable ECC" if fault == "broken GPU" else "no room on the disk"
            assert any(message in event for event in events_with(one, "node b is excluded")), (
                one.events()
            )
            assert status["restarts" if kind == "elastic" else "tries"] == (
                1 if kind == "elastic" else 2
            )
        steps = [line["step"] for line in read_metrics(str(one.run_directory))
                 if "split" not in line]  # fmt: skip
        assert steps == list(range(1, 41))
        fence = newest_fence(str(one.run_directory))  # of this attempt: the agent passed it on
        assert (fence["application"], fence["application_attempt"]) == ("local_1", 1)
        wait_until(lambda: not one.processes())
