"""A study as plain values, for the status, best.json and the page."""

from __future__ import annotations

import datetime
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from howdah import storage
from howdah.config.metric_table import METRICS

if TYPE_CHECKING:
    import optuna

State = Literal["waiting", "running", "finished", "pruned", "failed"]
_STATES: dict[str, State] = {
    "WAITING": "waiting", "RUNNING": "running", "COMPLETE": "finished", "PRUNED": "pruned",
    "FAIL": "failed",
}  # fmt: skip
"""Optuna's names of states, and ours, which are those of run.json's status where it has them."""
_LEAST_FINISHED = 4
"""Fewest finished trials that say anything of a key's importance."""


def trial_directory(study_directory: str, number: int) -> str:
    """The run directory of a trial."""
    return storage.join(study_directory, "trials", str(number))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial."""

    number: int
    state: State
    params: dict[str, Any] = field(default_factory=dict)
    value: float | None = None
    """The metric of a finished trial's best weights."""
    evaluations: dict[int, float] = field(default_factory=dict)
    """{number: value} of the evaluations during training."""
    error: str | None = None
    steps: int | None = None
    seconds: float | None = None
    """Time from its begin to its end, or until now; None: it has not begun."""

    @property
    def last(self) -> float | None:
        """The value, or else the value of the newest evaluation."""
        if self.value is not None or not self.evaluations:
            return self.value
        return self.evaluations[max(self.evaluations)]


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study and its trials."""

    name: str
    directory: str
    metric: str
    trials: tuple[Trial, ...]
    log_scaled: frozenset[str] = frozenset()
    """Keys with a logarithmic range."""
    choices: frozenset[str] = frozenset()
    """Keys with choices, which have no order."""
    importance: Mapping[str, float] = field(default_factory=dict)
    """{key: share of the metric's variance that it explains}, the largest first; {}: too few
    finished trials."""
    max_rows: int | None = None
    """Most validation rows of an evaluation during training; None: all, as for a trial's value."""

    @property
    def best(self) -> Trial | None:
        """The finished trial with the best value; of equal trials, the first."""
        finished = [one for one in self.trials if one.state == "finished" and one.value is not None]
        return max(finished, key=lambda one: METRICS[self.metric].score(one.value), default=None)

    @property
    def keys(self) -> list[str]:
        """The tuned keys, in the order of the trials that have them."""
        return list(dict.fromkeys(key for trial in self.trials for key in trial.params))

    def count(self, state: State) -> int:
        """Number of trials in this state."""
        return sum(trial.state == state for trial in self.trials)

    @property
    def seconds_left(self) -> float | None:
        """Estimated time until all trials have ended; None: all have, or no trial has ended yet."""
        ended = [one.seconds for one in self.trials if one.state in ("finished", "pruned")]
        times = [seconds for seconds in ended if seconds is not None]
        running = [one.seconds or 0.0 for one in self.trials if one.state == "running"]
        waiting = self.count("waiting")
        if not times or (not running and not waiting):
            return None
        mean = sum(times) / len(times)
        left = sum(max(0.0, mean - seconds) for seconds in running) + mean * waiting
        return left / max(1, len(running))

    def as_dict(self) -> dict[str, Any]:
        """The study as plain JSON."""
        best = self.best
        run = best and trial_directory(self.directory, best.number)
        return {
            "study": self.name,
            "directory": self.directory,
            "metric": self.metric,
            "better": METRICS[self.metric].better,
            "importance": dict(self.importance),
            "seconds_left": self.seconds_left,
            "trials": {state: self.count(state) for state in _STATES.values()},
            "best": best and {
                "trial": best.number, "value": best.value, "params": best.params,
                "steps": best.steps, "run": run, "export": storage.join(run, "export"),
            },
        }  # fmt: skip


def summarise(
    study: optuna.Study,
    *,
    name: str,
    directory: str,
    metric: str,
    most: int,
    space: Mapping[str, Any],
    max_rows: int | None = None,
) -> Study:
    """The current state of a study's trials.

    Args:
        most: `tune.trials`; trials that were added for a larger number are left out.
        space: `tune.space`.
        max_rows: `evaluation.max_rows`.
    """
    trials = tuple(
        Trial(
            number=trial.number,
            state=_STATES[trial.state.name],
            params={key: trial.params[key] for key in space if key in trial.params},
            value=trial.value if trial.state.name == "COMPLETE" else None,
            evaluations=dict(trial.intermediate_values),
            error=trial.user_attrs.get("error"),
            steps=trial.user_attrs.get("steps"),
            seconds=_seconds(trial),
        )
        for trial in study.get_trials(deepcopy=False)
        if trial.number < most
    )
    return Study(
        name=name, directory=directory, metric=metric, trials=trials,
        log_scaled=frozenset(key for key, one in space.items() if one.log),
        choices=frozenset(key for key, one in space.items() if one.choices is not None),
        importance=_importance(study, trials), max_rows=max_rows,
    )  # fmt: skip


def _seconds(trial: optuna.trial.FrozenTrial) -> float | None:
    if trial.datetime_start is None:
        return None
    end = trial.datetime_complete or datetime.datetime.now()
    return (end - trial.datetime_start).total_seconds()


def _importance(study: optuna.Study, trials: tuple[Trial, ...]) -> dict[str, float]:
    """Return the keys' importance by fANOVA; {} with too few trials, where all are equal, or
    without scikit-learn."""
    finished = [one for one in trials if one.value is not None]
    if importlib.util.find_spec("sklearn") is None:
        return {}
    if len(finished) < _LEAST_FINISHED or len({one.value for one in finished}) == 1:
        return {}
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    return get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
