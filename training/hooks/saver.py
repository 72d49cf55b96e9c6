"""Checkpoints during training: decides when one is due, writes it, and handles failures."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import NoReturn

import numpy as np

from howdah.errors import HowdahError, StorageError, render
from howdah.training.checkpoint.state import Judgement
from howdah.training.comm.base import Comm
from howdah.training.hooks.resumable import ResumableState
from howdah.training.preparation.job import TrainingJob
from howdah.training.run.run import Run


class CheckpointSaver:
    """Saves the state of one world. Only rank 0 writes.

    If the state is divided among the ranks (training.parallel.shard), all of them enter each save
    and send rank 0 their parts, so they must agree that one is due (`save_due`, `agreed`).

    State that outlives a world (the last save, consecutive failures, the schedule) belongs to rank
    0's RunDirectory.
    """

    def __init__(self, job: TrainingJob, comm: Comm, run: Run, resumable: ResumableState) -> None:
        self._job, self._comm, self._run, self._resumable = job, comm, run, resumable
        self._state = resumable.state
        self._owned = run.owned
        self._lock = threading.Lock()
        """Lock between this loop and the thread that saves the last completed step."""
        self.agreed = False
        """True if `save_due` was True on a rank in the sum of this step; set by the loop."""
        if comm.rank == 0:
            last_save = self._fall_back if resumable.divided else self._save_last_completed
            run.last_save.arm(last_save)
        if resumable.in_memory or self._owned is not None:
            resumable.warm()

    # ------------------------------------------------------------------------- at a step's end
    def check(self, *, give_up: bool) -> None:
        """Record the outcome of the previous save, if it has ended. It has no collective.

        Args:
            give_up: raise if too many have failed; False if another save follows at once.
        Raises:
            StorageError, CheckpointError: see `_settle`.
        """
        if self._owned is not None and not self._owned.checkpoints.busy:
            with self._lock:
                self._settle(give_up=give_up)

    def due(self, evaluated: Judgement | None, *, last: bool) -> bool:
        """True if a checkpoint is due after this step. It is False on ranks other than 0, unless
        the state is divided: then it is equal on all ranks.

        Args:
            evaluated: this step's evaluation; None: there was none.
            last: this is the run's last step.
        """
        owned, rules = self._owned, self._job.config.checkpoint
        if owned is None and not self._resumable.divided:
            return False
        in_epoch = self._resumable.steps_in_epoch
        if last or (evaluated is not None and evaluated.save):
            return True
        if rules.every_epoch and in_epoch == 0:
            return True
        if self._resumable.divided:
            return self.agreed
        return self.is_time(self._state.step, in_epoch)

    @property
    def save_due(self) -> bool:
        """True if rank 0's schedule has a checkpoint due after the step under way. It is part of
        the step's sum, since every rank must know it if the state is divided."""
        if self._owned is None or not self._resumable.divided:
            return False
        return self.is_time(self._state.step + 1, self._resumable.steps_in_epoch + 1)

    def is_time(self, step: int, in_epoch: int) -> bool:
        """True if a checkpoint is due by the rules of steps and time; False on ranks other than 0.

        Args:
            in_epoch: number of steps of the epoch that are done by then.
        """
        owned = self._owned
        if owned is None:
            return False
        # A save without progress does not count as busy: waiting for it shows that it hangs,
        # instead of training for hours without any checkpoint.
        busy = owned.checkpoints.gets_on(self._job.config.job.hang_seconds)
        return owned.save_times.due(step, busy=busy, epoch_began=step - in_epoch)

    def save(self, evaluated: Judgement | None = None) -> None:
        """Save this step in the background, once. Every rank enters if the state is divided;
        otherwise it has no collective."""
        self._save(score=None if evaluated is None else evaluated.score)

    def replace(self, evaluated: Judgement) -> None:
        """Replace this step's checkpoint, which lacks its evaluation; call `reopen` before. Every
        rank enters if the state is divided."""
        self._save(score=evaluated.score, replace=True)

    def reopen(self) -> None:
        """Let the next save write this step's checkpoint, which lacks its evaluation, again."""
        if self._owned is not None:
            self._owned.saves.saved_step = -1

    def save_and_stop(self) -> NoReturn:
        """Save this step and end. Every rank enters.

        All processes end together, once rank 0's checkpoint is complete and its files are closed: a
        launcher that sees one of them end kills the others a moment later.

        Raises:
            Interrupted, Terminated, TokensExpiring: the state is saved.
        """
        self._run.final_barrier.agree(self._comm.barrier)
        with self._run.heartbeat.during("save"):
            self._save(wait=True)
        raise self._run.stop_error()

    def agree_on_the_best(self) -> None:
        """After a failed save, the best step becomes the best of those on storage. Every rank
        enters: all must export the same step, and stop early by it."""
        agreed = None
        owned, state = self._owned, self._state
        if self._resumable.divided:
            missed = owned is not None and owned.saves.best_lost and state.best_step == state.step
            if self._comm.broadcast_json(missed) and owned is None:
                self._save()  # with rank 0, below
        if owned is not None and owned.saves.best_lost:
            owned.saves.best_lost, best = False, None
            if state.best_step == state.step:  # the current weights are the best: save them now
                self._save(score=state.best_score, wait=True)
            with contextlib.suppress(StorageError):  # then there is no best step
                best = owned.checkpoints.best()
            agreed = [None, None] if best is None else [best.step, best.score]
            if agreed[0] != state.best_step:
                self._run.say(
                    "the best evaluation's checkpoint was not saved: the best is"
                    f" {'none' if best is None else f'step-{best.step}'}"
                )
        agreed = self._comm.broadcast_json(agreed)
        if agreed is not None:
            metric = self._job.config.evaluation.metric
            with self._run.update_lock:
                state.best_step, state.best_score = agreed
                state.best_metric = None if agreed[0] is None else metric

    # --------------------------------------------------------------------------------- writing
    def _save(
        self, *, score: float | None = None, replace: bool = False, wait: bool = False
    ) -> None:
        """Snapshot and save this step, once. Ranks other than 0 do nothing, unless the state is
        divided: then every rank enters, and sends rank 0 its part.

        Args:
            replace: replace an existing checkpoint of this step.
            wait: the run ends here: return once the step is on storage, or raise.
        """
        run, state, owned = self._run, self._state, self._owned
        divided = self._resumable.divided
        if owned is None:
            if divided:
                self._collect()
            return
        # If the state is divided, the other ranks are already in its collectives, and rank 0 must
        # enter them even if the step is already saved.
        if state.step == owned.saves.saved_step and not (wait or divided):
            return
        with self._lock:
            self._settle(give_up=not wait)
            if divided or state.step != owned.saves.saved_step:
                try:
                    tensors = self._collect() if divided else self._resumable.tensors()
                except StorageError as error:  # the local disk's; the collectives are done
                    owned.saves.begun_at = time.monotonic()
                    if wait:
                        raise
                    self._survive(error, state.step, give_up=True)
                    return
            if state.step != owned.saves.saved_step:
                meta = run.meta(state) | self._resumable.meta()
                owned.save_times.begun(state.step)
                run.heartbeat.send("saving", step=state.step)
                owned.saves.begun_at = time.monotonic()
                owned.checkpoints.save(
                    state.step,
                    tensors,
                    meta,
                    identity=self._job.identity,
                    score=score,
                    best=state.best_step,
                    replace=replace,
                )
                owned.saves.saved_step = owned.saves.pending = state.step
            if wait:
                owned.checkpoints.wait()

    def _collect(self) -> dict[str, np.ndarray] | None:
        """Send rank 0 the state that is divided among the ranks. Every rank enters."""
        with self._run.heartbeat.during("save", f"collecting step {self._state.step}"):
            return self._resumable.tensors()

    def _settle(self, *, give_up: bool = True) -> None:
        """Wait for the save under way. A failed save does not end training for some minutes, since
        the earlier checkpoints are intact and storage may answer again.

        Args:
            give_up: raise if saves have failed for too long.
        Raises:
            StorageError: the error of the last failed save, after saves have failed for too long.
            CheckpointError: a later attempt has taken over, or the checkpoint that was read back
                differs from the one that was written.
        """
        owned = self._owned
        if owned is None or owned.saves.pending is None:
            return
        step, owned.saves.pending = owned.saves.pending, None
        try:
            owned.checkpoints.wait()
        except StorageError as error:
            self._run.heartbeat.send("saving", step=None)
            self._survive(error, step, give_up=give_up)
        else:
            owned.saves.failures = 0

    def _survive(self, error: StorageError, step: int, *, give_up: bool) -> None:
        """Count a failed save of that step; raise its error if saves have failed for too long."""
        saves, rules = self._owned.saves, self._job.config.checkpoint
        seconds = saves.failed()
        saves.saved_step = -1
        saves.best_lost |= step == self._state.best_step
        failures, limit = saves.failures, rules.failure_seconds
        if give_up and limit is not None and seconds >= limit:
            error.what += (
                f" (failure {failures} in a row, over {seconds / 60:.0f} minutes:"
                " checkpoint.max_failure_minutes)"
            )
            raise error
        self._owned.save_times.failed()
        long = "" if limit is None else f", {seconds / 60:.1f} of {limit / 60:g} minutes"
        self._run.say(
            f"warning: {render(error)}\n  training continues and tries again within a minute"
            f" (failure {failures} in a row{long})"
        )

    # ------------------------------------------------------------------ when the loop cannot save
    def _save_last_completed(self) -> None:
        """Save the last completed step: in another thread, while the main one hangs in a
        collective, or before the process ends."""
        with self._run.update_lock:
            # Logged first: if a launcher kills the process while it saves, this is the last line.
            self._run.say(
                f"saving step {self._state.step}, the last one completed; until the save is"
                f" complete, the newest checkpoint is {self._newest()}"
            )
            self._save(wait=True)
            self._run.say(f"step {self._state.step} is saved")

    def _fall_back(self) -> None:
        """Replaces `_save_last_completed` if moments, or weights too, are divided among ranks that
        can no longer send them. It does not take `_lock`, which the loop may hold while it waits in
        a collective for a lost rank."""
        owned = self._owned
        if owned is not None and owned.checkpoints.busy:
            self._run.say(f"step {owned.saves.pending} is being saved: waiting for it")
            try:
                owned.checkpoints.wait()
            except HowdahError as error:
                self._run.say(f"warning: {render(error)}")
        self._run.say(
            f"step {self._state.step}, the last one completed, cannot be saved: the state is"
            " divided among the ranks (training.parallel.shard), and not all of them are left; the"
            f" run falls back to the newest checkpoint, {self._newest()}"
        )

    def _newest(self) -> str:
        """Name of the newest complete checkpoint, for a message."""
        try:
            saved = [] if self._owned is None else self._owned.checkpoints.list()
        except StorageError as error:
            return f"unknown ({error.what})"
        return f"step-{saved[0].step}" if saved else "none"
