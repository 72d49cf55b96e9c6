"""A running trial: it starts the training command, follows its metrics, and ends it."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from howdah import storage
from howdah.config.model import Config
from howdah.config.splits import VALIDATION
from howdah.core.child import Child
from howdah.core.processes import how_ended
from howdah.errors import HowdahError, JobLost, NotFound, TrainingError, UsageError
from howdah.models.runs import record
from howdah.models.runs.metrics_log import FILE_NAME as METRICS_FILE
from howdah.models.runs.metrics_log import read_metrics
from howdah.models.runs.run_json import readable_config
from howdah.process import isolation
from howdah.storage import directories
from howdah.training.run.local_dir import RunLock, local_directory
from howdah.tuning import study as studies
from howdah.tuning.ways import Way, end_job

if TYPE_CHECKING:
    import optuna

_REMOTE_SECONDS = 10.0
"""Interval for reading the metrics of a run directory that is not on this machine."""
_TAIL = 40
_STOPPED = (130, 143)


@dataclass(frozen=True)
class Outcome:
    """The end of a trial's training.

    complete: the run has finished. pruned, stopped: the run ended on request. failed: the training
    failed by itself (a loss that is not finite), and a retry would fail too. lost: the training was
    killed. fatal: an error that ends the study. in use: the training was not started, since an
    earlier worker's training still runs on this machine.
    """

    kind: Literal["complete", "pruned", "stopped", "failed", "lost", "fatal", "in use"]
    error: HowdahError | None = None


class RunningTrial:
    """A trial's process.

    `ended` starts it once the training of a killed worker has saved its last step. No method waits
    for that, or for the trial's end.

    Args:
        number: the trial's number.
        trial: Optuna's running trial.
        config: the trial's configuration.
        metric: the study's metric.
        way: the way to train it.
        say: takes a line when the trial has to wait, or its job could not be ended.
    Raises:
        StorageError: the run directory cannot be made.
    """

    def __init__(
        self,
        number: int,
        trial: optuna.Trial,
        config: Config,
        *,
        metric: str,
        way: Way,
        say: Callable[[str], None],
    ) -> None:
        self.number, self.trial, self.config = number, trial, config
        self._metric, self._way, self._say = metric, way, say
        self.directory = config.run.directory
        self.reported = studies.reported(trial)
        """Numbers of the evaluations that Optuna has, including those of earlier attempts."""
        self.judged: int | None = None
        """The newest evaluation that the pruner has judged."""
        self.requested: Literal["prune", "stop"] | None = None
        self._at_once = self._left = self._waits = False
        self._looked: Any = None
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL)
        self._error: HowdahError | None = None
        directories.take(self.directory, config.run.mode, key="run.directory")
        self._local = local_directory(self.directory, config.run.mode)
        self._files = contextlib.ExitStack()
        self._child: Child | None = None
        self._ending_seconds = config.checkpoint.grace_seconds + way.ending_seconds
        self._deadline = time.monotonic() + self._ending_seconds
        """Time limit for an earlier training to end, and for this one once it was asked to."""

    # ------------------------------------------------------------------------------ starting
    def _start(self) -> Outcome | None:
        """Start the process, unless an earlier training still uses the run directory. Returns an
        outcome if the process cannot be started."""
        with contextlib.ExitStack() as locks:
            try:
                descriptors = self._take_locks(locks)
            except UsageError as error:
                return self._wait(error)
            try:
                self._path = self._files.enter_context(readable_config(self.config, self.directory))
                # If this process is killed, the kernel sends the training SIGTERM: it saves.
                self._child = Child(
                    self._way.command(self._path), env=isolation.environment(), on_line=self._take,
                    pass_fds=descriptors,
                )  # fmt: skip
            except HowdahError as error:
                self._files.close()
                return Outcome("fatal", error)
            except BaseException:
                self._files.close()
                raise
        self._deadline = float("inf")
        return None

    def _take_locks(self, locks: contextlib.ExitStack) -> list[int]:
        """Check that all processes of earlier attempts have ended; return the locks to pass on.

        Args:
            locks: releases the passed locks in this process.
        Raises:
            UsageError: a process of an earlier attempt still runs.
        """
        descriptors = []
        for name in self._way.locks:
            lock = RunLock(self._local, name, self.directory)
            lock.take()
            if self._way.on is not None:
                descriptors.append(lock.fileno())
                locks.callback(lock.release)
            else:
                lock.release()
        return descriptors

    def _wait(self, error: UsageError) -> Outcome | None:
        if time.monotonic() > self._deadline:
            return Outcome("in use", error)
        if not self._waits:
            self._waits = True
            self._say(f"trial {self.number}: waiting for its earlier training to save: {error.got}")
        return None

    @property
    def started(self) -> bool:
        """True once the process was started."""
        return self._child is not None

    def _take(self, line: str) -> None:
        self._tail.append(line)
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                answer = json.loads(line)
                if isinstance(answer, dict) and "exit_code" in answer:
                    self._error = HowdahError.from_dict(answer)

    # ------------------------------------------------------------------------------ following
    def new_evaluations(self) -> list[tuple[int, float]]:
        """(number from 1, value) of the evaluations that Optuna does not have yet."""
        if not self._changed():
            return []
        values = evaluations(self.directory, self._metric)
        new = [(number, value) for number, value in values.items() if number not in self.reported]
        self.reported.update(number for number, _ in new)
        return new

    def _changed(self) -> bool:
        """True if the metrics have grown since the last call, or may have grown (remote runs)."""
        if not storage.is_local(self.directory):
            now = time.monotonic()
            over = self._child is not None and not self._child.alive
            if not over and self._looked is not None and now < self._looked + _REMOTE_SECONDS:
                return False
            self._looked = now
            return True
        try:
            info = os.stat(os.path.join(self._local, METRICS_FILE))
        except FileNotFoundError:
            return False
        before, self._looked = self._looked, (info.st_size, info.st_mtime_ns)
        return before != self._looked

    # ------------------------------------------------------------------------------ ending
    def request(self, end: Literal["prune", "stop"], number: int = signal.SIGTERM) -> None:
        """Ask the training to save and end. Further calls have no effect; a training that has not
        started will not start."""
        if self.requested is None:
            self.requested = end
            if self._child is not None:
                self._child.send(number)
                self._deadline = time.monotonic() + self._ending_seconds

    def kill(self) -> None:
        """End the training at once: ranks get SIGTERM from the kernel, a job is killed."""
        if self._child is None:
            self.request("stop")
        elif self._way.on is None:
            self._child.end(signal.SIGKILL)
        elif not self._at_once:
            self._at_once = True
            self._child.send(signal.SIGTERM)  # at a second SIGTERM the command kills the job
            self._deadline = time.monotonic() + self._way.ending_seconds

    def give_up(self) -> None:
        """Leave the trial to another worker: a local training saves and ends; a job goes on, and
        that worker follows it."""
        if self._way.on is None or self._child is None:
            self.request("stop")
        elif not self._left:
            self.requested, self._left = "stop", True
            self._child.end(signal.SIGKILL)

    def ended(self) -> Outcome | None:
        """The outcome; None while the training runs or waits for its start."""
        if self._child is None:
            return self._start() if self.requested is None else Outcome("stopped")
        if self._child.alive and time.monotonic() <= self._deadline:
            return None
        self._child.end()  # with processes that its launcher may have left
        self._child.read_rest()
        code = self._child.code or 0
        # A command that was killed may have left its job running.
        cut_short = self._at_once or code not in (0, *_STOPPED)
        if self._way.on is not None and cut_short and not self._left:
            error = end_job(self._path, isolation.environment())
            if error is not None:
                self._say(f"trial {self.number}: its job may still run: {error.what}")
        self._files.close()
        return self._outcome(code)

    def _outcome(self, code: int) -> Outcome:
        if code == 0:
            return self._finished()
        if self.requested is not None and (code in _STOPPED or code < 0):
            return Outcome("pruned" if self.requested == "prune" else "stopped")
        error = self._reason(code)
        if code < 0 or code in _STOPPED:  # killed, or asked to end by another process
            return Outcome("lost", error)
        if code == TrainingError.exit_code:
            own_failure = self._way.own_failure(self._error, self._local)
            return Outcome("failed" if own_failure else "lost", error)
        # A job's driver has died, or the job was killed.
        return Outcome("lost" if isinstance(self._error, JobLost) else "fatal", error)

    def _finished(self) -> Outcome:
        """Outcome of exit code 0, which alone does not prove a finished run: complete or fatal."""
        try:
            status = record.read(self.directory).get("status")
        except NotFound:
            status = None
        if status == "finished":
            return Outcome("complete")
        what = "the trial's command ended with exit code 0, but run.json does not say finished"
        return Outcome("fatal", TrainingError(what, where=self.directory, got=f"status {status}"))

    def _reason(self, code: int) -> HowdahError:
        if self._error is not None and self._error.exit_code == code:
            return self._error
        if code < 0:
            return TrainingError(
                f"its training was killed by {how_ended(code)}",
                where=self.directory,
                remedy="check the kernel's log (dmesg) for the out-of-memory killer",
            )
        got = "\n".join([f"exit code {code}", *self._tail])
        what = "its training failed without an error object"
        return TrainingError(what, where=self.directory, got=got)


def evaluations(directory: str, metric: str) -> dict[int, float]:
    """{number: value} of a run's evaluations on validation, counted from 1 by their steps.

    The final evaluation of the best weights repeats an earlier step and is not counted. An
    undefined value is counted, but left out.
    """
    lines = [
        line for line in read_metrics(directory)
        if line.get("split") == VALIDATION and line.get("metrics")
    ]  # fmt: skip
    lines.sort(key=lambda line: line["step"])
    values = {number: line["metrics"].get(metric) for number, line in enumerate(lines, 1)}
    return {number: value for number, value in values.items() if value is not None}


def final_value(directory: str, metric: str) -> tuple[float | None, Mapping[str, Any]]:
    """The metric of a finished run's best weights on validation (None: undefined), and run.json."""
    run = record.read(directory)
    metrics = (run.get("metrics") or {}).get(VALIDATION) or {}
    return metrics.get(metric), run
