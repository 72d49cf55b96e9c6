"""The active one of two NameNodes or ResourceManagers is killed or stopped while Howdah works.

Nothing is lost or doubled. How soon the work goes on is written into docs/faults.md.
"""

import json
import subprocess
import threading
import time

import pytest

from howdah import storage
from howdah.doctor import hadoop as doctor_hadoop
from howdah.errors import AlreadyExists, StorageUnavailable
from howdah.hadoop.resourcemanager import LIVE, ResourceManager
from howdah.serving.registry.publish import publish
from howdah.yarn import spec
from tests.fixtures.etl_yarn import wait_for, whole
from tests.runs import fault_table
from tests.runs.finished_runs import config_of, finished_run, never
from tests.serving.scoring.test_yarn import DAYS, Scoring
from tests.support.waiting import wait_until
from tests.tools.minicluster.test_daemons import listening
from tests.yarn.test_faults import check_metrics, data, resumed, submit  # noqa: F401

pytestmark = pytest.mark.hadoop

full = pytest.mark.full
LIMIT = 240  # seconds; detects a hang
HARMS = {"killed": "kill", "stopped": "pause"}
NAMES = {"namenode": "NameNode", "resourcemanager": "ResourceManager"}
EACH = [
    pytest.param(kind, harm, id=f"{kind}-{harm}", marks=full) for kind in NAMES for harm in HARMS
]
each_master = pytest.mark.parametrize(("kind", "harm"), EACH)
ROWS = 400


@pytest.fixture(scope="module")
def cluster(ha_cluster):
    """What the other fixtures take: jobs, ETL and directories are on this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(ha_cluster.conf_dir))
        yield ha_cluster


class Harm:
    """Takes the active master away, at its call.

    Args:
        kind: "namenode" or "resourcemanager".
        harm: "killed" or "stopped".
    """

    def __init__(self, cluster, kind, harm):
        self.cluster, self.kind, self.harm = cluster, kind, harm
        self.began = None

    def __call__(self):
        self.victim = self.cluster.active(self.kind)
        self.began = time.monotonic()
        getattr(self.cluster, HARMS[self.harm])(self.victim)

    def seconds(self):
        """Since the fault."""
        return time.monotonic() - self.began

    def note(self, during, seconds):
        """The other one is active now; write down how soon the work went on."""
        wait_until(lambda: self.cluster.active(self.kind) != self.victim, LIMIT)
        fault = f"{NAMES[self.kind]} {self.harm}, fails over: {during}"
        row = fault_table.Row("torch", fault, None, round(seconds, 1), None, "undisturbed", None)
        fault_table.add(row)
        print(row)


@pytest.fixture
def of_pair(healthy_cluster, hadoop_env, hdfs_dir):
    """The healthy cluster, and a fresh directory."""
    return healthy_cluster, hdfs_dir


def by(scheme, cluster, directory):
    """The directory by a protocol."""
    return f"{scheme}://{cluster.plan.authority}{directory.removeprefix(cluster.hdfs_url)}"


# -------------------------------------------------------------------------------------- storage
def test_settings_of_a_pair_are_read(of_pair):
    """The standby is skipped, whichever is first, by either protocol; the doctor asks both."""
    cluster, directory = of_pair
    for scheme in ("hdfs", "webhdfs"):
        base = f"{by(scheme, cluster, directory)}/{scheme}"
        storage.create_exclusive(f"{base}/file", b"x" * 100_000)
        assert storage.read_bytes(f"{base}/file") == b"x" * 100_000
        with pytest.raises(AlreadyExists):
            storage.create_exclusive(f"{base}/file", b"y")
        storage.make_dirs(f"{base}/from")
        storage.rename_dir(f"{base}/from", f"{base}/to")
        assert [entry.name for entry in storage.list_dir(base)] == ["file", "to"]
    check = doctor_hadoop.check_namenode(cluster.env)
    assert (check.status, check.found.count("answers")) == ("ok", 2)
    assert set(listening(cluster.directory)) == {"127.0.0.1"}


class Writing:
    """Makes files 0, 1, ... in a directory, each by one exclusive creation, in a thread."""

    def __init__(self, base):
        self.base, self.times, self.error = base, [], None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self):
        try:
            while not self._over.is_set():
                began, number = time.monotonic(), len(self.times)
                storage.create_exclusive(f"{self.base}/{number}", self.data(number))
                self.times.append((began, time.monotonic()))
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error

    @staticmethod
    def data(number):
        return f"{number}\n".encode() * 5000

    def wait(self, number):
        wait_until(lambda: self.error or len(self.times) >= number, LIMIT)

    def end(self):
        """All is there once; seconds of each creation."""
        self._over.set()
        self._thread.join(LIMIT)
        if self.error is not None:
            raise self.error
        names = [entry.name for entry in storage.list_dir(self.base, unfinished=True)]
        assert sorted(names, key=int) == [str(n) for n in range(len(self.times))]
        for number in range(len(self.times)):
            assert storage.read_bytes(f"{self.base}/{number}") == self.data(number)
        return self.times


@pytest.mark.parametrize(
    ("scheme", "harm"),
    [
        ("hdfs", "killed"),
        pytest.param("hdfs", "stopped", marks=full),
        *(pytest.param("webhdfs", harm, marks=full) for harm in HARMS),
    ],
)
def test_each_file_is_made_once(of_pair, scheme, harm):
    """Also by readers and writers that begin when the first NameNode of the list is stopped."""
    cluster, directory = of_pair
    base = f"{by(scheme, cluster, directory)}/{scheme}"
    large = b"".join(b"%07d\n" % n for n in range(3 * 2**20))  # 24 MiB
    storage.write_whole(f"{base}-before", large)
    act = Harm(cluster, "namenode", harm)
    writing = Writing(base)
    writing.wait(5)
    act()
    storage.write_whole(f"{base}-large", large)
    at = len(writing.times)
    writing.wait(at + 5)
    times = writing.end()
    assert storage.read_bytes(f"{base}-large") == large == storage.read_bytes(f"{base}-before")
    first = next(end for began, end in times if began >= act.began or end >= act.began + 0.5)
    act.note(f"files made by {scheme}", first - act.began)


@full
def test_without_an_active_namenode_storage_is_unavailable(of_pair, monkeypatch):
    cluster, directory = of_pair
    monkeypatch.setenv("HOWDAH_STORAGE_RETRY_SECONDS", "1")
    for name in ("zkfc-1", "zkfc-2"):
        cluster.stop(name)
    cluster.kill(cluster.active("namenode"))
    with pytest.raises(StorageUnavailable) as caught:
        storage.write_whole(f"{directory}/none", b"x")
    assert cluster.plan.authority in caught.value.where
    cluster.restore()
    storage.write_whole(f"{directory}/none", b"x")


# ----------------------------------------------------------------------------------- a job
def outlives(job, cluster, faults):
    """An elastic job that saves every 20 steps goes on: same processes, no step twice."""
    before = job.trains(2)
    pids = [job.rank(rank)["pid"] for rank in (0, 1)]
    manager = ResourceManager(patience=LIMIT)
    for kind, harm in faults:
        act = Harm(cluster, kind, harm)
        saved = (job.status["last_checkpoint"] or {"step": 0})["step"]
        act()
        if kind == "resourcemanager":
            listed = json.loads(job.howdah("status", job.application, "--json"))
            assert listed["state"] in LIVE and listed["job"]["world_size"] == 2
            act.note("howdah status", act.seconds())
            # Its master registers again.
            wait_until(lambda: manager.application(job.application)["state"] == "RUNNING", LIMIT)
            act.note("the application is RUNNING", act.seconds())
        # The save after the next one began after the fault.
        job.wait(
            lambda s, step=saved: ((s["last_checkpoint"] or {}).get("step") or 0) >= step + 40,
            "saves after it", LIMIT,
        )  # fmt: skip
        act.note("training, two saves", act.seconds())
    after = job.status
    assert (after["generation"], after["attempt"]) == (before["generation"], before["attempt"])
    assert [job.rank(rank)["pid"] for rank in (0, 1)] == pids
    job.howdah("kill", job.application, "--save")
    report, _ = job.end(LIMIT)
    assert "KILLED" in report
    check_metrics(job, resumed(job))
    job.gone()


@full  # files alone in every run: a job takes minutes
@pytest.mark.timeout(600)
def test_a_job_outlives_both_masters(submit, cluster):  # noqa: F811
    job = submit("torch", **{"checkpoint.every_steps": 20})
    outlives(job, cluster, [("namenode", "killed"), ("resourcemanager", "killed")])


@full
@pytest.mark.timeout(900)
def test_a_job_outlives_both_masters_that_are_stopped(submit, cluster):  # noqa: F811
    job = submit("torch", **{"checkpoint.every_steps": 20})
    outlives(job, cluster, [("namenode", "stopped"), ("resourcemanager", "stopped")])


@each_master
@pytest.mark.timeout(600)
def test_a_submission_is_accepted_once(submit, of_pair, kind, harm):  # noqa: F811
    """The master goes once the run directory is claimed, before YARN is asked."""
    cluster, directory = of_pair
    act = Harm(cluster, kind, harm)
    run = f"{directory}/run0"

    def strike():
        wait_until(lambda: storage.exists(f"{run}/job/application.json"), LIMIT)
        act()

    striking = threading.Thread(target=strike)
    striking.start()
    job = submit("torch", elastic=False, **{"training.max_steps": 30, "evaluation.splits": []})
    striking.join(LIMIT)
    act.note("howdah submit", act.seconds())
    report, _ = job.end(LIMIT)
    assert "Final-State : SUCCEEDED" in report, job.story()
    tagged = ResourceManager().applications(applicationTags=spec.tag(run))
    assert [one["id"] for one in tagged] == [job.application]
    check_metrics(job, 0)


# ------------------------------------------------------------------------------- commands
@each_master
@pytest.mark.timeout(900)
def test_each_row_is_written_once_by_the_etl(yarn_etl, cluster, kind, harm):
    act = Harm(cluster, kind, harm)
    process = yarn_etl.start(yarn_etl.config(source=yarn_etl.put_rows(ROWS), num_shards=4))
    wait_for(lambda: any("scratch" in name for name in yarn_etl.left()), process)
    act()
    code, answer, err = yarn_etl.finish(process, LIMIT)
    assert code == 0, err[-3000:]
    act.note("howdah etl, to its end", act.seconds())
    whole(answer["dataset"], ROWS)


@each_master
@pytest.mark.timeout(1800)
def test_each_row_is_scored_once(of_pair, tiny_model_dir, tmp_path, kind, harm):
    cluster, directory = of_pair
    scoring = Scoring(cluster, directory, tiny_model_dir, tmp_path)
    act = Harm(cluster, kind, harm)
    log = tmp_path / "score.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            scoring.words("--since", f"ds={DAYS[0]}"), env=scoring.env, cwd=scoring.place,
            stdout=subprocess.DEVNULL, stderr=file,
        )  # fmt: skip
    try:
        wait_until(lambda: process.poll() is not None or "1 of 2" in log.read_text(), LIMIT)
        act()
        assert process.wait(2 * LIMIT) == 0, log.read_text()
    finally:
        process.kill()
    act.note("howdah score, to its end", act.seconds())
    rows = scoring.sql(f"SELECT id FROM {scoring.name}.scored ORDER BY id")
    assert [row["id"] for row in rows] == sorted(f"{d[-2:]}-{n}" for d in DAYS for n in range(25))


@full
@pytest.mark.parametrize("harm", HARMS)
def test_a_version_is_published_once(of_pair, tiny_model_dir, harm):
    cluster, directory = of_pair
    act = Harm(cluster, "namenode", harm)
    run = finished_run(f"{directory}/run", tiny_model_dir, run_id="a")
    act()
    published = publish(config_of(run, f"{directory}/models"), never)
    act.note("howdah publish", act.seconds())
    root = f"{directory}/models/zoo"
    assert published["changed"] and published["version"] == 1
    assert storage.read_json(f"{root}/current.json")["version"] == 1
    names = {entry.name for entry in storage.list_dir(root, unfinished=True)}
    assert names <= {"v=1", "history", "current.json", "claims"}
    assert len(storage.list_dir(f"{root}/history")) == 1
    assert not publish(config_of(run, f"{directory}/models"), never)["changed"]


@full
def test_the_table_is_written():
    """Last of this file: all that was measured goes into docs/faults.md."""
    fault_table.write()
