"""Evaluations on the validation split during training."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import google_crc32c
import numpy as np

from howdah.config.splits import VALIDATION
from howdah.training.checkpoint.state import Judgement, score_of
from howdah.training.comm.base import Comm, lost
from howdah.training.comm.in_step import passes_together
from howdah.training.evaluation import evaluate as evaluation
from howdah.training.hooks.resumable import ResumableState
from howdah.training.hooks.saver import CheckpointSaver
from howdah.training.preparation.job import TrainingJob
from howdah.training.run.run import Run

Forward = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(ids_BT, mask_BT) -> logits_BC."""


class Evaluator:
    """Evaluates one world's model during training.

    Args:
        forward: inference with the current weights, in the precision of training.
    """

    def __init__(
        self,
        job: TrainingJob,
        comm: Comm,
        run: Run,
        resumable: ResumableState,
        saver: CheckpointSaver,
        *,
        forward: Forward,
    ) -> None:
        self._job, self._comm, self._run = job, comm, run
        self._resumable, self._saver, self._forward = resumable, saver, forward
        self._differ = False
        resumable.evaluation_due &= job.has(VALIDATION)

    @property
    def due(self) -> bool:
        """True if this step's evaluation is due and not done; equal on every rank."""
        return self._resumable.evaluation_due

    def schedule(self) -> None:
        """Set `due` for the step that was just done. The caller holds `run.update_lock`."""
        every, step = self._job.config.evaluation.every_steps, self._resumable.state.step
        due = self._resumable.steps_in_epoch == 0 if every is None else step % every == 0
        due |= step >= self._job.schedule.steps
        self._resumable.evaluation_due = due and self._job.has(VALIDATION)

    def evaluate(self) -> Judgement:
        """Evaluate on validation and judge the score. Every rank enters: the rows are divided among
        the ranks, and metrics and best step must be equal everywhere.

        Raises:
            Interrupted, Terminated: a rank was requested to stop; the state is saved, and the
                evaluation is done when the run resumes.
            RankLost: another rank was lost.
        """
        run, state, config = self._run, self._resumable.state, self._job.config
        self._compare_replicas()
        with run.metrics.paused(), run.heartbeat.during("evaluate"):
            source = self._job.eval_source(VALIDATION, self._comm, config.evaluation.max_rows)
            metrics = evaluation.evaluate(
                self._forward,
                source,
                self._comm,
                self._job.labels,
                what="evaluating validation",
                rows=source.planner.rows,
                stop=self._stop_requested,
                together=passes_together(self._comm, config.training.parallel),
                task=self._job.task,
            )
            if metrics is not None:
                run.evaluated(state, VALIDATION, metrics)
        if metrics is None:  # on every rank
            self._saver.save_and_stop()
        metric = config.evaluation.metric
        score = score_of(metrics, metric)
        self._saver.agree_on_the_best()
        with run.update_lock:
            judged = state.judge(score, config.training.early_stopping, metric=metric)
            self._resumable.evaluation_due = False
        return judged

    def _compare_replicas(self) -> None:
        """Warn once if ranks have different weights. Every rank enters.

        Sums are formed so that all ranks have the same bits (docs/decisions/gpus.md); a broken
        device, or ranks on devices of two kinds, could differ all the same, and nothing else would
        show it.
        """
        divided = self._job.config.training.parallel.shard == "full"
        if self._comm.size == 1 or divided or self._differ:
            return
        checksums = self._comm.gather_json(checksum(self._resumable.weights()))
        others = [rank for rank, one in enumerate(checksums) if one != checksums[0]]
        if not others:
            return
        self._differ = True
        self._run.say(
            f"warning: the weights of ranks {', '.join(map(str, others))} are not those of rank 0,"
            " which are saved: these ranks compute gradients of another model. A restart resumes"
            " all ranks from the same checkpoint"
        )

    def _stop_requested(self) -> bool:
        requested = self._run.stops.requested()
        if self._run.stops.alone:  # collectives may not complete any more
            raise self._run.stop_error()
        if self._run.loss_reported:
            # The evaluation cannot be finished. Raising now, not after the rest of its rows, lets
            # the next world begin it again at once.
            rank = f"rank {self._comm.rank} of {self._comm.size}"
            raise lost(rank, "another rank was lost meanwhile")
        return requested


def checksum(weights: Iterable[tuple[str, np.ndarray]]) -> int:
    """A number that depends on the bits of all weights (float32).

    >>> checksum([("a", np.float32([1, 2]))]) == checksum([("a", np.float32([1, 2.0000002]))])
    False
    """
    total = 0
    for _, array in weights:
        total = google_crc32c.extend(total, array.tobytes())
    return total
