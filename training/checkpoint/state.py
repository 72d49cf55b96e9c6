"""The state that a loop restores besides tensors: small, on the host, JSON in a checkpoint."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from howdah.config.metric_table import METRICS
from howdah.config.training import EarlyStopping
from howdah.data.splits.planner import Planner
from howdah.errors import CheckpointError


def score_of(metrics: dict[str, Any], metric: str) -> float | None:
    """The metric as a score, greater is better; None if it is undefined.

    Args:
        metric: `evaluation.metric`; its value is negated if lower is better.
    """
    value = metrics.get(metric)
    if value is None or not math.isfinite(value):
        return None
    return METRICS[metric].score(float(value))


@dataclass(frozen=True)
class Judgement:
    """The consequences of an evaluation."""

    score: float | None
    """The metric as a score, greater is better; None if it is undefined."""
    is_best: bool
    stop: bool
    """True if the patience of early stopping is used up."""

    @property
    def save(self) -> bool:
        """True if the step has to be saved."""
        return self.is_best or self.stop


@dataclass
class TrainState:
    """The host side of a run's state. Tensors (weights, moments) are saved beside it."""

    step: int = 0
    """Optimizer steps done."""
    plan: dict[str, Any] = field(default_factory=dict)
    """{plan_hash, epoch, step} of planner.PlanState, the position in the data."""
    epochs: float = 0.0
    """Epochs done, with a fraction; a step's share of an epoch differs between plans."""
    loss_scale: float | None = None
    """Loss scale of fp16; None in other precisions."""
    good_steps: int = 0
    """Steps since the loss scale last changed."""
    skipped_steps: int = 0
    """Steps that fp16 skipped because of an infinite gradient."""
    best_score: float | None = None
    """Best validation score so far, greater is better."""
    best_step: int | None = None
    """Step of the evaluation with `best_score`."""
    best_metric: str | None = None
    """The metric of `best_score`: scores of two metrics cannot be compared."""
    evaluations_without_better: int = 0
    """Evaluations since `best_score` last rose."""
    stopped_early: bool = False
    """True if early stopping has ended the run."""
    rows: int = 0
    """Rows trained on, over all ranks and attempts."""
    tokens: int = 0
    """Real tokens trained on, over all ranks and attempts."""
    train_seconds: float = 0.0
    """Seconds of training over all attempts, without evaluation."""
    compression: str | None = None
    """What `training.gradient_compression: auto` has chosen; None: nothing, also in checkpoints
    without this key."""

    def advance(self, planner: Planner, epoch: int, step: int) -> None:
        """Count the optimizer step of a batch.

        Args:
            epoch, step: the batch's epoch, and its step in the epoch.
        """
        self.step += 1
        self.moved(planner, *planner.after(epoch, step))

    def moved(self, planner: Planner, epoch: int, step: int) -> None:
        """Set the next batch by its planner, epoch and step in the epoch."""
        self.plan = planner.state(epoch, step).to_json()
        self.epochs = epoch + step / planner.steps_per_epoch

    def judge(
        self, score: float | None, early_stopping: EarlyStopping, *, metric: str | None = None
    ) -> Judgement:
        """Count an evaluation at `step`.

        An undefined score is never the best, and counts as no improvement.

        Args:
            score: the metric as a score, greater is better.
        """
        is_best = score is not None and (self.best_score is None or score > self.best_score)
        if is_best:
            self.best_score, self.best_step, self.best_metric = score, self.step, metric
        self.evaluations_without_better = 0 if is_best else self.evaluations_without_better + 1
        patience = early_stopping.patience
        stop = patience is not None and self.evaluations_without_better >= patience
        self.stopped_early = self.stopped_early or stop
        return Judgement(score=score, is_best=is_best, stop=stop)

    def forget_best(self) -> None:
        """Discard all evaluations so far, so that the next one is the best."""
        self.best_score = self.best_step = self.best_metric = None
        self.evaluations_without_better, self.stopped_early = 0, False

    def to_meta(self) -> dict[str, Any]:
        """Plain JSON for a checkpoint's meta."""
        return asdict(self)

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> TrainState:
        """The state that `to_meta` wrote; other keys of `meta` are ignored.

        Raises:
            CheckpointError: a key is missing.
        """
        meta = {"compression": None, **meta}
        names = [item.name for item in fields(cls)]
        missing = [name for name in names if name not in meta]
        if missing:
            raise CheckpointError(
                f"the checkpoint's meta.json lacks {', '.join(missing)}",
                remedy="use the version of Howdah that wrote it, or"
                " `--set checkpoint.resume=never`",
            )
        return cls(**{name: meta[name] for name in names})


@dataclass
class CheckpointProgress:
    """Rank 0's record of its saves, which outlives a world."""

    saved_step: int = -1
    """Step of the last save."""
    pending: int | None = None
    """Step of a save whose outcome is not known yet; None if there is none."""
    failures: int = 0
    """Number of consecutive failed saves."""
    begun_at: float = 0.0
    """Start of the last save (time.monotonic)."""
    failing_since: float = 0.0
    """Start of the first of the failed saves (time.monotonic)."""
    best_lost: bool = False
    """True if the best evaluation's checkpoint could not be saved."""

    def failed(self) -> float:
        """Count a failure of the last save; returns the seconds since saves began to fail."""
        if not self.failures:
            self.failing_since = self.begun_at
        self.failures += 1
        return time.monotonic() - self.failing_since
