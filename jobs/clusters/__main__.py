"""`python -m howdah.jobs.clusters driver|agent|sweep`: the processes of a job on
this machine, Spark or Ray.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from howdah import storage
from howdah.config import loader
from howdah.config.model import Config
from howdah.core import threads
from howdah.errors import HowdahError, UsageError, render
from howdah.jobs import secret_file
from howdah.jobs.backend import DriverBackend
from howdah.jobs.clusters.backend import StdinAgent, write_verdict
from howdah.jobs.clusters.settings import (
    ATTENDED,
    CONFIG,
    ETL,
    JOB,
    shipped_for_spark,
    spark_is_here,
)
from howdah.jobs.status import status_file

_READ_SECONDS = 5.0
"""What the driver needs to read a request."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the roles; the process's exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    role, directory, *more = [*arguments, "", ""]
    try:
        if role == "driver" and directory:
            return _driver(directory, etl=more[0] == ETL, attended=more[0] == ATTENDED)
        if role == "agent" and directory:
            return _agent(directory)
        if role == "sweep" and directory:
            from howdah.jobs.clusters.ray_place import sweep

            sweep(directory, int(more[0]))
            return 0
        raise UsageError(
            "unknown role", where="python -m howdah.jobs.clusters",
            expected="driver or agent, and a directory (howdah submit --on starts a job)",
            got=" ".join(arguments) or "none",
        )  # fmt: skip
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
    from howdah.jobs.driver.driver import run

    path = os.path.join(directory, CONFIG)
    config = _load(path)
    with open(os.path.join(directory, JOB), encoding="utf-8") as file:
        application = file.read().strip()
    secret_env = secret_file.values(config, os.environ)
    for name in secret_env:  # only training processes get them
        del os.environ[name]
    if attended:
        threads.start(
            _end_with_command, config, application, name="command", failed=threads.RESTART
        )
    spark = partial(_spark, etl=etl)
    place = {"local": _local, "spark": spark, "ray": _ray}[config.job.on]
    try:
        with place(config, path, application, directory, secret_env) as backend:
            return run(_load(path), path, backend)  # by now it may name the version to train on
    except HowdahError as error:
        write_verdict(directory, "FAILED", render(error), error.as_dict())
        raise


def _end_with_command(config: Config, application: str) -> None:
    """Save and end the job once the command that waits for it is gone, however it ended."""
    while os.read(0, 1):  # blocks until its end: nothing is ever written
        pass
    status_file.request(config.run.directory, application, {"type": "stop", "save": True})
    time.sleep(config.checkpoint.grace_seconds + _READ_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


Place = Iterator[DriverBackend]


@contextmanager
def _local(
    config: Config, path: str, application: str, directory: str, secret_env: Mapping[str, str]
) -> Place:
    from howdah.jobs.local import LocalDriver

    backend = LocalDriver(
        directory, path, application=application, nodes=["localhost"], secret_env=secret_env
    )
    try:
        yield backend
    finally:
        backend.end_all()


@contextmanager
def _spark(
    config: Config, path: str, application: str, directory: str, secret_env: Mapping[str, str],
    *, etl: bool,
) -> Place:  # fmt: skip
    from howdah.jobs.clusters.dataset import make, needs_hive
    from howdah.jobs.clusters.spark_place import SparkDriver
    from howdah.spark.session import session

    options, name = config.data.spark, f"howdah {config.run.name}"
    shipped = shipped_for_spark(config, etl=etl, progress=print)
    hive = etl and needs_hive(config)
    with session(options, shipped=shipped, hive=hive, name=name) as spark:
        if etl:
            make(config, path, application)
        context = spark.sparkContext
        address = "127.0.0.1"
        if not spark_is_here(options.master):
            address = _address(context.getConf().get("spark.driver.host"))
        backend = SparkDriver(
            context, application, directory, _text(path), secret_env=secret_env, address=address
        )
        try:
            yield backend
        finally:
            backend.end_all()


@contextmanager
def _ray(
    config: Config, path: str, application: str, directory: str, secret_env: Mapping[str, str]
) -> Place:
    from howdah.jobs.clusters.ray_place import RayDriver, cluster

    os.chdir(directory)  # Ray's workers import from the directory in which Ray is started
    with cluster(config) as (ray, address):
        backend = RayDriver(
            ray, config, application, directory, _text(path), secret_env=secret_env,
            address=address,
        )  # fmt: skip
        try:
            yield backend
        finally:
            backend.end_all()


def _address(host: str) -> str:
    import socket

    return socket.gethostbyname(host)


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


# ---------------------------------------------------------------------------------- the agent
def _agent(home: str) -> int:
    from howdah.jobs.agent.agent import run

    values: dict[str, Any] = json.load(sys.stdin)
    path = os.path.join(home, CONFIG)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(values["config"])
    return run(_load(path), path, StdinAgent(values))


if __name__ == "__main__":
    sys.exit(main())
