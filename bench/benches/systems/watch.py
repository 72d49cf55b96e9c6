"""Runs of one job on other systems, watched from outside: steps, memory, ports, a killed rank."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from ipaddress import ip_address

import psutil

from bench.training_runs import Bench
from howdah.config import loader
from howdah.core.processes import marked
from howdah.jobs.status.status_file import status_path
from howdah.training.run.local_dir import RankRecord
from tests import ROOT

MARK = "BENCH_SYSTEMS_RUN"
"""Environment variable by which processes of a run are found, however they were started."""
_LIMIT_SECONDS = 400.0
"""Time limit of any wait, to detect a hang."""
SAVE_EVERY = 10
_HANGS_SECONDS = 90.0
"""After a rank was killed, without a new step or an end."""
_STEPS = 10**6  # more than any run makes: the bench ends it


@dataclass(frozen=True, kw_only=True)
class Place:
    """The folder of one run, and what it trains."""

    bench: Bench
    folder: str
    world: int
    batch: int
    """Rows of a step, over all ranks."""

    @classmethod
    def new(cls, bench: Bench, world: int, batch: int) -> Place:
        """A place with its own folder."""
        folder = tempfile.mkdtemp(dir=bench.folder)
        return cls(bench=bench, folder=folder, world=world, batch=batch)

    @property
    def job(self) -> str:
        """Path of the peers' job.json (bench/peers/plain_torch.py), written now."""
        path = f"{self.folder}/job.json"
        values = {
            "dataset": f"{self.bench.folder}/data", "base": self.bench.base, "steps": _STEPS,
            "batch": self.batch, "threads": 1, "out": self.folder, "save_every": SAVE_EVERY,
        }  # fmt: skip
        with open(path, "w", encoding="utf-8") as file:
            json.dump(values, file)
        return path

    @property
    def config(self) -> str:
        """Path of our run.yaml, written now."""
        path = f"{self.folder}/run.yaml"
        with open(path, "w", encoding="utf-8") as file:
            file.write(loader.dump_yaml(loader.from_dict(self.settings())))
        return path

    def settings(self) -> dict:
        """What our configuration says of the job."""
        return {
            "run": {"name": "bench", "directory": f"{self.folder}/run"},
            "data": {"dataset": f"{self.bench.folder}/data"},
            "model": {"base": self.bench.base},
            "training": {
                "framework": "torch", "global_batch_size": self.batch, "max_steps": _STEPS,
                "logging_steps": 1, "threads_per_rank": 1, "precision": "fp32",
            },
            "checkpoint": {"every_steps": SAVE_EVERY, "every_minutes": None, "every_epoch": False},
            "evaluation": {"splits": []},
            "tracking": {"tensorboard": False},
        }  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A step that rank 0 has completed."""

    number: int
    time: float
    life: int
    """Another one after each start of rank 0."""


class Watched:
    """A run on a system, as processes. Use it as a context: whatever of it lives at the end is
    killed.

    Args:
        argv: the command.
        place: where it runs.
        ours: it leaves Howdah's run directory, not what bench/peers/progress.py writes.
    """

    def __init__(self, argv: list[str], place: Place, *, ours: bool) -> None:
        self._argv, self._place, self._ours = argv, place, ours
        self._token = os.path.basename(place.folder)

    def __enter__(self) -> Watched:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + 60
        while (pids := marked(MARK, self._token)) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            time.sleep(0.1)
        self._process.wait()

    def start(self) -> None:
        """Start the command, now or again."""
        self.begun = time.time()
        with open(f"{self._place.folder}/log", "ab") as log:
            self._process = subprocess.Popen(
                self._argv,
                cwd=ROOT,
                env=os.environ | {
                    MARK: self._token, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
                    "SPARK_LOCAL_IP": "127.0.0.1", "RAY_USAGE_STATS_ENABLED": "0",
                    "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT),
                },
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    @property
    def code(self) -> int | None:
        """The command's exit code; None: it runs."""
        return self._process.poll()

    def steps(self) -> list[Step]:
        """The completed steps, in order."""
        name = "run/metrics.jsonl" if self._ours else "steps.jsonl"
        with contextlib.suppress(FileNotFoundError):
            with open(f"{self._place.folder}/{name}", encoding="utf-8") as file:
                lines = [json.loads(line) for line in file if line.endswith("\n")]
            life = "attempt" if self._ours else "life"
            return [
                Step(one["step"], one["time"], one[life]) for one in lines if "split" not in one
            ]
        return []

    def wait_for(self, what: str, condition) -> object:
        """Until `condition()` holds; what it gave.

        Raises:
            SystemExit: it never did, or the command ended before.
        """
        deadline = time.monotonic() + _LIMIT_SECONDS
        while not (value := condition()):
            if self.code is not None or time.monotonic() > deadline:
                with open(f"{self._place.folder}/log", encoding="utf-8", errors="replace") as file:
                    end = file.read()[-20000:]  # Spark repeats an error for each of its layers
                raise SystemExit(f"{self._argv}: no {what} (exit code {self.code}):\n{end}")
            time.sleep(0.05)
        return value

    def ranks(self) -> dict[int, int]:
        """Process ids by rank."""
        if self._ours:
            run = f"{self._place.folder}/run"
            pids = {one.rank: one.pid for one in RankRecord.read_all(run)}
            return pids or self._ranks_of_job(status_path(run))
        folder = f"{self._place.folder}/ranks"
        pids = {}
        for name in os.listdir(folder):
            with open(f"{folder}/{name}", encoding="utf-8") as file:
                pids[int(name)] = int(file.read())
        return pids

    @staticmethod
    def _ranks_of_job(path: str) -> dict[int, int]:
        """{rank: process id} of a job with a driver, read from the driver's status."""
        with open(path, encoding="utf-8") as file:
            return {one["rank"]: one["pid"] for one in json.load(file)["ranks"] if one["pid"]}

    def memory(self) -> dict:
        """Peak MB of a rank, and number and MB (proportional share) of the other processes."""
        ranks = set(self.ranks().values())
        others = [pid for pid in marked(MARK, self._token) if pid not in ranks]
        shares = []
        for pid in others:
            with contextlib.suppress(psutil.Error):
                shares.append(psutil.Process(pid).memory_full_info().pss / 1e6)
        peaks = []
        for pid in ranks:
            with open(f"/proc/{pid}/status", encoding="utf-8") as file:
                peaks.append(int(re.search(r"VmHWM:\s+(\d+) kB", file.read())[1]) / 1000)
        return {"rank_mb": max(peaks), "own_processes": len(shares), "own_mb": sum(shares)}

    def listeners(self) -> int:
        """Listening TCP sockets of all its processes that other machines can reach."""
        ports = set()
        for pid in marked(MARK, self._token):
            with contextlib.suppress(psutil.Error):
                for one in psutil.Process(pid).net_connections("tcp"):
                    if one.status == psutil.CONN_LISTEN and not _loopback(one.laddr.ip):
                        ports.add(one.laddr.port)
        return len(ports)

    def kill_rank(self, rank: int, *, goes_on: bool, elastic: bool = False) -> dict:
        """Kill a rank and see what follows.

        Args:
            goes_on: the same command, started again after its end, goes on with the run.
            elastic: the other rank goes on in its own life, without one more start. The step that
                was under way may have ended without the killed rank, so the one after it counts.
        Returns:
            outcome ("recovers", "ends" or "hangs"), seconds to that, exit_code; where a new step
            came: seconds_to_new_step and steps_repeated, both also after a second start.
        """
        before = self.steps()[-1]
        at = time.time()
        os.kill(self.ranks()[rank], signal.SIGKILL)

        def new_life() -> list[Step]:
            if elastic:
                return [step for step in self.steps() if step.time > at]
            return [step for step in self.steps() if step.life != before.life]

        def advanced() -> Step | None:
            newest = before.number + elastic
            return next((step for step in new_life() if step.number > newest), None)

        deadline = time.monotonic() + _HANGS_SECONDS
        while self.code is None and not advanced() and time.monotonic() < deadline:
            time.sleep(0.05)
        result: dict = {"exit_code": self.code, "seconds": time.time() - at}
        result["outcome"] = "ends" if self.code is not None else "hangs"
        if self.code is None and advanced():
            result["outcome"] = "recovers"
        elif self.code is not None and goes_on:
            self.start()
            self.wait_for("step after a second start", advanced)
        if step := advanced():
            result["seconds_to_new_step"] = step.time - at
            result["steps_repeated"] = max(0, before.number - new_life()[0].number + 1)
        return result


def _loopback(address: str) -> bool:
    parsed = ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def python(*words: object) -> list[str]:
    """A command line of this interpreter."""
    return [sys.executable, *map(str, words)]
