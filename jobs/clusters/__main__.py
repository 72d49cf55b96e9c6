"""`python -m howdah.jobs.clusters driver|agent|sweep`: the processes of a job on
this machine, Spark or Ray.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from howdah import storage
from howdah.config import loader
from howdah.config.model import Config
from howdah.core import threads
from howdah.errors import HowdahError, StorageError, UsageError, render
from howdah.jobs import secret_file
from howdah.jobs.clusters.backend import StdinAgent, write_verdict
from howdah.jobs.clusters.settings import ATTENDED, CONFIG, ETL, JOB
from howdah.jobs.status import status_file

_READ_SECONDS = 5.0
"""How long the driver may take to read a request."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the three roles, and return the process's exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    role, directory, *more = [*arguments, "", ""]
    try:
        if role == "driver" and directory:
            return _driver(directory, etl=more[0] == ETL, attended=more[0] == ATTENDED)
        if role == "agent" and directory:
            return _agent(directory)
        if role == "sweep" and directory:
            from howdah.jobs.clusters.ray_driver import sweep

            sweep(directory, int(more[0]))
            return 0
        raise UsageError(
            f"unknown role: {' '.join(arguments) or 'none'}",
            where="python -m howdah.jobs.clusters",
            expected="driver or agent, and a directory (howdah submit --on starts a job)",
        )
    except HowdahError as error:
        print(f"howdah: {render(error)}", file=sys.stderr, flush=True)
        return error.exit_code


def _load(path: str) -> Config:
    config = loader.load(path)
    storage.configure(retry_seconds=config.run.storage_retry_seconds, mode=config.most_open)
    storage.be_patient()
    return config


# --------------------------------------------------------------------------------- the driver
def _driver(directory: str, *, etl: bool, attended: bool) -> int:
    from howdah.jobs.clusters.clusters import class_of
    from howdah.jobs.driver.driver import run

    path = os.path.join(directory, CONFIG)
    config = _load(path)
    with open(os.path.join(directory, JOB), encoding="utf-8") as file:
        application = file.read().strip()
    secret_env = secret_file.values(config, os.environ)
    for name in secret_env:  # only training processes may have these
        del os.environ[name]
    if attended:
        threads.start(
            _end_with_command, config, application, name="command", failed=threads.RESTART
        )
    try:
        cluster = class_of(config.job.on)(config, etl=etl)
        with cluster.containers(path, application, directory, secret_env) as backend:
            try:
                # Loaded again, since `containers` may have put another dataset into the file.
                return run(_load(path), path, backend)
            finally:
                backend.end_all()
    except HowdahError as error:
        write_verdict(directory, "FAILED", render(error), error.as_dict())
        raise


def _end_with_command(config: Config, application: str) -> None:
    """Save and end the job once the command that waits for it has ended in any way."""
    while os.read(0, 1):  # blocks until the command's end: it never writes to this pipe
        pass
    with contextlib.suppress(StorageError):  # a full disk: the signal needs none
        status_file.request(config.run.directory, application, {"type": "stop", "save": True})
        time.sleep(config.checkpoint.grace_seconds + _READ_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


# ---------------------------------------------------------------------------------- the agent
def _agent(home: str) -> int:
    from howdah.jobs.agent.agent import run

    values: dict[str, Any] = json.load(sys.stdin)
    path = secret_file.write_private(home, CONFIG, values["config"])
    return run(_load(path), path, StdinAgent(values))


if __name__ == "__main__":
    sys.exit(main())
