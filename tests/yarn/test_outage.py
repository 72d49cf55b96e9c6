"""A NameNode that is away for "ten minutes" while an elastic job trains from and to its HDFS.

All times are a ninth of their defaults: the outage of 600 s, the wait for storage (1,800 s) and the
time for which saves may fail (60 minutes); job.hang_seconds is 8, because tests that run beside
may delay a process for seconds. If processes waited 120 s for storage, those that read a shard or
start a world would end long before the outage does.
"""

import collections
import contextlib
import json
import os
import time
import uuid

import pytest

from howdah import storage
from howdah.errors import StorageError
from howdah.storage import growing
from tests.fixtures.dataset import build_dataset
from tests.runs.jobs.local_jobs import LocalJob, kill
from tests.runs.training_runs import NO_DROPOUT, SETTINGS
from tests.runs.training_runs import _nested as nested
from tests.support.waiting import wait_until

pytestmark = pytest.mark.hadoop

LIMIT = 300  # seconds; detects a hang
SCALE = 9
AWAY_SECONDS = 600 / SCALE
COMMIT_EVERY = 5


class HdfsJob(LocalJob):
    """A LocalJob with status.json on HDFS; keeps the last status while HDFS is away."""

    seen = None

    @property
    def file(self):
        with contextlib.suppress(StorageError), storage.waiting_at_most(0.0):
            self.seen = storage.read_json(storage.join(self.remote, "job", "status.json"))
        nothing = dict.fromkeys(("state", "step", "page", "last_checkpoint"))
        return self.seen or {
            **nothing, "ranks": [], "events": [], "world_size": 0, "generation": 0
        }  # fmt: skip


@pytest.fixture
def job(cluster, hadoop_env, hdfs_dir, tiny_model_dir, tmp_path):
    """An elastic job of two workers that saves every few seconds; dataset, base and run on HDFS."""
    rows = {"train": 480}
    data = build_dataset(f"{hdfs_dir}/data/v=0", model_dir=tiny_model_dir, rows=rows)
    for name in os.listdir(tiny_model_dir):
        storage.upload(os.path.join(tiny_model_dir, name), f"{hdfs_dir}/base/{name}")
    values = SETTINGS | NO_DROPOUT | {
        "data.dataset": data.path,
        "model.base": f"{hdfs_dir}/base",
        "training.framework": "torch",
        "training.max_steps": 10**6,
        "training.num_train_epochs": 10**6,
        "training.shard_cache_directory": str(tmp_path / "cache"),
        "checkpoint.every_steps": None,
        "checkpoint.every_epoch": False,
        "checkpoint.every_minutes": 0.05,
        "checkpoint.max_failure_minutes": 60 / SCALE,
        "evaluation.every_steps": 10**6,
        "evaluation.splits": [],
        "job.hang_seconds": 8,
        "job.workers": 2,
        "job.min_workers": 1,
        "job.max_workers": 2,
        "job.commit_every": COMMIT_EVERY,
        "run.storage_retry_seconds": 1800 / SCALE,
    }  # fmt: skip
    remote = f"{hdfs_dir}/run-{uuid.uuid4().hex[:8]}"
    HdfsJob.remote = remote
    sections = nested(values)
    sections["run"] |= {"directory": remote, "name": "test"}
    with HdfsJob(
        tmp_path / "job", light=False, env={"CUDA_VISIBLE_DEVICES": ""}, **sections
    ) as one:
        yield one
        cluster.restore()  # the job's end would wait for it


def saved_step(status):
    return (status["last_checkpoint"] or {}).get("step") or 0


@pytest.mark.timeout(900)
@pytest.mark.full  # a shorter one in every run: tests/training/test_hdfs.py
def test_namenode_away_for_ten_minutes_costs_no_run_and_no_step(job, cluster):
    job.trains(2, seconds=LIMIT)
    before = job.wait(lambda s: saved_step(s) > 0, "a checkpoint", LIMIT)
    cluster.kill("namenode")
    back = time.monotonic() + AWAY_SECONDS
    # A world that forms during the outage needs no storage; run.json records it later.
    lost = next(one for one in job.status["ranks"] if one["rank"] == 1)
    kill(lost["pid"])
    job.wait(lambda s: s["generation"] > before["generation"], "a new world", LIMIT)
    wait_until(lambda: time.monotonic() >= back, seconds=AWAY_SECONDS + 60)
    away = job.status
    cluster.start("namenode")
    job.trains(2, before["generation"], seconds=LIMIT)
    target = max(away["step"], before["step"])
    after = job.wait(lambda s: saved_step(s) > target, "a checkpoint after it", LIMIT)
    assert not [what for what in job.events() if " hangs: " in what], job.events()
    assert after["restarts"] == 1, job.events()  # the rank that the test has killed
    stop = {"type": "stop", "save": True, "application": job.status["application"]}
    request = storage.join(job.remote, "job", "requests", "1-test.json")
    storage.write_whole(request, json.dumps(stop).encode())
    job.end(LIMIT)
    run = storage.read_json(storage.join(job.remote, "run.json"))
    assert len(run["attempts"]) == 1
    worlds = [world["world"] for world in run["attempts"][0]["worlds"]]
    assert worlds == sorted(worlds) and len(worlds) >= 2
    lines, _ = growing.read(storage.join(job.remote, "metrics.jsonl"))
    steps = collections.Counter(json.loads(line)["step"] for line in lines.splitlines())
    assert sorted(steps) == list(range(1, max(steps) + 1))  # no step is missing
    again = sum(count - 1 for count in steps.values())
    assert again <= COMMIT_EVERY * (len(worlds) - 1)
