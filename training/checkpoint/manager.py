"""Checkpoints: atomic, verified, written in a thread beside training, free of any framework.

A checkpoint is a directory `step-N/` of

    model.safetensors       model/<name>      float32, Hugging Face's torch names and layouts; not
                                              those that are the base's (meta.json: of_base)
    optimizer.safetensors   adam_m/<name>, adam_v/<name>, and all other tensors
    meta.json               step, plan state, early stopping, loss scale, config, versions
    manifest.json           every file's bytes and SHA-256, the attempt, the score

It is written as `step-N.<attempt>-<token>/`, the manifest last, and renamed to `step-N/`. There is
no "latest" file that could be stale: the newest complete checkpoint is found by listing. Other
names are never read: `step-N.<attempt>-<token>` (unfinished), `step-N.pruned` (being removed),
`quarantine-...` (corrupt, or left by an interrupted rename), `superseded-...` (the run resumed from
an earlier step).

Each save has another token, and so other names: a storage call that timed out may still take effect
later, and a late removal must not hit files that were written since.
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
    MANIFEST,
    Checkpoint,
    Corrupt,
    Saved,
    load,
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

_UNFINISHED = re.compile(r"^step-(\d+)\.(\d+)-[0-9a-f]{8}$")
"""Name of an unfinished save: its step, attempt and token."""


class Checkpoints:
    """The checkpoints of one run. Only rank 0 writes.

    Args:
        directory: directory of the `step-N/` directories (any storage).
        keep: number of the newest checkpoints to keep, besides the best one.
        metric: the scores' metric; scores of another metric do not count. None: all count.
        fence: the attempt's right to write; None opens the directory read-only.
        say: called with a line for the user (a fall-back, a quarantine).
        saving: called before a checkpoint gets its name; writes the other files that a resumed run
            needs.
        saved: called with step and path of each checkpoint that is complete on storage.
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
        """Progress of the thread that saves."""
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
            step: optimizer steps done; an existing complete checkpoint of the step stays.
            tensors: name -> array that must not change any more (the caller's snapshot).
            meta: plain JSON with everything else that a resumed run needs.
            score: validation score at this step, greater is better.
            best: step of the best evaluation so far, whose checkpoint is kept.
            replace: replace the step's checkpoint, which lacks its evaluation.
            wait: return only once it is complete on storage.
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
            failed=threads.REPORT,  # `wait` raises the stored error
        )
        if wait:
            self.wait()

    @property
    def busy(self) -> bool:
        """True if a save is under way; a periodic save can be postponed instead of waiting."""
        return self._thread is not None and self._thread.is_alive()

    def gets_on(self, patience: float) -> bool:
        """True if a save is under way and has made progress in the last `patience` seconds."""
        return self.busy and self._activity.snapshot().idle_seconds < patience

    def wait(self) -> None:
        """Wait for the save under way, and raise its error."""
        thread = self._thread  # another thread may wait for it too
        if thread is not None:
            self._throttle.hurry()
            with activity.current().waiting_for(self._activity):
                thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _write_and_keep_failure(self, *args) -> None:
        processes.yield_to_other_threads()  # training has priority
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
            existing = self._whole_at(step)
            if existing is not None and not (replace or self._replaces(existing, score)):
                self._saved(step, target)
                return
            with commit.stage(temporary) as staged:
                free = storage.free_bytes(self.directory)
                if free is not None and free < needed:
                    raise no_room(step, self.directory, needed)
                with activity.current().doing("", "writing", total=needed, unit="bytes"):
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
                aside = None if existing is None else self._aside(fence, target, "superseded")
                staged.publish(target, aside=aside)
        except AlreadyExists:
            raise CheckpointError(
                f"checkpoint step-{step} appeared while it was being written by this run",
                where=target,
                remedy="another run writes here: give each run a separate checkpoint.directory",
            ) from None
        except (StorageError, OSError) as error:
            raise unsaved(error, step, self.directory, needed) from error
        self._saved(step, target)
        try:
            with activity.current().doing("", "reading it back"):
                verify(target, manifest, throttle)
            self._prune(fence, best)
        except CheckpointError:
            fence.check()  # a later attempt may have replaced it
            raise
        except StorageError as error:
            # The checkpoint is complete and has its name; older ones may still exist.
            self._say(
                f"warning: checkpoint step-{step} is saved, but it could not be read back, or older"
                f" ones could not be removed: {error.what}"
            )

    def _whole_at(self, step: int) -> Saved | None:
        """The complete checkpoint of this step; an incomplete one is renamed out of the way.

        On object stores a rename is a copy: a writer that dies in it leaves an incomplete one.
        """
        target = self.path_of(step)
        if not storage.exists(target):
            return None
        checkpoint = next((saved for saved in saved_in(self.directory) if saved.step == step), None)
        if checkpoint is None:
            return None
        defect = size_defect(checkpoint)
        if defect is None:
            return checkpoint
        where = self._rename_away(target, "quarantine")
        self._say(f"checkpoint step-{step} is incomplete ({defect}); it is kept as {where}")
        return None

    def _replaces(self, existing: Saved, score: float | None) -> bool:
        """True if the step has to be written again. Both saves hold the same state, but the score
        of an evaluation must not be lost.
        """
        if score is None or existing.score == score:
            return False
        if self._repeats_steps or not self._counts(existing):
            return True
        raise CheckpointError(
            f"checkpoint step-{existing.step} already exists with another validation score",
            where=existing.path,
            expected=f"score {score}",
            got=f"score {existing.score}",
            remedy="checkpoints are never changed: start the run in another directory",
        )

    # ------------------------------------------------------------------- retention, leftovers
    def _prune(self, fence: Fence, best: int | None) -> None:
        """Remove checkpoints that are neither among the newest `keep` nor the best.

        Args:
            fence: checked before each removal, since a later attempt may have another best one.
            best: step of the best evaluation; if its checkpoint is missing, the one with the best
                score is kept instead.
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
        """Allow steps that are already saved to be repeated: ranks have continued from memory.

        Their results are the same up to rounding. If a repeated step's score differs, its earlier
        checkpoint is renamed out of the way.
        """
        self._repeats_steps = True

    def set_aside(self, after_step: int = -1) -> list[str]:
        """Rename checkpoints beyond `after_step` to `superseded-...`; returns their new paths.

        A run that starts again from the beginning, or from an older checkpoint, reaches the same
        steps again: their names must be free, and the old checkpoints must not be mistaken for new
        ones. Nothing is deleted.
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
        return storage.join(self.directory, f"step-{step}")

    def list(self) -> list[Saved]:
        """Complete checkpoints by manifest and sizes, newest first; hashes are not checked."""
        return [saved for saved in saved_in(self.directory) if not size_defect(saved)]

    def newest(self) -> Saved | None:
        """The newest complete checkpoint; None if there is none."""
        return next(iter(self.list()), None)

    def cut_short(self) -> int | None:
        """Step of the newest unfinished save, if it is newer than every complete checkpoint."""
        matches = [_UNFINISHED.match(entry.name) for entry in storage.list_dir(self.directory)]
        begun = [int(match[1]) for match in matches if match]
        whole = self.newest()
        step = max(begun, default=-1)
        return step if step > (-1 if whole is None else whole.step) else None

    def has(self, step: int) -> bool:
        """True if there is a complete checkpoint of this step."""
        return any(saved.step == step for saved in self.list())

    def is_here(self, checkpoint: Checkpoint) -> bool:
        """True if a checkpoint, read by any path, is this directory's checkpoint of its step."""
        manifest = read_manifest(checkpoint.path)
        same_step = (saved for saved in saved_in(self.directory) if saved.step == checkpoint.step)
        return any(saved.manifest == manifest for saved in same_step)

    def best(self) -> Saved | None:
        """The checkpoint with the best score, the earliest of equal ones; None without scores."""
        return next(iter(self._by_score(self.list())), None)

    def _by_score(self, saved: list[Saved]) -> list[Saved]:
        """Checkpoints whose score counts, the best first."""
        scored = [one for one in saved if one.score is not None and self._counts(one)]
        return sorted(scored, key=lambda one: (-one.score, one.step))

    def _counts(self, saved: Saved) -> bool:
        """True if its score is a value of the run's metric."""
        return self._metric is None or saved.manifest.get("metric") in (None, self._metric)

    def latest(
        self,
        expect: Identity | None = None,
        *,
        when_used: bool = False,
        in_memory: int | None = None,
    ) -> Checkpoint | None:
        """The newest complete checkpoint, verified; None if there is none.

        A corrupt one is reported by `say` and put in quarantine (by a writer), and the one before
        is used. A directory without a manifest was never complete and does not count.

        Args:
            when_used: see `load`.
            in_memory: step of the state in memory, from which the run goes on if all are corrupt:
                those of later steps give their names to what it will save.
        Raises:
            CheckpointError: it has another model, dataset, plan or format; or all are corrupt.
        """
        corrupt: list[tuple[Saved, Corrupt]] = []
        sound: Checkpoint | None = None
        checkpoints = saved_in(self.directory)
        for saved in checkpoints:
            try:
                sound = load(saved.path, expect, when_used=when_used)
                break
            except Corrupt as error:
                corrupt.append((saved, error))
            except OtherPlan as error:
                raise error.naming_epoch_end(checkpoints) from None
        whole = [s for s, _ in corrupt if storage.exists(storage.join(s.path, MANIFEST))]
        if whole and sound is None and in_memory is not None:
            corrupt = [(saved, error) for saved, error in corrupt if saved.step > in_memory]
        elif whole and sound is None:
            # They keep their names, so that the run is refused again, and not begun anew.
            raise CheckpointError(
                "every checkpoint of this run is corrupt",
                where=self.directory,
                got=", ".join(f"step-{saved.step}" for saved in whole),
                remedy="restore the files from a copy, or start from the beginning with"
                " `--set checkpoint.resume=never`",
            )
        for saved, error in corrupt:
            self._put_in_quarantine(saved, error)
        return sound

    def _put_in_quarantine(self, saved: Saved, error: Corrupt) -> None:
        where = saved.path
        if self._fence is not None:
            where = self._rename_away(saved.path, "quarantine")
        self._say(
            f"checkpoint step-{saved.step} is corrupt ({error.got or error.what}), kept as {where};"
            " going back to the one before"
        )
