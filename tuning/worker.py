"""A worker of a study: it keeps `tune.parallel` trials running until all are finished.

Each trial waits in Optuna's storage from the study's beginning. A worker takes the trial's lease,
has the sampler choose its values (unless an earlier attempt has), trains it, reports each
evaluation, and stops it gracefully if the pruner decides so. A trial whose worker died keeps its
values, its run directory and its place in the study: the next worker takes the lease and resumes
from the newest checkpoint.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from howdah.config.model import Config
from howdah.core.processes import limit
from howdah.errors import HowdahError, Interrupted, Terminated
from howdah.models.runs.run_json import RunFile
from howdah.tuning import space
from howdah.tuning import study as studies
from howdah.tuning.leases import Leases
from howdah.tuning.running import Outcome, RunningTrial, final_value
from howdah.tuning.summary import trial_directory
from howdah.tuning.ways import Way

if TYPE_CHECKING:
    import optuna

_RETRIES = 2
"""Retries of a trial that was lost (killed, out of memory, its machine gone), from its newest
checkpoint. A trial that is lost three times would likely be lost again."""
_LEASE_SECONDS = limit("lease_seconds", 60.0)
"""Time without a beat after which a worker counts as dead, and another one takes over its trials:
longer than a swapping machine or a slow NFS delays a beat."""
_POLL_SECONDS = 0.2
_LOOK_SECONDS = 1.0
"""Interval of the search for trials to start, which reads the storage."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Worker:
    """The work of one process on a study.

    Args:
        config: the study's configuration.
        study: Optuna's study.
        way: the way to train trials.
        say: takes lines of progress.
        changed: called when a trial has ended.
    """

    def __init__(
        self,
        config: Config,
        study: optuna.Study,
        *,
        way: Way,
        say: Callable[[str], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._changed = changed
        self._config, self._study, self._way, self._say = config, study, way, say
        self._directory = config.run.directory
        self._metric = space.objective_of(config).metric
        self._distributions = space.distributions(config.tune)
        self._datasets = studies.datasets_of(study)
        self._leases = Leases(self._directory, _LEASE_SECONDS, say)
        self._running: dict[int, RunningTrial] = {}
        self._in_use: set[int] = set()
        """Trials whose earlier training has not ended within the time that saving may take."""
        self._signals: list[int] = []
        self._fatal: HowdahError | None = None
        self._left = True
        """Whether the study has unfinished trials, here or elsewhere."""
        self._look_at = 0.0

    def run(self) -> None:
        """Work until all trials of the study are finished, by this worker or other workers.

        Raises:
            Interrupted, Terminated: the worker was asked to stop; its trials are saved.
            HowdahError: a trial's training failed in a way in which every trial would fail.
        """
        old = {number: signal.getsignal(number) for number in _SIGNALS}
        for number in _SIGNALS:
            if old[number] is not signal.SIG_IGN or number != signal.SIGHUP:  # nohup stays nohup
                signal.signal(number, lambda number, frame: self._signals.append(number))
        try:
            with self._leases, studies.failures_of_storage(self._config):
                try:
                    self._work()
                finally:
                    self._let_go()
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
        if self._fatal is not None:
            raise self._fatal
        if self._signals:
            raise self._stopped()

    @property
    def _stopping(self) -> bool:
        return bool(self._signals) or self._fatal is not None

    def _work(self) -> None:
        while True:
            self._obey()
            for trial in list(self._running.values()):
                self._follow(trial)
            if not self._stopping and time.monotonic() >= self._look_at:
                self._begin_trials()
                self._look_at = time.monotonic() + _LOOK_SECONDS
            if not self._running and (self._stopping or not self._left):
                return
            time.sleep(_POLL_SECONDS)

    def _obey(self) -> None:
        """Ask the trials to save and end after a signal; end them at once after a second one."""
        if not self._stopping:
            return
        number = signal.SIGINT if self._signals[:1] == [signal.SIGINT] else signal.SIGTERM
        for trial in self._running.values():
            trial.request("stop", number)
            if len(self._signals) > 1:
                trial.kill()

    # ------------------------------------------------------------------------------ beginning
    def _begin_trials(self) -> None:
        unfinished = {
            trial.number: trial
            for trial in studies.open_trials(self._study, self._config.tune.trials)
        }
        self._left = bool(unfinished)
        room = self._config.tune.parallel - len(self._running)
        if not unfinished or room <= 0:
            return
        free = self._leases.free(unfinished)

        # Interrupted trials come first, since they need the least time. Trials in use come last.
        def order(number: int) -> tuple[bool, bool, int]:
            return number in self._in_use, unfinished[number].state.name == "WAITING", number

        for number in sorted(free, key=order):
            if room > 0 and not self._stopping and self._begin(unfinished[number], free[number]):
                room -= 1

    def _begin(self, frozen: Any, newest: int) -> bool:
        """Start or resume a trial whose newest attempt is over; False: it is not run here."""
        number = frozen.number
        attempt = self._leases.take(number, newest)
        if attempt is None:
            return False
        # Another worker may have finished it before this worker took the lease.
        trial = studies.begin(self._study, frozen, self._config.tune)
        if trial is None:
            self._leases.end(number, "released")
            return False
        losses = self._leases.losses(number)
        if losses > _RETRIES:
            self._tell_failed(trial, f"it was lost {losses} times")
            self._leases.end(number, "released")
            return False
        params = {key: space.suggest(trial, key, of) for key, of in self._distributions.items()}
        directory = trial_directory(self._directory, number)
        shown = ", ".join(f"{key} {_short(value)}" for key, value in params.items())
        again = f" (attempt {attempt}, from its newest checkpoint)" if attempt > 1 else ""
        self._say(f"trial {number}: {shown}{again}")
        try:
            config = space.trial_config(
                self._config, params, number=number, directory=directory, datasets=self._datasets,
                threads=self._way.threads(self._config.tune.parallel), on=self._way.on,
            )  # fmt: skip
            self._running[number] = RunningTrial(
                number, trial, config, metric=self._metric, way=self._way, say=self._say
            )
        except HowdahError as error:
            self._leases.end(number, "released")
            self._fatal = self._fatal or error
            return False
        self._follow(self._running[number])  # starts it
        return number in self._running

    # ------------------------------------------------------------------------------ following
    def _follow(self, trial: RunningTrial) -> None:
        if self._leases.superseded(trial.number) and trial.requested is None:
            self._say(f"trial {trial.number}: taken over by another worker; stopping it here")
            trial.give_up()
        outcome = trial.ended()
        if not self._leases.superseded(trial.number):
            for number, value in trial.new_evaluations():
                trial.trial.report(value, number)
                self._say(f"trial {trial.number}: evaluation {number}: {self._metric} {value:.4f}")
            going = trial.started and outcome is None and trial.requested is None
            if going and trial.reported and self._behind(trial):
                self._say(f"trial {trial.number}: pruned, since it is behind the other trials")
                trial.request("prune")
        if trial.started:
            self._in_use.discard(trial.number)
        if outcome is not None:
            del self._running[trial.number]
            self._look_at = 0.0
            if outcome.kind in ("failed", "lost", "fatal"):
                self._leases.renew()  # notices whether another worker has taken it over
            if self._leases.superseded(trial.number):
                self._leases.end(trial.number, "released")
            else:
                self._finish(trial, outcome)

    def _behind(self, trial: RunningTrial) -> bool:
        newest = max(trial.reported)
        if newest == trial.judged:
            return False  # the pruner judges each evaluation once
        trial.judged = newest
        return trial.trial.should_prune()

    def _finish(self, trial: RunningTrial, outcome: Outcome) -> None:
        """Record a trial's outcome in the study, then release its lease."""
        number, kind = trial.number, outcome.kind
        reason = "" if outcome.error is None else outcome.error.what
        if kind == "complete":
            value, run = final_value(trial.directory, self._metric)
            if value is None:
                why = f"{self._metric} of its best weights on validation is undefined"
                self._tell_failed(trial.trial, why)
            else:
                trial.trial.set_user_attr("steps", run.get("steps"))
                trial.trial.set_user_attr("run_id", run.get("run_id"))
                self._study.tell(trial.trial, value, skip_if_finished=True)
                self._say(f"trial {number}: finished, {self._metric} {value:.4f}")
        elif kind == "pruned":
            studies.end_without_value(self._study, trial.trial, "PRUNED")
            run = RunFile(trial.directory)
            if run.values:  # its rank or job has written how it ended, not why
                run.update(status="pruned")
        elif kind == "failed":
            self._tell_failed(trial.trial, reason)
        elif kind == "lost":
            self._say(f"trial {number}: lost: {reason}")
        elif kind == "fatal":
            self._fatal = self._fatal or outcome.error
        elif kind == "in use":
            # Its worker is suspended. When it wakes, it sees this attempt and ends its training.
            self._say(f"trial {number}: its earlier training still runs: {outcome.error.got}")
            self._in_use.add(number)
        self._leases.end(number, "lost" if kind == "lost" else "released")
        self._changed()

    def _tell_failed(self, trial: optuna.Trial, why: str) -> None:
        trial.set_user_attr("error", why)
        studies.end_without_value(self._study, trial, "FAIL")
        self._say(f"trial {trial.number}: failed: {why}")

    # ------------------------------------------------------------------------------ the end
    def _let_go(self) -> None:
        """End all processes and release all leases, whatever ended the loop."""
        for trial in self._running.values():
            trial.request("stop")
        for number, trial in list(self._running.items()):
            while trial.ended() is None:
                time.sleep(_POLL_SECONDS)
            with contextlib.suppress(HowdahError):  # it expires
                self._leases.end(number, "released")
        self._running.clear()

    def _stopped(self) -> HowdahError:
        kind = Interrupted if self._signals[0] == signal.SIGINT else Terminated
        return kind(
            "the study was interrupted" if kind is Interrupted else "the study was terminated",
            where=self._directory,
            remedy="run the same command again: trials resume from their last step",
        )


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
