"""The state that a run resumes from in each world: memory, the newest checkpoint, or the base."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from howdah.models.weights import parameters
from howdah.training.checkpoint.elastic_state import ElasticState
from howdah.training.checkpoint.read import MODEL, Checkpoint
from howdah.training.checkpoint.state import TrainState
from howdah.training.comm.base import Comm
from howdah.training.preparation.job import TrainingJob
from howdah.training.run.run import Run
from howdah.training.run.run_directory import RunDirectory


class Resumed(dict[str, np.ndarray]):
    """The tensors to resume from, by their names in a checkpoint."""

    rest: Iterable[tuple[str, np.ndarray]] = ()
    """Further tensors, to be iterated over once: every rank enters while it iterates."""
    of_base: frozenset[str] = frozenset()
    """Names of weights that are frozen and the base model's: checkpoints leave them out."""


def resume(
    job: TrainingJob, comm: Comm, run: Run, memory: ElasticState, *, divided: bool = False
) -> tuple[TrainState, Resumed, bool]:
    """The state to resume from: a rank's memory of an earlier world, or the newest checkpoint if
    that is newer; else the base. Every rank enters, so that all have the same state: rank 0 reads
    the checkpoint and broadcasts it.

    Args:
        divided: no rank holds all moments, not even rank 0 while it reads them.
    Returns:
        (state, tensors, True if the evaluation of that step is still to be done). The tensors are
        all of the model's as `model/<name>`, and the moments if they exist. The moments are in
        `Resumed.rest`, except in an elastic job, which keeps them in memory.
    """
    checkpoint: Checkpoint | None = None
    if memory.holder is not None and run.owned is not None:
        checkpoint = run.owned.newer_checkpoint(job.identity, than=memory.newest)
    if memory.holder is not None and not comm.broadcast_json(checkpoint is not None):
        meta, tensors = memory.share(comm)
        run.say(f"resuming {comm.size} ranks from memory at step {meta['step']}")
        if run.owned is not None:
            run.owned.resumed_from_memory(meta["step"])
            _reconcile(run.owned, meta["best_step"], train_seconds=meta["train_seconds"])
        tensors = Resumed(tensors)
        tensors.of_base = frozenset(meta.get("of_base", ()))
        return TrainState.from_meta(meta), tensors, bool(meta["evaluation_due"])
    meta: dict[str, Any] | None = None
    if comm.rank == 0:
        if checkpoint is None:
            checkpoint = run.owned.resume_checkpoint(job.identity, when_used=divided)
        meta = None if checkpoint is None else _with_reachable_best(checkpoint.meta, run)
    meta = comm.broadcast_json(meta)
    if meta is None:
        state, due = TrainState(), False
        state.moved(job.planner, 0, 0)
        tensors = Resumed((MODEL + name, array) for name, array in job.weights.items())
        tensors.of_base = frozenset(_frozen(job))
    else:
        state, due = TrainState.from_meta(meta), bool(meta.get("evaluation_due", False))
        for line in _fitted(state, job):
            run.say(line)
        saved = checkpoint.tensors if checkpoint is not None else {}
        now = {name: array for name, array in saved.items() if name.startswith(MODEL)}
        later = {name: array for name, array in saved.items() if name not in now}
        of_base = meta.get("of_base", [])
        if memory.holder is None:
            tensors = Resumed((MODEL + name, job.weights[name]) for name in of_base)
        else:  # an earlier world has read the base
            names = {MODEL + name for name in of_base}
            held = {name: array for name, array in memory.tensors.items() if name in names}
            tensors = Resumed(comm.broadcast(held, root=memory.holder))
        if not memory.on:
            tensors.update(comm.broadcast_each(now))
            tensors.rest = comm.broadcast_each(later)
        else:
            tensors.update(comm.broadcast(saved))
        tensors.of_base = frozenset(of_base).intersection(_frozen(job))
    job.weights.clear()  # the tensors have them now
    if run.owned is not None:
        run.owned.saves.saved_step = state.step
    of_base = {"of_base": sorted(tensors.of_base)}
    memory.hold(state.to_meta() | {"evaluation_due": due} | of_base, tensors)
    return state, tensors, due


def _frozen(job: TrainingJob) -> set[str]:
    """Names of the weights that training does not change."""
    config, family = job.config, job.base.family
    trained = parameters.trainable_names(job.model_config, config.model, config.training.lora)
    return set(family.encoder_shapes(job.model_config)).difference(trained)


def _with_reachable_best(meta: dict[str, Any], run: Run) -> dict[str, Any]:
    """The meta, without a best step if its checkpoint is not in this run, which may have begun from
    another run's checkpoint. Then the next evaluation becomes the best."""
    best = meta.get("best_step")
    if best is None or run.checkpoints is None or run.checkpoints.has(best):
        return meta
    run.say(
        f"the best checkpoint, step-{best}, is not in this run: the next evaluation counts as"
        " the best"
    )
    return meta | {"best_step": None, "best_score": None, "evaluations_without_better": 0}


def _fitted(state: TrainState, job: TrainingJob) -> list[str]:
    """Fit a checkpoint's state to the current configuration. Returns lines for the user.

    Rank 0 has refused a checkpoint that does not fit (models/runs/identity.py): if the plan has
    changed, the state is between two epochs.
    """
    lines = []
    training, rules = job.config.training, job.config.evaluation
    epoch, in_epoch = int(state.plan["epoch"]), int(state.plan["step"])
    state.moved(job.planner, epoch, in_epoch)
    steps = job.at(state).schedule.steps
    if steps != job.schedule.steps:
        lines.append(
            f"the batches have changed: {epoch} epochs are done in {state.step} steps; from here on"
            f" an epoch has {job.planner.steps_per_epoch} steps, and the run {steps} in all"
        )
    if state.best_score is not None and state.best_metric not in (None, rules.metric):
        lines.append(
            f"evaluation.metric is {rules.metric} now: the best step so far, step-{state.best_step}"
            f" by {state.best_metric}, does not count any more"
        )
        state.forget_best()
    patience = training.early_stopping.patience
    if state.stopped_early and (patience is None or state.evaluations_without_better < patience):
        lines.append("early stopping ended this run; with its current settings the run continues")
        state.stopped_early = False
    return lines


def _reconcile(owned: RunDirectory, best: int | None, *, train_seconds: float) -> None:
    """Adapt rank 0's records: storage may lack checkpoints that the state in memory refers to."""
    owned.checkpoints.expect_repeated_steps()
    # The previous rank 0 may have been lost while it wrote the best checkpoint.
    gone = best is not None and not owned.checkpoints.has(best)
    owned.saves.best_lost |= gone and best != owned.saves.pending
    if owned.save_times.has_begun:
        return
    # The schedule counts from the newest checkpoint, not from the beginning of this world: the
    # previous rank 0 may have had steps to save for longer than the rules allow.
    newest = owned.checkpoints.newest()
    if newest is None:
        owned.save_times.begin(0, age=train_seconds)
    else:
        owned.save_times.begin(newest.step, age=max(0.0, time.time() - newest.unix_time))
