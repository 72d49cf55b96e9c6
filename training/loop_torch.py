"""Training in torch, to be read from top to bottom; training/loop_tf.py has the same sections."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch

from howdah.config.loader import Config
from howdah.core.machine import return_free_memory
from howdah.models.forward import forward_torch
from howdah.models.weights import parameters
from howdah.process import devices
from howdah.training.checkpoint.snapshots import Snapshots
from howdah.training.checkpoint.state import TrainState
from howdah.training.comm.base import WorldChanged
from howdah.training.comm.in_step import passes_together, steps_in_step
from howdah.training.data.readers import Batch
from howdah.training.hooks.conclusion import conclude
from howdah.training.hooks.evaluator import Evaluator
from howdah.training.hooks.resumable import ResumableState
from howdah.training.hooks.saver import CheckpointSaver
from howdah.training.layout_torch import Layout
from howdah.training.optim.loss_scale import LossScale, clip_factor, not_finite
from howdah.training.optim.losses_torch import row_losses
from howdah.training.preparation.job import prepare
from howdah.training.resuming import resume
from howdah.training.run.run import Run
from howdah.training.worlds import Worlds


def train(config: Config, worlds: Worlds, run: Run) -> None:
    """Train, evaluate and export a run. Every rank enters.

    Args:
        worlds: one world of ranks, or of an elastic job one after another: each begins at the top,
            with what this process has of the one before.
    Raises:
        ConfigError, DataError, ModelError, CheckpointError: something does not fit, before step 1.
        TrainingError: a loss or gradient that is no number, or a lost rank.
        Interrupted, Terminated: a stop was asked for, and the state is saved.
    """
    training = config.training
    found = devices.find("torch")
    device = "cuda" if found.gpu else "cpu"
    job = layout = None
    snapshots = Snapshots()
    for comm in worlds:
        with worlds.survived():
            # -------------------------------------------------------- data, base, plan, schedule
            holder = worlds.memory.holder
            job = prepare(config, comm, run, device=found, holder=holder, before=job)

            # ------------------------------------------------------------- the state to resume from
            together, divided = passes_together(comm, training.parallel), training.parallel.divides
            state, tensors, evaluation_due = resume(job, comm, run, worlds.memory, divided=divided)
            job = job.at(state)

            # ----------------------------------------------------- model, gradients, optimizer
            if layout is None:
                layout = Layout(config, job, comm, tensors, device)
                net, gradients = layout.net, layout.gradients
                forward = forward_torch.forward_fn(net)
                served = forward_torch.forward_fn(net, as_served=True)
            else:
                layout.load(tensors)
            optimizer = layout.join(job, comm, tensors, state.step - state.skipped_steps)
            scale = LossScale(state, on=job.precision == "fp16")
            resumable = ResumableState(
                state,
                worlds.memory,
                snapshots,
                evaluation_due=evaluation_due,
                weights=partial(forward_torch.weights, net),
                moments=optimizer.moments,
                collect=optimizer.collect and partial(optimizer.collect, comm),
                collect_weights=(
                    None if together is None else partial(optimizer.collect_weights, comm)
                ),
            )
            saver = CheckpointSaver(job, comm, run, resumable)
            evaluator = Evaluator(job, comm, run, resumable, saver, forward=forward)
            del tensors  # a second copy of all weights and moments
            return_free_memory()  # what loading has freed would count for the whole run

            # ------------------------------------------------------------------------- the steps
            total_steps = job.schedule.steps
            run.begin(state, total_steps=total_steps)
            # -- an evaluation that the run was stopped before: every rank enters
            if evaluator.due:
                saver.reopen()
                saver.replace(evaluator.evaluate())
            over = state.step >= total_steps or state.stopped_early
            net.train()
            gradients.zero_()
            loss_sum, counts, ids = torch.zeros((), device=device), np.zeros(3), []
            source = job.train_source(comm, state)
            seed = partial(_seed, training.seed, state, comm.rank)
            losses = row_losses(
                job.task,
                label_smoothing=training.label_smoothing_factor,
                positive_weights=job.positive_weights,
            )
            loss_of = partial(_loss, losses, scale)
            limited = nullcontext if together is None else together.limited
            batches = source if together is None else steps_in_step(source, together)
            for batch in () if over else batches:
                # -- forward and backward of one micro-batch; no random state outlives it
                ids_BT = forward_torch.on_device(batch.ids_BT, device)
                with comm.guarded(), limited():  # every rank enters where they divide the model
                    seed(batch)
                    mask_BT = torch.from_numpy(batch.mask_BT).to(device)
                    loss = loss_of(net(ids_BT, mask_BT), batch)
                    loss.backward()
                    loss_sum += loss.detach()
                counts += (batch.rows.real.sum(), batch.real_tokens, batch.padded_tokens)
                ids.append(ids_BT)
                if not batch.last_of_step:
                    continue

                # -- one small sum for all that ranks must agree on: every rank enters, since the
                # others would wait in the next collective for one that left the step alone
                with limited():  # a GPU has only been given the passes: it computes them now
                    loss = loss_sum.item() / scale.value
                stop = run.stops.requested()
                if run.stops.alone:
                    raise run.stop_error()
                totals = comm.sum(
                    np.array([loss, stop, worlds.change_wanted, saver.wanted, *counts])
                )
                if not math.isfinite(totals[0]):
                    raise not_finite("loss", totals[0], state.step)

                # -- the gradient of the global batch: every rank enters with its own, and has the
                # same sum from here on, or that of its share
                gradients.reduce_(comm, ids)
                norm = gradients.norm(comm) / scale.value
                if not math.isfinite(norm) and not scale.may_skip:
                    raise not_finite("gradient's norm", norm, state.step)
                lr = job.schedule.lr(state.step)

                # -- the step; no snapshot is taken while it lasts
                with run.update_lock:
                    if math.isfinite(norm):
                        gradients.scale_(clip_factor(norm, training.max_grad_norm) / scale.value)
                        optimizer.step(lr)
                    scale.update(math.isfinite(norm))
                    state.advance(job.planner, batch.epoch, batch.step)
                    evaluator.schedule()
                # Every rank enters, where each has updated its share. Outside of the lock: a thread
                # that ends this process takes it, and a collective may hang.
                optimizer.share(comm)
                gradients.zero_()
                run.step_done(
                    state,
                    loss=totals[0],
                    lr=lr,
                    grad_norm=norm,
                    rows=int(totals[4]),
                    real_tokens=int(totals[5]),
                    padded_tokens=int(totals[6]),
                    input_seconds=source.waited,
                )
                loss_sum, counts, ids = torch.zeros((), device=device), np.zeros(3), []

                # -- what all ranks have agreed on in that sum: none decides anything else alone
                stop, change = totals[1] > 0, totals[2] > 0
                saver.agreed = totals[3] > 0
                last = state.step >= total_steps
                saver.check(give_up=not stop)  # rank 0; no collective

                # -- stop: every rank enters, and leaves when rank 0's checkpoint is whole
                if stop:
                    saver.save_and_stop()

                # -- memory of an elastic job: no collective, but the same steps on every rank
                if evaluator.due or change or last or worlds.memory.due(state.step):
                    resumable.commit()

                # -- evaluation: every rank enters, since each has a share of the rows
                evaluated = None
                if evaluator.due:
                    evaluated = evaluator.evaluate()
                    resumable.commit()

                # -- checkpoint: rank 0 alone, in the background; no collective, unless the moments
                # are divided: then every rank enters
                if saver.due(evaluated, last=last):
                    resumable.commit()  # its copy of the state serves both
                    saver.save(evaluated)

                # -- the end, or another world: at the same step on every rank
                if last or state.stopped_early:
                    break
                if change:
                    raise WorldChanged("another world is wanted", got=f"step {state.step} is done")

            # -------------------------------------------- the best weights: evaluated, exported
            conclude(
                job,
                comm,
                run,
                resumable,
                saver,
                served=served,
                restore=partial(forward_torch.import_weights, net),
            )


def _seed(seed: int, state: TrainState, rank: int, batch: Batch) -> None:
    """Seed a micro-batch's dropout: no random state outlives it."""
    torch.manual_seed(parameters.dropout_seed(seed, state.step, batch.micro, rank))


def _loss(
    losses: Callable[[torch.Tensor, np.ndarray], torch.Tensor],
    scale: LossScale,
    logits_BC: torch.Tensor,
    batch: Batch,
) -> torch.Tensor:
    """The micro-batch's part of the step's loss, times fp16's scale."""
    weights_B = torch.from_numpy(batch.weights_B).to(logits_BC.device)
    return (losses(logits_BC, batch.labels_B) * weights_B).sum() / batch.global_weight * scale.value
