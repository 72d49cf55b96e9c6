"""Where a run resumes from, in each of its worlds: memory, the newest checkpoint, or the base."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from howdah.training.checkpoint.elastic_state import ElasticState
from howdah.training.checkpoint.manager import Checkpoint
from howdah.training.checkpoint.read import MODEL
from howdah.training.checkpoint.state import TrainState
from howdah.training.comm.base import Comm
from howdah.training.preparation.job import Job
from howdah.training.run.run import Run
from howdah.training.run.run_directory import RunDirectory


class Resumed(dict[str, np.ndarray]):
    """The tensors to resume from, by their names in a checkpoint."""

    rest: Iterable[tuple[str, np.ndarray]] = ()
    """More of them, to be taken once, one after the other: every rank enters while it iterates."""


def resume(
    job: Job, comm: Comm, run: Run, memory: ElasticState, *, divided: bool = False
) -> tuple[TrainState, Resumed, bool]:
    """Where to resume from: a rank's memory of an earlier world, or the newest checkpoint where
    that is newer; else the base. Every rank enters, so that all have the same state: a checkpoint
    is read by rank 0 and broadcast.

    Args:
        divided: no rank keeps all moments, not even rank 0 while it reads them.
    Returns:
        (state, tensors: all of the model's as `model/<name>` and the moments there are, whether an
        evaluation that was due at that step is still to be done). The moments come as
        `Resumed.rest`, but in an elastic job, which keeps them in memory.
    """
    found: Checkpoint | None = None
    if memory.holder is not None and run.owned is not None:
        found = run.owned.newer_checkpoint(job.identity, than=memory.newest)
    if memory.holder is not None and not comm.broadcast_json(found is not None):
        meta, tensors = memory.share(comm)
        run.say(f"{comm.size} rank(s) go on from memory at step {meta['step']}")
        if run.owned is not None:
            run.owned.resumed_from_memory(meta["step"])
            _reconcile(run.owned, meta["best_step"], train_seconds=meta["train_seconds"])
        job.planner.go_on_with(meta["plan"]["plan_hash"])
        return TrainState.from_meta(meta), Resumed(tensors), bool(meta["evaluation_due"])
    meta: dict[str, Any] | None = None
    if comm.rank == 0:
        if found is None:
            found = run.owned.resume_checkpoint(job.identity, when_used=divided)
        meta = None if found is None else _with_reachable_best(found.meta, run)
    meta = comm.broadcast_json(meta)
    if meta is None:
        state, due = TrainState(), False
        state.moved(job.planner, 0, 0)
        tensors = Resumed((MODEL + name, array) for name, array in job.weights.items())
    else:
        state, due = TrainState.from_meta(meta), bool(meta.get("evaluation_due", False))
        for line in _fitted(state, job):
            run.say(line)
        saved = found.tensors if found is not None else {}
        now = {name: array for name, array in saved.items() if name.startswith(MODEL)}
        later = {name: array for name, array in saved.items() if name not in now}
        if not memory.on:
            tensors = Resumed(comm.broadcast_each(now))
            tensors.rest = comm.broadcast_each(later)
        else:
            tensors = Resumed(comm.broadcast(saved))
    job.weights.clear()  # they are in the model from here on
    if run.owned is not None:
        run.owned.saves.saved_step = state.step
    memory.hold(state.to_meta() | {"evaluation_due": due}, tensors)
    return state, tensors, due


def _with_reachable_best(meta: dict[str, Any], run: Run) -> dict[str, Any]:
    """The meta; without a best step where its checkpoint is not among this run's (begun elsewhere).

    The next evaluation is then the best so far.
    """
    best = meta.get("best_step")
    if best is None or run.checkpoints is None or run.checkpoints.has(best):
        return meta
    run.say(f"the best checkpoint, step-{best}, is not in this run: evaluations begin anew")
    return meta | {"best_step": None, "best_score": None, "evaluations_without_better": 0}


def _fitted(state: TrainState, job: Job) -> list[str]:
    """Fit a checkpoint's state to the configuration as it is now; what to say about it.

    Rank 0 has refused what does not fit (models/runs/identity.py): where the plan is
    another one, the state lies between two epochs.
    """
    said = []
    training, rules = job.config.training, job.config.evaluation
    epoch, in_epoch = int(state.plan["epoch"]), int(state.plan["step"])
    job.planner.go_on_with(state.plan["plan_hash"])
    state.moved(job.planner, epoch, in_epoch)
    steps = job.at(state).schedule.steps
    if steps != job.schedule.steps:
        said.append(
            f"batches have changed: {epoch} epoch(s) are done in {state.step} steps, an epoch is"
            f" {job.planner.steps_per_epoch} steps from here on, and {steps} in all"
        )
    if state.best_score is not None and state.best_metric not in (None, rules.metric):
        said.append(
            f"evaluation.metric is {rules.metric} now: the best so far, step-{state.best_step} by"
            f" {state.best_metric}, is forgotten, and evaluations begin anew"
        )
        state.forget_best()
    patience = training.early_stopping.patience
    if state.stopped_early and (patience is None or state.evaluations_without_better < patience):
        said.append("early stopping ended this run; by its rules as they are now it goes on")
        state.stopped_early = False
    return said


def _reconcile(owned: RunDirectory, best: int | None, *, train_seconds: float) -> None:
    """Rank 0: storage need not hold what the state in memory says was saved."""
    owned.checkpoints.expect_repeated_steps()
    # A rank 0 that was lost may have been writing the best one.
    gone = best is not None and not owned.checkpoints.has(best)
    owned.saves.best_lost |= gone and best != owned.saves.pending
    if owned.save_times.known:
        return
    # Steps that it had not saved may be older than the rules allow: those count, not this world's.
    newest = owned.checkpoints.newest()
    if newest is None:
        owned.save_times.begin(0, age=train_seconds)
    else:
        owned.save_times.begin(newest.step, age=max(0.0, time.time() - newest.unix_time))
