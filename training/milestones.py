"""What happens between steps and at the end, the same for both loops: evaluate, save, stop, export.

A loop says how its weights are read and run (`Snapshot`); everything here is free of a framework.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from howdah import storage
from howdah.config import Config
from howdah.errors import StorageError, render
from training import evaluate as evaluation
from training import report
from training.checkpoint import load as load_checkpoint
from training.comm import Comm, WorldChanged
from training.export import export
from training.memory import Memory
from training.prepare import Job
from training.run import Run
from training.runinfo import describe_run
from training.snapshots import Arrays, Snapshots
from training.state import TrainState, score_of

__all__ = ["Milestones", "model_weights"]

Forward = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Milestones:
    """Evaluations, checkpoints and the end of a run.

    Args:
        job, comm, run, state: of this run, in one world.
        memory: of an elastic job: where states are kept besides.
        snapshots: where copies of weights and moments are made.
        weights: all weights by Hugging Face's torch names, perhaps the model's own memory. Called
            on rank 0 alone, and for `memory`.
        moments: AdamW's moments, `adam_m/<name>` and `adam_v/<name>`. Likewise.
        forward: inference with the model as it is, in the precision that it trains in.
        served: the same in float32, as the export is served: for the last evaluation, which is
            reported and judged by.
    """

    def __init__(
        self,
        job: Job,
        comm: Comm,
        run: Run,
        state: TrainState,
        memory: Memory,
        *,
        snapshots: Snapshots,
        weights: Callable[[], Arrays],
        moments: Callable[[], Arrays],
        forward: Forward,
        served: Forward,
    ) -> None:
        self._job, self._comm, self._run, self._state = job, comm, run, state
        self._memory, self._saves = memory, run.saves
        self._config: Config = job.config
        self._snapshots, self._forward, self._served = snapshots, forward, served
        self._weights, self._moments = weights, moments
        self._evaluates = job.has("validation")
        self._metric = job.config.evaluation.metric
        self._due = False
        """An evaluation of this step is due and not done."""
        self._lock = threading.Lock()
        if comm.rank == 0:
            run.on_abort(self._save_last_completed)
        if memory.on or (comm.rank == 0 and run.checkpoints is not None):
            snapshots.warm(self._all)

    # ------------------------------------------------------------------------------- at a step
    def catch_up(self) -> None:
        """Do the evaluation that the run was stopped before. Every rank enters."""
        self._due = self._evaluates
        if not self._due:
            return
        self._saves.saved_step = -1  # this step's checkpoint has no score: it is written again
        self._evaluate_and_save(forced=True, replace=True)

    def completed(self) -> None:
        """Note that a step's weights and state are whole; under `run.update_lock`."""
        self._due = self._evaluates and self._evaluation_step()

    def after_step(self, stop: bool, change: bool = False) -> bool:
        """Evaluate and save where it is due. Every rank enters, with the same `stop` and `change`.

        Args:
            stop: some rank was asked to stop: save, evaluate when the run goes on.
            change: some rank was told that another world is wanted.
        Returns:
            The run is over: its last step is done, or it has stopped early.
        Raises:
            Interrupted, Terminated: `stop`, and the state is saved.
            WorldChanged: `change`, and the state is remembered.
        """
        run, state = self._run, self._state
        if run.checkpoints is not None and not run.checkpoints.busy:
            with self._lock:
                self._settle(give_up=not stop)
        if stop:
            self._stop()
        last = state.step >= self._job.schedule.steps
        if self._due:
            self._remember()  # an evaluation is long, and the step before it is done
            self._evaluate_and_save(forced=last)
            self._remember()
        else:
            if change or last or self._memory.due(state.step):
                self._remember()
            if run.is_main and (last or self._epoch_save() or self._save_due()):
                self._save()
        over = last or state.stopped_early
        if change and not over:
            raise WorldChanged("another world is wanted", got=f"step {state.step} is done")
        return over

    def _asked_to_stop(self) -> bool:
        asked = self._run.stop_requested()
        if self._run.stop_alone:  # no collective can be trusted
            raise self._run.stop_error()
        return asked

    def _stop(self) -> NoReturn:
        """Save this step and end. Every rank enters.

        All processes end together, once rank 0's checkpoint is whole and its files are closed: a
        launcher that sees one of them end kills the others a moment later.
        """
        run = self._run
        run.end_together(self._comm.barrier)
        with run.pulse.during("save"):
            self._save(wait=True)
        raise run.stop_error()

    def _remember(self) -> None:
        meta = self._state.to_meta() | {"evaluation_due": self._due}
        self._memory.commit(meta, self._snapshot)

    def _epoch_ended(self) -> bool:
        return int(self._state.plan["step"]) == 0

    def _epoch_save(self) -> bool:
        return self._config.checkpoint.every_epoch and self._epoch_ended()

    def _save_due(self) -> bool:
        checkpoints = self._run.checkpoints
        busy = checkpoints is not None and checkpoints.busy
        step = self._state.step
        epoch_began = step - int(self._state.plan["step"])
        return self._run.save_times.due(step, busy=busy, epoch_began=epoch_began)

    def _evaluation_step(self) -> bool:
        every = self._config.evaluation.every_steps
        due = self._epoch_ended() if every is None else self._state.step % every == 0
        return due or self._state.step >= self._job.schedule.steps

    def _evaluate_and_save(self, *, forced: bool, replace: bool = False) -> None:
        """Evaluate on validation; save what is the best, or due anyway. Every rank enters.

        Args:
            forced: save in any case.
            replace: this step's checkpoint is there, without its evaluation.
        Raises:
            Interrupted, Terminated: some rank was asked to stop; the state is saved, and the
                evaluation is done when the run goes on.
        """
        run, state, rules = self._run, self._state, self._config.evaluation
        with run.figures.paused(), run.pulse.during("evaluate"):
            source = self._job.eval_source("validation", self._comm, rules.max_rows)
            metrics = evaluation.evaluate(
                self._forward,
                source,
                self._comm,
                self._job.labels,
                what="evaluating validation",
                rows=source.planner.rows,
                stop=self._asked_to_stop,
            )
            if metrics is not None:
                run.figures.evaluated(state, "validation", metrics)
        if metrics is None:
            self._stop()
        score = score_of(metrics, rules.metric)
        self._agree_on_the_best()
        with run.update_lock:
            judged = state.judge(score, self._config.training.early_stopping, metric=rules.metric)
            self._due = False
        due = forced or judged.is_best or judged.stop or self._epoch_save()
        if run.is_main and (due or self._save_due()):
            self._save(score=score, replace=replace)

    # ------------------------------------------------------------------------------ checkpoints
    def _save(
        self, *, score: float | None = None, replace: bool = False, wait: bool = False
    ) -> None:
        """Snapshot and save this step, once; nothing on ranks other than 0.

        Args:
            score: of the evaluation at this step.
            replace: take the place of what is there of this step.
            wait: the run ends here: come back when the step is on storage, or raise.
        """
        run, state = self._run, self._state
        if run.checkpoints is None or (state.step == self._saves.saved_step and not wait):
            return
        with self._lock:
            self._settle(give_up=not wait)
            if state.step != self._saves.saved_step:
                meta = run.meta(state) | {"evaluation_due": self._due}
                tensors = self._snapshot()
                run.save_times.begun(state.step)
                run.checkpoints.save(
                    state.step,
                    tensors,
                    meta,
                    identity=self._job.identity,
                    score=score,
                    best=state.best_step,
                    replace=replace,
                )
                self._saves.saved_step = self._saves.pending = state.step
            if wait:
                run.checkpoints.wait()

    def _settle(self, *, give_up: bool = True) -> None:
        """Wait for the save under way; one that failed is survived, some times in a row.

        The checkpoints before it are whole, and a storage that is away for some minutes is no
        reason to lose what has been learnt since.

        Args:
            give_up: raise when too many have failed; not where another save follows at once.
        Raises:
            StorageError: of the last of too many.
            CheckpointError: a later attempt has taken over, or what was read back was not what
                was written.
        """
        run, step = self._run, self._saves.pending
        if run.checkpoints is None or step is None:
            return
        self._saves.pending = None
        try:
            run.checkpoints.wait()
        except StorageError as error:
            self._saves.failures += 1
            self._saves.saved_step = -1
            self._saves.best_lost |= step == self._state.best_step
            allowed = self._config.checkpoint.max_failures
            if give_up and self._saves.failures >= allowed:
                error.what += f" (failure {self._saves.failures} in a row, checkpoint.max_failures)"
                raise
            run.save_times.failed()
            run.say(
                f"warning: {render(error)}\n  training goes on and tries again within a minute"
                f" (failure {self._saves.failures} of {allowed} in a row)"
            )
        else:
            self._saves.failures = 0

    def _agree_on_the_best(self) -> None:
        """Every rank enters: after a save that failed, the best is the best of those on storage."""
        told = None
        if self._saves.best_lost and self._run.checkpoints is not None:
            self._saves.best_lost, best = False, None
            if self._state.best_step == self._state.step:  # these very weights: save them now
                self._save(score=self._state.best_score, wait=True)
            with contextlib.suppress(StorageError):  # none is known, then
                best = self._run.checkpoints.best()
            told = [None, None] if best is None else [best.step, best.score]
            if told[0] != self._state.best_step:
                self._run.say(
                    "the best evaluation's checkpoint was not saved: the best is"
                    f" {'none' if best is None else f'step-{best.step}'}"
                )
        told = self._comm.broadcast_json(told)
        if told is not None:
            with self._run.update_lock:
                self._state.best_step, self._state.best_score = told
                self._state.best_metric = None if told[0] is None else self._metric

    def _snapshot(self) -> dict[str, np.ndarray]:
        """Copies of all tensors, or those in memory where they are this step's."""
        if self._memory.step == self._state.step:
            return self._memory.tensors
        return self._snapshots.take(self._all())

    def _all(self) -> Arrays:
        """All tensors of a checkpoint, as they are now."""
        for name, array in self._weights():
            yield f"model/{name}", array
        yield from self._moments()

    def _save_last_completed(self) -> None:
        """In another thread, while the main one hangs in a collective, or before it ends."""
        with self._run.update_lock:
            # Said first: a launcher that kills in the middle of it leaves this line as the last.
            self._run.say(
                f"saving step {self._state.step}, the last one completed; until the save is whole,"
                f" the newest checkpoint is {self._newest()}"
            )
            self._save(wait=True)
            self._run.say(f"step {self._state.step} is saved")

    def _newest(self) -> str:
        """The newest whole checkpoint, in words."""
        checkpoints = self._run.checkpoints
        try:
            saved = checkpoints.list() if checkpoints is not None else []
        except StorageError as error:
            return f"unknown ({error.what})"
        return f"step-{saved[0].step}" if saved else "none"

    # ----------------------------------------------------------------------------------- the end
    def conclude(self, restore: Callable[[Mapping[str, np.ndarray]], None]) -> None:
        """Evaluate the best weights (else the last), export them, report. Every rank enters.

        Args:
            restore: puts `model/` weights, by their plain names, into the model.
        """
        run, state, comm = self._run, self._state, self._comm
        run.pulse.tell("concluding")
        best: dict[str, np.ndarray] = {}
        step, epochs = state.step, state.epochs
        run.check_fence()
        if run.checkpoints is not None:
            run.checkpoints.wait()
        self._agree_on_the_best()
        run.on_abort(None)
        run.end_steps()
        if state.best_step is not None and state.best_step != state.step:
            step = state.best_step
            if run.checkpoints is not None:
                found = load_checkpoint(run.checkpoints.path_of(step))
                best, epochs = model_weights(found.tensors), _epochs(found.meta)
            epochs = comm.broadcast_json(epochs)
            restore(comm.broadcast(best))
        metrics: dict[str, dict[str, Any]] = {}
        for split in self._config.evaluation.splits:
            if self._job.has(split):
                with run.pulse.during("evaluate"):
                    metrics[split] = self._final_evaluation(split)
                shown = replace(state, step=step, epochs=epochs)
                run.figures.evaluated(shown, split, metrics[split])
        if comm.rank == 0:
            with run.pulse.during("save", "exporting"):
                self._export(step, best or dict(self._weights()), metrics)
        comm.barrier()  # a rank 0 that is lost before it has exported is not the end

    def _final_evaluation(self, split: str) -> dict[str, Any]:
        where = None
        if self._config.evaluation.predictions:
            where = storage.join(self._run.directory, "predictions", split)
        source = self._job.eval_source(split, self._comm, row_ids=where is not None)
        return evaluation.evaluate(
            self._served,
            source,
            self._comm,
            self._job.labels,
            where,
            self._run.run_id,
            what=f"evaluating {split}",
            rows=source.planner.rows,
        )

    def _export(self, step: int, weights: dict[str, np.ndarray], metrics: dict[str, dict]) -> None:
        job, run = self._job, self._run
        run.finish(self._state, metrics, framework_precision=job.precision)
        info = describe_run(
            config=job.config,
            dataset=job.dataset,
            base=job.base,
            run_id=run.run_id,
            step=step,
            metrics=metrics,
        )
        target = export(
            storage.join(run.directory, "export"),
            weights=weights,
            base_config=job.model_config,
            tokenizer_files=job.base.tokenizer_files,
            label_names=job.labels,
            run_info=info,
        )
        run.say(f"exported step {step} to {target}")
        report.write(run.directory)


def _epochs(meta: dict[str, Any]) -> float:
    """Epochs done at a checkpoint, whichever version has written it."""
    return TrainState.from_meta(meta).epochs


def model_weights(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A checkpoint's `model/` tensors by their plain names."""
    return {
        name.removeprefix("model/"): array
        for name, array in tensors.items()
        if name.startswith("model/")
    }
