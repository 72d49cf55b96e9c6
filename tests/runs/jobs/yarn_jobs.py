"""Jobs on the mini cluster, started by the command line as users start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import yaml

from howdah import storage
from tests import ROOT
from tests.fixtures.dataset import build_dataset

LIMIT = 240.0  # seconds; a test that hangs waits longer than this


ROWS = {"train": 96, "validation": 24}


def place_data(url: str, model_dir: str, rows: Mapping[str, int] = ROWS) -> None:
    """A small dataset at `url`/set and the tiny model at `url`/model."""
    for name in os.listdir(model_dir):
        storage.upload(os.path.join(model_dir, name), f"{url}/model/{name}")
    build_dataset(f"{url}/set/v=1", model_dir=model_dir, rows=dict(rows))


def settings(url: str, name: str, **sections) -> dict:
    """A configuration for `place_data`'s files; `sections` are merged into it."""
    held = {
        "run": {"name": name, "directory": f"{url}/runs/{name}"},
        "data": {"dataset": f"{url}/set", "max_length": 64},
        "model": {"base": f"{url}/model"},
        "training": {
            "framework": "torch", "global_batch_size": 12, "per_device_max_tokens": 128,
            "max_steps": 12, "learning_rate": 0.002, "precision": "fp32", "logging_steps": 1,
        },
        "checkpoint": {"every_steps": 4},
        "evaluation": {"splits": ["validation"]},
        "tracking": {"tensorboard": False},
        "yarn": {"python": sys.executable},
        "job": {"workers": 2, "max_restarts": 0, "worker": {"memory": "2 GiB"}},
    }  # fmt: skip
    for section, values in sections.items():
        held[section] = {**held.get(section, {}), **values}
    return held


def access_lists(admin: str) -> dict[str, dict[str, str]]:
    """A cluster's settings under which users may not end each other's applications."""
    return {
        "yarn-site": {"yarn.acl.enable": "true", "yarn.admin.acl": admin},
        "capacity-scheduler": {"yarn.scheduler.capacity.root.acl_administer_queue": " "},
    }


class Jobs:
    """The `howdah` command against one cluster.

    Args:
        cluster: a MiniCluster.
        directory: local, for configurations.
    """

    def __init__(self, cluster, directory):
        self.cluster, self.directory = cluster, Path(directory)
        self.env = {**cluster.env, "PYTHONPATH": str(ROOT), "HOWDAH_CACHE": str(directory)}
        self.env.pop("HADOOP_USER_NAME", None)

    def config(self, held: dict) -> str:
        """Write a configuration; its path."""
        path = self.directory / f"{held['run']['name']}.yaml"
        path.write_text(yaml.safe_dump(held))
        return str(path)

    def start(self, *arguments: str, **more) -> subprocess.Popen:
        """Start `howdah ARGUMENTS`."""
        return self._start(["-m", "howdah.cli", *arguments], **more)

    def start_program(self, program: str, *arguments: str, **more) -> subprocess.Popen:
        """Start Python's `program`, which runs `howdah ARGUMENTS`."""
        return self._start(["-c", program, *arguments], **more)

    def _start(self, words: list[str], **more) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, *words], env={**self.env, **more},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.directory,
        )  # fmt: skip

    def run(
        self, *arguments: str, code: int = 0, limit: float = LIMIT, **more
    ) -> subprocess.CompletedProcess:
        """Run `howdah ARGUMENTS` to its end; it must exit with `code`."""
        process = self.start(*arguments, **more)
        out, err = process.communicate(timeout=limit)
        assert process.returncode == code, f"{arguments}: {process.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def json(self, *arguments: str, code: int = 0, **more) -> dict:
        """Its one JSON object."""
        return json.loads(self.run(*arguments, "--json", code=code, **more).stdout)

    def status(self, application: str) -> dict:
        return self.json("status", application)

    def wait_for(self, application: str, condition, cause: str) -> dict:
        """Wait until condition(status) holds of a job; its status then."""
        deadline = time.monotonic() + LIMIT
        while True:
            status = self.status(application)
            if condition(status):
                return status
            assert time.monotonic() < deadline, f"{cause}: {json.dumps(status, indent=1)}"
            over = status["state"] in ("FINISHED", "FAILED", "KILLED")
            assert not over, f"{cause}: it has ended: {json.dumps(status, indent=1)}"
            time.sleep(0.5)

    def wait_for_step(self, application: str, step: int) -> dict:
        return self.wait_for(
            application,
            lambda status: ((status["job"] or {}).get("step") or 0) >= step,
            f"step {step}",
        )

    def wait_for_end(self, application: str, limit: float = LIMIT) -> dict:
        over = ("FINISHED", "FAILED", "KILLED")
        deadline = time.monotonic() + limit
        while (status := self.status(application))["state"] not in over:
            assert time.monotonic() < deadline, status
            time.sleep(0.5)
        return status

    def processes(self, application: str) -> dict[int, str]:
        """Processes of a job's containers: pid and command line."""
        commands = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environ = (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            marks = (f"SKEIN_APPLICATION_ID={application}", f"CONTAINER_ID={_mark(application)}")
            if command and any(mark.encode() in environ for mark in marks):
                commands[int(entry.name)] = command
        return commands

    def wait_until_gone(self, application: str, seconds: float) -> None:
        """No process of the job is left."""
        deadline = time.monotonic() + seconds
        while left := self.processes(application):
            assert time.monotonic() < deadline, left
            time.sleep(0.2)


def _mark(application: str) -> str:
    return "container_" + application.removeprefix("application_")
