"""One trial that runs: the command that trains it, followed in its run directory, and its end."""

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
from howdah.config.loader import Config
from howdah.config.splits import VALIDATION
from howdah.core.child import Child
from howdah.errors import HowdahError, NotFound, TrainingError, UsageError
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
"""Between two looks at the metrics of a run directory that is not on this machine."""
_TAIL = 40
_STOPPED = (130, 143)


@dataclass(frozen=True)
class Outcome:
    """How a trial's training ended.

    complete: it has finished; pruned, stopped: as it was asked to; failed: by an error of its own
    (a loss that is not finite), which a retry would meet again; lost: it was killed; fatal: by an
    error that ends the study; in use: it was not started, since an earlier worker's training still
    runs on this machine.
    """

    kind: Literal["complete", "pruned", "stopped", "failed", "lost", "fatal", "in use"]
    error: HowdahError | None = None


class RunningTrial:
    """A trial's process, which `ended` starts once what a killed worker has left has saved its last
    step. No method waits for that, or for the trial's end.

    Args:
        number: the trial's.
        trial: Optuna's, running.
        config: its configuration.
        metric: the study's.
        way: how it is trained.
        say: takes a line where it has to wait, or its job could not be ended.
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
        """Numbers of the evaluations that Optuna has, some from earlier attempts."""
        self.judged: int | None = None
        """The newest evaluation that the pruner was asked about."""
        self.asked: Literal["prune", "stop"] | None = None
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
        """Of an earlier training; of this one, once it was asked to end."""

    # ------------------------------------------------------------------------------ starting
    def _start(self) -> Outcome | None:
        """Start its process, unless an earlier training still has the run directory; an outcome:
        it cannot be started."""
        with contextlib.ExitStack() as locks:
            try:
                held = self._take_locks(locks)
            except UsageError as error:
                return self._wait(error)
            try:
                self._path = self._files.enter_context(
                    readable_config(self.config, self.directory, shared=False)
                )
                # Where this process is killed, the kernel asks the training to end and save.
                self._child = Child(
                    self._way.command(self._path), env=isolation.environment(), on_line=self._take,
                    pass_fds=held,
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
        """Find that no process of an earlier attempt lives; the locks to pass on.

        Args:
            locks: releases, in this process, what is passed on.
        Raises:
            UsageError: one does.
        """
        held = []
        for name in self._way.locks:
            lock = RunLock(self._local, name, self.directory)
            lock.take()
            if self._way.keeps_lock:
                held.append(lock.fileno())
                locks.callback(lock.release)
            else:
                lock.release()
        return held

    def _wait(self, error: UsageError) -> Outcome | None:
        if time.monotonic() > self._deadline:
            return Outcome("in use", error)
        if not self._waits:
            self._waits = True
            self._say(
                f"trial {self.number}: waits until its earlier training has saved: {error.got}"
            )
        return None

    @property
    def started(self) -> bool:
        """Its process was started."""
        return self._child is not None

    def _take(self, line: str) -> None:
        self._tail.append(line)
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and "exit_code" in found:
                    self._error = HowdahError.from_dict(found)

    # ------------------------------------------------------------------------------ following
    def new_evaluations(self) -> list[tuple[int, float]]:
        """(number from 1, value) of the evaluations that Optuna does not have yet."""
        if not self._changed():
            return []
        found = evaluations(self.directory, self._metric)
        new = [(number, value) for number, value in found.items() if number not in self.reported]
        self.reported.update(number for number, _ in new)
        return new

    def _changed(self) -> bool:
        """The metrics have grown since the last call; of a remote run, it may be that they have."""
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
    def ask(self, why: Literal["prune", "stop"], number: int = signal.SIGTERM) -> None:
        """Ask its training to save and to end; asked again, it changes nothing. One that was not
        started never is."""
        if self.asked is None:
            self.asked = why
            if self._child is not None:
                self._child.send(number)
                self._deadline = time.monotonic() + self._ending_seconds

    def kill(self) -> None:
        """End it at once: the ranks of a launcher get SIGTERM from the kernel, a job is killed."""
        if self._child is None:
            self.ask("stop")
        elif self._way.on is None:
            self._child.end(signal.SIGKILL)
        elif not self._at_once:
            self._at_once = True
            self._child.send(signal.SIGTERM)  # the second one: its command kills the job
            self._deadline = time.monotonic() + self._way.ending_seconds

    def give_up(self) -> None:
        """Another worker has its trial. A training of this machine saves and ends; a job goes on,
        and is that worker's."""
        if self._way.on is None or self._child is None:
            self.ask("stop")
        elif not self._left:
            self.asked, self._left = "stop", True
            self._child.end(signal.SIGKILL)

    def ended(self) -> Outcome | None:
        """What came of it; None while it runs, or waits to be started."""
        if self._child is None:
            return self._start() if self.asked is None else Outcome("stopped")
        if self._child.alive and time.monotonic() <= self._deadline:
            return None
        self._child.end()  # what its launcher may have left
        self._child.read_rest()
        code = self._child.code or 0
        # A command that did not get to its end by itself may have left its job.
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
        if self.asked is not None and (code in _STOPPED or code < 0):
            return Outcome("pruned" if self.asked == "prune" else "stopped")
        if code < 0 or code in _STOPPED:  # killed, or asked to end by another process
            return Outcome("lost", self._said(code))
        error = self._said(code)
        if code == TrainingError.exit_code:
            own = self._way.own_failure(self._error, self._local)
            return Outcome("failed" if own else "lost", error)
        return Outcome("lost" if self._way.lost(self._error) else "fatal", error)

    def _finished(self) -> Outcome:
        """Complete, if the run says so: an exit code alone does not mean a trained model."""
        try:
            status = record.read(self.directory).get("status")
        except NotFound:
            status = None
        if status == "finished":
            return Outcome("complete")
        return Outcome(
            "fatal",
            TrainingError(
                "the trial's command ended with exit code 0, but its run is not finished",
                where=self.directory, expected="status finished in run.json", got=str(status),
            ),
        )  # fmt: skip

    def _said(self, code: int) -> HowdahError:
        if self._error is not None and self._error.exit_code == code:
            return self._error
        if code < 0:
            name = signal.Signals(-code).name
            return TrainingError(
                "its training was killed", where=self.directory, got=name,
                remedy="look at the kernel's log (dmesg): out of memory?",
            )  # fmt: skip
        tail = "\n".join(self._tail)
        return TrainingError(
            "its training ended without an error that Howdah knows", where=self.directory,
            got=f"exit code {code}\n{tail}",
        )  # fmt: skip


def evaluations(directory: str, metric: str) -> dict[int, float]:
    """{number: value} of a run's evaluations on validation, counted from 1 by their steps.

    The last one, of the best weights, repeats the step of an earlier one and adds none. A value
    that is not defined is left out, but counted.
    """
    found = [
        line for line in read_metrics(directory)
        if line.get("split") == VALIDATION and "metrics" in line
    ]  # fmt: skip
    found.sort(key=lambda line: line["step"])
    values = {number: line["metrics"].get(metric) for number, line in enumerate(found, 1)}
    return {number: value for number, value in values.items() if value is not None}


def final_value(directory: str, metric: str) -> tuple[float | None, Mapping[str, Any]]:
    """The metric of a finished run's best weights on validation (None: undefined), and run.json."""
    run = record.read(directory)
    metrics = (run.get("metrics") or {}).get(VALIDATION) or {}
    return metrics.get(metric), run
