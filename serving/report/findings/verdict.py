"""Good, not good, or inconclusive: one sentence about a run's main figure. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from howdah.config.metric_table import METRICS
from howdah.serving.report.findings.intervals import Interval

FEWEST = 30
"""Number of rows below which no figure is reliable."""

State = Literal["good", "bad", "unknown"]
_TITLES: dict[State, str] = {"good": "Good", "bad": "Not good", "unknown": "Inconclusive"}
_MISSED = "It misses the gate: "


@dataclass(frozen=True, kw_only=True)
class Versus:
    """A figure that the run's is compared with."""

    name: str
    """Name for a sentence: "the baseline"."""
    value: float
    difference: Interval | None = None
    """The 95 % interval of the run's figure minus this one, from both predictions of each row.
    None: this figure itself is compared with the interval of the run's figure."""
    trivial: bool = False
    """True if a model reaches the figure without learning anything."""
    metric: str = ""
    """Metric of a bound of the gate."""
    got: float | None = None
    """The run's figure for a bound of the gate."""


@dataclass(frozen=True, kw_only=True)
class ReportVerdict:
    """The judgement on a run."""

    state: State
    title: str
    sentence: str

    @property
    def line(self) -> str:
        """The verdict as commands print it."""
        return f"{self.title}: {self.sentence}"

    @property
    def is_of_gate(self) -> bool:
        """True if a missed bound of the gate decides, whatever else the run is compared with."""
        return self.sentence.startswith(_MISSED)


def recorded(run: Mapping[str, Any]) -> ReportVerdict | None:
    """Return the verdict in a finished run's run.json; None if there is none.

    Args:
        run: run.json.
    """
    values = run.get("verdict")
    if run.get("status") != "finished" or not isinstance(values, dict):
        return None
    sentence = values.get("verdict_reason")
    state = next((one for one, title in _TITLES.items() if title == values.get("verdict")), None)
    return _verdict(state, sentence) if state and isinstance(sentence, str) else None


def judge(
    metric: str,
    value: float | None,
    interval: Interval | None,
    rows: int,
    split: str,
    against: Sequence[Versus],
    bounds: Sequence[Versus] = (),
) -> ReportVerdict:
    """Judge a run's figure.

    Good: it keeps the gate's bounds, if there are any, and is beyond chance better than the
    majority class and the other known figures (baseline, published version). Not good: it misses a
    bound, or is beyond chance worse than one of these, or not better than the majority class.
    Otherwise the verdict is unknown: a bound that is kept does not make a difference certain.

    Args:
        metric: its name in METRICS.
        interval: interval of 95 %; None: unknown.
        against: figures of the same metric, on the same rows.
        bounds: the gate's bounds.
    """
    if value is None:
        return _verdict("unknown", f"{metric} is undefined on {split}.")
    if rows < FEWEST:
        return _verdict(
            "unknown", f"{split} has only {rows:,} rows, too few for a reliable figure."
        )
    missed = [one for one in bounds if not _keeps(one)]
    if missed:
        why = "; ".join(_missed(one) for one in missed)
        return _verdict("bad", f"{_MISSED}{why}.")
    lower = METRICS[metric].lower
    behind, ahead = [], []
    for one in against:
        ends = one.difference or tuple(end - one.value for end in interval or (value, value))
        worst, best = sorted(-end for end in ends) if lower else sorted(ends)
        if best < 0:
            behind.append(one)
        elif worst > 0:
            ahead.append(one)
    unclear = [one for one in against if one not in behind and one not in ahead]
    if behind:
        names = _list([f"{one.name} ({one.value:.4f})" for one in behind])
        return _verdict("bad", f"It is worse than {names}, beyond what chance explains.")
    if trivial := [one for one in unclear if one.trivial]:
        return _verdict(
            "bad",
            f"Chance alone explains the difference from {trivial[0].name}"
            f" ({trivial[0].value:.4f}): nothing shows that the model has learnt.",
        )
    kept = f"It meets the gate's bound{'s' if len(bounds) > 1 else ''}" if bounds else ""
    if unclear:
        names = _list([f"{one.name} ({one.value:.4f})" for one in unclear])
        the = f"{kept}, but the" if bounds else "The"
        more = f" It is better than {_list([one.name for one in ahead])}." if ahead else ""
        return _verdict(
            "unknown", f"{the} difference from {names} is within what chance explains.{more}"
        )
    names = _list([f"{one.name} ({one.value:.4f})" for one in ahead])
    if bounds:
        return _verdict("good", f"{kept}, and is better than {names}." if ahead else f"{kept}.")
    if [one for one in ahead if not one.trivial]:
        return _verdict("good", f"It is better than {names}, beyond what chance explains.")
    better = f"It is better than {names}, but t" if ahead else "T"
    return _verdict(
        "unknown",
        f"{better}here is nothing else to compare it with: no bound in gate.minimum, no baseline"
        " (howdah evaluate --baseline), no published version measured on this dataset.",
    )


def _keeps(bound: Versus) -> bool:
    if bound.got is None:
        return False
    lower = METRICS[bound.metric].lower
    return bound.got <= bound.value if lower else bound.got >= bound.value


def _missed(bound: Versus) -> str:
    relation = "at most" if METRICS[bound.metric].lower else "at least"
    got = "undefined" if bound.got is None else f"{bound.got:.4f}"
    return f"{bound.metric} is {got}, and must be {relation} {bound.value:g} ({bound.name})"


def _verdict(state: State, sentence: str) -> ReportVerdict:
    return ReportVerdict(state=state, title=_TITLES[state], sentence=sentence)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names)
