"""The gate: the bounds that a finished run's model must reach before it is published.

It compares run.json's metrics of `gate.split`, which are those of the exported weights, with the
bounds of `gate.minimum`; if `gate.min_over_baseline` is set, with the baseline's (`howdah evaluate
--baseline`); and if `gate.better_than_published` is set, with the published model's.
Metrics of two datasets are never compared: if the published model was measured on other data, it is
evaluated again on this run's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from howdah import storage
from howdah.config.metric_table import METRICS, unknown_metric
from howdah.config.model import Config
from howdah.data.manifest import content_hash
from howdah.errors import CheckFailed, ConfigError, DataError, HowdahError, ModelError, NotFound
from howdah.models.export_info import read_info
from howdah.models.registry import Published, VersionIdentity, identity
from howdah.models.runs import baseline, record
from howdah.models.runs.run_json import utc_now
from howdah.run_files import RUN_JSON
from howdah.storage.shapes import COUNT, NUMBER, TEXT, Fields, Items, one_of

VERDICT = "gate.json"
"""Name of the file with the newest verdict, in the run directory."""
_UNDECIDED = (
    "the published model has thresholds, a rejection or a temperature (`howdah model threshold`)"
    " and this one has none: it labels at 0.5 and rejects nothing; fit them to this run before"
    " publishing it"
)
_NEEDED = ("run_id", "weights_sha256")
"""Fields that howdah.json must have."""
VERDICT_SHAPE = Fields(
    {
        "split": TEXT,
        "run_id": TEXT,
        "step": COUNT,
        "published": COUNT,
        "notes": Items(TEXT),
        "checks": Items(
            Fields(
                {
                    "metric": one_of(METRICS, "a metric"),
                    "bound": NUMBER,
                    "got": NUMBER,
                    "against": TEXT,
                },
                needed=("metric", "bound", "against"),
            )
        ),
    },
    needed=("split", "run_id", "checks"),
)

Evaluate = Callable[[str, str, str], dict]
"""(model, dataset, split) -> metrics: evaluates a model on a dataset."""


@dataclass(frozen=True)
class Check:
    """A bound, and the metric's value."""

    metric: str
    bound: float
    got: float | None
    """The metric's value; None: undefined (roc_auc of a split with one class)."""
    against: str
    """Source of the bound: gate.minimum, the baseline, or the published version."""

    @property
    def lower(self) -> bool:
        """True if lower is better."""
        return METRICS[self.metric].lower

    @property
    def bound_text(self) -> str:
        """The bound as text."""
        return f"{'at most' if self.lower else 'at least'} {self.bound:.6g}"

    @property
    def passed(self) -> bool:
        """True if the value keeps the bound; an undefined value does not."""
        if self.got is None:
            return False
        return self.got <= self.bound if self.lower else self.got >= self.bound

    def as_dict(self) -> dict:
        """Return plain JSON."""
        return {**asdict(self), "wanted": self.bound_text, "passed": self.passed}


@dataclass(frozen=True)
class FinishedRun:
    """A finished run and its export."""

    directory: str
    export: str
    info: dict
    """howdah.json of the export."""
    run: dict
    """run.json."""

    @property
    def run_id(self) -> str:
        """The run's identity."""
        return self.info["run_id"]

    @property
    def weights(self) -> str:
        """SHA-256 of the exported weights."""
        return self.info["weights_sha256"]

    @property
    def decision(self) -> str | None:
        """Hash of the export's decision (`howdah model threshold`); None: it has none."""
        return self.identity.decision

    @property
    def identity(self) -> VersionIdentity:
        """Run, weights and decision of the export."""
        return identity(self.info)

    @property
    def dataset(self) -> dict:
        """{path, hash, rows} of the dataset version of training and evaluation."""
        return self.info.get("dataset") or {}

    def metrics(self) -> dict[str, dict[str, float | None]]:
        """Return {split: its scalar metrics}."""
        return {split: scalars(of) for split, of in (self.run.get("metrics") or {}).items()}


@dataclass(frozen=True)
class GateVerdict:
    """The gate's verdict on a run."""

    split: str
    checks: tuple[Check, ...]
    run_id: str
    step: int | None
    published: int | None
    """Version that the run was compared with; None: there was no comparison."""
    notes: tuple[str, ...] = ()
    """Notes for the person who publishes the model, which the gate does not judge."""

    @property
    def asks(self) -> bool:
        """True if there is a bound; without one, a passed gate says nothing about the model."""
        return bool(self.checks)

    @property
    def passed(self) -> bool:
        """True if every bound is kept, also if there are none."""
        return all(check.passed for check in self.checks)

    def as_dict(self) -> dict:
        """Return plain JSON."""
        return {
            "passed": self.passed,
            "split": self.split,
            "checks": [check.as_dict() for check in self.checks],
            "run_id": self.run_id,
            "step": self.step,
            "published": self.published,
            "asks": self.asks,
            "notes": list(self.notes),
        }

    def require(self, where: str) -> None:
        """Require every bound.

        Raises:
            CheckFailed: with every missed bound and its value.
        """
        missed = [check for check in self.checks if not check.passed]
        if missed:
            raise CheckFailed(
                f"the model misses the gate on {self.split}: {len(missed)} of {len(self.checks)}"
                f" bound{'s' if len(self.checks) > 1 else ''}",
                where=where,
                problems=[
                    HowdahError(
                        check.metric,
                        where=check.against,
                        expected=check.bound_text,
                        got="undefined" if check.got is None else f"{check.got:.6g}",
                    )
                    for check in missed
                ],
                remedy="train longer or better, or lower the bounds of gate.*",
            )


def scalars(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the scalar metrics."""
    return {name: metrics[name] for name in METRICS if name in metrics}


def better_by(
    margin: float, key: str, metric: str, got: float | None, name: str, value: float
) -> Check:
    """Return the check that a metric is better than another model's value by a key's margin."""
    bound = value - margin if METRICS[metric].lower else value + margin
    return Check(metric, bound, got, f"{name} ({value:.6g}), {key} {margin:g}")


def check_minimum(metrics: Mapping[str, Any], minimum: Mapping[str, float]) -> tuple[Check, ...]:
    """Check one split's metrics by {metric: bound}.

    Raises:
        ConfigError: there is no such metric; the error lists all.
    """
    for name in minimum:
        if name not in METRICS:
            raise ConfigError(unknown_metric(name), where="gate.minimum")
    return tuple(
        Check(name, bound, metrics.get(name), "gate.minimum") for name, bound in minimum.items()
    )


def finished_run(directory: str) -> FinishedRun:
    """Read the finished run in `directory`, whose metrics were measured on its export.

    Raises:
        ModelError: no run, an unfinished one, no export, or an export of other weights.
        DataError: run.json is damaged.
    """
    train = "let `howdah train` (or `howdah submit`) of this configuration finish first"
    try:
        run = record.read(directory)
    except NotFound:
        raise ModelError(
            "there is no run", where=storage.absolute(directory), remedy=train
        ) from None
    if run.get("status") != "finished":
        raise ModelError(
            "the run has not finished", where=directory, got=str(run.get("status")), remedy=train
        )
    export = storage.join(directory, "export")
    again = "`howdah export` writes the run's export again"
    try:
        info = read_info(export, needed=_NEEDED)
    except NotFound:
        raise ModelError("the run has no export", where=export, remedy=again) from None
    step = run.get("steps") if run.get("best_step") is None else run["best_step"]
    expected, got = (run.get("run_id"), step), (info.get("run_id"), info.get("step"))
    if expected != got:
        raise ModelError(
            "the run's metrics were not measured on its export",
            where=export,
            expected=f"step {expected[1]} of run {expected[0]}",
            got=f"step {got[1]} of run {got[0]}",
            remedy=again,
        )
    return FinishedRun(directory, export, info, run)


def judge(config: Config, evaluate: Evaluate, *, run: FinishedRun | None = None) -> GateVerdict:
    """Judge the configuration's run by its gate, and store the verdict in the run directory.

    A stored verdict on the same weights, bounds and published version is returned as it is.

    Args:
        evaluate: called if the published model was measured on other data.
        run: the configuration's finished run, if the caller has it.
    Raises:
        ModelError: no finished run; the split was not measured; a required baseline is missing; or
            the published model cannot be compared (other labels).
    """
    run = run or finished_run(config.run.directory)
    now = _current(config)
    weights = run.identity.without_decision
    if now is not None and VersionIdentity.of(now).without_decision == weights:
        now = None  # the run's own model is published
    decision = now and now.get("decision")
    if not config.gate.better_than_published:
        now = None
    bounds = config.gate.model_dump(mode="json")
    bar = _over_baseline(config, run)
    key = content_hash(
        [bounds, config.evaluation.metric, run.identity, now and now["version"], decision]
        + [check.bound for check in bar]
    )
    path = storage.join(run.directory, VERDICT)
    stored = _stored(path, key)
    if stored is not None:
        return stored
    verdict = _judged(config, run, bar, now, evaluate)
    if decision is not None and run.decision is None:
        verdict = replace(verdict, notes=(*verdict.notes, _UNDECIDED))
    entry = {**verdict.as_dict(), "key": key, "judged": utc_now()}
    storage.write_whole(path, (json.dumps(entry, indent=1) + "\n").encode())
    return verdict


def _current(config: Config) -> dict | None:
    """Read the published model's entry; None: there is none.

    An unreadable entry is an error only if the gate compares with the model. Otherwise only its
    decision is needed, for a note.
    """
    try:
        return Published(config.model_directory).current()
    except HowdahError:
        if config.gate.better_than_published:
            raise
        return None


def _over_baseline(config: Config, run: FinishedRun) -> tuple[Check, ...]:
    """Return the comparison with the baseline, if gate.min_over_baseline is set."""
    margin, split, name = config.gate.min_over_baseline, config.gate.split, config.evaluation.metric
    if margin is None:
        return ()
    value = baseline.require(run.directory, run.dataset, config, split, name)
    got = run.metrics().get(split, {}).get(name)
    return (better_by(margin, "gate.min_over_baseline", name, got, "baseline", value),)


def _judged(
    config: Config, run: FinishedRun, bar: tuple[Check, ...], now: dict | None, evaluate: Evaluate
) -> GateVerdict:
    gate = config.gate
    metrics = run.metrics().get(gate.split)
    if metrics is None and gate.asks:
        have = ", ".join(run.metrics()) or "none"
        raise ModelError(
            f"the run was not measured on {gate.split}",
            where=storage.join(run.directory, RUN_JSON),
            got=f"metrics of {have}",
            remedy="name a measured split as gate.split; a split is measured if evaluation.splits"
            " has it and the dataset has rows in it",
        )
    checks, notes = check_minimum(metrics or {}, gate.minimum) + bar, ()
    if now is not None:
        comparison = _against(config, run, metrics or {}, now, evaluate)
        if isinstance(comparison, Check):
            checks += (comparison,)
        else:
            notes = (comparison,)
    step = run.info.get("step")
    return GateVerdict(
        gate.split, checks, run.run_id, step, now["version"] if now else None, notes=notes
    )


def _against(
    config: Config, run: FinishedRun, metrics: dict, now: dict, evaluate: Evaluate
) -> Check | str:
    """Compare with the published model; return a note if its metric is undefined."""
    split, name = config.gate.split, config.evaluation.metric
    theirs = (now.get("metrics") or {}).get(split) or {}
    if (now.get("dataset") or {}).get("hash") != run.dataset.get("hash") or name not in theirs:
        model = Published(config.model_directory).path_of(now["version"])
        theirs = evaluate(model, run.dataset["path"], split)
    value, published = theirs.get(name), f"published v={now['version']}"
    if value is None:
        return f"{name} of {published} is undefined on {split}: this run is not compared with it"
    margin = config.gate.margin
    return better_by(margin, "gate.margin", name, metrics.get(name), published, value)


def _stored(path: str, key: str) -> GateVerdict | None:
    """Read the verdict in the run directory, if it has this key."""
    try:
        stored = storage.read_object(path, VERDICT_SHAPE)
    except (NotFound, DataError):  # missing or damaged: the run is judged again
        return None
    if stored.get("key") != key:
        return None
    names = ("metric", "bound", "got", "against")
    checks = tuple(Check(*(check.get(name) for name in names)) for check in stored["checks"])
    return GateVerdict(
        stored["split"], checks, stored["run_id"], stored.get("step"), stored.get("published"),
        notes=tuple(stored.get("notes") or ()),
    )  # fmt: skip
