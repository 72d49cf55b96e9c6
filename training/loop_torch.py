"""Training in torch, to be read from top to bottom; training/loop_tf.py has the same sections."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from howdah.config.loader import Config
from howdah.config.model import TrainingSection
from training.checkpoint.read import ADAM_M, ADAM_V, model_weights
from training.checkpoint.snapshots import Snapshots
from training.comm.base import WorldChanged
from training.hooks.conclusion import conclude
from training.hooks.evaluator import Evaluator
from training.hooks.resumable import ResumableState
from training.hooks.saver import CheckpointSaver
from training.model import forward_torch, parameters
from training.optim.gradients_torch import FlatGradients
from training.optim.loss_scale import LossScale, clip_factor, not_finite
from training.prepare import prepare
from training.process import devices
from training.resuming import resume
from training.run.run import Run
from training.worlds import Worlds


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
    job = net = None
    snapshots = Snapshots()
    for comm in worlds:
        with worlds.survived():
            # -------------------------------------------------------- data, base, plan, schedule
            holder = worlds.memory.holder
            job = prepare(config, comm, run, device=found, holder=holder, before=job)

            # ------------------------------------------------------------- the state to resume from
            state, tensors, evaluation_due = resume(job, comm, run, worlds.memory)
            job = job.at(state)

            # ----------------------------------------------------- model, gradients, optimizer
            if net is None:
                net = forward_torch.build(
                    job.model_config,
                    model_weights(tensors),
                    num_labels=len(job.labels),
                    training=training,
                    model=config.model,
                    precision=job.precision,
                    device=device,
                )
                trainable = {name: p for name, p in net.named_parameters() if p.requires_grad}
                gradients = FlatGradients(trainable, words=job.base.family.word_embeddings)
                optimizer = _adamw(trainable, training, job.schedule.peak)
                forward = forward_torch.forward_fn(net)
                served = forward_torch.forward_fn(net, as_served=True)
            else:
                forward_torch.import_weights(net, model_weights(tensors))
            _set_moments(optimizer, trainable, tensors, state.step - state.skipped_steps)
            gradients.arrange(training.fusion_groups, sparse_embeddings=job.sparse_embeddings)
            scale = LossScale(state, on=job.precision == "fp16")
            resumable = ResumableState(
                state,
                worlds.memory,
                snapshots,
                evaluation_due=evaluation_due,
                weights=partial(forward_torch.weights, net),
                moments=partial(_moments, optimizer, trainable),
            )
            saver = CheckpointSaver(job, comm, run, resumable)
            evaluator = Evaluator(job, comm, run, resumable, saver, forward=forward)
            del tensors  # a second copy of all weights and moments

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
            for batch in () if over else source:
                # -- forward and backward of one micro-batch; no random state outlives it
                torch.manual_seed(
                    parameters.dropout_seed(training.seed, state.step, batch.micro, comm.rank)
                )
                ids_BT = torch.from_numpy(batch.ids_BT).to(device, torch.int64)
                logits_BC = net(ids_BT, torch.from_numpy(batch.mask_BT).to(device))
                loss_B = F.cross_entropy(
                    logits_BC,
                    torch.from_numpy(batch.labels_B).to(device, torch.int64),
                    label_smoothing=training.label_smoothing_factor,
                    reduction="none",
                )
                weights_B = torch.from_numpy(batch.weights_B).to(device)
                loss = (loss_B * weights_B).sum() / batch.global_weight
                (loss * scale.value).backward()
                loss_sum += loss.detach()
                counts += (batch.rows.real.sum(), batch.real_tokens, batch.padded_tokens)
                ids.append(ids_BT)
                if not batch.last_of_step:
                    continue

                # -- one small sum for all that ranks must agree on: every rank enters, since the
                # others would wait in the next collective for one that left the step alone
                stop = run.stops.requested()
                if run.stops.alone:
                    raise run.stop_error()
                totals = comm.sum(np.array([loss_sum.item(), stop, worlds.change_wanted, *counts]))
                if not math.isfinite(totals[0]):
                    raise not_finite("loss", totals[0], state.step)

                # -- the gradient of the global batch: every rank enters with its own, and has the
                # same sum from here on
                gradients.reduce_(comm, ids)
                norm = gradients.norm().item() / scale.value
                if not math.isfinite(norm) and not scale.on:
                    raise not_finite("gradient's norm", norm, state.step)
                lr = job.schedule.lr(state.step)

                # -- the step; no snapshot is taken while it lasts
                with run.update_lock:
                    if math.isfinite(norm):
                        gradients.scale_(clip_factor(norm, training.max_grad_norm) / scale.value)
                        for group in optimizer.param_groups:
                            group["lr"] = lr
                        optimizer.step()
                    scale.update(math.isfinite(norm))
                    state.advance(job.planner, batch.epoch, batch.step)
                    evaluator.schedule()
                gradients.zero_()
                run.step_done(
                    state,
                    loss=totals[0],
                    lr=lr,
                    grad_norm=norm,
                    rows=int(totals[3]),
                    real_tokens=int(totals[4]),
                    padded_tokens=int(totals[5]),
                    input_seconds=source.waited,
                )
                loss_sum, counts, ids = torch.zeros((), device=device), np.zeros(3), []

                # -- what all ranks have agreed on in that sum: none decides anything else alone
                stop, change = totals[1] > 0, totals[2] > 0
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

                # -- checkpoint: rank 0 alone, in the background; no collective
                if saver.due(evaluated, last=last):
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


_MOMENTS = (("exp_avg", ADAM_M), ("exp_avg_sq", ADAM_V))
"""What torch's AdamW calls its moments, and what a checkpoint does."""


def _adamw(
    trainable: dict[str, torch.nn.Parameter], training: TrainingSection, peak: float
) -> torch.optim.AdamW:
    groups = [
        {
            "params": [p for name, p in trainable.items() if parameters.decays(name) == on],
            "weight_decay": training.weight_decay if on else 0.0,
        }
        for on in (True, False)
    ]
    betas = (training.adam_beta1, training.adam_beta2)
    return torch.optim.AdamW(groups, lr=peak, betas=betas, eps=training.adam_epsilon, fused=True)


def _set_moments(
    optimizer: torch.optim.AdamW,
    trainable: dict[str, torch.nn.Parameter],
    saved: dict[str, np.ndarray],
    updates: int,
) -> None:
    """AdamW's state after `updates` updates; zeros where nothing is saved."""
    for name, parameter in trainable.items():
        own = {"step": torch.tensor(float(updates), dtype=torch.float32)}
        for key, prefix in _MOMENTS:
            own[key] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            if prefix + name in saved:
                own[key].copy_(torch.from_numpy(saved[prefix + name]))
        if parameter.is_cuda:
            own["step"] = own["step"].to(parameter.device)
        optimizer.state[parameter] = own


def _moments(
    optimizer: torch.optim.AdamW, trainable: dict[str, torch.nn.Parameter]
) -> Iterator[tuple[str, np.ndarray]]:
    """AdamW's moments as in a checkpoint; copy what is kept: they may be its own memory."""
    for key, prefix in _MOMENTS:
        for name, parameter in trainable.items():
            yield prefix + name, optimizer.state[parameter][key].to("cpu").numpy()
