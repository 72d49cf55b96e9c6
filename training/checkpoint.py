"""Checkpoints: atomic, verified, written behind the training loop, free of any framework.

A checkpoint is a directory `step-N/` of

    model.safetensors       model/<name>      float32, Hugging Face's torch names and layouts
    optimizer.safetensors   adam_m/<name>, adam_v/<name>, and whatever else is not the model's
    meta.json               step, plan state, early stopping, loss scale, config, versions
    manifest.json           every file's bytes and SHA-256, the attempt, the score

It is written as `step-N.<attempt>/`, the manifest last, and becomes `step-N/` by one rename. There
is no "latest" file to go stale: the newest whole one is found by listing. Other names are never
read: `step-N.<attempt>` (unfinished), `step-N.pruned` (being removed), `quarantine-...` (corrupt or
left by a rename that was cut short), `superseded-...` (of a history that was given up).
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from howdah import activity, processes, storage
from howdah.activity import Activity
from howdah.errors import AlreadyExists, CheckpointError, StorageError
from training.checkpoint_read import (
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
from training.checkpoint_write import (
    bytes_needed,
    no_room,
    unsaved,
    write_files,
    write_manifest,
)
from training.fence import Fence
from training.identity import Identity, OtherPlan
from training.pace import Pace

__all__ = ["FORMAT_VERSION", "Checkpoint", "Checkpoints", "Corrupt", "Identity", "Saved", "load"]

_UNFINISHED = re.compile(r"^step-(\d+)\.(\d+)$")
"""A save that has begun: its step and attempt."""


class Checkpoints:
    """The checkpoints of one run. Only rank 0 has one that writes.

    Args:
        directory: where `step-N/` directories lie (any storage).
        keep: newest checkpoints to keep; the best one is kept besides.
        metric: what scores are of; those of another metric do not count. None: all count.
        fence: the attempt's right to write; None opens the directory for reading alone.
        say: takes a line about what the user should know (a fall-back, a quarantine).
        saving: called before a checkpoint gets its name: what a resumed run relies on besides.
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
        self._pace: Pace | None = None
        self._activity = Activity("save")
        """Of the thread that saves."""
        self._again = False
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
        """Write `step-<step>` behind the caller's back; waits for the save before it, if any.

        Args:
            step: optimizer steps done; a step that is there already, whole, is left as it is.
            tensors: name -> array that nobody changes from now on (the caller's snapshot).
            meta: plain JSON with all else that a resumed run needs.
            identity: what the checkpoint belongs to.
            score: validation score at this step, greater is better.
            best: step of the best evaluation so far: its checkpoint is kept.
            replace: what is there of this step lacks its evaluation: this one takes its place.
            wait: come back only when it is whole on storage.
        Raises:
            CheckpointError, StorageError: this save (with `wait`) or the one before it failed.
        """
        if self._fence is None:
            raise ValueError("these checkpoints are open for reading alone")
        self.wait()
        self._pace = Pace(bytes_needed(tensors))
        self._activity = Activity("save", f"saving step {step}")
        args = (self._fence, step, tensors, meta, identity, score, best, replace, self._pace)
        self._thread = threading.Thread(
            target=self._write_and_keep_failure, args=args, name=f"checkpoint-{step}", daemon=True
        )
        self._thread.start()
        if wait:
            self.wait()

    @property
    def busy(self) -> bool:
        """A save is under way: a periodic one can be put off rather than wait."""
        return self._thread is not None and self._thread.is_alive()

    def check(self) -> None:
        """Raise what a finished save failed with, without waiting for one under way."""
        if not self.busy:
            self.wait()

    def wait(self) -> None:
        """Wait for the save under way; raises what it failed with."""
        if self._thread is not None:
            self._pace.hurry()
            with activity.waiting_for(self._activity):
                self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    close = wait

    def _write_and_keep_failure(self, *args) -> None:
        processes.yield_to_other_threads()  # training's; where they wait for it, they use no core
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
        pace: Pace,
    ) -> None:
        target = self.path_of(step)
        temporary = f"{target}.{fence.attempt}"
        needed = bytes_needed(tensors)
        try:
            there = self._whole_at(step)
            if there is not None and not (replace or self._replaces(there, score)):
                self._saved(step, target)
                return
            free = storage.free_bytes(self.directory)
            if free is not None and free < needed:
                raise no_room(step, self.directory, needed)
            storage.remove(temporary, recursive=True)
            with activity.doing("", "writing", total=needed, unit="bytes"):
                files = write_files(temporary, step, tensors, meta, pace)
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
            self._put_in_place(temporary, target, replaces=there is not None)
        except AlreadyExists:
            self._discard(temporary)
            raise CheckpointError(
                f"checkpoint step-{step} appeared while it was being written",
                where=target,
                remedy="another run writes here: give each run a checkpoint.directory of its own",
            ) from None
        except (StorageError, OSError) as error:
            self._discard(temporary)
            raise unsaved(error, step, self.directory, needed) from error
        except BaseException:  # fenced off by a later attempt, or a type that is no checkpoint's
            self._discard(temporary)
            raise
        self._saved(step, target)
        try:
            with activity.doing("", "reading it back"):
                verify(target, manifest, pace)
            self._prune(best)
        except StorageError as error:
            # It is whole and has its name; only what should go is still there.
            self._say(
                f"warning: checkpoint step-{step} is saved, but could not be read back or older"
                f" ones not removed now: {error.what}"
            )

    def _put_in_place(self, temporary: str, target: str, *, replaces: bool) -> None:
        """Give a whole checkpoint its name. Until then the one that it replaces counts."""
        if not replaces:
            storage.rename_dir(temporary, target)
            return
        aside = self._rename_away(target, "superseded")
        try:
            storage.rename_dir(temporary, target)
        except BaseException:
            with contextlib.suppress(StorageError):
                storage.rename_dir(aside, target)
            raise

    @staticmethod
    def _discard(temporary: str) -> None:
        """Remove an unfinished directory; where even that fails, the next attempt sweeps it."""
        with contextlib.suppress(StorageError):
            storage.remove(temporary, recursive=True)

    def _whole_at(self, step: int) -> Saved | None:
        """The whole checkpoint of this step; one that is not whole gives its name away.

        Where a rename is a copy (object stores), a writer that dies in it leaves such a one.
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
        """Whether the step is to be written anew. A step saved twice is the same state twice; only
        a score must not get lost.
        """
        if score is None or there.score == score:
            return False
        if self._again or not self._counts(there):
            return True
        raise CheckpointError(
            f"checkpoint step-{there.step} is there already, with another validation score",
            where=there.path,
            expected=f"score {score}",
            got=f"score {there.score}",
            remedy="checkpoints are never changed: start the run in a directory of its own",
        )

    # ------------------------------------------------------------------- retention, leftovers
    def _prune(self, best: int | None) -> None:
        """Remove what is neither among the newest `keep` nor the best.

        Args:
            best: step of the best evaluation; where its checkpoint is not there, the one with the
                best score is kept, which may have to take its place.
        """
        saved = self.list()
        if best not in {one.step for one in saved}:
            best = next((one.step for one in self._by_score(saved)), None)
        for old in saved[self.keep :]:
            if old.step == best:
                continue
            # Renamed first: a removal that is killed half-way leaves nothing that looks whole.
            doomed = f"{old.path}.pruned"
            storage.remove(doomed, recursive=True)
            storage.rename_dir(old.path, doomed)
            storage.remove(doomed, recursive=True)

    def _sweep(self, fence: Fence) -> None:
        """Remove what dead attempts left unfinished."""
        for entry in storage.list_dir(self.directory):
            unfinished = _UNFINISHED.match(entry.name)
            stale = unfinished is not None and int(unfinished[2]) < fence.attempt
            if stale or entry.name.endswith(".pruned"):
                storage.remove(entry.path, recursive=True)

    def expect_again(self) -> None:
        """Ranks have gone on from memory: steps that are saved already may be done once more.

        What they come to is the same up to rounding. A checkpoint whose score would then not be
        that of its weights gives its name away.
        """
        self._again = True

    def set_aside(self, after_step: int = -1) -> list[str]:
        """Rename checkpoints beyond `after_step` to `superseded-...`; returns their new paths.

        A run that starts afresh, or from an older checkpoint, reaches the same steps again: the
        names must be free, and nothing of the history given up may be taken for the new one.
        Nothing is deleted.
        """
        return [
            self._rename_away(saved.path, "superseded")
            for saved in saved_in(self.directory)
            if saved.step > after_step
        ]

    def _rename_away(self, path: str, why: str) -> str:
        if self._fence is None:
            raise ValueError("these checkpoints are open for reading alone")
        self._fence.check()
        name = f"{why}-{storage.name(path)}.{self._fence.attempt}"
        target = storage.join(self.directory, name)
        times = 1
        while storage.exists(target):  # in one attempt, a step may be done more than twice
            times += 1
            target = storage.join(self.directory, f"{name}-{times}")
        storage.rename_dir(path, target)
        return target

    # ------------------------------------------------------------------------------ reading
    def path_of(self, step: int) -> str:
        """Where the checkpoint of `step` lies."""
        return storage.join(self.directory, f"step-{step}")

    def list(self) -> list[Saved]:
        """Whole checkpoints by their manifest and sizes, newest first; hashes are not checked."""
        return [saved for saved in saved_in(self.directory) if not size_defect(saved)]

    def cut_short(self) -> int | None:
        """The newest step whose save began and was not finished, where no whole checkpoint is as
        new; None: there is none."""
        begun = [
            int(found[1])
            for entry in storage.list_dir(self.directory)
            if (found := _UNFINISHED.match(entry.name))
        ]
        whole = next(iter(self.list()), None)
        step = max(begun, default=-1)
        return step if step > (-1 if whole is None else whole.step) else None

    def has(self, step: int) -> bool:
        """The checkpoint of this step is there and whole."""
        return any(saved.step == step for saved in self.list())

    def is_own(self, found: Checkpoint) -> bool:
        """It is the very checkpoint of its step here, by whatever path it was read."""
        manifest = read_manifest(found.path)
        there = (saved for saved in saved_in(self.directory) if saved.step == found.step)
        return any(saved.manifest == manifest for saved in there)

    def best(self) -> Saved | None:
        """The checkpoint with the best score; of equals the earliest; None without scores."""
        return next(iter(self._by_score(self.list())), None)

    def _by_score(self, saved: list[Saved]) -> list[Saved]:
        """Those with a score that counts, the best first."""
        scored = [one for one in saved if one.score is not None and self._counts(one)]
        return sorted(scored, key=lambda one: (-one.score, one.step))

    def _counts(self, saved: Saved) -> bool:
        """Its score is one of the metric that this run goes by."""
        return self._metric is None or metric_of(saved) in (None, self._metric)

    def latest(self, expect: Identity | None = None) -> Checkpoint | None:
        """The newest whole checkpoint, verified; None where there is none.

        A corrupt one is put in quarantine (by a writer) and the one before is taken, which `say`
        tells about. One without a manifest has never been whole: it counts as none.

        Raises:
            CheckpointError: it is of another model, dataset, plan or format; or checkpoints are
                there and every one is corrupt.
        """
        corrupt: list[Saved] = []
        found = saved_in(self.directory)
        for saved in found:
            try:
                return load(saved.path, expect)
            except Corrupt as error:
                begun = storage.exists(storage.join(saved.path, MANIFEST))
                self._put_in_quarantine(saved, error)
                corrupt += [saved] if begun else []
            except OtherPlan as error:
                raise error.with_way_back(found) from None
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
