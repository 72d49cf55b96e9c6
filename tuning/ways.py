"""The two ways to run a trial: `howdah train` on this machine, or a job by `howdah submit`.

Both are a command in a process of its own that ends when the trial does, with the training's own
exit code, and that saves and ends its training when it is asked to (SIGINT, SIGTERM, and the
kernel's SIGTERM when the study's worker dies).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from howdah.config.job import Place
from howdah.config.loader import Config
from howdah.core import machine
from howdah.errors import HowdahError, JobLost, TrainingError, UsageError, WorkersLost
from howdah.process import isolation
from howdah.training.process import failure

__all__ = ["Here", "Job", "Way", "end_job", "way_of"]

HOWDAH = isolation.module("howdah.cli")
_KILL_SECONDS = 120.0
"""How long `howdah kill` may take: asking the job's driver, then YARN, or signals."""


class Way(Protocol):
    """How the trials of a study are run."""

    ranks: int
    """Of each trial; of an elastic job, the most."""
    locks: tuple[str, ...]
    """Files of the run directory that a process of an earlier attempt holds while it lives."""
    keeps_lock: bool
    """The first of them is held by this process for the command it starts."""
    ending_seconds: float
    """What the command may need to end besides the ranks' grace period."""
    on: Place | None
    """Where jobs run; None: no jobs."""

    def command(self, config: str) -> list[str]:
        """The command of a trial, by the path of its configuration."""

    def threads(self, parallel: int) -> int | None:
        """Compute threads of a rank where the study's configuration gives none."""

    def own_failure(self, error: HowdahError | None, local: str) -> bool:
        """A training that ended by TrainingError failed by itself; False: it was lost.

        Args:
            local: the run's local directory.
        """

    def lost(self, error: HowdahError | None) -> bool:
        """An error of another kind that says that the training was ended from outside."""


@dataclass(frozen=True)
class Here:
    """Trials are trainings of this machine; those of several ranks are jobs that end with their
    command.

    Args:
        ranks: of each trial.
    """

    ranks: int = 1
    locks = (".launch.lock", ".lock")
    keeps_lock = False
    ending_seconds = 30.0
    on = None

    def command(self, config: str) -> list[str]:
        """As Way."""
        return [*HOWDAH, "train", "--config", config, "--json", "--np", str(self.ranks)]

    def threads(self, parallel: int) -> int | None:
        """Trials that run at once share the machine's cores."""
        return max(1, machine.cores() // (parallel * self.ranks))

    def own_failure(self, error: HowdahError | None, local: str) -> bool:
        """Of one rank: it has written an error. Of a job, the driver says whose failure it is."""
        if self.ranks > 1:
            return not isinstance(error, WorkersLost)
        failed = failure.first(local)
        return failed is not None and not failed.consequence

    def lost(self, error: HowdahError | None) -> bool:
        """The driver of several ranks has died, or another process has killed it."""
        return isinstance(error, JobLost)


@dataclass(frozen=True)
class Job:
    """Trials are jobs, with the workers and resources of the configuration's section `job`.

    Args:
        on: where they run.
        ranks: of each trial, the most.
    """

    on: Place
    ranks: int
    # A rank of a job that outlives its command holds `.lock`: the next attempt attaches to the job.
    locks = (".launch.lock",)
    keeps_lock = True
    ending_seconds = 120.0

    def command(self, config: str) -> list[str]:
        """As Way."""
        return [*HOWDAH, "submit", "--config", config, "--on", self.on, "--wait", "--json"]

    def threads(self, parallel: int) -> int | None:
        """job.worker.vcores: not for a study to say."""
        return None

    def own_failure(self, error: HowdahError | None, local: str) -> bool:
        """The driver says whose failure it is; ranks on other machines leave no record here."""
        return not isinstance(error, WorkersLost)

    def lost(self, error: HowdahError | None) -> bool:
        """Its driver has died, or another has killed it."""
        return isinstance(error, JobLost)


def way_of(config: Config, *, np: int | None) -> Way:
    """How a study's trials are run.

    Args:
        np: ranks of trainings on this machine; None: not given.
    Raises:
        UsageError: it is given, and trials are jobs.
    """
    if config.tune.on is None:
        return Here(np or 1)
    if np:
        raise UsageError(
            "trials are jobs, whose ranks are the job's workers",
            where=f"tune.on: {config.tune.on}",
            expected="job.workers and job.worker instead of --np",
            got=f"--np {np}",
            remedy="leave it out, or tune.on, so that this machine trains the trials",
        )  # fmt: skip
    return Job(config.tune.on, config.job.most)


def end_job(config: str, env: Mapping[str, str]) -> HowdahError | None:
    """End the job of a configuration at once, if there is one; an error: it may still run."""
    try:
        done = subprocess.run(
            [*HOWDAH, "kill", "--config", config, "--json"], env=dict(env), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True, timeout=_KILL_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return TrainingError("howdah kill has not ended", where=config)
    if done.returncode == 0:
        return None
    try:
        error = HowdahError.from_dict(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        return TrainingError("howdah kill has failed", where=config, got=done.stdout or None)
    return None if type(error).__name__ == "NotFound" else error
