"""A job on this machine's own processes (stand_in_cluster.py), and how tests look into it."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import yaml

from howdah.core.processes import LIMITS as VARIABLE
from tests import ROOT
from tests.runs.jobs.watched_job import WatchedJob, in_step
from tests.support.waiting import wait_until

LIGHT = ROOT / "tests" / "workers" / "light"


_CONSTANTS = ("contact_seconds", "gang_attempts", "gloo_timeout_seconds", "node_failures")
"""Limits that are no keys: a job of a test gets them by its environment."""


class LocalJob(WatchedJob):
    """A driver in a process of its own, with its agents and training processes."""

    def __init__(
        self, directory, *, light=True, nodes="a", env=None, attempt=1, prefix=(), extra=(),
        limits=None, **sections,
    ):  # fmt: skip
        self.prefix = prefix  # of commands that reach the driver: its network namespace
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.run_directory = self.directory / "run"
        self.job = self.directory / f"job{attempt}"
        self.job.mkdir(exist_ok=True)
        config = {"run": {"directory": str(self.run_directory), "name": "test"}, **sections}
        options = dict(config.get("job", {}))
        small = {name: options.pop(name) for name in _CONSTANTS if name in options}
        if not {"min_workers", "max_workers"} & set(options):
            options = {"max_restarts": 0, **options}  # a lost worker ends it
        config["job"] = options
        config["yarn"] = {"python": sys.executable,
                          **config.get("yarn", {})}  # fmt: skip
        self.config = self.directory / "config.yaml"
        self.config.write_text(yaml.safe_dump(config))
        path = f"{LIGHT}{os.pathsep}{ROOT}" if light else str(ROOT)
        self.log = self.job / "driver.log"
        words = [*prefix, sys.executable, "-m", "tests.runs.jobs.stand_in_cluster", "driver",
                 str(self.job), str(self.config), "--application", "local_1",
                 "--nodes", nodes, "--attempt", str(attempt), *extra]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": path, **(env or {})}
        environment[VARIABLE] = json.dumps({**(limits or {}), **small})
        environment["HOWDAH_PYTHONPATH"] = environment["PYTHONPATH"]  # the agents' and ranks' too
        with self.log.open("wb") as log:
            self.driver = subprocess.Popen(words, stdout=log, stderr=log, env=environment)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.driver.poll() is None:
            self.driver.terminate()
            try:
                self.driver.wait(30)
            except subprocess.TimeoutExpired:
                self.driver.kill()
        for pid in self.processes():
            kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.processes())

    # -------------------------------------------------------------------------- looking
    @property
    def file(self):
        """status.json as the driver last wrote it."""
        try:
            return json.loads((self.run_directory / "job" / "status.json").read_text())
        except FileNotFoundError:
            nothing = dict.fromkeys(("state", "step", "page", "last_checkpoint"))
            return {**nothing, "ranks": [], "events": [], "world_size": 0, "generation": 0}

    @property
    def status(self):
        """The same from the driver itself, as long as it is there: newer than the file."""
        if self.driver.poll() is None:
            try:
                return json.loads(self.page("status.json"))
            except (OSError, ValueError, subprocess.CalledProcessError):
                pass
        return self.file

    def page(self, name=""):
        """The job's page, or something beside it."""
        url = self.file["page"]
        if url is None:
            raise ConnectionError("the driver has no page yet")
        if self.prefix:
            read = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"
            words = [*self.prefix, sys.executable, "-c", read, url + name]
            return subprocess.run(words, capture_output=True, text=True, check=True).stdout
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url + name, timeout=10) as answer:
            return answer.read().decode()

    def events(self):
        return [event["what"] for event in self.status["events"]]

    def wait(self, condition, what, seconds=60):
        """Until `condition(status)`; an error names what was waited for, and shows the log."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            status = self.status
            if condition(status):
                return status
            if self.driver.poll() is not None and not condition(self.status):
                raise AssertionError(f"the driver ended before: {what}\n{self.log.read_text()}")
            time.sleep(0.05)
        raise AssertionError(f"not within {seconds} s: {what}\n{self.log.read_text()}")

    def end(self, seconds=90):
        """The driver's exit code, the verdict that it gave the cluster, the last status."""
        try:
            code = self.driver.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end\n{self.log.read_text()}") from None
        path = self.job / "finish.json"
        return code, json.loads(path.read_text()) if path.exists() else None, self.status

    def did(self):
        """What light workers have done, in the order of time."""
        rows = []
        for path in (self.run_directory / "did").glob("*.jsonl"):
            rows += [{**json.loads(line), "pid": int(path.stem)} for line in path.open()]
        return sorted(rows, key=lambda row: row["time"])

    def trains(self, ranks, after=0, seconds=60):
        """Wait until a world of so many ranks, newer than generation `after`, takes steps."""
        return self.wait(
            lambda s: s["generation"] > after and in_step(s, ranks),
            f"{ranks} ranks that train after generation {after}",
            seconds,
        )

    def processes(self):
        """Every process that belongs to the job, but its driver."""
        mark, pids = str(self.directory).encode(), []
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) in (os.getpid(), self.driver.pid):
                continue
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    words = file.read()
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    state = file.read().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if mark in words and b"python" in words and state != "Z":
                pids.append(int(name))
        return pids

    # --------------------------------------------------------------------------- acting
    def ask(self, **request):
        folder = self.run_directory / "job" / "requests"
        path = folder / f"{time.time_ns() // 10**6}-test.json"
        request["application"] = self.file["application"]
        path.with_suffix(".part").write_text(json.dumps(request))
        path.with_suffix(".part").rename(path)

    def preempt(self, container):
        (self.job / "preempt").mkdir(exist_ok=True)
        (self.job / "preempt" / container).touch()

    def capacity(self, count):
        (self.job / "capacity").write_text(str(count))


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def parent(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[1])
