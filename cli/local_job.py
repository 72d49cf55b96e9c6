"""`howdah train --np N`: a job of this machine that the command waits for.

It differs from `howdah submit --on local` in three things: the job ends with its command, however
that ends; two commands never wait for one job; rank 0 writes to the terminal itself.
"""

from __future__ import annotations

import contextlib
import http.client
import json as _json
import os
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

from howdah import redact
from howdah.cli.common import say
from howdah.cli.jobs import cluster_of
from howdah.config import loader
from howdah.config.model import Config
from howdah.core import gpus, machine
from howdah.errors import (
    ConfigError,
    HowdahError,
    Interrupted,
    StorageError,
    Terminated,
    UsageError,
)
from howdah.job_log import Position, new_lines
from howdah.jobs import record
from howdah.jobs import submit as submission
from howdah.jobs.application import Application, failure_of
from howdah.jobs.clusters.local_cluster import LocalCluster
from howdah.models.runs import settings
from howdah.models.runs.run_json import RunFile
from howdah.process.env import TERMINAL
from howdah.training.launch import outcome
from howdah.training.run.local_dir import RunLock, local_directory

_POLL_SECONDS = 0.2
_PAGE_SECONDS = 2.0
_END_SECONDS = 30.0
"""Time that the driver may need in addition to `checkpoint.grace_seconds`: it reads the request to
stop, ends its workers and writes its last status."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def train(config: Config, *, np: int) -> None:
    """Train with `np` ranks and wait for the end; nothing if the run was finished before.

    Args:
        np: ranks, 2 or more.
    Raises:
        HowdahError: why the job failed, with its exit code.
        Interrupted, Terminated: it was stopped.
    """
    config = _job_config(config, np)
    directory = config.run.directory
    done = settings.already_finished(config)
    if done is not None:
        print("\n".join(done), file=sys.stderr, flush=True)
        return
    lock = RunLock(local_directory(directory), ".launch.lock", directory)
    lock.take()
    try:
        _run(config)
    finally:
        lock.release()


def _job_config(config: Config, np: int) -> Config:
    """The configuration of the job.

    What the section `job` says about a cluster's network, ports and containers does not apply to
    processes of this machine.

    Raises:
        ConfigError, UsageError: there are fewer rows in a step, or GPUs, than ranks.
    """
    rows = config.training.global_batch_size
    if rows < np:
        raise ConfigError(
            "training.global_batch_size is smaller than the world",
            where="training.global_batch_size",
            expected=f"at least {np}, one row for each rank",
            got=str(rows),
            remedy="raise it, or start fewer ranks",
        )
    values = config.model_dump(mode="json")
    job = values["job"]
    devices = gpus.usable().devices
    if devices and len(devices) < np:
        raise UsageError(
            "more ranks than GPUs on this machine",
            expected=f"at most {len(devices)} ranks (GPUs {', '.join(devices)})",
            got=f"{np} ranks",
            remedy="start fewer ranks, or train on the CPU with CUDA_VISIBLE_DEVICES=''",
        )
    job |= {
        "on": "local",
        "workers": np,
        "controller": "gloo",
        "network_interface": None,
        "ports": None,
        "secret_env": [name for name in job["secret_env"] if name in os.environ],
    }
    if config.job.elastic:
        job |= {"min_workers": min(config.job.fewest, np), "max_workers": max(config.job.most, np)}
    threads = config.training.threads_per_rank or max(1, machine.cores() // np)
    job["worker"] |= {"vcores": threads, "gpus": int(bool(devices))}
    return loader.from_dict(values)


def _run(config: Config) -> None:
    directory = config.run.directory
    live = record.read(directory)
    if live is not None and live.driver_lives:
        raise submission.in_use(live)
    before = len(outcome.attempts(directory))
    os.environ.pop(TERMINAL, None)
    with contextlib.suppress(OSError):
        os.environ[TERMINAL] = os.ttyname(2)
    read, write = os.pipe()
    try:  # this process alone holds the other end: where it is killed, the driver reads its end
        cluster = LocalCluster(config, command_pipe=read)
        job = submission.submit(cluster, say, lambda name: cluster_of(name, config))
        if job.attached:
            raise submission.in_use(record.read(directory) or live)
        stopped_by = _wait(job.application, config)
    finally:
        os.close(read)
        os.close(write)
    status = job.application.status()
    if status["final_status"] == "SUCCEEDED":
        return
    error = _error(config, status, stopped_by)
    _write_end(directory, before, error)
    raise error


def _error(config: Config, status: dict[str, Any], stopped_by: int | None) -> HowdahError:
    if stopped_by is not None:
        cut_short = bool(outcome.cut_short(config))
        return outcome.stopped(config, stopped_by, killed=cut_short)
    error = failure_of(status)
    newest = outcome.newest_checkpoint(config)
    if newest != outcome.NONE:
        error.got = "\n".join([*filter(None, [error.got]), f"the newest checkpoint is {newest}"])
    return error


def _write_end(directory: str, before: int, error: HowdahError) -> None:
    """Put the job's end into run.json: a rank that ended wrote its own end, not the job's.

    A later attempt on another machine keeps what it has written.
    """
    file = RunFile(directory)
    attempts = file.values.get("attempts", [])
    if len(attempts) > before and attempts[-1].get("host") == socket.gethostname():
        stopped = isinstance(error, Interrupted | Terminated)
        file.end("interrupted" if stopped else "failed", redact.text(error.what))


def _wait(job: Application, config: Config) -> int | None:
    """Show the job's events and rank 0's lines until it is over.

    Returns:
        The signal that stopped it; None: it ended by itself.
    """
    position, handled, deadline = Position(), 0, float("inf")
    with _signals() as signals:
        while True:
            over = job.is_over
            status = job.driver_status() if over else _live(job)
            lines, position = new_lines(_shown(status), position)
            for line in lines:
                say(line)
            if over:
                return signals[0] if signals else None
            if len(signals) > handled:
                again = handled > 0
                # Up to here it is one request: `timeout` and a closing terminal send theirs twice.
                handled = len(signals)
                deadline = 0.0 if again else _ask_to_stop(job, config, signals[0])
            if time.monotonic() > deadline:
                job.end()
            time.sleep(_POLL_SECONDS)


def _ask_to_stop(job: Application, config: Config, number: int) -> float:
    """Ask the driver to save and end; the time (time.monotonic) by which it must have ended."""
    seconds = config.checkpoint.grace_seconds
    name = signal.Signals(number).name
    try:
        job.request({"type": "stop", "save": True})
    except StorageError as error:
        say(f"{name}: the job is ended without a checkpoint: {error.what}")
        return 0.0
    say(f"{name}: saving a checkpoint, at most {seconds:g} s (send it again to kill at once)")
    return time.monotonic() + seconds + _END_SECONDS


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the signals that ask to stop, in the order in which they come."""
    received: list[int] = []
    old = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        if old[number] is not signal.SIG_IGN:  # nohup stays nohup
            signal.signal(number, lambda number, _: received.append(number))
    try:
        yield received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _live(job: Application) -> dict[str, Any]:
    """The driver's status from its page, which is newer than the file; else from the file."""
    status = job.driver_status()
    page = status.get("page") or ""
    if not page.startswith("http://127.0.0.1:"):
        return status
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with (
        contextlib.suppress(OSError, ValueError, http.client.HTTPException),  # it may end meanwhile
        opener.open(page + "status.json", timeout=_PAGE_SECONDS) as answer,
    ):
        return _json.loads(answer.read())
    return status


def _shown(status: dict[str, Any]) -> dict[str, Any]:
    """The status, without routine events, and without lines that rank 0 itself has shown."""
    events = [event for event in status.get("events") or [] if not event.get("routine")]
    lines = [] if TERMINAL in os.environ else status.get("lines") or []
    return status | {"events": events, "lines": lines}
