"""Checkpoints: atomic, verified, written behind the training loop, free of any framework.

A checkpoint is a directory `step-N/` of

    model.safetensors       model/<name>      float32, Hugging Face's torch names and layouts
    optimizer.safetensors   adam_m/<name>, adam_v/<name>, and all other tensors
    meta.json               step, plan state, early stopping, loss scale, config, versions
    manifest.json           every file's bytes and SHA-256, the attempt, the score

It is written as `step-N.<attempt>-<token>/`, the manifest last, and renamed to `step-N/`. There is
no "latest" file to go stale: the newest whole one is found by listing. Other names are never read:
`step-N.<attempt>-<token>` (unfinished), `step-N.pruned` (being removed), `quarantine-...` (corrupt,
or left by an interrupted rename), `superseded-...` (steps that the run has gone back before).

Each save has its own token, and so its own names: a storage call that timed out may still take
effect later, and a late removal must not hit files that were written since.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from howdah import storage
from howdah.core import activity, processes, threads
from howdah.core.activity import Activity
from howdah.errors import AlreadyExists, CheckpointError, StorageError
from howdah.models.runs.identity import Identity, OtherPlan
from howdah.storage import commit
from howdah.training.checkpoint.fence import Fence
from howdah.training.checkpoint.read import (
    FORMAT_VERSION,
    MANIFEST,
    Checkpoint,
    Corrupt,
    Saved,
    load,
    metric_of,
    read_manifest,
    saved_in,
    size_defect,
    verify,
)
from howdah.training.checkpoint.throttle import WriteThrottle
from howdah.training.checkpoint.write import (
    bytes_needed,
    no_room,
    unsaved,
    write_files,
    write_manifest,
)

__all__ = ["FORMAT_VERSION", "Checkpoint", "Checkpoints", "Corrupt", "Identity", "Saved", "load"]

_UNFINISHED = re.compile(r"^step-(\d+)\.(\d+)(?:-[0-9a-f]{8})?$")
"""A save that has begun: its step and attempt (earlier versions gave it no token)."""


class Checkpoints:
    """The checkpoints of one run. Only rank 0 writes.

    Args:
        directory: where `step-N/` directories lie (any storage).
        keep: newest checkpoints to keep, besides the best one.
        metric: the scores' metric; scores of another metric do not count. None: all count.
        fence: the attempt's right to write; None opens the directory read-only.
        say: called with a line for the user (a fall-back, a quarantine).
        saving: called before a checkpoint gets its name: writes what a resumed run needs besides.
        saved: called with step and path of each checkpoint that is whole on storage.
    """

    def __init__(
        self,
        directory: str,
        *,
        keep: int = 3,
        metric: str | None = None,
        fence: Fence | None = None,
        say: Callable[[str], None] = lambda line: None,
        saving: Callable[[], None] = lambda: None,
        saved: Callable[[int, str], None] = lambda step, path: None,
    ) -> None:
        self.directory = directory
        self.keep = keep
        self._metric = metric
        self._fence = fence
        self._say, self._saving, self._saved = say, saving, saved
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._throttle: WriteThrottle | None = None
        self._activity = Activity("save")
        """Of the thread that saves."""
        self._repeats_steps = False
        if fence is not None:
            storage.make_dirs(directory)
            self._sweep(fence)

    # ------------------------------------------------------------------------------ writing
    def save(
        self,
        step: int,
        tensors: dict[str, np.ndarray],
        meta: dict[str, Any],
        *,
        identity: Identity,
        score: float | None = None,
        best: int | None = None,
        replace: bool = False,
        wait: bool = False,
    ) -> None:
        """Write `step-<step>` in a thread, after waiting for the save before it.

        Args:
            step: optimizer steps done; a whole checkpoint of the step that is there already stays.
            tensors: name -> array that must not change any more (the caller's snapshot).
            meta: plain JSON with all else that a resumed run needs.
            identity: of the run.
            score: validation score at this step, greater is better.
            best: step of the best evaluation so far: its checkpoint is kept.
            replace: replace the step's checkpoint, which lacks its evaluation.
            wait: return once it is whole on storage.
        Raises:
            CheckpointError, StorageError: this save (with `wait`) or the one before it failed.
        """
        if self._fence is None:
            raise ValueError("these checkpoints are open read-only")
        self.wait()
        self._throttle = WriteThrottle(bytes_needed(tensors))
        self._activity = Activity("save", f"saving step {step}")
        args = (self._fence, step, tensors, meta, identity, score, best, replace, self._throttle)
        self._thread = threads.start(
            self._write_and_keep_failure,
            *args,
            name=f"checkpoint-{step}",
            failed=threads.REPORT,  # `wait` raises the error that it keeps
        )
        if wait:
            self.wait()

    @property
    def busy(self) -> bool:
        """Whether a save is under way: a periodic one can be put off rather than wait for it."""
        return self._thread is not None and self._thread.is_alive()

    def gets_on(self, patience: float) -> bool:
        """Whether a save is under way that has made progress in the last `patience` seconds."""
        return self.busy and self._activity.snapshot().idle_seconds < patience

    def check(self) -> None:
        """Raise the error of a finished save, without waiting for one under way."""
        if not self.busy:
            self.wait()

    def wait(self) -> None:
        """Wait for the save under way; raise its error."""
        thread = self._thread  # another thread may wait for it too
        if thread is not None:
            self._throttle.hurry()
            with activity.waiting_for(self._activity):
                thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    close = wait

    def _write_and_keep_failure(self, *args) -> None:
        processes.yield_to_other_threads()  # training's
        self._activity.follow()
        try:
            self._write(*args)
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._failure = error

    def _write(
        self,
        fence: Fence,
        step: int,
        tensors: dict[str, np.ndarray],
        meta: dict,
        identity: Identity,
        score: float | None,
        best: int | None,
        replace: bool,
        throttle: WriteThrottle,
    ) -> None:
        target = self.path_of(step)
        temporary = f"{target}.{fence.attempt}-{secrets.token_hex(4)}"
        needed = bytes_needed(tensors)
        try:
            fence.check()
            there = self._whole_at(step)
            if there is not None and not (replace or self._replaces(there, score)):
                self._saved(step, target)
                return
            with commit.stage(temporary) as staged:
                free = storage.free_bytes(self.directory)
                if free is not None and free < needed:
                    raise no_room(step, self.directory, needed)
                with activity.doing("", "writing", total=needed, unit="bytes"):
                    files = write_files(temporary, step, tensors, meta, throttle)
                manifest = files | {
                    "step": step,
                    "attempt": fence.attempt,
                    "score": score,
                    "metric": None if score is None else self._metric,
                    "identity": identity.as_dict(),
                    "unix_time": round(time.time(), 3),
                }
                write_manifest(temporary, manifest)
                fence.check()
                self._saving()
                fence.check()
                aside = None if there is None else self._aside(fence, target, "superseded")
                staged.publish(target, aside=aside)
        except AlreadyExists:
            raise CheckpointError(
                f"checkpoint step-{step} appeared while it was being written",
                where=target,
                remedy="another run writes here: give each run a checkpoint.directory of its own",
            ) from None
        except (StorageError, OSError) as error:
            raise unsaved(error, step, self.directory, needed) from error
        self._saved(step, target)
        try:
            with activity.doing("", "reading it back"):
                self._read_back(fence, target, manifest, throttle)
            self._prune(fence, best)
        except StorageError as error:
            # The checkpoint is whole and has its name; older ones may still be there.
            self._say(
                f"warning: checkpoint step-{step} is saved, but could not be read back or older"
                f" ones not removed now: {error.what}"
            )

    @staticmethod
    def _read_back(
        fence: Fence, target: str, manifest: dict[str, Any], throttle: WriteThrottle
    ) -> None:
        """Verify the written checkpoint; FencedOff where a later attempt may have replaced it."""
        try:
            verify(target, manifest, throttle)
        except CheckpointError:
            fence.check()
            raise

    def _whole_at(self, step: int) -> Saved | None:
        """The whole checkpoint of this step; an incomplete one is renamed out of the way.

        Where a rename is a copy (object stores), a writer that dies in it leaves an incomplete one.
        """
        target = self.path_of(step)
        if not storage.exists(target):
            return None
        found = next((saved for saved in saved_in(self.directory) if saved.step == step), None)
        if found is None:
            return None
        defect = size_defect(found)
        if defect is None:
            return found
        where = self._rename_away(target, "quarantine")
        self._say(f"step-{step} was there but not whole ({defect}): it is kept as {where}")
        return None

    def _replaces(self, there: Saved, score: float | None) -> bool:
        """Whether to write the step again. Both saves hold the same state; only the score of an
        evaluation must not be lost.
        """
        if score is None or there.score == score:
            return False
        if self._repeats_steps or not self._counts(there):
            return True
        raise CheckpointError(
            f"checkpoint step-{there.step} is there already, with another validation score",
            where=there.path,
            expected=f"score {score}",
            got=f"score {there.score}",
            remedy="checkpoints are never changed: start the run in a directory of its own",
        )

    # ------------------------------------------------------------------- retention, leftovers
    def _prune(self, fence: Fence, best: int | None) -> None:
        """Remove checkpoints that are neither among the newest `keep` nor the best.

        Args:
            fence: checked before each removal: for a later attempt another one may be the best.
            best: step of the best evaluation; where its checkpoint is missing, the one with the
                best score is kept in its place.
        """
        saved = self.list()
        if best not in {one.step for one in saved}:
            best = next((one.step for one in self._by_score(saved)), None)
        for old in saved[self.keep :]:
            if old.step == best:
                continue
            fence.check()
            commit.retract(old.path, f"{old.path}.pruned")

    def _sweep(self, fence: Fence) -> None:
        """Remove unfinished checkpoints of earlier attempts."""

        def dead(entry: storage.Entry) -> bool:
            unfinished = _UNFINISHED.match(entry.name)
            stale = unfinished is not None and int(unfinished[2]) < fence.attempt
            return stale or entry.name.endswith(".pruned")

        commit.sweep(storage.list_dir(self.directory), dead)

    def expect_repeated_steps(self) -> None:
        """Steps that are saved already may be repeated: ranks have continued from memory.

        Their results are the same up to rounding. Where a repeated step's score differs, its
        earlier checkpoint is renamed out of the way.
        """
        self._repeats_steps = True

    def set_aside(self, after_step: int = -1) -> list[str]:
        """Rename checkpoints beyond `after_step` to `superseded-...`; returns their new paths.

        A run that starts anew, or from an older checkpoint, reaches the same steps again: their
        names must be free, and the old checkpoints must not be taken for new ones. Nothing is
        deleted.
        """
        return [
            self._rename_away(saved.path, "superseded")
            for saved in saved_in(self.directory)
            if saved.step > after_step
        ]

    def _rename_away(self, path: str, why: str) -> str:
        if self._fence is None:
            raise ValueError("these checkpoints are open read-only")
        self._fence.check()
        target = self._aside(self._fence, path, why)
        storage.rename_dir(path, target)
        return target

    def _aside(self, fence: Fence, path: str, why: str) -> str:
        """A free name for a checkpoint that is renamed out of the way."""
        name = f"{why}-{storage.name(path)}.{fence.attempt}"
        target = storage.join(self.directory, name)
        times = 1
        while storage.exists(target):  # one attempt may repeat a step more than once
            times += 1
            target = storage.join(self.directory, f"{name}-{times}")
        return target

    # ------------------------------------------------------------------------------ reading
    def path_of(self, step: int) -> str:
        """Path of the checkpoint of `step`."""
        return storage.join(self.directory, f"step-{step}")

    def list(self) -> list[Saved]:
        """Whole checkpoints by their manifest and sizes, newest first; hashes are not checked."""
        return [saved for saved in saved_in(self.directory) if not size_defect(saved)]

    def newest(self) -> Saved | None:
        """The newest whole checkpoint; None: there is none."""
        return next(iter(self.list()), None)

    def cut_short(self) -> int | None:
        """Step of the newest unfinished save, if it is newer than every whole checkpoint."""
        begun = [
            int(found[1])
            for entry in storage.list_dir(self.directory)
            if (found := _UNFINISHED.match(entry.name))
        ]
        whole = self.newest()
        step = max(begun, default=-1)
        return step if step > (-1 if whole is None else whole.step) else None

    def has(self, step: int) -> bool:
        """Whether a whole checkpoint of this step is there."""
        return any(saved.step == step for saved in self.list())

    def is_own(self, found: Checkpoint) -> bool:
        """Whether `found`, read by any path, is this directory's checkpoint of its step."""
        manifest = read_manifest(found.path)
        there = (saved for saved in saved_in(self.directory) if saved.step == found.step)
        return any(saved.manifest == manifest for saved in there)

    def best(self) -> Saved | None:
        """The checkpoint with the best score, the earliest of equals; None without scores."""
        return next(iter(self._by_score(self.list())), None)

    def _by_score(self, saved: list[Saved]) -> list[Saved]:
        """Checkpoints whose score counts, the best first."""
        scored = [one for one in saved if one.score is not None and self._counts(one)]
        return sorted(scored, key=lambda one: (-one.score, one.step))

    def _counts(self, saved: Saved) -> bool:
        """Whether its score is of the run's metric."""
        return self._metric is None or metric_of(saved) in (None, self._metric)

    def latest(
        self, expect: Identity | None = None, *, when_used: bool = False
    ) -> Checkpoint | None:
        """The newest whole checkpoint, verified; None where there is none.

        A corrupt one is put in quarantine (by a writer), reported by `say`, and the one before is
        taken. A directory without a manifest was never whole: it does not count.

        Args:
            when_used: as `load`.
        Raises:
            CheckpointError: of another model, dataset, plan or format; or all are corrupt.
        """
        corrupt: list[Saved] = []
        found = saved_in(self.directory)
        for saved in found:
            try:
                return load(saved.path, expect, when_used=when_used)
            except Corrupt as error:
                has_manifest = storage.exists(storage.join(saved.path, MANIFEST))
                self._put_in_quarantine(saved, error)
                corrupt += [saved] if has_manifest else []
            except OtherPlan as error:
                raise error.naming_epoch_end(found) from None
        if corrupt:
            raise CheckpointError(
                "every checkpoint of this run is corrupt",
                where=self.directory,
                got=", ".join(f"step-{saved.step}" for saved in corrupt),
                remedy="start again with `--resume never`, or restore the files from a copy",
            )
        return None

    def _put_in_quarantine(self, saved: Saved, error: Corrupt) -> None:
        where = saved.path
        if self._fence is not None:
            where = self._rename_away(saved.path, "quarantine")
        self._say(
            f"checkpoint step-{saved.step} is corrupt ({error.got or error.what}), kept as {where};"
            " going back to the one before"
        )
