"""A job that `howdah submit --on local|spark|ray` started, with light workers or real training."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import yaml

from howdah.errors import NotFound
from howdah.storage import is_local, read_json
from tests import ROOT
from tests.runs.jobs.local_jobs import LIGHT, LocalJob, kill
from tests.support.waiting import wait_until

NO_HOROVOD = os.path.join(ROOT, "tests", "workers", "no_horovod")
"""In PYTHONPATH, it hides Horovod."""


class _Detached:
    """A driver that is not our child, with what LocalJob asks of one."""

    def __init__(self, pid):
        self.pid, self._process = pid, psutil.Process(pid)

    def poll(self):
        try:
            gone = self._process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            gone = True
        return 0 if gone else None

    def kill(self):
        kill(self.pid, signal.SIGKILL)


class SubmittedJob(LocalJob):
    """Submitted by the command line, and controlled by it.

    Args:
        on: local, spark, ray.
        light: light workers in training's place.
        words: more of the command that submits it.
        run: the run directory; None: one below `directory`.
        sections: of the configuration.
    """

    def __init__(self, directory, on, *, light=True, env=None, words=(), run=None, **sections):
        self.prefix, self.on, self.words = (), on, words
        self.directory = Path(directory)
        self.run = run or str(self.directory / "run")
        self.run_directory = self.directory / "run"
        self.directory.mkdir(parents=True, exist_ok=True)
        config = {"run": {"directory": self.run, "name": "test"}, **sections}
        if light:  # Spark puts Howdah's own packages first in PYTHONPATH
            path = f"{LIGHT}{os.pathsep}{ROOT}"
            config["job"] = {**config.get("job", {}), "env": {"PYTHONPATH": path}}
        self.config = self.directory / "config.yaml"
        self.config.write_text(yaml.safe_dump(config))
        self.env = {
            **os.environ, "PYTHONPATH": str(ROOT), "HOWDAH_CACHE": str(self.directory / "cache"),
            "CUDA_VISIBLE_DEVICES": "", **(env or {}),
        }  # fmt: skip
        if "HADOOP_CONF_DIR" not in (env or {}):
            self.env.pop("HADOOP_CONF_DIR", None)
        self.submit()

    def submit(self):
        """Submit it (again); the command's answer."""
        words = ("--config", str(self.config), "--on", self.on, *self.words)
        answer = self.json("submit", *words)
        self.application = answer["application"]
        self.job = self.directory / "cache" / "jobs" / self.application
        self.log = self.job / "driver.log"
        pid = json.loads((self.job / "application.json").read_text())["pid"]
        if not answer["attached"] or self.driver.pid != pid:
            self.driver = _Detached(pid)
        return answer

    @property
    def file(self):
        """status.json as the driver last wrote it."""
        if is_local(self.run):
            return super().file
        try:
            return read_json(f"{self.run}/job/status.json")
        except NotFound:
            return dict.fromkeys(("state", "step", "page"), None) | {"ranks": [], "events": []}

    def run_json(self):
        """run.json of the run directory."""
        return read_json(f"{self.run}/run.json")

    def command(self, *words):
        """Run a `howdah` command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "howdah.cli", *words], env=self.env, cwd=self.directory,
            capture_output=True, text=True, timeout=420,
        )  # fmt: skip

    def json(self, *words):
        """The object that a command prints with --json."""
        done = self.command(*words, "--json")
        log = self.log.read_text() if hasattr(self, "log") else ""
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{log}"
        return json.loads(done.stdout)

    def descendants(self):
        """The processes that the driver has started, and theirs; Spark's and Ray's too."""
        return psutil.Process(self.driver.pid).children(recursive=True)

    def __exit__(self, *_):
        try:
            if self.driver.poll() is None:
                self._end_driver()
        finally:  # also of another job, which a test that failed had not taken note of
            for pid in self.processes():
                kill(pid)
        wait_until(lambda: not self.processes())

    def _end_driver(self):
        descendants = self.descendants()
        kill(self.driver.pid, signal.SIGTERM)  # it removes its own directories
        try:
            wait_until(lambda: self.driver.poll() is not None)
            gone(descendants)
        finally:
            self.driver.kill()
            for process in descendants:
                if process.is_running():
                    kill(process.pid)


def gone(processes, seconds=30):
    """Wait until none of these processes is left."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    assert not alive, [process.cmdline() for process in alive]
