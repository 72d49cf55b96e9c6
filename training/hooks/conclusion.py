"""The end of a run: the best weights are evaluated, exported and reported."""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from howdah import storage
from howdah.core import activity
from howdah.core.child import Child
from howdah.data.inputs import encoder_of_model
from howdah.errors import HowdahError
from howdah.models.base import with_pinned_base
from howdah.models.export.export import export
from howdah.models.export.formats import sample_rows
from howdah.models.export.run_info import describe_run
from howdah.models.weights import lora
from howdah.process import isolation
from howdah.run_files import REPORT
from howdah.training.checkpoint.read import Checkpoint, model_weights
from howdah.training.checkpoint.read import load as load_checkpoint
from howdah.training.checkpoint.state import TrainState
from howdah.training.comm.base import Comm
from howdah.training.comm.in_step import passes_together
from howdah.training.evaluation import evaluate as evaluation
from howdah.training.evaluation import profile_writer as reference
from howdah.training.hooks.evaluator import Forward
from howdah.training.hooks.resumable import ResumableState
from howdah.training.hooks.saver import CheckpointSaver
from howdah.training.model.warm import begin
from howdah.training.preparation.job import TrainingJob
from howdah.training.run.run import Run

_REPORT_SECONDS = 600.0
"""A baseline of 10,000 rows and the page take a tenth of it on two cores."""


def conclude(
    job: TrainingJob,
    comm: Comm,
    run: Run,
    resumable: ResumableState,
    saver: CheckpointSaver,
    *,
    served: Forward,
    restore: Callable[[Iterable[tuple[str, np.ndarray]]], None],
) -> None:
    """Evaluate the best weights (else the last), export them, and write the report. Every rank
    enters: each evaluates its share of the rows with the same weights.

    Args:
        served: inference in float32, as in serving.
        restore: puts weights, by their plain names, into the model.
    """
    state = resumable.state
    run.heartbeat.send("concluding")
    best: dict[str, np.ndarray] = {}
    step, epochs = state.step, state.epochs
    run.check_fence()
    if run.checkpoints is not None:
        run.checkpoints.wait()
    saver.agree_on_the_best()
    run.last_save.arm(None)
    run.end_steps()
    if state.best_step is not None and state.best_step != state.step:
        step = state.best_step
        if run.checkpoints is not None:
            checkpoint = load_checkpoint(run.checkpoints.path_of(step), when_used=True)
            best = model_weights(checkpoint.tensors) | _trained_since(job, checkpoint, resumable)
            epochs = TrainState.from_meta(checkpoint.meta).epochs
        # Only rank 0 reads them, one after the other; every rank enters.
        epochs = comm.broadcast_json(epochs)
        restore(comm.broadcast_each(best))
    if job.config.training.lora.rank is not None:  # the exported weights are evaluated
        restore(lora.merged(dict(resumable.weights())).items())
    metrics: dict[str, dict[str, Any]] = {}
    splits = [split for split in job.config.evaluation.splits if job.has(split)]
    scored = next((split for split in reference.SPLITS if split in splits), None)
    rows = job.dataset.manifest.rows(scored) if scored is not None else 0
    sample = reference.RowSample.of(rows, len(job.labels), job.task)
    for split in splits:
        with run.heartbeat.during("evaluate"):
            metrics[split] = _final_evaluation(
                job, comm, run, split, served, sample if split == scored else None
            )
            of_step = replace(state, step=step, epochs=epochs)
            run.evaluated(of_step, split, metrics[split], exported=True)
    with run.heartbeat.during("save", "collecting the weights"):
        weights = resumable.whole_weights()  # every rank enters if they are divided
    # Every rank enters, even one without rows.
    labels_N, logits_NC = sample.gathered(comm, len(job.labels))
    run.used(comm)  # every rank enters; before the report, which shows it
    if comm.rank == 0:
        with run.heartbeat.during("save", "exporting"):
            run.finish(state, metrics, framework_precision=job.precision)
            with run.heartbeat.during("save", "profile of the model"):
                profile = _profile(job, run, scored, labels_N, logits_NC)
            _export(job, run, step, lora.without_adapters(weights()), metrics, profile)
    # Every rank enters: a rank that left now could not continue if rank 0 is lost while exporting.
    comm.barrier()


def _trained_since(
    job: TrainingJob, checkpoint: Checkpoint, resumable: ResumableState
) -> dict[str, np.ndarray]:
    """The base's weights that a checkpoint leaves out and that are no longer frozen, since the run
    was resumed with other settings: the model has other values now."""
    names = set(checkpoint.of_base) - resumable.of_base
    if not names:
        return {}
    base = begin(with_pinned_base(job.config, as_begun=True), job.labels)
    return {name: base.weights[name] for name in names}


def _profile(
    job: TrainingJob, run: Run, split: str | None, labels_N: np.ndarray, logits_NC: np.ndarray
) -> bytes | None:
    """The contents of profile.json; None, with the reason in the log, if it cannot be made."""
    if split is None or not len(labels_N):
        run.say("no profile.json: neither validation nor test was evaluated")
        return None
    text = job.dataset.manifest.kind == "text"
    try:
        encoder = None
        if text:
            encoder = encoder_of_model(job.base.config, job.base.tokenizer_files, job.base.source)
        profile = reference.profile_of(
            job.dataset,
            encoder,
            labels_N,
            logits_NC,
            split=split,
            train=job.shards if text else None,
            held_out=job.evaluated[split] if text else None,
            about={"run_id": run.run_id},
        )
    except HowdahError as error:
        # This must not cost hours of training: the profile can be made from the export.
        run.say(f"no profile.json ({error.what}); `howdah drift --make-reference` makes it")
        return None
    return profile.to_bytes()


def _final_evaluation(
    job: TrainingJob,
    comm: Comm,
    run: Run,
    split: str,
    served: Forward,
    sample: reference.RowSample | None,
) -> dict[str, Any]:
    predictions = storage.join(run.directory, "predictions", split)
    source = job.eval_source(split, comm, row_ids=True)
    return evaluation.evaluate(
        served,
        source,
        comm,
        job.labels,
        predictions,
        run.run_id,
        what=f"evaluating {split}",
        rows=source.planner.rows,
        check=run.check_fence,
        together=passes_together(comm, job.config.training.parallel),
        task=job.task,
        unwritten=run.say,
        sample=sample,
    )


def _export(
    job: TrainingJob,
    run: Run,
    step: int,
    weights: dict[str, np.ndarray],
    metrics: dict[str, dict],
    profile: bytes | None,
) -> None:
    info = describe_run(
        config=job.config,
        dataset=job.dataset,
        base=job.base,
        run_id=run.run_id,
        step=step,
        metrics=metrics,
        attempts=run.attempts,
    )
    formats = job.config.export.formats
    target = export(
        storage.join(run.directory, "export"),
        weights=weights,
        base_config=job.model_config,
        tokenizer_files=job.base.tokenizer_files,
        label_names=job.labels,
        run_info=info,
        formats=formats,
        samples=sample_rows(job.dataset, formats),
        profile=profile,
        check=run.check_fence,
        progress=run.say,
    )
    run.say(f"exported step {step} to {storage.absolute(target)}")
    with run.heartbeat.during("save", "writing the report"):
        _report(run)


def _report(run: Run) -> None:
    """Write report.html, which a separate process makes.

    The report's code is in howdah.serving, which training does not import, and its memory must not
    add to the rank's. It also measures the baseline, if a command or job of Howdah's has started
    the rank, and the environment has scikit-learn: the verdict, here and in trackers, is on both.
    """
    measures = "HOWDAH_STARTED" in os.environ and importlib.util.find_spec("sklearn") is not None
    with tempfile.TemporaryDirectory(prefix="howdah-report-") as place:
        path = os.path.join(place, REPORT)
        lines: list[str] = []
        answers: list[str] = []

        options = ["--baseline"] if measures else []
        argv = isolation.module("howdah.serving.run_report", run.directory, path, *options)
        environment = isolation.environment() | {"CUDA_VISIBLE_DEVICES": ""}

        def answered(line: str) -> None:
            (answers.append if line.startswith("{") else run.say)(line)

        # It says little while it measures: only after this time does the rank count as hanging.
        with (
            activity.current().at_most(_REPORT_SECONDS),
            Child(argv, env=environment, on_line=lines.append, on_stdout=answered) as child,
        ):
            code = child.wait()
        if code:
            # This must not cost hours of training: the report can be made again.
            run.say(
                f"no {REPORT} ({' | '.join(lines[-3:]) or f'exit code {code}'});"
                f" `howdah report {run.directory}` makes it"
            )
            return
        with open(path, "rb") as file:
            contents = file.read()
    run.update(verdict=json.loads(answers[-1]))
    run.check_fence()
    storage.write_whole(storage.join(run.directory, REPORT), contents)
