"""Checkpoints during training: when one is due, that it is written, and what a failed one means."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from howdah.errors import HowdahError, StorageError, render
from howdah.training.comm.base import Comm
from howdah.training.hooks.resumable import ResumableState
from howdah.training.preparation.job import Job
from howdah.training.run.run import Run


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation means for the checkpoint of its step."""

    score: float | None
    """Greater is better; None where the metric is undefined."""
    save: bool
    """Save it: it is the best so far, or early stopping ends the run here."""


class CheckpointSaver:
    """Saves the state of one world. Rank 0 alone writes.

    Where the state is divided among the ranks (training.parallel.shard), they enter each save too,
    and give rank 0 their parts: all must agree that one is due (`wanted`, `agreed`).

    What outlives a world (the last save, failures in a row, the timetable) belongs to rank 0's
    RunDirectory.

    Args:
        job, comm, run, resumable: of this world.
    """

    def __init__(self, job: Job, comm: Comm, run: Run, resumable: ResumableState) -> None:
        self._job, self._comm, self._run, self._resumable = job, comm, run, resumable
        self._state = resumable.state
        self._owned = run.owned
        self._lock = threading.Lock()
        """Of this loop and the thread that saves the last completed step."""
        self.agreed = False
        """Some rank has `wanted` a checkpoint after the step under way; set by the loop."""
        if comm.rank == 0:
            last_save = self._fall_back if resumable.divided else self._save_last_completed
            run.last_save.arm(last_save)
        if resumable.in_memory or self._owned is not None:
            resumable.warm()

    # ------------------------------------------------------------------------- at a step's end
    def check(self, *, give_up: bool) -> None:
        """Note how the save before has ended, where it has; no collective.

        Args:
            give_up: raise when too many have failed; not where another save follows at once.
        Raises:
            As `_settle`.
        """
        if self._owned is not None and not self._owned.checkpoints.busy:
            with self._lock:
                self._settle(give_up=give_up)

    def due(self, evaluated: Evaluated | None, *, last: bool) -> bool:
        """A checkpoint is due after this step; False on ranks other than 0, unless the state is
        divided: then the same on all ranks.

        Args:
            evaluated: this step's evaluation; None: there was none.
            last: the run's last step.
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
        return self._is_time(self._state.step, in_epoch)

    @property
    def wanted(self) -> bool:
        """For the step's sum, before the step is counted: by rank 0's clock a checkpoint is due
        after it, which every rank must know where the state is divided."""
        if self._owned is None or not self._resumable.divided:
            return False
        return self._is_time(self._state.step + 1, self._resumable.steps_in_epoch + 1)

    def _is_time(self, step: int, in_epoch: int) -> bool:
        """On rank 0: by the rules of steps and time.

        Args:
            in_epoch: steps of the epoch that are done then.
        """
        owned = self._owned
        # One that stands still is waited for: then it is seen to hang, instead of training on for
        # hours without any checkpoint.
        busy = owned.checkpoints.gets_on(self._job.config.job.hang_seconds)
        return owned.save_times.due(step, busy=busy, epoch_began=step - in_epoch)

    def save(self, evaluated: Evaluated | None = None) -> None:
        """Save this step in the background, once; no collective, unless the state is divided: then
        every rank enters."""
        self._save(score=None if evaluated is None else evaluated.score)

    def replace(self, evaluated: Evaluated) -> None:
        """Save this step in the place of its checkpoint without an evaluation; after `reopen`.
        Every rank enters where the state is divided."""
        self._save(score=evaluated.score, replace=True)

    def reopen(self) -> None:
        """This step's checkpoint has no evaluation yet: the next save writes it again."""
        if self._owned is not None:
            self._owned.saves.saved_step = -1

    def save_and_stop(self) -> NoReturn:
        """Save this step and end. Every rank enters.

        All processes end together, once rank 0's checkpoint is whole and its files are closed: a
        launcher that sees one of them end kills the others a moment later.

        Raises:
            Interrupted, Terminated, TokensExpiring: the state is saved.
        """
        self._run.final_barrier.agree(self._comm.barrier)
        with self._run.heartbeat.during("save"):
            self._save(wait=True)
        raise self._run.stop_error()

    def agree_on_the_best(self) -> None:
        """After a save that failed, the best is the best of those on storage. Every rank enters:
        all must export, and stop early, by the same step."""
        agreed = None
        owned, state = self._owned, self._state
        if self._resumable.divided:
            missed = owned is not None and owned.saves.best_lost and state.best_step == state.step
            if self._comm.broadcast_json(missed) and owned is None:
                self._save()  # with rank 0, below
        if owned is not None and owned.saves.best_lost:
            owned.saves.best_lost, best = False, None
            if state.best_step == state.step:  # these very weights: save them now
                self._save(score=state.best_score, wait=True)
            with contextlib.suppress(StorageError):  # none is known, then
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
        """Snapshot and save this step, once; nothing on ranks other than 0, unless the state is
        divided: then every rank enters, and gives rank 0 its part.

        Args:
            score: of the evaluation at this step.
            replace: take the place of what is there of this step.
            wait: the run ends here: come back when the step is on storage, or raise.
        """
        run, state, owned = self._run, self._state, self._owned
        divided = self._resumable.divided
        if owned is None:
            if divided:
                self._collect()
            return
        # The other ranks are in the collectives of a divided state already: rank 0 must enter them.
        if state.step == owned.saves.saved_step and not (wait or divided):
            return
        with self._lock:
            self._settle(give_up=not wait)
            if divided or state.step != owned.saves.saved_step:
                try:
                    tensors = self._collect() if divided else self._resumable.tensors()
                except StorageError as error:  # of the local disk; the collectives are done
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
        """Give rank 0 the state that is divided among the ranks. Every rank enters."""
        with self._run.heartbeat.during("save", f"collecting step {self._state.step}"):
            return self._resumable.tensors()

    def _settle(self, *, give_up: bool = True) -> None:
        """Wait for the save under way. One that failed is survived, for some time or some in a row:
        the checkpoints before it are whole, and what was learnt since is not given up because
        storage does not answer for some minutes.

        Args:
            give_up: raise when too many have failed.
        Raises:
            StorageError: of the last of too many.
            CheckpointError: a later attempt has taken over, or what was read back was not what
                was written.
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
        """Count a failed save of that step; raises the error where there were too many."""
        saves, rules = self._owned.saves, self._job.config.checkpoint
        seconds = saves.failed()
        saves.saved_step = -1
        saves.best_lost |= step == self._state.best_step
        failures, most, limit = saves.failures, rules.max_failures, rules.failure_seconds
        if give_up and most is not None and failures >= most:
            error.what += f" (failure {failures} in a row, checkpoint.max_failures)"
            raise error
        if give_up and limit is not None and seconds >= limit:
            error.what += (
                f" (failure {failures} in a row, for {seconds / 60:.0f} minutes by now:"
                " checkpoint.max_failure_minutes)"
            )
            raise error
        self._owned.save_times.failed()
        many = "" if most is None else f" of {most}"
        long = "" if limit is None else f", {seconds / 60:.1f} of {limit / 60:g} minutes"
        self._run.say(
            f"warning: {render(error)}\n  training goes on and tries again within a minute"
            f" (failure {failures}{many} in a row{long})"
        )

    # ------------------------------------------------------------------ when the loop cannot save
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

    def _fall_back(self) -> None:
        """In the place of `_save_last_completed`: moments, or weights too, are divided among ranks
        that can no longer be asked for them. Without `_lock`: the loop may hold it and wait in a
        collective for a rank that is lost."""
        owned = self._owned
        if owned is not None and owned.checkpoints.busy:
            self._run.say(f"step {owned.saves.pending} is being saved: waiting for it")
            try:
                owned.checkpoints.wait()
            except HowdahError as error:
                self._run.say(f"warning: {render(error)}")
        self._run.say(
            f"step {self._state.step}, the last one completed, cannot be saved: the"
            " state is divided among ranks that are not all here (training.parallel.shard);"
            f" the run falls back on the newest checkpoint, {self._newest()}"
        )

    def _newest(self) -> str:
        """The newest whole checkpoint, for a message."""
        try:
            saved = [] if self._owned is None else self._owned.checkpoints.list()
        except StorageError as error:
            return f"unknown ({error.what})"
        return f"step-{saved[0].step}" if saved else "none"
