"""The work that goes on while faults come: jobs, a growing dataset, a model that scores, a server.

Each piece is checked when it has ended, by what was written.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import yaml

from bench.benches.chaos import reading
from bench.benches.chaos.reading import Broken
from bench.benches.chaos.world import World
from howdah import storage
from tests.fixtures.dataset import build_dataset
from tests.runs.finished_runs import LABELS, finished_run
from tests.runs.jobs.cluster_jobs import ClusterJob, command
from tests.runs.training_runs import NO_DROPOUT, SETTINGS, _nested
from tests.support.models.tiny_model import write_tiny_model

FRAMEWORKS = ("torch", "tensorflow")
ROWS, BATCH = 960, 12
STEPS = int(os.environ.get("BENCH_STEPS", "12000"))
"""How many steps each job takes: 150 epochs, two minutes at 100 steps a second. With fewer, most
faults come while a job starts."""
PARTITIONS, PART_ROWS = 60, 200
LOCAL_SPARK = {
    "master": "local[1]", "driver_memory": "1g",
    "conf": {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"},
}  # fmt: skip
# Makes the partitions that are scored: STATEMENT...
SQL = """
import sys
from howdah.config.data import SparkOptions
from howdah.spark.session import session
conf = {"spark.sql.shuffle.partitions": "1"}
options = SparkOptions(master="local[1]", driver_memory="1g", conf=conf)
with session(options, hive=True) as spark:
    for statement in sys.argv[1:]:
        spark.sql(statement)
"""
LIMIT = 900.0
"""Seconds that a job may show no progress: detects one that hangs."""


def make_data(world: World) -> dict[str, str]:
    """{base, dataset}: a tiny model on this machine and on HDFS, and a dataset of ROWS rows."""
    local = str(world.folder / "base")
    write_tiny_model(local)
    base, dataset = f"{world.home}/base", f"{world.home}/rows"
    world.cluster.make_dir(world.root)
    storage.make_dirs(base)
    for entry in storage.list_dir(local):
        storage.upload(entry.path, f"{base}/{entry.name}")
    build_dataset(dataset, model_dir=local, rows={"train": ROWS, "validation": 24})
    return {"base": base, "dataset": dataset}


def settings(directory: str, framework: str, data: dict[str, str], python: str) -> dict:
    """A job's configuration.

    Its weights hardly move, so the loss of a step tells which rows it has trained.
    """
    values = SETTINGS | NO_DROPOUT | {
        "run.name": "chaos", "run.directory": directory, "data.dataset": data["dataset"],
        "model.base": data["base"], "training.framework": framework,
        "training.num_train_epochs": 10**6, "training.max_steps": STEPS,
        "training.learning_rate": 1e-9, "training.warmup_ratio": 0.0,
        "evaluation.splits": [], "checkpoint.every_steps": 200, "checkpoint.keep": 3,
        "job.hang_seconds": 10, "job.commit_every": 20, "job.max_restarts": 1000,
        "job.min_workers": 1, "job.max_workers": 2,
        "job.worker.memory": "4 GiB",  # one fits on a node; two are more than the queue's half
        "yarn.python": python,
        "yarn.driver.memory": "512 MiB",
    }  # fmt: skip
    return _nested(values)


class Work(threading.Thread):
    """Does its pieces one after the other until all is over."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.world, self.done = world, 0

    def run(self) -> None:
        """Until no more work begins; an error of the bench itself ends the whole run."""
        while not self.world.over.is_set():
            try:
                self.done += self.once(self.done)
            except Exception as error:
                self.world.broke(self.name, f"the bench itself: {error!r}")
                self.world.over.set()
                raise

    def once(self, number: int) -> bool:
        """One piece; whether it was done to its end."""
        raise AssertionError


# ------------------------------------------------------------------------------------- training
class Job(ClusterJob):
    """A submitted job, looked at from outside: its processes, its page, the ResourceManager."""

    def __init__(self, world: World, directory: str, application: str) -> None:
        self.cluster, self.directory, self.application = world.cluster, directory, application
        self.world = world

    @property
    def status(self) -> dict | None:
        """What the driver's page says now; None: it does not answer."""
        for pid in self.processes():
            if "yarn driver" in command(pid) and (url := self._page(pid)):
                with contextlib.suppress(OSError, ValueError):
                    return json.loads(reading.get(url + "status.json", timeout=3))
        return None

    def state(self) -> str | None:
        """The application's final state; None: it goes on, or the ResourceManager is away."""
        final = self.report().get("finalStatus")
        return None if final == "UNDEFINED" else final

    def report(self) -> dict:
        """What the ResourceManager says of the application; {}: it is away."""
        for name in ("resourcemanager", "resourcemanager-2"):
            record = self.cluster.records.get(name)
            if record is None or record.paused:
                continue
            address = self.cluster.plan.address(f"{name}-http")
            url = f"http://{address}/ws/v1/cluster/apps/{self.application}"
            with contextlib.suppress(OSError, ValueError):
                return json.loads(reading.get(url, timeout=3))["app"]
        return {}

    def of(self, words: str) -> list[int]:
        """Its processes whose command line has these words."""
        return [pid for pid in self.processes() if words in command(pid)]

    def ranks(self) -> list[int]:
        """Its training processes."""
        return [pid for pid in self.of("howdah.training") if "python" in command(pid).split()[0]]


class Training(Work):
    """Elastic jobs of two workers, torch and TensorFlow in turn, submitted again until they end
    well."""

    def __init__(self, world: World, data: dict[str, str], python: str) -> None:
        super().__init__(world, "training")
        self.data, self.python = data, python
        self.job: Job | None = None
        self.reference: dict[str, dict[int, float]] = {}
        self.lacking = 0

    def learn_reference(self) -> None:
        """The losses of an undisturbed run of one process, in both frameworks."""
        for framework in FRAMEWORKS:
            directory = self.world.folder / f"reference-{framework}"
            config = self._config(str(directory), framework)
            code, _, stderr = self.world.command("reference", "train", "--config", config)
            if code:
                raise SystemExit(f"the undisturbed run fails: {stderr[-3000:]}")
            lines = (directory / "metrics.jsonl").read_bytes().splitlines()
            steps = reading.losses(lines)
            reading.check_epochs(steps, ROWS // BATCH)
            self.reference[framework] = dict(steps)

    def _config(self, directory: str, framework: str) -> str:
        path = self.world.folder / f"{directory.rpartition('/')[2]}.yaml"
        path.write_text(yaml.safe_dump(settings(directory, framework, self.data, self.python)))
        return str(path)

    def once(self, number: int) -> bool:
        """A job, from its submission to what it left."""
        framework = FRAMEWORKS[number % len(FRAMEWORKS)]
        name = f"run-{number}-{framework}"
        directory = f"{self.world.home}/{name}"
        config = self._config(directory, framework)
        while True:
            stdout = self.world.until_done(self.name, "submit", "--config", config, "--json")
            if stdout is None:
                return False
            application = json.loads(stdout.splitlines()[-1])["application"]
            self.job = Job(self.world, directory, application)
            state = self._ended()
            why = {} if state == "SUCCEEDED" else {"why": self.job.report().get("diagnostics", "")}
            self.world.note(self.name, f"{name}: {application} {state}", **why)
            job, self.job = self.job, None
            with self.world.checking(self.name):
                try:
                    job.gone(120)
                except AssertionError as error:
                    raise Broken(f"processes of {application} are left: {error}") from error
            if state == "SUCCEEDED":
                break
            if self.world.over.is_set():
                return False
        with self.world.checking(f"{self.name} {name}"):
            at = f"{self.world.root}/{name}"
            lines = self.world.hdfs.read(f"{at}/metrics.jsonl").splitlines()
            steps = reading.losses(lines)
            self.lacking += reading.check_steps(steps, self.reference[framework], STEPS)
            reading.check_checkpoints(self.world.hdfs, f"{at}/checkpoints")
            self.world.hdfs.read(f"{at}/export/model.safetensors")
            self.world.note(self.name, f"{name}: every step once, with its rows")
        return True

    def _ended(self) -> str:
        """The job's final state; after LIMIT without a new step it is killed, and that is an
        invariant broken."""
        seen, since = None, time.monotonic()
        while (state := self.job.state()) is None:
            status = self.job.status
            if status and (status["attempt"], status["step"]) != seen:
                seen, since = (status["attempt"], status["step"]), time.monotonic()
            if time.monotonic() - since > LIMIT:
                self.world.broke(self.name, f"no new step for {LIMIT:.0f} s after {seen}")
                self.job.close()
                since = time.monotonic()
            time.sleep(0.5)
        return state


# --------------------------------------------------------------------------------- the tables
class Tables(Work):
    """A dataset that each piece appends a part to, a model with a new version each, and a partition
    that it scores."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "tables")
        self.ids: set[str] = set()
        self.database = "chaos"
        self.base = str(world.folder / "base")
        self.config = str(world.folder / "tables.yaml")
        values = {
            "data": {
                "source": "parts", "dataset": f"{world.home}/table", "columns": {"id": "id"},
                "max_length": 32, "append": {"enabled": True}, "spark": LOCAL_SPARK,
                "split": {"validation": 0.1, "test": 0.1},
            },
            "model": {"base": self.base},
            "run": {"name": "news"},
            "publish": {"directory": f"{world.home}/models"},
        }  # fmt: skip
        Path(self.config).write_text(yaml.safe_dump(values))

    def make_partitions(self) -> None:
        """The table that is scored, with all its partitions."""
        name, world = self.database, self.world
        assert world.cluster.metastore_uri  # starts it, and writes hive-site.xml
        statements = [
            f"CREATE DATABASE {name} LOCATION '{world.home}/{name}.db'",
            f"CREATE TABLE {name}.texts (key string, words string) PARTITIONED BY (ds string)"
            " STORED AS PARQUET",
            "SET hive.exec.dynamic.partition.mode=nonstrict",
            f"INSERT INTO {name}.texts PARTITION (ds) SELECT concat(p.id, '-', k.id), 'the cat',"
            f" concat('d', lpad(p.id, 4, '0')) FROM range({PARTITIONS}) p, range(40) k",
        ]  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", SQL, *statements], env=world.env, cwd=world.folder,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"the partitions cannot be made: {done.stderr[-3000:]}")

    def begin(self) -> None:
        """The first version of the model, before anything is disturbed."""
        if self._publish(0) is None:
            raise SystemExit("the first version cannot be published")

    def once(self, number: int) -> bool:
        """Append, publish, score."""
        done = self._append(number) is not None and self._publish(number + 1) is not None
        return done and self._score(number % PARTITIONS) is not None

    def _append(self, number: int) -> str | None:
        rng = random.Random(number)
        part = self.world.folder / "parts" / f"p{number:04d}.csv"
        part.parent.mkdir(exist_ok=True)
        new = {f"p{number:04d}-{row:05d}" for row in range(PART_ROWS)}
        with part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("id", "text", "label"))
            for row_id in sorted(new):
                words = " ".join(f"{rng.getrandbits(40):x}" for _ in range(12))
                writer.writerow((row_id, words, rng.choice(LABELS)))
        stdout = self.world.until_done(
            self.name, "etl", "--config", self.config, "--set", f"data.source={part}",
            "--set", f"data.append.part=p{number:04d}", "--json",
        )  # fmt: skip
        if stdout is not None:
            self.ids |= new
            with self.world.checking(self.name):
                reading.check_dataset(self.world.hdfs, f"{self.world.root}/table", self.ids)
        return stdout

    def _publish(self, number: int) -> str | None:
        run = self.world.folder / "published" / f"run-{number}"
        if not run.exists():
            finished_run(
                str(run), self.base, run_id=f"run-{number}", answers=label_of(number + 1),
                dataset=f"d{number}",
            )  # fmt: skip
        stdout = self.world.until_done(
            self.name, "publish", "--config", self.config, "--set", f"run.directory={run}", "--json"
        )
        if stdout is not None:
            with self.world.checking(self.name):
                model = f"{self.world.root}/models/news"
                reading.check_versions(self.world.hdfs, model, number + 1)
        return stdout

    def _score(self, number: int) -> str | None:
        day, name = f"d{number:04d}", self.database
        stdout = self.world.until_done(
            self.name, "score", "--config", self.config, "--model", "news", "--source",
            f"{name}.texts", "--output", f"{name}.scored", "--partition", f"ds={day}",
            "--text-column", "words", "--id-column", "key", "--json",
        )  # fmt: skip
        if stdout is not None:
            with self.world.checking(self.name):
                where = f"{self.world.root}/{name}.db/scored/ds={day}/model=news"
                keys = {f"{number}-{row}" for row in range(40)}
                reading.check_scored(self.world.hdfs, where, keys, label_of)
        return stdout


def label_of(version: int) -> str:
    """What that version of the model answers to every text."""
    return LABELS[version % 2]


# ------------------------------------------------------------------------------------ a server
class Serving(Work):
    """A server, asked all the time: every answer is what its version answers."""

    def __init__(self, world: World, config: str, python: str) -> None:
        super().__init__(world, "server")
        self.config, self.python = config, python
        self.process: subprocess.Popen | None = None
        self.expected_end = False
        self.answered = self.unanswered = 0
        self.versions: set[int] = set()

    def run(self) -> None:
        """Serve until all is over; a server that was killed is started again."""
        try:
            super().run()
        finally:
            self._end()

    def once(self, number: int) -> bool:
        """One server, to its end."""
        log = self.world.folder / "commands" / f"serve-{number}.err"
        log.parent.mkdir(exist_ok=True)
        self.expected_end = False
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [self.python, "-m", "howdah.cli", "serve", "--config", self.config, "--model",
                 "news", "--port", "0", "--json"],
                stdout=subprocess.PIPE, stderr=errors, text=True, cwd=self.world.folder,
                env=self.world.env, start_new_session=True,
            )  # fmt: skip
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait(60)
            if code not in (-9, 5) or "Traceback" in log.read_text(errors="replace"):
                self.world.broke(self.name, f"serve ended with {code}: {log.read_text()[-1500:]}")
            self.world.over.wait(1.0)
            return False
        url = f"http://127.0.0.1:{json.loads(line)['port']}/v1/classify"
        while self.process.poll() is None and not self.world.over.is_set():
            self._ask(url)
            self.world.over.wait(0.2)
        code = self.process.poll()
        if code is not None and not (self.expected_end and code == -9):
            self.world.broke(self.name, f"it ended by itself with {code}: see {log}")
        self._end()
        return True

    def _ask(self, url: str) -> None:
        request = urllib.request.Request(
            url, b'{"text": "the cat"}', {"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30) as answer:
                body = json.loads(answer.read())
        except (OSError, ValueError):
            self.unanswered += 1
            return
        self.answered += 1
        self.versions.add(body["version"])
        label = body["prediction"]["label"]
        if label != label_of(body["version"]):
            self.world.broke(self.name, f"version {body['version']} answered {label}")

    def kill(self) -> None:
        """SIGKILL."""
        self.expected_end = True
        self._end(signal.SIGKILL)

    def _end(self, number: int = signal.SIGTERM) -> None:
        process = self.process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
                os.kill(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)


def when(condition: Callable[[], bool], seconds: float) -> float | None:
    """Seconds until the condition holds; None: not within `seconds`."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            return None
        time.sleep(0.1)
    return time.monotonic() - began
