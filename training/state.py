"""All that a loop must restore besides tensors: small, on the host, plain JSON in a checkpoint."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from howdah.config_model import EarlyStopping
from howdah.errors import CheckpointError
from training.planner import Planner

__all__ = ["GREATER_IS_BETTER", "Judgement", "Saves", "TrainState", "score_of"]

GREATER_IS_BETTER = {
    "loss": False, "accuracy": True, "macro_f1": True, "weighted_f1": True, "roc_auc": True,
}  # fmt: skip


def score_of(metrics: dict[str, Any], metric: str) -> float | None:
    """The metric as a score of which greater is better; None where it is undefined.

    Args:
        metrics: result of an evaluation.
        metric: `evaluation.metric`; a loss is negated.
    """
    value = metrics.get(metric)
    if value is None or not math.isfinite(value):
        return None
    return float(value) if GREATER_IS_BETTER[metric] else -float(value)


@dataclass(frozen=True)
class Judgement:
    """What an evaluation means for the run."""

    is_best: bool
    stop: bool
    """Early stopping: the patience is used up."""


@dataclass
class TrainState:
    """The host side of a run's state. Tensors (weights, moments) are saved beside it."""

    step: int = 0
    """Optimizer steps done."""
    plan: dict[str, Any] = field(default_factory=dict)
    """{plan_hash, epoch, step}: planner.PlanState, the position in the data."""
    epochs: float = 0.0
    """Epochs done, with a fraction: steps under different plans are not of one size."""
    loss_scale: float | None = None
    """Loss scale of fp16; None without one."""
    good_steps: int = 0
    """Steps since the loss scale last changed."""
    skipped_steps: int = 0
    """Steps that fp16 skipped for an infinite gradient."""
    best_score: float | None = None
    """Best validation score so far, greater is better."""
    best_step: int | None = None
    """The step it was taken at."""
    best_metric: str | None = None
    """The metric that it is a score of: scores of two metrics cannot be compared."""
    evaluations_without_better: int = 0
    """Evaluations since `best_score` last rose by more than min_delta."""
    stopped_early: bool = False
    """Early stopping has ended the run."""
    rows: int = 0
    """Rows trained on, over all ranks and attempts."""
    tokens: int = 0
    """Real tokens trained on, likewise."""
    train_seconds: float = 0.0
    """Time of training over all attempts, evaluation left out."""

    def advance(self, planner: Planner, epoch: int, step: int) -> None:
        """Count the optimizer step of that batch.

        Args:
            planner: whose batch it was.
            epoch, step: which one: the step in the epoch.
        """
        self.step += 1
        self.moved(planner, *planner.after(epoch, step))

    def moved(self, planner: Planner, epoch: int, step: int) -> None:
        """The next batch is that one of this planner."""
        self.plan = planner.state(epoch, step).to_json()
        self.epochs = epoch + step / planner.steps_per_epoch

    def judge(
        self, score: float | None, early_stopping: EarlyStopping, *, metric: str | None = None
    ) -> Judgement:
        """Take in the score of an evaluation at `step`.

        An undefined score is never the best, and counts as one without improvement.

        Args:
            score: greater is better.
            early_stopping: its rules.
            metric: name of the metric that it is a score of.
        """
        is_best = score is not None and (self.best_score is None or score > self.best_score)
        margin = early_stopping.min_delta
        better = is_best and (self.best_score is None or score > self.best_score + margin)
        if is_best:
            self.best_score, self.best_step, self.best_metric = score, self.step, metric
        self.evaluations_without_better = 0 if better else self.evaluations_without_better + 1
        patience = early_stopping.patience
        stop = patience is not None and self.evaluations_without_better >= patience
        self.stopped_early = self.stopped_early or stop
        return Judgement(is_best=is_best, stop=stop)

    def forget_best(self) -> None:
        """No evaluation so far counts: the next one is the best."""
        self.best_score = self.best_step = self.best_metric = None
        self.evaluations_without_better, self.stopped_early = 0, False

    def to_meta(self) -> dict[str, Any]:
        """Plain JSON for a checkpoint's meta."""
        return asdict(self)

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> TrainState:
        """The state that `to_meta` wrote; other keys of the meta are left alone.

        Raises:
            CheckpointError: a key is missing.
        """
        meta = _since_added(meta) | meta
        names = [item.name for item in fields(cls)]
        missing = [name for name in names if name not in meta]
        if missing:
            raise CheckpointError(
                "the checkpoint's meta.json lacks what a run needs to go on",
                expected=", ".join(names),
                got=f"no {', '.join(missing)}",
                remedy="use the version of Howdah that wrote it, or `--resume never`",
            )
        return cls(**{name: meta[name] for name in names})


def _since_added(meta: dict[str, Any]) -> dict[str, Any]:
    """What checkpoints of earlier versions lack, from what else their meta says."""
    rules = meta.get("config", {}).get("evaluation", {})
    judged = meta.get("best_score") is not None
    # Where it lies inside an epoch the plan is the same, and `moved` adds the fraction.
    epochs = float(meta.get("plan", {}).get("epoch", 0))
    return {"epochs": epochs, "best_metric": rules.get("metric") if judged else None}


@dataclass
class Saves:
    """How rank 0 fares with its checkpoints: more than one world's affair."""

    saved_step: int = -1
    """Step of the last save."""
    pending: int | None = None
    """Step of a save of which it is not known yet how it ended."""
    failures: int = 0
    """Saves in a row that failed."""
    best_lost: bool = False
    """The best evaluation's checkpoint could not be saved."""
