"""Training in TensorFlow, to be read top to bottom; training/loop_torch.py has the same sections.

What runs on the device is traced once, whatever the shapes of the batches (training/steps_tf.py).
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import tensorflow as tf

from howdah.config import Config
from training import devices, model_tf, parameters
from training.gradients_tf import Gradients
from training.lossscale import LossScale, clip_factor, not_finite
from training.milestones import Milestones, model_weights
from training.optimizer_tf import AdamW
from training.prepare import prepare
from training.resuming import resume
from training.run import Run
from training.snapshots import Snapshots
from training.steps_tf import Steps
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
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:  # take memory as it is needed: other ranks and people may be there
        tf.config.experimental.set_memory_growth(gpu, True)
    device = devices.find("tensorflow")
    job = net = None
    snapshots = Snapshots()
    for comm in worlds:
        with worlds.survived():
            # -------------------------------------------------------- data, base, plan, schedule
            holder = worlds.memory.holder
            job = prepare(config, comm, run, device=device, holder=holder, before=job)

            # ----------------------------------------------------------------- where to go on from
            state, tensors, evaluation_due = resume(job, comm, run, worlds.memory)
            job = job.at(state)

            # ----------------------------------------------------- model, gradients, optimizer
            if net is None:
                net = model_tf.build(
                    job.model_config,
                    model_weights(tensors),
                    num_labels=len(job.labels),
                    training=training,
                    model=config.model,
                    precision=job.precision,
                )
                trainable = {name: net.variables[name] for name in net.trainable_names}
                gradients = Gradients(trainable)
                optimizer = AdamW(trainable, training)
                steps = Steps(net, gradients, label_smoothing=training.label_smoothing_factor)
                forward = model_tf.forward_fn(net)
                served = model_tf.forward_fn(net, as_served=True)
            else:
                model_tf.import_weights(net, model_weights(tensors))
            optimizer.restore(tensors, state.step - state.skipped_steps)
            gradients.arrange(training.fusion_groups, sparse_embeddings=job.sparse_embeddings)
            steps.join(comm)
            scale = LossScale(state, on=job.precision == "fp16")
            milestones = Milestones(
                job,
                comm,
                run,
                state,
                worlds.memory,
                snapshots=snapshots,
                weights=partial(model_tf.weights, net),
                moments=optimizer.moments,
                forward=forward,
                served=served,
            )
            del tensors  # a second copy of all weights and moments

            # ------------------------------------------------------------------------- the steps
            last = job.schedule.steps
            run.begin(state, total_steps=last)
            if evaluation_due:
                milestones.catch_up()
            over = state.step >= last or state.stopped_early
            losses, counts = [], np.zeros(3)
            source = job.train_source(comm, state)
            for batch in () if over else source:
                # -- forward and backward of one micro-batch; no random state outlives it
                seed = parameters.dropout_seed(training.seed, state.step, batch.micro, comm.rank)
                losses.append(steps.backward(batch, seed=seed, scale=scale.value))
                counts += (batch.rows.real.sum(), batch.real_tokens, batch.padded_tokens)
                if not batch.last_of_step:
                    continue

                # -- one small sum for all that ranks must agree on: none may leave the step alone
                stop = run.stop_requested()
                if run.stop_alone:
                    raise run.stop_error()
                totals = comm.sum(
                    np.array([float(sum(losses)), stop, worlds.change_wanted, *counts])
                )
                if not math.isfinite(totals[0]):
                    raise not_finite("loss", totals[0], state.step)

                # -- the gradient of the global batch, the same on every rank from here on
                norm = steps.reduce() / scale.value
                if not math.isfinite(norm) and not scale.on:
                    raise not_finite("gradient's norm", norm, state.step)
                lr = job.schedule.lr(state.step)

                # -- the step; no snapshot is taken while it lasts
                with run.update_lock:
                    if math.isfinite(norm):
                        factor = clip_factor(norm, training.max_grad_norm) / scale.value
                        optimizer.step(list(gradients.sums.values()), lr=lr, factor=factor)
                    scale.update(math.isfinite(norm))
                    state.advance(job.planner, batch.epoch, batch.step)
                    milestones.completed()
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
                losses, counts = [], np.zeros(3)

                # -- evaluation, checkpoint, stop, another world
                if milestones.after_step(stop=totals[1] > 0, change=totals[2] > 0):
                    break

            # -------------------------------------------- the best weights: evaluated, exported
            milestones.conclude(partial(model_tf.import_weights, net))
