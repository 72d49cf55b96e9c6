"""The two ways to run a trial: `howdah train` on this machine, or a job by `howdah submit`.

Both are commands that end when the trial does, with the training's exit code. They save and end
their training at SIGINT and SIGTERM, which the kernel sends too when the study's worker dies.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from howdah.config.job import ClusterName
from howdah.config.model import Config
from howdah.core import machine
from howdah.errors import HowdahError, NotFound, TrainingError, UsageError, WorkersLost
from howdah.process import isolation
from howdah.training.process import failure

HOWDAH = isolation.module("howdah.cli")
_KILL_SECONDS = 120.0
"""Time limit of `howdah kill`, which tries the job's driver, then YARN, or signals."""


@dataclass(frozen=True)
class Way:
    """How the trials of a study are run."""

    ranks: int = 1
    """Ranks of each trial; the most ranks of an elastic job."""
    on: ClusterName | None = None
    """The cluster of the trials' jobs, which have the workers and resources of the configuration's
    section `job`; None: trials are trainings on this machine."""

    @property
    def locks(self) -> tuple[str, ...]:
        """Lock files in the run directory that a process of an earlier attempt holds until its end.

        A job's rank that outlives its command holds `.lock`: the next attempt attaches to the job.
        """
        return (".launch.lock",) if self.on is not None else (".launch.lock", ".lock")

    @property
    def ending_seconds(self) -> float:
        """Time that the command needs to end, beyond the ranks' grace period."""
        return 120.0 if self.on is not None else 30.0

    def command(self, config: str) -> list[str]:
        """The command of a trial, from the path of its configuration."""
        if self.on is None:
            return [*HOWDAH, "train", "--config", config, "--json", "--np", str(self.ranks)]
        # It attaches to the job of an earlier attempt.
        return [*HOWDAH, "submit", "--config", config, "--on", self.on, "--wait", "--json"]

    def threads(self, parallel: int) -> int | None:
        """Default for the compute threads of a rank: its share of this machine, which `parallel`
        trials use; None for jobs, where job.worker.vcores decides."""
        if self.on is not None:
            return None
        return max(1, machine.cores() // (parallel * self.ranks))

    def own_failure(self, error: HowdahError | None, local: str) -> bool:
        """True if a training with a TrainingError failed by itself; False: it was lost.

        Args:
            local: the run's local directory.
        """
        if self.on is not None or self.ranks > 1:  # the job's driver says whose failure it is
            return not isinstance(error, WorkersLost)
        failed = failure.first(local)
        return failed is not None and not failed.consequence


def way_of(config: Config, *, np: int | None) -> Way:
    """The way in which a study's trials are run.

    Args:
        np: ranks of trainings on this machine; None: one.
    Raises:
        UsageError: it is set, but trials are jobs.
    """
    on = config.tune.on
    if on is None:
        return Way(np or 1)
    if np:
        raise UsageError(
            "trials are jobs, so job.workers and job.worker replace --np",
            where=f"tune.on: {on}",
            got=f"--np {np}",
        )
    return Way(config.job.most, on)


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
    return None if isinstance(error, NotFound) else error
