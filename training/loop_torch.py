"""Training in torch, to be read top to bottom; training/loop_tf.py has the same sections."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch

from howdah.config.model import Config
from howdah.core.machine import return_free_memory
from howdah.models.forward import forward_torch
from howdah.models.forward.packing_torch import packing_of
from howdah.models.weights import parameters
from howdah.process import devices
from howdah.training.checkpoint.snapshots import Snapshots
from howdah.training.comm.base import WorldChanged
from howdah.training.comm.in_step import passes_together, steps_in_step
from howdah.training.data.readers import Batch
from howdah.training.hooks.compression import Compression, numbers_of
from howdah.training.hooks.conclusion import conclude
from howdah.training.hooks.evaluator import Evaluator
from howdah.training.hooks.resumable import ResumableState
from howdah.training.hooks.saver import CheckpointSaver
from howdah.training.layout_torch import Layout
from howdah.training.optim import coding_torch
from howdah.training.optim.loss_scale import LossScale, clip_factor, not_finite
from howdah.training.optim.losses_torch import row_losses
from howdah.training.preparation.job import prepare
from howdah.training.resuming import resume
from howdah.training.run.run import Run
from howdah.training.worlds import ProcessWorlds


def train(config: Config, worlds: ProcessWorlds, run: Run) -> None:
    """Train, evaluate and export a run. Every rank enters.

    Args:
        worlds: one world of ranks or, in an elastic job, one after another: each begins at the top,
            with the objects that this process kept from the one before.
    Raises:
        ConfigError, DataError, ModelError, CheckpointError: something does not fit, before step 1.
        TrainingError: a loss or gradient is not a number, or a rank was lost.
        Interrupted, Terminated: a stop was requested, and the state is saved.
    """
    training = config.training
    torch_device = devices.find("torch")
    device = "cuda" if torch_device.gpu else "cpu"
    job = layout = None
    snapshots = Snapshots()
    for comm in worlds:
        with worlds.survived():
            # -------------------------------------------------------- data, base, plan, schedule
            holder = worlds.memory.holder
            job = prepare(config, comm, run, device=torch_device, holder=holder, before=job)

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
            optimizer = layout.join(
                job, comm, tensors, state.step - state.skipped_steps, numbers_of(job, state)
            )
            scale = LossScale(state, on=job.precision == "fp16")
            resumable = ResumableState(
                state,
                worlds.memory,
                snapshots,
                evaluation_due=evaluation_due,
                of_base=tensors.of_base,
                weights=partial(forward_torch.weights, net),
                moments=optimizer.moments,
                collect=optimizer.collect and partial(optimizer.collect, comm),
                collect_weights=(
                    None if together is None else partial(optimizer.collect_weights, comm)
                ),
            )
            saver = CheckpointSaver(job, comm, run, resumable)
            evaluator = Evaluator(job, comm, run, resumable, saver, forward=forward)
            compression = Compression(
                job,
                comm,
                run,
                worlds.memory,
                saver,
                state,
                elements=gradients.dense_elements,
                coding_seconds=coding_torch.seconds,
            )
            del tensors  # a second copy of all weights and moments
            return_free_memory()  # otherwise memory that loading has freed stays with this process

            # ------------------------------------------------------------------------- the steps
            total_steps = job.schedule.steps
            run.begin(state, total_steps=total_steps)
            # -- an evaluation that was pending when the run stopped: every rank enters
            if evaluator.due:
                saver.reopen()
                saver.replace(evaluator.evaluate())
            over = state.step >= total_steps or state.stopped_early
            net.train()
            gradients.zero_()
            loss_sum, counts, ids = torch.zeros((), device=device), np.zeros(3), []
            source = job.fitting_source(
                comm,
                state,
                gpu=torch_device.gpu,
                out_of_memory=forward_torch.out_of_memory,
                say=run.say,
            )
            losses = row_losses(
                job.task,
                label_smoothing=training.label_smoothing_factor,
                positive_weights=job.positive_weights,
            )
            limited = nullcontext if together is None else together.limited
            batches = source if together is None else steps_in_step(source, together)
            for batch in () if over else batches:
                # -- forward and backward of one micro-batch; no random state outlives it
                seed = parameters.dropout_seed(training.seed, state.step, batch.micro, comm.rank)
                if not source.short:
                    if batch.last_of_step and not compression.measures:
                        # its sums begin in this backward pass
                        gradients.overlap(comm, whole=compression.whole)
                    # every rank enters if they divide the model
                    with comm.guarded(), limited(), source.fits(batch):
                        torch.manual_seed(seed)
                        loss_sum += _backward(net, losses, batch, device, scale.value)
                if source.short and batch.last_of_step:
                    with comm.guarded():
                        gradients.cut_short(comm, whole=compression.whole)
                counts += (batch.rows.real.sum(), batch.real_tokens, batch.padded_tokens)
                ids.append(torch.from_numpy(batch.ids_BT))
                if not batch.last_of_step:
                    continue

                # -- one small sum for everything that ranks must agree on: every rank enters, since
                # the others would wait in the next collective for one that left the step
                with limited():  # a GPU has only queued the passes: it computes them now
                    loss = loss_sum.item() / scale.value
                stop = run.stops.requested()
                if run.stops.alone:
                    raise run.stop_error()
                gradients.proceed(comm)
                flags = (
                    stop, worlds.change_pending, saver.save_due or compression.due, source.short,
                )  # fmt: skip
                totals = comm.sum(np.array([loss, *flags, *counts]))
                if totals[4] > 0:  # a rank lacks memory: every rank does the step again
                    # This ends the sums that have begun; what int8 held back went with them.
                    gradients.reduce_(comm, ids, whole=compression.whole)
                    if compression.numbers == "int8":
                        gradients.send_in("int8")
                    gradients.zero_()
                    torch.cuda.empty_cache()  # blocks of the sizes that did not fit
                    source.narrow(comm, state.step + 1)
                    loss_sum, counts, ids = torch.zeros((), device=device), np.zeros(3), []
                    continue
                if not math.isfinite(totals[0]):
                    raise not_finite("loss", totals[0], state.step)

                # -- the gradient of the global batch: every rank enters with its gradient, and has
                # the same sum afterwards, or the sum of its share
                with compression.timed():
                    gradients.reduce_(comm, ids, whole=compression.whole)
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
                # Every rank enters if each has updated its share. It is outside of the lock, which
                # the thread that ends this process takes, since a collective may hang.
                optimizer.share(comm)
                gradients.zero_()
                run.step_done(
                    state,
                    loss=totals[0],
                    lr=lr,
                    grad_norm=norm,
                    rows=int(totals[5]),
                    real_tokens=int(totals[6]),
                    padded_tokens=int(totals[7]),
                    input_seconds=source.waited,
                )
                loss_sum, counts, ids = torch.zeros((), device=device), np.zeros(3), []

                # -- the agreements of that sum: no rank decides anything else on its own
                kept = compression.whole  # a state that lacks what int8 holds back is not kept
                stop, change = kept and totals[1] > 0, kept and totals[2] > 0
                saver.agreed = totals[3] > 0
                if compression.step_done(any(totals[1:4] > 0), batch.micros):
                    gradients.send_in(compression.numbers)
                last = state.step >= total_steps
                saver.check(give_up=not stop)  # rank 0; no collective

                # -- stop: every rank enters, and leaves when rank 0's checkpoint is complete
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

                # -- checkpoint: only rank 0, in the background, without a collective; every rank
                # enters if the moments are divided
                if kept and saver.due(evaluated, last=last):
                    resumable.commit()  # its copy of the state serves both
                    saver.save(evaluated)

                # -- the end, or another world: at the same step on every rank
                if last or state.stopped_early:
                    break
                if change:
                    raise WorldChanged("the world changes", got=f"step {state.step} is done")

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


def _backward(
    net: forward_torch.EncoderClassifier,
    losses: Callable[[torch.Tensor, np.ndarray], torch.Tensor],
    batch: Batch,
    device: str,
    scale: float,
) -> torch.Tensor:
    """Forward and backward pass of a micro-batch. Returns its part of the step's loss, times
    `scale`; a GPU has only queued the computation."""
    ids_BT, mask_BT = forward_torch.on_device(batch.ids_BT, device), None
    packing = {}
    if batch.real_tokens < batch.padded_tokens:
        mask_BT = forward_torch.on_device(batch.mask_BT, device)
        packing = {"packing": packing_of(batch.mask_BT, device, net.compute_dtype)}
    loss_B = losses(net(ids_BT, mask_BT, **packing), batch.labels_B)
    weights_B = forward_torch.on_device(batch.weights_B, device)
    loss = (loss_B * weights_B).sum() / batch.global_weight * scale
    loss.backward()
    return loss.detach()
