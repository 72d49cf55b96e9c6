"""The demo's settings for YARN, and its elastic training, which loses a worker."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from howdah import storage
from howdah.errors import TrainingError
from tools.demo import steps
from tools.demo.steps import say

_OVER = ("finished", "failed", "killed")
_PATIENCE_SECONDS = 600.0
"""Time limit to detect a hang."""


def overrides(workers: int) -> tuple[str, ...]:
    """The demo's settings for YARN.

    The nodes are this machine, which already has the environment: without `yarn.python` one is
    shipped to a cluster's nodes.
    """
    return (
        f"yarn.python={sys.executable}",
        f"job.workers={workers}",
        "job.worker.memory=3.5 GiB",
    )


def train_and_lose_a_worker(options: Sequence[str], run_directory: str, *, at_step: int) -> None:
    """Submit an elastic job, kill the container of its last rank once, follow it to its end.

    Args:
        options: --config and --set of the job, which must be able to continue with one worker.
        run_directory: the job's run directory.
        at_step: the first step at which to kill.
    Raises:
        TrainingError: the job ended before it lost a worker, or failed.
    """
    answer = json.loads(steps.howdah(["submit", *options, "--json"], capture=True))
    application = answer["application"]

    status = _wait(run_directory, lambda now: (now["step"] or 0) >= at_step)
    placed = [rank for rank in status["ranks"] if rank["rank"] is not None]
    victim = max(placed, key=lambda rank: rank["rank"])
    say(f"\n--- now rank {victim['rank']} loses its container, at step {status['step']}")
    signal = ["yarn", "container", "-signal", victim["container"], "FORCEFUL_SHUTDOWN"]
    say(f"$ {' '.join(signal)}")
    steps.run(signal)

    before = status["generation"]
    status = _wait(run_directory, lambda now: now["generation"] > before)
    say(f"--- generation {status['generation']}: {status['world_size']} workers continue")
    steps.howdah(["logs", application, "--follow"])
    status = _wait(run_directory, lambda now: now["state"] in _OVER)
    for event in status["events"]:
        say(f"  {event['what']}")
    if status["state"] != "finished":
        raise TrainingError(
            "the elastic job failed",
            where=run_directory,
            got=f"{status['state']}: {status['error']}",
            remedy=f"howdah logs {application}",
        )


def _wait(run_directory: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until the job's status meets the condition, and return it."""
    path = storage.join(run_directory, "job", "status.json")
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if storage.exists(path):
            status = storage.read_json(path)
            if condition(status):
                return status
            if status["state"] in _OVER:
                raise TrainingError(
                    "the job ended too early",
                    where=run_directory,
                    got=f"{status['state']} at step {status['step']}: {status['error']}",
                )
        time.sleep(0.5)
    raise TrainingError("the job hangs", where=path, remedy="howdah status, howdah logs")
