"""Training in torch, to be read from top to bottom; training/loop_tf.py has the same sections."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F

from howdah.config import Config
from training import model_torch, parameters
from training.comm import Comm
from training.gradients_torch import FlatGradients
from training.lossscale import LossScale, clip_factor, not_finite
from training.milestones import Milestones, model_weights, resume
from training.planner import PlanState
from training.prepare import prepare
from training.run import Run


def train(config: Config, comm: Comm, run: Run) -> None:
    """Train, evaluate and export a run. Every rank enters.

    Raises:
        ConfigError, DataError, ModelError, CheckpointError: something does not fit, before step 1.
        TrainingError: a loss or gradient that is no number, or a lost rank.
        Interrupted, Terminated: a stop was asked for, and the state is saved.
    """
    training = config.training
    device = "cuda" if torch.cuda.is_available() else "cpu"

    # ---------------------------------------------------------------- data, base, plan, schedule
    job = prepare(config, comm, run, gpu=device == "cuda")

    # ------------------------------------------------------------- model, gradients, optimizer
    net = model_torch.build(
        job.model_config,
        job.weights,
        num_labels=len(job.labels),
        training=training,
        model=config.model,
        device=device,
    )
    trainable = {name: p for name, p in net.named_parameters() if p.requires_grad}
    gradients = FlatGradients(
        trainable, groups=training.fusion_groups, sparse_embeddings=job.sparse_embeddings
    )
    optimizer = torch.optim.AdamW(
        [
            {
                "params": [p for name, p in trainable.items() if parameters.decays(name) == on],
                "weight_decay": training.weight_decay if on else 0.0,
            }
            for on in (True, False)
        ],
        lr=job.schedule.peak,
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_epsilon,
        fused=True,
    )

    # ---------------------------------------------------------------------- where to go on from
    state, saved, evaluation_due = resume(job, comm, run)
    if saved is not None:
        model_torch.import_weights(net, model_weights(saved))
    _set_moments(optimizer, trainable, saved or {}, state.step - state.skipped_steps)
    scale = LossScale(state, on=job.precision == "fp16")
    milestones = Milestones(
        job,
        comm,
        run,
        state,
        weights=lambda: model_torch.export_weights(net),
        moments=lambda: _moments(optimizer, trainable),
        forward=model_torch.forward_fn(net, job.precision),
    )
    del saved  # a second copy of all weights and moments

    # -------------------------------------------------------------------------------- the steps
    run.begin(state, total_steps=job.schedule.steps, steps_per_epoch=job.planner.steps_per_epoch)
    if evaluation_due:
        milestones.catch_up()
    over = state.step >= job.schedule.steps or state.stopped_early
    net.train()
    gradients.zero_()
    loss_sum, counts, ids = torch.zeros((), device=device), np.zeros(3), []
    for batch in () if over else job.train_source(comm, PlanState.from_json(state.plan)):
        # -- forward and backward of one micro-batch; no random state outlives it
        torch.manual_seed(
            parameters.dropout_seed(training.seed, state.step, batch.micro, comm.rank)
        )
        ids_BT = torch.from_numpy(batch.ids_BT).to(device, torch.int64)
        with model_torch.autocast(device, job.precision):
            logits_BC = net(
                input_ids=ids_BT, attention_mask=torch.from_numpy(batch.mask_BT).to(device)
            ).logits
        loss_B = F.cross_entropy(
            logits_BC.float(),
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

        # -- one small sum for all that ranks must agree on: no rank may leave the step alone
        stop = run.stop_requested()
        if run.stop_alone:
            raise run.stop_error()
        totals = comm.sum(np.array([loss_sum.item(), stop, *counts]))
        if not math.isfinite(totals[0]):
            raise not_finite("loss", totals[0], state.step)

        # -- the gradient of the global batch, the same on every rank from here on
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
            state.step += 1
            state.plan = job.planner.state(*job.planner.after(batch.epoch, batch.step)).to_json()
            milestones.completed()
        gradients.zero_()
        run.step_done(
            state,
            loss=totals[0],
            lr=lr,
            grad_norm=norm,
            rows=int(totals[2]),
            real_tokens=int(totals[3]),
            padded_tokens=int(totals[4]),
        )
        loss_sum, counts, ids = torch.zeros((), device=device), np.zeros(3), []

        # -- evaluation, checkpoint, stop
        if milestones.after_step(stop=totals[1] > 0):
            break

    # ---------------------------------------------------- the best weights: evaluated, exported
    milestones.conclude(lambda weights: model_torch.import_weights(net, weights))


def _set_moments(
    optimizer: torch.optim.AdamW,
    trainable: dict[str, torch.nn.Parameter],
    saved: dict[str, np.ndarray],
    updates: int,
) -> None:
    """AdamW's state after `updates` updates; zeros where nothing is saved."""
    for name, parameter in trainable.items():
        own = {"step": torch.tensor(float(updates), dtype=torch.float32)}
        for key, prefix in (("exp_avg", "adam_m/"), ("exp_avg_sq", "adam_v/")):
            own[key] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            if prefix + name in saved:
                own[key].copy_(torch.from_numpy(saved[prefix + name]))
        if parameter.is_cuda:
            own["step"] = own["step"].to(parameter.device)
        optimizer.state[parameter] = own


def _moments(
    optimizer: torch.optim.AdamW, trainable: dict[str, torch.nn.Parameter]
) -> dict[str, np.ndarray]:
    return {
        prefix + name: optimizer.state[parameter][key].to("cpu", copy=True).numpy()
        for key, prefix in (("exp_avg", "adam_m/"), ("exp_avg_sq", "adam_v/"))
        for name, parameter in trainable.items()
    }
