"""How long calls to storage are retried, and calls that reach it after they timed out."""

import os
import subprocess
import sys
import threading
import time
import types

import pytest

from howdah import storage
from howdah.config.loader import from_dict
from howdah.core import activity
from howdah.errors import StorageUnavailable
from howdah.faults import typed
from howdah.storage import backends, base, growing, retry
from howdah.storage.calls import TimedCalls
from howdah.storage.local import LocalStorage
from tests.support.waiting import wait_until

LIMIT = 60.0  # seconds; detects a hang


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch):
    """No retry limit is configured inside the test."""
    monkeypatch.setitem(os.environ, retry.ENVIRONMENT, "")
    monkeypatch.delenv(retry.ENVIRONMENT)
    monkeypatch.setattr(storage, "_set_by_us", {})


# ---------------------------------------------------------------------------------- how long
def test_a_command_waits_two_minutes_and_a_job_half_an_hour():
    storage.configure(retry_seconds=from_dict({}).run.storage_retry_seconds)
    assert retry.limit_seconds() == 120
    storage.be_patient()
    assert retry.limit_seconds() == 1800
    code = "from howdah.storage import retry; print(retry.limit_seconds())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1800.0"  # a rank that an agent starts inherits it


@pytest.mark.parametrize("by", ["configuration", "environment"])
def test_a_configured_limit_wins_everywhere(by, monkeypatch):
    config = from_dict({"run": {"storage_retry_seconds": 7.0}})
    if by == "environment":
        config = from_dict({})
        monkeypatch.setenv(retry.ENVIRONMENT, "7")
    storage.configure(retry_seconds=config.run.storage_retry_seconds)
    storage.be_patient()
    assert retry.limit_seconds() == 7


@pytest.mark.parametrize("role", ["driver", "agent"])
def test_driver_and_workers_are_patient(role, tmp_path, monkeypatch):
    from howdah.yarn import __main__ as roles

    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text("{}")
    roles._load()
    assert retry.limit_seconds() == 1800
    (tmp_path / "run.yaml").write_text(
        f"job: {{env: {{{retry.ENVIRONMENT}: '9'}}}}\n"  # the place for a container's environment
    )
    monkeypatch.delenv(retry.ENVIRONMENT)
    roles._load()
    assert retry.limit_seconds() == 9


@pytest.mark.parametrize(("seconds_given", "seconds"), [(None, "1800.0"), (7.0, "7.0")])
def test_spark_s_executors_are_patient_and_trust_the_same(
    seconds_given, seconds, tmp_path, monkeypatch
):
    from howdah.spark import shipping

    made = types.SimpleNamespace(
        environment=lambda *_, **__: "env", wheel=lambda: "wheel",
        zipped=lambda _, name, pattern, *__: f"{name}/{pattern}",
    )  # fmt: skip
    monkeypatch.setattr(shipping, "package", made)
    place = types.SimpleNamespace(put=lambda what, *_: f"hdfs://nn/{what}")
    monkeypatch.setattr(shipping, "ready", lambda *_: place)
    config = from_dict({"yarn": {"staging": str(tmp_path)}})
    storage.configure(retry_seconds=seconds_given)
    (tmp_path / "our site.pem").touch()
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "our site.pem"))
    conf = shipping.ship(config, "etl", lambda line: None).conf
    assert conf[f"spark.executorEnv.{retry.ENVIRONMENT}"] == seconds
    archives = conf["spark.yarn.dist.archives"].split(",")
    assert archives[1:] == ["hdfs://nn/authorities/our site.pem#authorities"]
    for prefix in ("spark.executorEnv", "spark.yarn.appMasterEnv"):
        assert conf[f"{prefix}.REQUESTS_CA_BUNDLE"] == "./authorities/our site.pem"
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    conf = shipping.ship(config, "etl", lambda line: None).conf
    assert not [key for key in conf if "REQUESTS_CA_BUNDLE" in key]
    assert "authorities" not in conf["spark.yarn.dist.archives"]


def test_what_is_said_of_waiting_has_no_token(monkeypatch):
    lines = []
    monkeypatch.setattr(retry, "say", lines.append)
    monkeypatch.setattr(retry, "_FIRST_PAUSE", 0.0)
    causes = iter([StorageUnavailable("away", got="/webhdfs/v1/x?op=OPEN&delegation=HQAFYWxpY2U")])

    def once_away():
        for cause in causes:
            raise cause
        return "read"

    assert retry.run("hdfs://nn:1/x", once_away) == "read"
    assert "op=OPEN" in lines[0] and "HQAFYWxpY2U" not in lines[0] and "again" in lines[1]


def test_a_thread_may_wait_less_than_the_process():
    storage.be_patient()
    tried = []

    def away():
        tried.append(1)
        raise StorageUnavailable("away")

    other = []
    with storage.waiting_at_most(0.0):
        with storage.waiting_at_most(5.0):  # inside a shorter wait there is no longer one
            assert retry.limit_seconds() == 0
        with pytest.raises(StorageUnavailable):
            retry.run("hdfs://nn:1/x", away)
        thread = threading.Thread(target=lambda: other.append(retry.limit_seconds()))
        thread.start()
        thread.join()
    assert (len(tried), other, retry.limit_seconds()) == (1, [1800.0], 1800.0)


def test_a_listing_calls_a_storage_that_is_away_once():
    calls = []

    def away(path):
        calls.append(path)
        raise StorageUnavailable("away")

    def ask(path):
        with pytest.raises(StorageUnavailable):
            retry.run(path, lambda: away(path))

    paths = ["hdfs://one:1/a", "hdfs://one:1/b", "hdfs://two:1/a"]
    with storage.waiting_at_most(0.0, once=True):
        with storage.waiting_at_most(0.0, once=True):
            ask(paths[0])
        for path in paths:
            ask(path)
        assert retry.run("hdfs://three:1/a", lambda: "read") == "read"
    assert calls == [paths[0], paths[2]]
    with storage.waiting_at_most(0.0):
        ask(paths[1])  # as ever, once the listing is over
    assert calls[2:] == [paths[1]]


# ------------------------------------------------------------------------------ late calls
class LateStorage(LocalStorage):
    """A server whose answers to calls in `slow` do not come in time; the calls are done later."""

    def __init__(self):
        self.calls, self.slow = TimedCalls(), set()
        self.arrive = {kind: threading.Event() for kind in ("create", "rename", "remove")}
        self.sent, self.done = [], []

    def _sent(self, kind, path, call):
        if kind not in self.slow:
            return call()
        self.sent.append(kind)

        def arrives():
            self.arrive[kind].wait()
            try:
                return call()
            finally:
                self.done.append(kind)

        with typed(path, kind):
            return self.calls.run(arrives, 0.05)

    arrives_late = True

    def open_write(self, path, mode=None):
        return self._sent("create", path, lambda: super(LateStorage, self).open_write(path, mode))

    def remove(self, path, recursive):
        return self._sent("remove", path, lambda: super(LateStorage, self).remove(path, recursive))

    def rename(self, source, target, *, replace):
        rename = super().rename
        return self._sent("rename", target, lambda: rename(source, target, replace=replace))

    def arrive_now(self):
        for kind, event in self.arrive.items():  # renames first, which is worse
            event.set()
            wait_until(lambda kind=kind: self.done.count(kind) == self.sent.count(kind), LIMIT)


@pytest.fixture
def late(monkeypatch):
    """All files of this process lie there."""
    made = LateStorage()
    monkeypatch.setitem(backends._open, (os.getpid(), "file"), made)
    monkeypatch.setenv(retry.ENVIRONMENT, "0")
    monkeypatch.setattr(base, "_late_renames", {})
    yield made
    made.arrive_now()


def test_a_rename_that_arrives_late_does_not_put_the_old_file_over_the_new_one(late, tmp_path):
    path = str(tmp_path / "run.json")
    late.slow = {"rename", "remove"}
    with pytest.raises(StorageUnavailable):
        storage.write_whole(path, b"old")
    late.slow = set()  # it answers again; what is still on its way comes when it comes
    storage.write_whole(path, b"new")
    late.arrive_now()
    assert storage.read_bytes(path) == b"new"
    assert [e.name for e in storage.list_dir(str(tmp_path), unfinished=True)] == ["run.json"]


def test_a_creation_that_arrives_late_does_not_empty_what_was_written(late, tmp_path, monkeypatch):
    path = str(tmp_path / "shard")
    late.slow = {"create"}
    with monkeypatch.context() as patch:
        patch.setenv(retry.ENVIRONMENT, str(LIMIT))
        patch.setattr(retry.time, "sleep", lambda seconds: late.slow.clear())  # the second answers
        file = storage.open_write(path)
    with file:
        file.write(b"rows")
    assert late.sent == ["create"] and storage.read_bytes(path) == b"rows"
    late.arrive_now()
    assert storage.read_bytes(path) == b"rows"


def test_a_removal_that_arrives_late_does_not_meet_the_next_save(late, tmp_path):
    from tests.training.checkpoint.test_checkpoint import IDENTITY, opened, save

    run = str(tmp_path / "run")
    checkpoints = opened(run)
    late.slow = {"remove", "rename"}
    with pytest.raises(StorageUnavailable):
        save(checkpoints, 1)  # it cannot be published, nor what was written be removed
    late.slow = set()
    begun = threading.Event()

    def whole(*args):
        begun.set()
        late.arrive_now()  # in the middle of the next save of the same step

    checkpoints._saving = whole
    save(checkpoints, 1)
    assert begun.is_set()
    assert checkpoints.latest(IDENTITY).step == 1
    assert [entry.name for entry in storage.list_dir(checkpoints.directory)] == ["step-1"]


def test_parts_that_are_published_while_a_removal_is_on_its_way_stay(late, tmp_path):
    path = str(tmp_path / "metrics.jsonl")
    storage.write_whole(growing.part_path(path, 0), b"first")
    late.slow = {"remove"}
    storage.write_whole(path, b"first")
    with pytest.raises(StorageUnavailable):
        growing.forget_parts(path)
    late.slow = set()
    storage.write_whole(growing.part_path(path, 5), b" second")
    late.arrive_now()
    assert growing.read(path) == (b"first second", 12)


# -------------------------------------------------------------------------- waiting for a shard
def test_a_reader_that_waits_for_another_threads_fetch_has_progress_during_its_retries(
    tmp_path, monkeypatch
):
    from howdah.data.splits.shard_cache import ShardCache

    monkeypatch.setattr(retry, "_FIRST_PAUSE", 0.05)
    monkeypatch.setattr(retry, "_LONGEST_PAUSE", 0.05)
    monkeypatch.setenv(retry.ENVIRONMENT, str(LIMIT))
    cache, back, fetching = ShardCache(str(tmp_path / "cache")), threading.Event(), []
    pin = cache.use("set")

    def attempt():
        fetching.append(1)
        if not back.is_set():
            raise StorageUnavailable("away")
        return b"data"

    def fill(file):
        file.write(retry.run("hdfs://nn:1/shard", attempt))

    def fetch():
        cache.fetch("set/shard", 4, fill)

    fetcher = threading.Thread(target=fetch, name="fetch", daemon=True)  # follows no activity
    fetcher.start()
    wait_until(lambda: fetching, LIMIT)
    reader = activity.Activity("compute")

    def read():
        reader.follow()
        cache.take("set/shard", 4, lambda file: pytest.fail("fetched twice")).release()

    waiting = threading.Thread(target=read, daemon=True)
    waiting.start()
    wait_until(lambda: reader.snapshot().phase == "cache", LIMIT)
    seen = set()

    def gets_on():
        seen.add(reader.progressed())
        return len(seen) >= 5

    wait_until(gets_on, LIMIT)
    assert not back.is_set()
    back.set()
    waiting.join(LIMIT)
    fetcher.join(LIMIT)
    assert not waiting.is_alive() and time.monotonic() - reader.progressed() < LIMIT
    pin.release()


# --------------------------------------------------------------------------------- a real training
@pytest.mark.full  # its parts are tested above with a clock of their own
def test_a_training_rank_retries_for_half_an_hour(tmp_path, tiny_dataset, tiny_model_dir):
    """Its checkpoints' storage does not answer for some seconds (tests/workers/slow)."""
    from howdah.training.checkpoint.manager import Checkpoints
    from tests.runs.training_runs import ROOT, train

    slow = os.path.join(ROOT, "tests", "workers", "slow")
    env = {
        "PYTHONPATH": os.pathsep.join([slow, ROOT]),
        "SLOW": '{"away": 3}',
        "HOWDAH_STARTED": str(time.time()),
    }
    done = train(
        str(tmp_path / "run"), dataset=tiny_dataset.path, base=tiny_model_dir, env=env,
        settings={"training.max_steps": 5, "checkpoint.every_steps": 4},
    )  # fmt: skip
    assert "does not answer; trying again for up to 1800 s" in done.output
    assert "answers again after" in done.output
    saved = Checkpoints(str(tmp_path / "run" / "checkpoints")).list()
    assert [one.step for one in saved] == [5, 4]


def test_a_pause_between_attempts_is_no_standstill(monkeypatch):
    """job.hang_seconds may be as short as the longest pause."""
    idle, answers = [], iter([StorageUnavailable("away"), None])

    def look(_):
        time.sleep(0.05)
        idle.append(activity.current().snapshot().idle_seconds)

    def attempt():
        if (error := next(answers)) is not None:
            raise error

    monkeypatch.setattr(retry, "_FIRST_PAUSE", 5.0)
    monkeypatch.setattr(retry, "time", types.SimpleNamespace(monotonic=time.monotonic, sleep=look))
    with activity.Activity("save").followed():
        retry.run("hdfs://nn/a", attempt)
    assert idle == [0.0]
