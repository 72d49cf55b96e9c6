"""Training in TensorFlow, to be read top to bottom; training/loop_torch.py has the same sections.

The operations on the device are traced once for all shapes of batches (training/optim/steps_tf.py).
"""

from __future__ import annotations

import math
from functools import partial
from itertools import chain

import numpy as np
import tensorflow as tf

from howdah.config.model import Config
from howdah.models.forward import forward_tf
from howdah.models.weights import parameters
from howdah.process import devices
from howdah.training.checkpoint.read import model_weights
from howdah.training.checkpoint.snapshots import Snapshots
from howdah.training.comm.base import WorldChanged
from howdah.training.hooks.compression import Compression, numbers_of
from howdah.training.hooks.conclusion import conclude
from howdah.training.hooks.evaluator import Evaluator
from howdah.training.hooks.resumable import ResumableState
from howdah.training.hooks.saver import CheckpointSaver
from howdah.training.optim import coding_tf
from howdah.training.optim.adamw_tf import AdamW
from howdah.training.optim.gradients_tf import Gradients
from howdah.training.optim.loss_scale import LossScale, clip_factor, not_finite
from howdah.training.optim.schedule import FUSION_GROUPS
from howdah.training.optim.steps_tf import Steps
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
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) > 1:  # TensorFlow would take memory of each that it sees
        tf.config.set_visible_devices(gpus[:1], "GPU")
    for gpu in gpus[:1]:  # allocate memory on demand: other users may share the GPU
        tf.config.experimental.set_memory_growth(gpu, True)
    device = devices.find("tensorflow")
    job = net = None
    snapshots = Snapshots()
    for comm in worlds:
        with worlds.survived():
            # -------------------------------------------------------- data, base, plan, schedule
            holder = worlds.memory.holder
            job = prepare(config, comm, run, device=device, holder=holder, before=job)

            # ------------------------------------------------------------- the state to resume from
            state, tensors, evaluation_due = resume(job, comm, run, worlds.memory)
            job = job.at(state)

            # ----------------------------------------------------- model, gradients, optimizer
            if net is None:
                net = forward_tf.build(
                    job.model_config,
                    model_weights(tensors),
                    num_labels=len(job.labels),
                    training=training,
                    model=config.model,
                    precision=job.precision,
                    first_type_ends=job.first_type_ends,
                )
                trainable = {name: net.variables[name] for name in net.trainable_names}
                gradients = Gradients(trainable, words=job.base.family.word_embeddings)
                optimizer = AdamW(trainable, training)
                steps = Steps(
                    net,
                    gradients,
                    label_smoothing=training.label_smoothing_factor,
                    task=job.task,
                    positive_weights=job.positive_weights,
                )
                forward = forward_tf.forward_fn(net)
                served = forward_tf.forward_fn(net, as_served=True)
            else:
                forward_tf.import_weights(net, model_weights(tensors).items())
            optimizer.restore(
                chain(tensors.items(), tensors.rest), state.step - state.skipped_steps
            )
            gradients.arrange(
                FUSION_GROUPS,
                sparse_embeddings=job.sparse_embeddings,
                compression=numbers_of(job, state),
            )
            steps.join(comm)
            scale = LossScale(state, on=job.precision == "fp16")
            resumable = ResumableState(
                state,
                worlds.memory,
                snapshots,
                evaluation_due=evaluation_due,
                of_base=tensors.of_base,
                weights=partial(forward_tf.weights, net),
                moments=optimizer.moments,
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
                coding_seconds=coding_tf.seconds,
            )
            del tensors  # a second copy of all weights and moments

            # ------------------------------------------------------------------------- the steps
            total_steps = job.schedule.steps
            run.begin(state, total_steps=total_steps)
            # -- an evaluation that was pending when the run stopped: every rank enters
            if evaluator.due:
                saver.reopen()
                saver.replace(evaluator.evaluate())
            over = state.step >= total_steps or state.stopped_early
            losses, counts = [], np.zeros(3)
            source = job.fitting_source(
                comm, state, gpu=device.gpu, out_of_memory=_out_of_memory, say=run.say
            )
            for batch in () if over else source:
                # -- forward and backward of one micro-batch; no random state outlives it
                seed = parameters.dropout_seed(training.seed, state.step, batch.micro, comm.rank)
                with source.fits(batch):
                    loss = steps.backward(
                        batch,
                        seed=seed,
                        scale=scale.value,
                        whole=compression.whole,
                        overlap=not compression.measures,
                    )
                losses.append(loss)
                counts += (batch.rows.real.sum(), batch.real_tokens, batch.padded_tokens)
                if not batch.last_of_step:
                    continue

                # -- one small sum for everything that ranks must agree on: every rank enters, since
                # the others would wait in the next collective for one that left the step
                stop = run.stops.requested()
                if run.stops.alone:
                    raise run.stop_error()
                flags = stop, worlds.change_pending, saver.save_due or compression.due
                totals = comm.sum(np.array([float(sum(losses)), *flags, *counts]))
                if not math.isfinite(totals[0]):
                    raise not_finite("loss", totals[0], state.step)

                # -- the gradient of the global batch: every rank enters with its gradient, and has
                # the same sum afterwards
                with compression.timed():
                    norm = steps.reduce(whole=compression.whole) / scale.value
                if not math.isfinite(norm) and not scale.may_skip:
                    raise not_finite("gradient's norm", norm, state.step)
                lr = job.schedule.lr(state.step)

                # -- the step; no snapshot is taken while it lasts
                with run.update_lock:
                    if math.isfinite(norm):
                        factor = clip_factor(norm, training.max_grad_norm) / scale.value
                        optimizer.step(list(gradients.sums.values()), lr=lr, factor=factor)
                    scale.update(math.isfinite(norm))
                    state.advance(job.planner, batch.epoch, batch.step)
                    evaluator.schedule()
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
                losses, counts = [], np.zeros(3)

                # -- the agreements of that sum: no rank decides anything else on its own
                kept = compression.whole  # a state that lacks what int8 holds back is not kept
                stop, change = kept and totals[1] > 0, kept and totals[2] > 0
                saver.agreed = totals[3] > 0
                if compression.step_done(any(totals[1:4] > 0), batch.micros):
                    gradients.send_in(compression.numbers)
                    steps.join(comm)
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
                restore=partial(forward_tf.import_weights, net),
            )


def _out_of_memory(error: BaseException) -> bool:
    """True if an error of TensorFlow means that the device has no memory left."""
    return isinstance(error, tf.errors.ResourceExhaustedError)
