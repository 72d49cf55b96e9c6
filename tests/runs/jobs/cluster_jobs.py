"""Jobs on the mini cluster: submitted by the command line, and their processes killed."""

import glob
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import yaml

from howdah import storage
from howdah.core.processes import stat_fields
from howdah.errors import NotFound
from tests import ROOT
from tests.runs.jobs.local_jobs import kill
from tests.runs.jobs.watched_job import WatchedJob, in_step
from tests.runs.training_runs import NO_DROPOUT, SETTINGS, _nested

OVER = ("finished", "failed", "killed")


class ClusterJob(WatchedJob):
    """A job on YARN, from `howdah submit` to its end.

    Args:
        cluster: the mini cluster.
        directory: the run's, on HDFS.
        settings: flat keys of the configuration.
    """

    def __init__(self, cluster, directory, config_path, *, dataset, base, **settings):
        self.cluster, self.directory = cluster, directory
        values = SETTINGS | NO_DROPOUT | {
            "run.name": "trial", "run.directory": directory, "data.dataset": dataset,
            "model.base": base, "training.num_train_epochs": 10**6, "training.max_steps": 10**6,
            "checkpoint.every_steps": 200,
            "yarn.python": sys.executable, "job.worker.memory": "1536 MiB",
            "yarn.driver.memory": "512 MiB",
        } | settings  # fmt: skip
        self.config = Path(config_path)
        self.config.write_text(yaml.safe_dump(_nested(values)))
        self.env = {**cluster.env, "CUDA_VISIBLE_DEVICES": ""}
        submitted = json.loads(self.howdah("submit", "--config", str(self.config), "--json"))
        self.application = submitted["application"]

    def howdah(self, *arguments, check=True):
        """Run a `howdah` command; its stdout."""
        done = subprocess.run(
            [sys.executable, "-m", "howdah.cli", *arguments],
            cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise AssertionError(f"howdah {arguments} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout

    # ---------------------------------------------------------------------- reading its state
    @property
    def file(self):
        """status.json as the driver last wrote it; {} before the first."""
        try:
            return storage.read_json(storage.join(self.directory, "job", "status.json"))
        except NotFound:
            return {}

    @property
    def status(self):
        """The status from the driver's page while it runs, else from the file."""
        from_file = self.file
        drivers = [pid for pid in self.processes() if "yarn driver" in command(pid)]
        for pid in drivers:
            url = self._page(pid)
            if url is not None:
                try:
                    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
                    with opener.open(url + "status.json", timeout=5) as answer:
                        return json.loads(answer.read())
                except (OSError, ValueError):
                    pass
        return from_file or {"state": None, "generation": 0, "world_size": 0, "ranks": [],
                         "events": [], "step": None, "attempt": 0}  # fmt: skip

    def _page(self, pid):
        """The address of the job's page, which the driver prints first."""
        for path in reversed(self.logs("driver")):
            try:
                text = path.read_text(errors="replace")
            except FileNotFoundError:  # YARN removes what a container leaves
                continue
            addresses = re.findall(r"attempt \d+: (http://\S+)", text)
            if addresses:
                return addresses[-1]
        return None

    def logs(self, name):
        """Log files of the job's containers, the newest attempt's last."""
        patterns = [f"{glob.escape(folder)}/*{name}*" for folder in self.containers()]
        files = [Path(name) for pattern in patterns for name in glob.glob(pattern)]
        # A container's name begins with its attempt, whichever node it is on.
        return sorted(filter(Path.is_file, files), key=lambda path: (path.parent.name, path.name))

    def containers(self, daemon=""):
        """Directories that the daemons, or one of them, keep for the job's containers."""
        folders = []
        # `walk` passes over what YARN removes meanwhile; Path.glob raises there.
        for folder, names, _ in os.walk(os.path.join(self.cluster.directory, daemon)):
            if os.path.basename(folder) == self.application:
                folders += [os.path.join(folder, n) for n in names if n.startswith("container_")]
                names.clear()
        return folders

    def processes(self):
        """The processes of the job's containers."""
        # After a restart of the ResourceManager its epoch stands in the name: container_e02_...
        mark = self.application.removeprefix("application_")
        mine = re.compile(rf"CONTAINER_ID=container_(e\d+_)?{mark}_".encode())
        pids = []
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    env = file.read()
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    state = file.read().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state != "Z" and mine.search(env):
                pids.append(int(name))
        return pids

    def wait(self, condition, what, seconds=120):
        """Until `condition(status)`."""
        deadline = time.monotonic() + seconds
        status = self.status
        while not condition(status):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds} s: {what}\n{self.story(status)}")
            time.sleep(0.2)
            status = self.status
        return status

    def story(self, status=None):
        """State, events and logs, for a failed test's message."""
        status = status or self.status
        events = "\n".join(event["what"] for event in status.get("events", []))
        tails = [f"== {path}\n{path.read_text(errors='replace')[-2000:]}" for path in self.logs("")]
        return f"{status.get('state')}\n{events}\n" + "\n".join(tails)[-20_000:]

    def trains(self, ranks, after=0, seconds=120, attempt=1):
        """Wait until a world newer than generation `after` takes steps."""
        return self.wait(
            lambda s: (
                s.get("attempt", 0) >= attempt
                and (s["generation"] > after or s["attempt"] > 1)
                and in_step(s, ranks)
            ),
            f"{ranks} ranks that train after generation {after}",
            seconds,
        )

    def end(self, seconds=120):
        """YARN's report of its end, and the last status."""
        report = self.cluster.run("yarn", "application", "-status", self.application).stdout
        deadline = time.monotonic() + seconds
        while not re.search(r"State : (FINISHED|FAILED|KILLED)", report):
            assert time.monotonic() < deadline, report + self.story()
            time.sleep(1)
            report = self.cluster.run("yarn", "application", "-status", self.application).stdout
        return report, self.file

    def gone(self, seconds=60):
        """Wait until none of its processes runs; how long that took."""
        started = time.monotonic()
        while self.processes():
            assert time.monotonic() - started < seconds, [command(p) for p in self.processes()]
            time.sleep(0.2)
        return time.monotonic() - started

    # --------------------------------------------------------------------------------- faults
    def kill_driver(self):
        for pid in self.processes():
            if "-m howdah.yarn driver" in command(pid) and "python" in command(pid).split()[0]:
                kill(pid)

    def kill_master(self):
        for pid in self.processes():
            if "java" in command(pid).split()[0] and "ApplicationMaster" in command(pid):
                kill(pid)

    def kill_container(self, container):
        """SIGKILL to every process of a container, as the kernel does when memory runs out."""
        for pid in self.processes():
            try:
                env = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            if f"CONTAINER_ID={container}".encode() in env:
                kill(pid)

    def close(self):
        """Kill it, whatever its state."""
        self.cluster.run("yarn", "application", "-kill", self.application)
        self.gone()


def command(pid):
    """A process's command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return "-"


def runs(pid):
    """Whether a process runs: a zombie does not."""
    fields = stat_fields(pid)
    return fields is not None and fields[0] not in "ZX"


def stop(pid):
    """SIGSTOP."""
    os.kill(pid, signal.SIGSTOP)
