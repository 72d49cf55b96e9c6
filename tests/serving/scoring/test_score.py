"""`howdah score` with a real Spark and metastore: skipping, replacing, errors, two models."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from howdah.data.encode import Encoder
from howdah.models import scored
from howdah.models.export.export import export
from howdah.models.export.run_info import RunInfo
from howdah.models.profile.bins import Known
from howdah.models.profile.profile import PROFILE, Profile, Reference, read
from howdah.models.weights.pretrained import load_base
from tests.serving.drift import samples
from tests.support.models.versions import manifest_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

# One session for all calls, which counts the jobs that Spark runs: STEPS (JSON) on stdin.
SESSION = """
import json, sys
from howdah.config import loader
from howdah.errors import HowdahError
from howdah.spark.session import session
from howdah.serving.scoring.score import ScoreRequest, score
from howdah.serving.scoring.selection import Selection

config = loader.from_dict(json.loads(sys.argv[1]))
with session(config.data.spark, hive=True) as spark:
    jobs = lambda: len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))
    for step in json.load(sys.stdin):
        before, lines = jobs(), []
        if isinstance(step, str):
            made = [row.asDict() for row in spark.sql(step).collect()]
        else:
            own = step.pop("config", {})
            step["selection"] = Selection(**{k: tuple(v) if isinstance(v, list) else v
                                             for k, v in step["selection"].items()})
            try:
                made = score(ScoreRequest(**step), config.model_copy(update={
                    name: getattr(config, name).model_copy(update=values)
                    for name, values in own.items()}), progress=lines.append)
            except HowdahError as error:
                made = error.as_dict()
        print("DONE", json.dumps({"made": made, "jobs": jobs() - before, "lines": lines},
                                 default=str), flush=True)
"""
SOURCE, OUTPUT = "texts", "scored"
ROWS = {
    "2026-11-01": [("a", "the cat"), ("b", "of"), ("c", None), ("d", "")],
    "2026-11-02": [("e", "the cat"), ("f", "in to " * 40)],
}


def inserted(day, rows):
    values = ", ".join(f"('{key}', {'NULL' if t is None else repr(t)})" for key, t in rows)
    return f"INSERT INTO {SOURCE} PARTITION (ds='{day}') VALUES {values}"


def made_model(directory, base_dir, run_id, seed) -> str:
    base = load_base(base_dir)
    rng = np.random.default_rng(seed)
    head = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in base.family.head_shapes(base.config, 3).items()
    }
    info = RunInfo(
        run_id=run_id, max_length=16, clean={"whitespace": True}, framework="torch",
        base={"source": "tiny", "hash": base.hash}, tokenizer_hash=Encoder.load(base_dir).hash,
        columns={"text": "words", "id": "key", "label": "label"},
    )  # fmt: skip
    return export(
        directory, weights=base.weights | head, base_config=base.config,
        tokenizer_files=base.tokenizer_files, label_names=["a", "b", "c"], run_info=info,
    )  # fmt: skip


def put_version(root, number, exported) -> None:
    """Make an export version `number` of a published model, and its current one."""
    shutil.copytree(exported, root / f"v={number}")
    (root / f"v={number}" / "manifest.json").write_text(manifest_of(exported))
    (root / "history").mkdir(exist_ok=True)
    current = json.dumps({"version": number})
    (root / "history" / f"{number:06d}.json").write_text(current)
    (root / "current.json").write_text(current)


class Place:
    """A directory with a metastore, models and a configuration."""

    def __init__(self, directory, base_dir):
        self.directory = directory
        self.models = directory / "models"
        one = made_model(str(directory / "one"), base_dir, "run-1", 1)
        put_version(self.models / "news", 1, one)
        self.other = made_model(str(directory / "other"), base_dir, "run-2", 2)
        size = json.loads((directory / "other" / "config.json").read_text())["vocab_size"]
        known_half = Reference(
            known_tokens=Known.of(np.arange(size // 2), size), split="validation"
        )
        reference = Profile(samples.bins(vocabulary=size), reference=known_half)
        (directory / "other" / PROFILE).write_bytes(reference.to_bytes())
        conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{directory}/log"}
        conf["spark.sql.shuffle.partitions"] = "1"
        (directory / "log").mkdir()
        self.config = {
            "data": {"spark": {"master": "local[1]", "driver_memory": "1g", "conf": conf}},
            "publish": {"directory": str(self.models)},
            "score": {"max_error_fraction": 0.5},
        }
        (directory / "c.yaml").write_text(json.dumps(self.config))
        root = os.getcwd()
        self.env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": root}

    def steps(self, *steps):
        """What each step made: {made, jobs, lines}."""
        done = subprocess.run(
            [sys.executable, "-c", SESSION, json.dumps(self.config)], input=json.dumps(steps),
            cwd=self.directory, env=self.env, capture_output=True, text=True, timeout=280,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        lines = [line for line in done.stdout.splitlines() if line.startswith("DONE ")]
        return [json.loads(line.removeprefix("DONE ")) for line in lines]

    def words(self, *more, model="news"):
        fixed = ["--model", model, "--source", SOURCE, "--output", OUTPUT]
        return [
            sys.executable, "-m", "howdah.cli", "score", "--config", "c.yaml", *fixed,
            *more, "--json",
        ]  # fmt: skip

    def run(self, *more, model="news"):
        """(exit code, the JSON object, stderr) of the command."""
        done = subprocess.run(
            self.words(*more, model=model), cwd=self.directory, env=self.env,
            capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return done.returncode, json.loads(lines[-1]) if lines else None, done.stderr

    def use_executors(self):
        """Commands get executors: processes of their own, one at a time, as on a cluster."""
        spark = self.config["data"]["spark"]
        spark["master"] = "local-cluster[1,1,1024]"
        spark["conf"]["spark.executor.memory"] = "512m"
        (self.directory / "c.yaml").write_text(json.dumps(self.config))
        self.env["SPARK_WORKER_DIR"] = str(self.directory / "work")

    def applications(self):
        """Spark applications that have run here."""
        return sorted(os.listdir(self.directory / "log"))

    def rows(self):
        """All scored rows by (day, model, id); each once."""
        table = pq.read_table(str(self.directory / "spark-warehouse" / OUTPUT)).to_pylist()
        by_row = {(str(row["ds"]), row["model"], row["id"]): row for row in table}
        assert len(by_row) == len(table)
        return by_row


@pytest.fixture
def place(tmp_path, tiny_model_dir):
    return Place(tmp_path, tiny_model_dir)


CREATED = f"CREATE TABLE {SOURCE} (key string, words string) PARTITIONED BY (ds string)"


def request(model="news", **more):
    step = {"model": model, "source": SOURCE, "output": OUTPUT, **more}
    step.setdefault("selection", {"since": "ds=2026-11-01"})
    return step


def states(step):
    return [(one["partition"][-2:], one["state"]) for one in step["made"]["partitions"]]


def test_each_partition_is_scored_once_by_each_model(place):
    made = place.steps(
        f"{CREATED} STORED AS PARQUET",
        *(inserted(day, rows) for day, rows in ROWS.items()),
        f"ALTER TABLE {SOURCE} ADD PARTITION (ds='2026-11-03')",
        request(),
        request(),
        inserted("2026-11-02", [("g", "of in")]),
        request(),
        request(force=True, config={"score": {"max_error_fraction": 0.1}}),
        request(model=place.other, selection={"since": "ds=2026-11-01", "until": "ds=2026-11-02"}),
        request(selection={"partitions": ["ds=2026-11-09"]}),
        f"ALTER TABLE {OUTPUT} DROP PARTITION (ds='2026-11-03', model='news')",
        request(),
    )[4:]
    first, second, _, third, strict, other, missing, _, dropped = made
    assert [state for _, state in states(first)] == ["scored"] * 3, first
    by_day = {one["partition"]: one for one in first["made"]["partitions"]}
    assert [by_day[f"ds=2026-11-0{n}"]["rows"] for n in (1, 2, 3)] == [4, 2, 0]
    assert by_day["ds=2026-11-01"]["errors"] == 2
    assert any("the partition has no rows" in line for line in first["lines"])
    assert first["made"]["workers"]["opened"] == 1 and first["made"]["version"] == 1
    assert first["made"]["framework"] == "onnx"
    # The second call starts no job, and so no stage.
    assert second["jobs"] == 0 and first["jobs"] > 0
    assert [state for _, state in states(second)] == ["skipped"] * 3
    assert second["made"]["workers"] is None
    assert states(third) == [("01", "skipped"), ("02", "scored"), ("03", "skipped")]
    # Too many errors: that partition stays, the others are done.
    error = strict["made"]
    assert error["error"] == "TooManyErrors" and error["exit_code"] == 3
    assert "2 of 4 rows" in error["got"] and "the text is empty: 2 (id c)" in error["got"]
    assert states(other) == [("01", "scored"), ("02", "scored")]
    assert other["made"]["model"] == "run-2" and other["made"]["version"] is None
    # Of a model with a profile: each row is counted while it is scored.
    assert any("no profiles" in line for line in first["lines"])
    counts = [read(one["profile"]).counts for one in other["made"]["partitions"]]
    assert [(each.rows, each.empty, each.errors) for each in counts] == [(2, 2, 0), (3, 0, 0)]
    assert counts[1].labels.sum() == 3 and counts[1].ids > counts[1].tokens > 0
    assert "ds=2026-11-03, ds=2026-11-02" in missing["made"]["expected"]

    assert states(dropped) == [("01", "skipped"), ("02", "skipped"), ("03", "scored")]
    assert dropped["made"]["partitions"][2]["reason"] == "the scored partition is gone"

    rows = place.rows()
    assert sorted(key for key in rows if key[:2] == ("2026-11-01", "news")) == [
        ("2026-11-01", "news", key) for key in "abcd"
    ]
    assert {key[1] for key in rows if key[0] == "2026-11-02"} == {"news", "run-2"}
    one = rows["2026-11-01", "news", "a"]
    scores = dict(one["scores"])
    best, second_best = sorted(scores.values(), reverse=True)[:2]
    assert one["score"] == best == scores[one["label"]]
    assert one["margin"] == pytest.approx(best - second_best, abs=1e-6)
    assert (one["model_version"], one["run_id"], one["error"]) == (1, "run-1", None)
    assert rows["2026-11-01", "news", "c"]["error"] == "the text is empty"
    assert rows["2026-11-01", "news", "d"]["error"] == "the text is empty"
    assert rows["2026-11-01", "news", "d"]["label"] is None
    marker = place.models / "news/scored/scored/ds=2026-11-02/done.json"
    assert json.loads(marker.read_text())["rows"] == 3
    # What lineage and forget read of the markers that this job has written.
    markers = {one["partition"]: one for one in scored.markers(str(place.models / "news"))}
    assert list(markers) == ["ds=2026-11-01", "ds=2026-11-02", "ds=2026-11-03"]
    one = markers["ds=2026-11-02"]
    assert (one["table"], one["source"], one["version"]) == (OUTPUT, f"default.{SOURCE}", 1)
    assert (one["run_id"], one["rows"]) == ("run-1", 3)
    assert scored.tables(str(place.models / "news"), 1) == [OUTPUT]
    assert scored.tables(str(place.models / "news"), 2) == []

    # As a command: what is done is found out without any Spark application.
    before = place.applications()
    code, answer, err = place.run("--partition", "ds=2026-11-02", "--partition", "ds=2026-11-01")
    assert code == 0, err
    assert [one["state"] for one in answer["partitions"]] == ["skipped"] * 2
    assert place.applications() == before and len(before) == 1
    assert "ds=2026-11-02: done before, 3 rows" in err and "v=1" in err


# --------------------------------------------------------------------------------------- killed
PER_DAY = 30
DAYS = [f"2026-10-{day:02d}" for day in range(1, 11)]
EXECUTOR, JVM = "executor", "JVM of the driver"
KILLS = [
    (EXECUTOR, "worker"), (signal.SIGKILL, "staged"), (signal.SIGTERM, "second"),
    (EXECUTOR, "staged"), (signal.SIGKILL, "marked"), (JVM, "worker"), (EXECUTOR, "worker"),
    (signal.SIGTERM, "staged"), (signal.SIGKILL, "worker"), (EXECUTOR, "worker"),
]  # fmt: skip
"""(a signal to the command, or a process of it that gets SIGKILL; when). A command survives the
loss of an executor, and the next kill is of the same command."""
CODES = {signal.SIGKILL: -9, signal.SIGTERM: 143, JVM: 5}
LIMIT = 400.0
"""Seconds that detect a hang."""


def descendants(pid):
    """{process id: command line} of a process's descendants."""
    parents, lines = {}, {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{name}/stat").read_text()
            line = Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace")
            # Both or neither: a process may end between the two.
            parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
            lines[int(name)] = line
    children, todo = {}, [pid]
    while todo:
        above = todo.pop()
        for child in (one for one, parent in parents.items() if parent == above):
            children[child] = lines[child]
            todo.append(child)
    return children


class Killed:
    """A command whose processes are killed at certain moments."""

    def __init__(self, place, log):
        self.place, self.log = place, log
        with open(log, "w") as file, open(f"{log}.json", "w") as answer:
            self.process = subprocess.Popen(
                place.words("--since", "ds=2026-10-01"), cwd=place.directory, env=place.env,
                stdout=answer, stderr=file,
            )  # fmt: skip

    def answer(self):
        """The JSON object of the command that has ended."""
        return json.loads(Path(f"{self.log}.json").read_text())

    def markers(self):
        return len(list(self.place.models.glob("news/scored/*/*/done.json")))

    def unpublished(self):
        """Partitions that are written but not published, also by runs that were killed."""
        return set(self.place.directory.glob(f"spark-warehouse/{OUTPUT}/*/.tmp-*"))

    def having(self, part):
        """Processes of the command with a text in their command line."""
        return [pid for pid, line in descendants(self.process.pid).items() if part in line]

    def workers(self):
        """Python processes that tasks run in: children of the daemon that Spark starts."""
        return [pid for one in self.having("pyspark.daemon") for pid in descendants(one)]

    def moment(self, name):
        """A function that says whether that moment has come, as seen from now on."""
        markers, staged = self.markers(), self.unpublished()
        if name == "second":
            return lambda: ": 2 of " in self.log.read_text()
        if name == "marked":
            return lambda: self.markers() > markers
        if name == "staged":
            return lambda: self.unpublished() - staged
        assert name == "worker"
        return self.workers

    def kill(self, what, name):
        """Kill it, or a process of it, at that moment; its exit code if that is its end."""
        reached = self.moment(name)
        wait_until(lambda: self.process.poll() is not None or reached(), LIMIT)
        assert self.process.poll() is None, (what, name, self.log.read_text()[-3000:])
        left = [self.process.pid, *descendants(self.process.pid)]
        if what == EXECUTOR:
            (victim,) = self.having("CoarseGrainedExecutorBackend")
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: not alive(victim), LIMIT)
            return None
        if what == JVM:
            (victim,) = self.having("org.apache.spark.deploy.SparkSubmit")
            os.kill(victim, signal.SIGKILL)
        else:
            self.process.send_signal(what)
        code = self.process.wait(LIMIT)
        # A JVM ends when its driver has; until then it holds the embedded metastore.
        wait_until(lambda: not any(map(alive, left)), LIMIT)
        return code


def alive(pid):
    """Whether a process runs; one that is dead and was not waited for does not."""
    return os.path.exists(f"/proc/{pid}/exe")


@pytest.mark.full
@pytest.mark.timeout(3000)
def test_ten_partitions_killed_ten_times_have_each_row_once(place):
    rows = {day: [(f"{day}-{n}", f"the cat of {n}") for n in range(PER_DAY)] for day in DAYS}
    place.steps(f"{CREATED} STORED AS PARQUET", *(inserted(day, rows[day]) for day in DAYS))
    place.use_executors()

    def days():
        """{day: rows}: none or all of them."""
        if not (place.directory / "spark-warehouse" / OUTPUT).exists():
            return {}
        counted = collections.Counter(day for day, _, _ in place.rows())
        assert set(counted.values()) <= {PER_DAY}, counted
        return counted

    def marked():
        """The days that have a marker, each with all of its rows."""
        scored_days = {
            path.parent.name[3:] for path in place.models.glob("news/scored/*/*/done.json")
        }
        assert scored_days <= set(days())
        return scored_days

    codes, killed, executors = [], None, 0
    try:
        for at, (what, moment) in enumerate(KILLS):
            killed = killed or Killed(place, place.directory / f"run-{at}.txt")
            code = killed.kill(what, moment)
            executors += what == EXECUTOR
            if code is not None:
                codes.append((what, code))
                killed = None
                marked()
        assert codes == [(what, CODES[what]) for what, _ in KILLS if what != EXECUTOR]
        assert executors == 4 and killed is not None
        # The last command has lost an executor, and goes on to the end.
        done = marked()
        assert 0 < len(done) < len(DAYS)
        assert killed.process.wait(LIMIT) == 0, killed.log.read_text()[-3000:]
    finally:
        if killed is not None:
            killed.process.kill()
    answer = killed.answer()
    assert days() == dict.fromkeys(DAYS, PER_DAY)
    assert sorted(key for _, _, key in place.rows()) == sorted(k for d in DAYS for k, _ in rows[d])
    # Those that were done before a kill were not done again.
    states = {one["partition"][3:]: one["state"] for one in answer["partitions"]}
    skipped = {day for day, state in states.items() if state == "skipped"}
    assert set(states) == set(DAYS) and skipped and skipped <= done
    # One worker for all partitions since the kill, which has opened the model once.
    assert answer["workers"]["opened"] == 1 and answer["workers"]["count"] <= 2
    before = place.applications()
    code, answer, err = place.run("--since", "ds=2026-10-01")
    assert code == 0, err
    assert {one["state"] for one in answer["partitions"]} == {"skipped"}
    assert place.applications() == before  # no application, and so no stage
