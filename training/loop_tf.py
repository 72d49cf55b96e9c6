"""Training in TensorFlow, to be read top to bottom; training/loop_torch.py has the same sections.

What runs on the device is traced once, whatever the shapes of the batches (training/steps_tf.py).
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from howdah.config import Config
from training import model_tf, parameters
from training.comm import Comm
from training.gradients_tf import Gradients
from training.lossscale import LossScale, clip_factor, not_finite
from training.milestones import Milestones, model_weights, resume
from training.optimizer_tf import AdamW
from training.planner import PlanState
from training.prepare import prepare
from training.run import Run
from training.steps_tf import Steps


def train(config: Config, comm: Comm, run: Run) -> None:
    """Train, evaluate and export a run. Every rank enters.

    Raises:
        ConfigError, DataError, ModelError, CheckpointError: something does not fit, before step 1.
        TrainingError: a loss or gradient that is no number, or a lost rank.
        Interrupted, Terminated: a stop was asked for, and the state is saved.
    """
    training = config.training
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:  # take memory as it is needed: other ranks and people may be there
        tf.config.experimental.set_memory_growth(gpu, True)

    # ---------------------------------------------------------------- data, base, plan, schedule
    job = prepare(config, comm, run, gpu=bool(gpus))

    # ------------------------------------------------------------- model, gradients, optimizer
    net = model_tf.build(
        job.model_config,
        job.weights,
        num_labels=len(job.labels),
        training=training,
        model=config.model,
        precision=job.precision,
    )
    trainable = {name: net.variables[name] for name in net.trainable_names}
    gradients = Gradients(
        trainable, groups=training.fusion_groups, sparse_embeddings=job.sparse_embeddings
    )
    optimizer = AdamW(trainable, training)
    steps = Steps(net, gradients, comm, label_smoothing=training.label_smoothing_factor)

    # ---------------------------------------------------------------------- where to go on from
    state, saved, evaluation_due = resume(job, comm, run)
    if saved is not None:
        model_tf.import_weights(net, model_weights(saved))
    optimizer.restore(saved or {}, state.step - state.skipped_steps)
    scale = LossScale(state, on=job.precision == "fp16")
    milestones = Milestones(
        job,
        comm,
        run,
        state,
        weights=lambda: model_tf.export_weights(net),
        moments=optimizer.moments,
        forward=model_tf.forward_fn(net),
    )
    del saved  # a second copy of all weights and moments

    # -------------------------------------------------------------------------------- the steps
    run.begin(state, total_steps=job.schedule.steps, steps_per_epoch=job.planner.steps_per_epoch)
    if evaluation_due:
        milestones.catch_up()
    over = state.step >= job.schedule.steps or state.stopped_early
    losses, counts, ids = [], np.zeros(3), []
    for batch in () if over else job.train_source(comm, PlanState.from_json(state.plan)):
        # -- forward and backward of one micro-batch; no random state outlives it
        seed = parameters.dropout_seed(training.seed, state.step, batch.micro, comm.rank)
        losses.append(steps.backward(batch, seed=seed, scale=scale.value))
        counts += (batch.rows.real.sum(), batch.real_tokens, batch.padded_tokens)
        ids.append(batch.ids_BT)
        if not batch.last_of_step:
            continue

        # -- one small sum for all that ranks must agree on: no rank may leave the step alone
        stop = run.stop_requested()
        if run.stop_alone:
            raise run.stop_error()
        totals = comm.sum(np.array([float(sum(losses)), stop, *counts]))
        if not math.isfinite(totals[0]):
            raise not_finite("loss", totals[0], state.step)

        # -- the gradient of the global batch, the same on every rank from here on
        norm = steps.reduce(ids) / scale.value
        if not math.isfinite(norm) and not scale.on:
            raise not_finite("gradient's norm", norm, state.step)
        lr = job.schedule.lr(state.step)

        # -- the step; no snapshot is taken while it lasts
        with run.update_lock:
            if math.isfinite(norm):
                factor = clip_factor(norm, training.max_grad_norm) / scale.value
                optimizer.step(list(gradients.sums.values()), lr=lr, factor=factor)
            scale.update(math.isfinite(norm))
            state.step += 1
            state.plan = job.planner.state(*job.planner.after(batch.epoch, batch.step)).to_json()
            milestones.completed()
        run.step_done(
            state,
            loss=totals[0],
            lr=lr,
            grad_norm=norm,
            rows=int(totals[2]),
            real_tokens=int(totals[3]),
            padded_tokens=int(totals[4]),
        )
        losses, counts, ids = [], np.zeros(3), []

        # -- evaluation, checkpoint, stop
        if milestones.after_step(stop=totals[1] > 0):
            break

    # ---------------------------------------------------- the best weights: evaluated, exported
    milestones.conclude(lambda weights: model_tf.import_weights(net, weights))
