"""The two ways to run a trial: `howdah train` on this machine, or a job by `howdah submit`.

Both are commands that end when the trial does, with the training's exit code. They save and end
their training at SIGINT and SIGTERM, which the kernel sends too when the study's worker dies.
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

HOWDAH = isolation.module("howdah.cli")
_KILL_SECONDS = 120.0
"""Time limit of `howdah kill`, which tries the job's driver, then YARN, or signals."""


class Way(Protocol):
    """The way in which the trials of a study are run."""

    ranks: int
    """Ranks of each trial; the most ranks of an elastic job."""
    locks: tuple[str, ...]
    """Lock files in the run directory that a process of an earlier attempt holds until its end."""
    keeps_lock: bool
    """Whether this process takes the first lock and passes it on to the command."""
    ending_seconds: float
    """Time that the command needs to end, beyond the ranks' grace period."""
    on: Place | None
    """The cluster of the jobs; None: trials are not jobs."""

    def command(self, config: str) -> list[str]:
        """The command of a trial, from the path of its configuration."""

    def threads(self, parallel: int) -> int | None:
        """Default for the compute threads of a rank."""

    def own_failure(self, error: HowdahError | None, local: str) -> bool:
        """True if a training with a TrainingError failed by itself; False: it was lost.

        Args:
            local: the run's local directory.
        """

    def lost(self, error: HowdahError | None) -> bool:
        """True if an error of another class means that the training was ended from outside."""


@dataclass(frozen=True)
class Here:
    """Trials are trainings on this machine; several ranks are a job that ends with its command.

    Args:
        ranks: ranks of each trial.
    """

    ranks: int = 1
    locks = (".launch.lock", ".lock")
    keeps_lock = False
    ending_seconds = 30.0
    on = None

    def command(self, config: str) -> list[str]:
        """`howdah train`, with the ranks."""
        return [*HOWDAH, "train", "--config", config, "--json", "--np", str(self.ranks)]

    def threads(self, parallel: int) -> int | None:
        """This rank's share of the cores: concurrent trials share the machine."""
        return max(1, machine.cores() // (parallel * self.ranks))

    def own_failure(self, error: HowdahError | None, local: str) -> bool:
        """True if a rank has written an error that is not a consequence of another rank's end.

        For several ranks the job's driver says whose failure it is.
        """
        if self.ranks > 1:
            return not isinstance(error, WorkersLost)
        failed = failure.first(local)
        return failed is not None and not failed.consequence

    def lost(self, error: HowdahError | None) -> bool:
        """True if the driver of several ranks has died, or another process has killed it."""
        return isinstance(error, JobLost)


@dataclass(frozen=True)
class TrialJobs:
    """Trials are jobs, with the workers and resources of the configuration's section `job`.

    Args:
        on: the cluster.
        ranks: the most ranks of each trial.
    """

    on: Place
    ranks: int
    # A rank of a job that outlives its command holds `.lock`: the next attempt attaches to the job.
    locks = (".launch.lock",)
    keeps_lock = True
    ending_seconds = 120.0

    def command(self, config: str) -> list[str]:
        """`howdah submit --wait`, which attaches to the job of an earlier attempt."""
        return [*HOWDAH, "submit", "--config", config, "--on", self.on, "--wait", "--json"]

    def threads(self, parallel: int) -> int | None:
        """None: job.worker.vcores decides."""
        return None

    def own_failure(self, error: HowdahError | None, local: str) -> bool:
        """True unless the driver reports lost workers; remote ranks leave no record here."""
        return not isinstance(error, WorkersLost)

    def lost(self, error: HowdahError | None) -> bool:
        """True if the job's driver has died, or the job was killed."""
        return isinstance(error, JobLost)


def way_of(config: Config, *, np: int | None) -> Way:
    """The way in which a study's trials are run.

    Args:
        np: ranks of trainings on this machine; None: one.
    Raises:
        UsageError: it is set, but trials are jobs.
    """
    if config.tune.on is None:
        return Here(np or 1)
    if np:
        raise UsageError(
            "trials are jobs, so job.workers and job.worker replace --np",
            where=f"tune.on: {config.tune.on}",
            got=f"--np {np}",
        )
    return TrialJobs(config.tune.on, config.job.most)


def end_job(config: str, env: Mapping[str, str]) -> HowdahError | None:
    """End the job of a configuration at once, if it has one; an error: the job may still run."""
    try:
        done = subprocess.run(
            [*HOWDAH, "kill", "--config", config, "--json"], env=dict(env), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True, timeout=_KILL_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return TrainingError(f"howdah kill did not end within {_KILL_SECONDS:.0f} s", where=config)
    if done.returncode == 0:
        return None
    try:
        error = HowdahError.from_dict(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        return TrainingError("howdah kill failed", where=config, got=done.stdout or None)
    return None if type(error).__name__ == "NotFound" else error
