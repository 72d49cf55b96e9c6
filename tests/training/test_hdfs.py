"""Training from and to real HDFS: the same as on local disk, and what its daemons do to it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid

import numpy as np
import pytest

from howdah import storage
from howdah.data.splits.shard_cache import ShardCache
from howdah.data.splits.shards import ShardSet
from howdah.errors import SafeMode, StorageFull
from howdah.models.runs.identity import Identity
from howdah.training.checkpoint import write as checkpoint_write
from howdah.training.checkpoint.fence import Fence
from howdah.training.checkpoint.manager import Checkpoints
from howdah.training.checkpoint.read import load
from tests.fixtures.dataset import build_dataset
from tests.runs.training_runs import ROOT, SETTINGS, launcher
from tests.runs.training_runs import _nested as nested
from tests.support.waiting import wait_until
from tests.workers.die_at import POINTS

pytestmark = pytest.mark.hadoop

LIMIT = 200  # seconds; detects a hang
IDENTITY = Identity(base_model="b", dataset="d", tokenizer="t", labels=("x",), plan="p")


@pytest.fixture(scope="module")
def remote(cluster, tiny_model_dir):
    """(dataset, base model) on HDFS."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(cluster.conf_dir))
        cluster.restore()
        top = f"{cluster.hdfs_url}/training-{uuid.uuid4().hex[:12]}"
        dataset = build_dataset(f"{top}/data/v=0", model_dir=tiny_model_dir)
        for name in os.listdir(tiny_model_dir):
            storage.upload(os.path.join(tiny_model_dir, name), f"{top}/base/{name}")
        yield dataset, f"{top}/base"
        cluster.restore()
        storage.remove(top, recursive=True)


class Job:
    """A training in processes of its own, everything of it on HDFS."""

    def __init__(self, argv: list[str], directory: str, env: dict[str, str]) -> None:
        self.directory = directory
        path = os.path.dirname(sys.executable) + os.pathsep + env["PATH"]
        self.process = subprocess.Popen(
            argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=env | {"PATH": path, "PYTHONPATH": ROOT, "CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        self.output = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.output += line

    def end(self) -> int:
        code = self.process.wait(LIMIT)
        self._reader.join(LIMIT)
        return code

    def wait_for(self, pattern: str) -> None:
        """Wait until a line matches; the test fails if the job ends without one."""
        deadline = time.monotonic() + LIMIT
        while not re.search(pattern, self.output, re.MULTILINE):
            if not self._reader.is_alive() or time.monotonic() > deadline:
                pytest.fail(f"never said {pattern!r}:\n{self.output}")
            time.sleep(0.05)

    def saved(self) -> list[int]:
        return [one.step for one in Checkpoints(self.directory + "/checkpoints").list()]

    def run_json(self) -> dict:
        return storage.read_json(self.directory + "/run.json")


@pytest.fixture
def start(tmp_path, remote, cluster, hadoop_env, hdfs_dir):
    """Starts `howdah train` (or, with `die`, bare ranks that kill themselves) on HDFS."""
    jobs = []

    def go(
        *, np_=1, framework="torch", kind="mpirun", directory=hdfs_dir + "/run", die=(), env=None,
        **settings,
    ):  # fmt: skip
        dataset, base = remote
        values = SETTINGS | {
            "run.directory": directory,
            "data.dataset": dataset.path,
            "model.base": base,
            "training.framework": framework,
            "training.shard_cache_directory": str(tmp_path / "cache"),
        } | settings  # fmt: skip
        config = str(tmp_path / f"given-{len(jobs)}.yaml")
        with open(config, "w", encoding="utf-8") as file:
            json.dump(nested(values), file)
        if die:
            rank = [sys.executable, "tests/workers/die_at.py", *map(str, die), "--config", config]
            argv = [*launcher(kind, np_), *rank]
        else:
            argv = [sys.executable, "-m", "howdah.cli", "train", "--config", config,
                    "--np", str(np_)]  # fmt: skip
        job = Job(argv, directory, cluster.env | (env or {}))
        jobs.append(job)
        return job

    yield go
    for job in jobs:
        if job.process.poll() is None:
            job.process.terminate()
            try:
                job.process.wait(60)
            except subprocess.TimeoutExpired:
                job.process.kill()
                job.process.wait()


# ---------------------------------------------------------------------------------- a whole run
@pytest.mark.mpi
@pytest.mark.full  # in every run: ranks on YARN with all on HDFS (tests/yarn), resumed bits on disk
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_run_on_hdfs_is_the_run_on_local_disk(start, tmp_path, framework, remote):
    settings = {"tracking.tensorboard": True, "training.lr_scheduler_type": "constant"}
    local = start(
        np_=2, framework=framework, directory=str(tmp_path / "run"),
        **settings, **{"data.dataset": _copied(remote[0], tmp_path)},
    )  # fmt: skip
    assert local.end() == 0, local.output
    job = start(np_=2, framework=framework, **settings, **{"training.max_steps": 5})
    assert job.end() == 0, job.output
    assert job.run_json()["steps"] == 5
    again = start(np_=2, framework=framework, **settings)
    assert again.end() == 0, again.output
    assert "resuming from checkpoint step-5" in again.output
    ours, theirs = (
        load(storage.join(run.directory, "checkpoints", "step-10")).tensors for run in (job, local)
    )
    assert ours.keys() == theirs.keys()
    for name in ours:  # one interrupted and on HDFS, the other neither
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    run = again.run_json()
    assert (run["status"], run["steps"], run["world_size"]) == ("finished", 10, 2)
    names = _tree(job.directory)
    for name in ("config.yaml", "run.json", "metrics.jsonl", "report.html", "logs/rank.0",
                 "logs/rank.1", "export/model.safetensors", "export/howdah.json",
                 "predictions/validation/part-00000.parquet",
                 "predictions/validation/part-00001.parquet"):  # fmt: skip
        assert name in names, sorted(names)
    assert any(name.startswith("tensorboard/") for name in names)
    steps = [json.loads(line) for line in
             storage.read_text(job.directory + "/metrics.jsonl").splitlines()]  # fmt: skip
    assert {line["step"] for line in steps} >= set(range(1, 11))


def _copied(dataset, tmp_path) -> str:
    """The same bytes on local disk: the order of the rows goes by the manifest."""
    target = str(tmp_path / "data" / "v=0")
    for item in storage.list_dir(dataset.path):
        storage.download(item.path, os.path.join(target, item.name))
    return target


def _tree(top: str) -> set[str]:
    names = set()
    for item in storage.list_dir(top, unfinished=True):
        if item.is_dir:
            names |= {f"{item.name}/{name}" for name in _tree(item.path)}
        else:
            names.add(item.name)
    return names


@pytest.mark.mpi
@pytest.mark.full  # the cache's own tests are in every run
def test_a_dataset_larger_than_the_cache_is_read_as_the_one_on_local_disk(
    start, tmp_path, tiny_model_dir, hdfs_dir
):
    """40 shards, of which a window of the plan reads from 24 at most."""
    rows = {"train": 960, "validation": 24}
    far = build_dataset(f"{hdfs_dir}/data/v=0", model_dir=tiny_model_dir, rows=rows, shards=40)
    shards = ShardSet(far, "train", cache=ShardCache(str(tmp_path / "probe")))
    limit = sum(sorted(shards.files.sizes)[-24:]) + shards.files.index_bytes
    settings = {"training.global_batch_size": 4, "training.max_steps": 60,
                "checkpoint.every_steps": 60, "training.shard_cache_bytes": limit}  # fmt: skip
    job = start(np_=2, **settings, **{"data.dataset": far.path})
    assert job.end() == 0, job.output
    assert "the dataset does not fit the shard cache" in job.output
    place = tmp_path / "cache" / far.manifest.dataset_hash
    assert sum(os.stat(place / name).st_size for name in os.listdir(place)) <= limit
    local = start(
        np_=2, directory=str(tmp_path / "run"), **settings,
        **{"data.dataset": _copied(far, tmp_path)},
    )  # fmt: skip
    assert local.end() == 0, local.output
    ours, theirs = (
        load(storage.join(run.directory, "checkpoints", "step-60")).tensors for run in (job, local)
    )
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    small = start(np_=2, **settings | {"training.shard_cache_bytes": limit - 1},
                  **{"data.dataset": far.path, "checkpoint.resume": "never"})  # fmt: skip
    assert small.end() == 2
    assert "the shard cache is too small" in small.output
    assert f"at least {limit} bytes" in small.output


@pytest.mark.full
def test_a_run_on_hdfs_is_evaluated_exported_and_used_from_there(start, cluster, hdfs_dir):
    job = start()
    assert job.end() == 0, job.output
    run = job.directory

    def howdah(*words: str) -> dict:
        done = subprocess.run(
            [sys.executable, "-m", "howdah.cli", *words, "--json"], cwd=ROOT, text=True,
            env=cluster.env | {"PYTHONPATH": ROOT}, capture_output=True, timeout=LIMIT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    config = f"{run}/config.yaml"
    metrics = howdah("evaluate", "--config", config, "--split", "validation")
    measured = job.run_json()["metrics"]["validation"]
    assert _value_of(metrics, "accuracy") == pytest.approx(measured["accuracy"], abs=1e-6)
    howdah("export", "--config", config, "--output", f"{hdfs_dir}/exported")
    assert "model.safetensors" in _tree(f"{hdfs_dir}/exported")
    rows = "".join(json.dumps({"text": text}) + "\n" for text in ("one", "two", "three"))
    storage.write_whole(f"{hdfs_dir}/rows.jsonl", rows.encode())
    howdah("predict", "--model", f"{hdfs_dir}/exported", "--source", f"{hdfs_dir}/rows.jsonl",
           "--output", f"{hdfs_dir}/predicted.jsonl")  # fmt: skip
    assert len(storage.read_text(f"{hdfs_dir}/predicted.jsonl").splitlines()) == 3


def _value_of(value, key: str):
    """The key's value, wherever in the object it is."""
    if not isinstance(value, dict):
        return None
    hits = [value[key]] if key in value else [_value_of(inner, key) for inner in value.values()]
    return next((hit for hit in hits if hit is not None), None)


# --------------------------------------------------------------------------------- kill points
@pytest.mark.parametrize(
    ("point", "np_"),
    # One in every run; all, without a training, on every storage: tests/storage/test_commit.py
    [pytest.param(point, 1, marks=[] if point == "before-rename" else pytest.mark.full)
     for point in POINTS]
    + [pytest.param(point, 2, marks=[pytest.mark.mpi, pytest.mark.full]) for point in POINTS],
)  # fmt: skip
def test_rank_0_killed_while_it_saves_loses_no_checkpoint_and_leaves_no_litter(start, point, np_):
    """Steps 4 and 8 are whole when the save of step 12 is killed."""
    settings = {"training.max_steps": 16, "checkpoint.keep": 2, "evaluation.every_steps": 100}
    job = start(np_=np_, die=(point, 12), **settings)
    code = job.end()
    assert code == (-signal.SIGKILL if np_ == 1 else 137), job.output
    checkpoints = Checkpoints(job.directory + "/checkpoints")
    whole = 12 if point == "before-prune" else 8
    assert checkpoints.latest().step == whole  # by its hashes
    again = start(np_=np_, **settings)
    assert again.end() == 0, again.output
    assert f"resuming from checkpoint step-{whole}" in again.output
    assert again.saved()[0] == 16
    names = {item.name for item in storage.list_dir(checkpoints.directory, unfinished=True)}
    assert names == {f"step-{step}" for step in again.saved()}
    assert again.run_json()["attempts"][-1]["resumed_at_step"] == whole


# ------------------------------------------------------------------------------------- daemons
def opened(directory: str, keep: int = 3) -> tuple[Checkpoints, list[str]]:
    lines: list[str] = []
    fence = Fence.take(directory)
    return Checkpoints(directory + "/checkpoints", keep=keep, fence=fence, say=lines.append), lines


def save(checkpoints: Checkpoints, step: int, megabytes: int = 1) -> None:
    rng = np.random.default_rng(step)
    arrays = {"model/w": rng.random(megabytes * 2**18, np.float32), "adam_m/w": np.zeros(9, "f4")}
    meta = {"plan": {"plan_hash": "p", "epoch": 0, "step": step}}
    checkpoints.save(step, arrays, meta, identity=IDENTITY, wait=True)


class Midway:
    """A file that lets something happen once, when some bytes have gone through."""

    def __init__(self, file, at: int, happen) -> None:
        self._file, self._at, self._happen = file, at, happen
        self._count = 0

    def write(self, data) -> int:
        self._count += len(data)
        if self._happen is not None and self._count >= self._at:
            self._file.flush()
            happen, self._happen = self._happen, None
            happen()
        return self._file.write(data)


def happening(monkeypatch, happen) -> list[int]:
    """Lets it happen in the middle of the next file of tensors; the list has a 1 a try."""
    real, tries = checkpoint_write.write_tensors, []

    def write_tensors(file, tensors):
        tries.append(1)
        return real(Midway(file, 2**23, happen) if len(tries) == 1 else file, tensors)

    monkeypatch.setattr(checkpoint_write, "write_tensors", write_tensors)
    return tries


@pytest.mark.full
def test_datanodes_killed_in_the_middle_of_a_write(hdfs_dir, hadoop_env, cluster, monkeypatch):
    """Two of three die: whichever hold the block that is being written, one at least is hit."""
    checkpoints, _ = opened(hdfs_dir)
    save(checkpoints, 1)
    # Blocks have two copies here: what is there already is to survive these two.
    cluster.run("hdfs", "dfs", "-setrep", "-w", "3", checkpoints.directory)

    def happen():
        cluster.kill("datanode-0")
        cluster.kill("datanode-1")

    happening(monkeypatch, happen)
    save(checkpoints, 2, megabytes=48)
    check_whole(checkpoints, 2, megabytes=48)


def check_whole(checkpoints: Checkpoints, step: int, megabytes: int = 1) -> None:
    """The newest is `step`, as it was given to `save`, and nothing unfinished lies about."""
    latest = Checkpoints(checkpoints.directory).latest(IDENTITY)
    assert latest.step == step
    rng = np.random.default_rng(step)
    expected = rng.random(megabytes * 2**18, np.float32)
    np.testing.assert_array_equal(latest.tensors["model/w"], expected)
    for item in storage.list_dir(checkpoints.directory, unfinished=True):
        assert re.fullmatch(r"step-\d+", item.name), item.name
        inside = {one.name for one in storage.list_dir(item.path, unfinished=True)}
        assert inside == {"model.safetensors", "optimizer.safetensors", "meta.json",
                          "manifest.json"}  # fmt: skip


@pytest.mark.full  # in every run: one that is away for a while
def test_a_namenode_that_restarts_in_the_middle_of_a_save(
    hdfs_dir, hadoop_env, cluster, monkeypatch, capfd
):
    checkpoints, _ = opened(hdfs_dir)
    save(checkpoints, 1)
    back = threading.Timer(3.0, cluster.start, ["namenode"])

    def happen():
        cluster.kill("namenode")
        back.start()

    happening(monkeypatch, happen)
    try:
        save(checkpoints, 2, megabytes=16)
    finally:
        back.join()
    errors = capfd.readouterr().err
    assert errors.count("trying again for up to") == 1
    assert errors.count("answers again after") == 1
    check_whole(checkpoints, 2, megabytes=16)


def test_a_namenode_in_safe_mode_is_a_typed_error_and_the_old_checkpoint_stays(
    hdfs_dir, hadoop_env, cluster, monkeypatch
):
    monkeypatch.setenv("HOWDAH_STORAGE_RETRY_SECONDS", "1")
    checkpoints, _ = opened(hdfs_dir)
    save(checkpoints, 1)
    cluster.run("hdfs", "dfsadmin", "-safemode", "enter")
    try:
        with pytest.raises(SafeMode, match="step-2 could not be saved") as caught:
            save(checkpoints, 2)
        assert caught.value.exit_code == 5
        assert "safe mode" in caught.value.got and "tried again for" in caught.value.got
        assert Checkpoints(checkpoints.directory).latest(IDENTITY).step == 1
    finally:
        cluster.run("hdfs", "dfsadmin", "-safemode", "leave")
    save(checkpoints, 3)
    check_whole(checkpoints, 3)


@pytest.mark.parametrize("found_by", ["us", "the NameNode"])
def test_a_quota_that_is_used_up_tells_path_needed_and_free(
    hdfs_dir, hadoop_env, cluster, monkeypatch, found_by
):
    checkpoints, _ = opened(hdfs_dir)
    save(checkpoints, 1)
    place = checkpoints.directory.removeprefix(cluster.hdfs_url)
    # Room for one replica of what is written, by count of bytes; HDFS wants a whole block.
    quota = 2**20 if found_by == "us" else 2**26
    cluster.run("hdfs", "dfsadmin", "-setSpaceQuota", str(quota + 2**21), place)
    with pytest.raises(StorageFull, match="not enough space for checkpoint step-2") as caught:
        save(checkpoints, 2, megabytes=8)
    error = caught.value
    assert error.exit_code == 5
    assert error.where == checkpoints.directory
    assert error.expected == "9 MiB free"
    assert "free" in error.got
    check_whole(checkpoints, 1)
    cluster.run("hdfs", "dfsadmin", "-clrSpaceQuota", place)
    save(checkpoints, 3)
    check_whole(checkpoints, 3)


ENDLESS = {"training.max_steps": 1_000_000, "checkpoint.every_steps": 20,
           "checkpoint.every_epoch": False, "evaluation.every_steps": 1_000_000}  # fmt: skip


def test_training_goes_on_while_the_namenode_is_away_and_saves_when_it_is_back(start, cluster):
    """A save waits for storage by default; here it gives up at once, and the run goes on."""
    job = start(env={"HOWDAH_STORAGE_RETRY_SECONDS": "1"}, **ENDLESS)
    wait_until(job.saved, LIMIT)  # the first one is whole: the shown step may still be on its way
    cluster.run("hdfs", "dfsadmin", "-safemode", "enter")
    job.wait_for("failure 1 in a row")
    assert "trying again for up to 1 s" in job.output
    before = Checkpoints(job.directory + "/checkpoints").latest().step
    cluster.run("hdfs", "dfsadmin", "-safemode", "leave")
    wait_until(lambda: job.saved()[0] > before, LIMIT)
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143, job.output
    newest = Checkpoints(job.directory + "/checkpoints").latest().step
    assert f"the newest checkpoint is step-{newest}" in job.output.split("howdah: ")[-1]
    assert job.run_json()["status"] == "interrupted"


@pytest.mark.full  # the typed error of a full quota is in every run
def test_a_run_whose_quota_is_full_ends_with_5_and_goes_on_when_there_is_room(start, cluster):
    job = start(**ENDLESS | {"checkpoint.max_failure_minutes": 0.02})
    job.wait_for("^step 20/")
    place = job.directory.removeprefix(cluster.hdfs_url) + "/checkpoints"
    wait_until(job.saved, LIMIT)
    cluster.run("hdfs", "dfsadmin", "-setSpaceQuota", "1", place)
    assert job.end() == 5, job.output
    last = job.output.split("howdah: ")[-1]
    assert "not enough space for checkpoint" in last and place in last and "free" in last
    assert "Traceback" not in job.output
    newest = job.saved()[0]
    assert Checkpoints(job.directory + "/checkpoints").latest().step == newest
    cluster.run("hdfs", "dfsadmin", "-clrSpaceQuota", place)
    again = start(**ENDLESS | {"training.max_steps": newest + 5})
    assert again.end() == 0, again.output
    assert f"resuming from checkpoint step-{newest}" in again.output
    assert again.saved()[0] == newest + 5


def test_a_run_of_another_user_writes_files_of_that_user(start, cluster):
    job = start(**{"run.user": "bob", "training.max_steps": 2})
    assert job.end() == 0, job.output
    inner = job.directory.removeprefix(cluster.hdfs_url)
    paths = [f"{inner}/{name}" for name in ("run.json", "export", "checkpoints/step-2")]
    assert cluster.run("hdfs", "dfs", "-stat", "%u", *paths).stdout.split() == ["bob"] * 3
