"""A run as its loop sees it: progress, figures, stop requests, and on rank 0 the run directory.

A run directory (any storage) holds config.yaml, run.json, metrics.jsonl, logs/rank.N, tensorboard/,
attempts/, checkpoints/, export/, predictions/ and report.html. Only rank 0 writes to it, save that
each rank has its own log. What grows is kept on local disk (training/place.py) and, of a remote
run, published as it grows (training/mirror.py).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from howdah import storage
from howdah.config import Config
from howdah.errors import (
    HowdahError,
    Interrupted,
    StorageError,
    Terminated,
    TokensExpiring,
)
from training import failure
from training.checkpoint import Checkpoint, Checkpoints, Identity
from training.comm import Waits
from training.env import RankEnv
from training.fence import FencedOff
from training.figures import Figures
from training.metricslog import read_metrics
from training.mirror import Mirror
from training.place import RankRecord, RunLock, local_directory, process_age
from training.pulse import Pulse
from training.rundirectory import RunDirectory
from training.runfile import versions
from training.savetimes import SaveTimes
from training.state import Saves, TrainState
from training.stopping import StopSignals
from training.tokenlife import TokenLife

__all__ = ["Run", "read_metrics"]

_TAKE_OVER_SECONDS = 10.0
"""How long a new rank 0 waits for the kernel to have done with a killed one on the same machine."""


class Run:
    """One rank's side of a run.

    Args:
        config: the run's configuration.
        env: this process's place in the job.
        console: where rank 0 tells people how it goes; other ranks' copies go to their logs.
        log: the rank's log; None where `console` is all there is.
        pulse: tells the agent that started this process; None: no agent did. With one, this
            process has no rank before it is told its world (`enter`), and may have several.
    """

    def __init__(
        self,
        config: Config,
        env: RankEnv,
        *,
        console: TextIO,
        log: TextIO | None = None,
        pulse: Pulse | None = None,
    ) -> None:
        self.config = config
        self.directory = config.run.directory
        self.rank, self.world_size = env.rank, env.size
        self.linked = pulse is not None
        """An agent started this process: it has a life of its own, in one world or several."""
        self.elastic = False
        """The others go on where this process ends: what they remember need not be saved."""
        self.is_main = env.rank == 0 and not self.linked
        self.local = local_directory(self.directory)
        self.run_id = ""
        self.attempt = 0
        self.update_lock = threading.Lock()
        """Held by the loop while weights change, so that no snapshot is taken in between."""
        self.pulse = pulse or Pulse(None, Waits())
        self.saves = Saves()
        """Rank 0's checkpoints, over all worlds."""
        self._console, self._log = console, log
        self.figures = Figures(
            config.training.logging_steps, console=console if self.is_main else None, log=log
        )
        """Steps and evaluations are told to it."""
        self._mirror = Mirror(say=self.say)
        self._mirror.belongs_to(env.rank, env.size)
        self._record = RankRecord.of_this_process(env.rank)
        # `howdah train` holds the directory for us
        self._managed = "HOWDAH_STARTED" in os.environ and not self.linked
        self._opened = False
        self._lock = RunLock(self.local, ".lock", self.directory)
        self._held: RunDirectory | None = None
        # What ends a container ends this process, whatever the others do: no step to agree on.
        self._signals = StopSignals(
            several_ranks=env.size > 1 or self.linked, abandon=self._abandoned
        )
        self._tokens = TokenLife(config.checkpoint.grace_seconds)
        self._abort_save: Callable[[], None] | None = None
        self._abort_lock = threading.Lock()
        self._meet: Callable[[], None] | None = None
        self._first_step_done = False
        self._world = 0
        """The first one of a process that an agent started."""
        self.save_times = SaveTimes(config.checkpoint)

    # -------------------------------------------------------------------- opening and closing
    def open(self) -> None:
        """Take possession: signals on every rank; on rank 0 lock, fence, run.json, metrics.

        A process that an agent started has no rank yet: it takes its signals over.

        Raises:
            UsageError: another process of this machine is using the run directory.
            StorageError: the run directory cannot be written.
        """
        self._signals.install()
        if self.is_main:
            self._lock.take()
        # Another run may live here until rank 0 has the lock: the other ranks touch nothing yet.
        if self.is_main or self._managed:
            self._enter()
        if self.is_main:
            self._take_possession()

    def enter(self, env: RankEnv, world: int) -> None:
        """A world begins for a process that an agent started: this is its place there.

        Who becomes rank 0 opens the run directory, and has the later fence from then on.

        Args:
            env: rank and size.
            world: its number.
        Raises:
            As `open`.
        """
        self.rank, self.world_size = env.rank, env.size
        self.is_main = env.rank == 0
        self._mirror.belongs_to(env.rank, env.size)
        self._world = self._world or world
        if not self.is_main:
            self._let_go()
            return
        if self._held is None:
            self._lock.take(patience=_TAKE_OVER_SECONDS)
            self.figures.show_on(self._console)
            self._take_possession()
        self._held.file.world(world, self.world_size)

    def _let_go(self) -> None:
        """Another process is rank 0 now: leave it the run directory, if this one has it.

        A checkpoint that is being written is given up, unless it gets its name before the new
        rank 0 takes its fence: that one sees what is whole, and when the next one is due.
        """
        held, self._held = self._held, None
        if held is None:
            return
        self.on_abort(None)
        held.let_go()
        self._lock.release()
        self.saves, self.save_times = Saves(), SaveTimes(self.config.checkpoint)
        self.attempt, self._first_step_done = 0, False

    def _enter(self) -> None:
        """Put this process on record."""
        failure.clear(self.local, self.rank)
        self._record.write(self.local)
        self._opened = True
        if not storage.is_local(self.directory):
            log = os.path.join(self.local, "logs", f"rank.{self.rank}")
            self._mirror.add(log, storage.join(self.directory, "logs", f"rank.{self.rank}"))

    def _take_possession(self) -> None:
        times = self.save_times  # of this possession, whenever its last save ends

        def saved(step: int, path: str) -> None:
            times.whole(step)
            self.pulse.tell("checkpoint", step=step, path=path)

        self._held = RunDirectory(
            self.config,
            self.local,
            figures=self.figures,
            mirror=self._mirror,
            saved=saved,
            world_size=self.world_size,
        )
        self.run_id, self.attempt = self._held.run_id, self._held.attempt

    @property
    def checkpoints(self) -> Checkpoints | None:
        """Rank 0 alone has them."""
        return None if self._held is None else self._held.checkpoints

    def share(self, comm: Any) -> None:
        """Rank 0 tells the others the run's id and attempt. Every rank enters, after comm.init."""
        told = comm.broadcast_json({"run_id": self.run_id, "attempt": self.attempt})
        self.run_id, self.attempt = told["run_id"], told["attempt"]
        if self.linked:
            self._publish_log()
        elif not self._opened:
            self._enter()

    def _publish_log(self) -> None:
        """Copy this process's output, which the agent's log directory has, into the run directory.

        A file belongs to a process, whatever ranks it comes to: it is named by the first one, and
        by attempt and world where ranks before it have had that name.
        """
        output = os.environ.pop("HOWDAH_LOG", None)
        if output is not None:
            first = self.attempt == self._world == 1
            name = f"rank.{self.rank}" + ("" if first else f".{self.attempt}-{self._world}")
            self._mirror.add(output, storage.join(self.directory, "logs", name))

    def close(self, status: str, error: HowdahError | None = None) -> None:
        """End the run's books: finished, interrupted or failed.

        Raises:
            StorageError: what is left cannot be published.
            FencedOff: a later attempt has the run directory; nothing was written there.
        """
        self.figures.end()
        fenced_off: FencedOff | None = None
        try:
            self.update(status=status, error=None if error is None else error.what)
            self.figures.close(status)
            self._mirror.close()
        except FencedOff as later:
            fenced_off = later
            self._mirror.abandon()
            self.figures.let_go()
        if self._opened:
            RankRecord(**(self._record.__dict__ | {"ended": True})).write(self.local)
        self._lock.release()
        self._signals.uninstall()
        if fenced_off is not None:
            raise fenced_off

    # ------------------------------------------------------------------------------ telling
    def say(self, line: str) -> None:
        """Tell people a line: rank 0 on the console, every rank in its log."""
        self.figures.say(line)

    def check_fence(self) -> None:
        """Raise FencedOff where a later attempt has the run directory (rank 0)."""
        if self._held is not None:
            self._held.fence.check()

    def update(self, **fields: Any) -> None:
        """Put fields into run.json (rank 0; the others do nothing). Mappings are merged.

        Raises:
            FencedOff: a later attempt has the run directory.
        """
        if self._held is not None:
            self._held.file.update(**fields)

    # ----------------------------------------------------------------------------- resuming
    def choose_dataset(self, choose: Callable[[str], str]) -> str:
        """As RunDirectory.choose_dataset; rank 0 only."""
        return self._held.choose_dataset(choose) if self._held else choose(self.config.data.dataset)

    def resume_checkpoint(self, expect: Identity) -> Checkpoint | None:
        """The checkpoint that `checkpoint.resume` asks for; rank 0 only.

        `auto` takes the newest whole one, or None; `never` starts afresh, and a path starts from
        there: in both cases later checkpoints are set aside under another name, not deleted. That
        is asked once: ranks that are started again, or a later attempt, of the same submission go
        on from the newest.

        Raises:
            CheckpointError: it is of another run, corrupt, or not there.
        """
        if self._held is None:
            raise ValueError("rank 0 alone reads checkpoints")
        return self._held.resume_checkpoint(expect)

    def resumed_from_memory(self, step: int) -> None:
        """All go on from what a rank has remembered of this step; nothing on ranks other than 0."""
        if self._held is not None:
            self._held.resumed_from_memory(step)

    def meta(self, state: TrainState) -> dict[str, Any]:
        """What a checkpoint's meta.json holds: the state, and where it comes from."""
        return state.to_meta() | {
            "run_id": self.run_id,
            "attempt": self.attempt,
            "world_size": self.world_size,
            "framework": self.config.training.framework,
            "config": self.config.model_dump(mode="json"),
            "versions": versions(self.config.training.framework),
        }

    # ----------------------------------------------------------------------------- stepping
    def begin(self, state: TrainState, *, total_steps: int) -> None:
        """The steps begin: from here on a stop request waits for a step's end.

        Args:
            state: where the run stands.
            total_steps: steps of the whole run.
        """
        if self._held is not None:
            self._held.track(state.step)
            if not self.save_times.known:  # from the base, or from a checkpoint
                self.save_times.begin(state.step)
        if self._held is not None and (tracked := self._held.file.values.get("mlflow_run_id")):
            self.pulse.tell("tracking", mlflow_run_id=tracked)
        self._signals.stepping(True)
        self.figures.begin(state.step, total_steps=total_steps)
        self.pulse.begin(self.rank, state.step, total_steps)

    def end_steps(self) -> None:
        """The steps are over, of this world at least: a stop request is acted on at once."""
        self.figures.end()
        self._signals.stepping(False)

    def step_done(self, state: TrainState, **figures: Any) -> None:
        """A step is done; the arguments are those of Figures.step_done."""
        seconds = self.figures.step_done(state, **figures)
        self.pulse.step_done(
            step=state.step,
            epoch=self.figures.epoch(state),
            loss=figures["loss"],
            rows=figures["rows"],
            seconds=seconds,
        )
        if self._held is not None and not self._first_step_done:
            self._first_step_done = True
            self._held.file.update_attempt(seconds_to_first_step=round(_age(), 3))

    def finish(self, state: TrainState, metrics: dict[str, dict], **fields: Any) -> None:
        """Put what came of the run into run.json (rank 0).

        Args:
            state: at the end.
            metrics: {split: metrics} of the exported weights.
            fields: more for run.json.
        """
        self.update(
            metrics=metrics,
            steps=state.step,
            epochs=self.figures.epoch(state),
            train_seconds=round(state.train_seconds, 6),
            examples_per_second=round(state.rows / max(state.train_seconds, 1e-9), 3),
            tokens_per_second=round(state.tokens / max(state.train_seconds, 1e-9), 3),
            best_step=state.best_step,
            stopped_early=state.stopped_early,
            **fields,
        )

    # ----------------------------------------------------------------------------- stopping
    def stop_requested(self) -> bool:
        """A signal, or the end of its tokens, has asked this rank to stop.

        To be asked at a step's end, and then acted on.
        """
        return self._signals.requested() or self._tokens.ending()

    @property
    def stop_alone(self) -> bool:
        """The launcher is tearing the job down: save (rank 0) and stop without any collective."""
        return self._signals.alone

    def stop_error(self) -> HowdahError:
        """What to raise once the state is saved; it names the checkpoint that holds.

        Where the launcher tears the job down, the last completed step is saved here, first: the
        message would name the checkpoint before it.
        """
        if self.stop_alone:
            self.save_last_completed()
        newest = None
        with contextlib.suppress(StorageError):  # which is not what we end for
            newest = next(iter(self.checkpoints.list()), None) if self.checkpoints else None
        # No signal has come, here or elsewhere (they come to every rank): it was the tokens.
        error = self._signals.error
        if not self._signals.came and self._tokens.end is not None:
            error = self._tokens.error
        if newest is None:
            return error(where=self.directory)
        return error(
            where=self.directory,
            got=f"the newest checkpoint is step-{newest.step}",
            remedy="start it again in the same way: it goes on from there",
        )

    def end_together(self, meet: Callable[[], None]) -> None:
        """This process ends, and so do all others, by common consent: `leave` waits for them.

        Args:
            meet: a collective that every rank enters as the last thing that it does.
        """
        self._meet = meet

    def _wait_for_the_others(self, exit_code: int) -> None:
        """Enter the collective of `end_together`, for `checkpoint.grace_seconds` at most."""
        meet, self._meet = self._meet, None
        if meet is None:
            return
        limit = threading.Timer(self.config.checkpoint.grace_seconds, os._exit, (exit_code,))
        limit.daemon = True
        limit.start()
        # A rank that is lost, or that meets an error in its save, ends the wait as well.
        with contextlib.suppress(HowdahError):
            meet()
        limit.cancel()

    def on_abort(self, save: Callable[[], None] | None) -> None:
        """How rank 0 saves the last completed step when the main thread hangs in a collective.

        `save` is called in another thread. It may read weights, under `update_lock`, and must
        neither change anything nor enter a collective; it must wait for the checkpoint.
        """
        self._abort_save = save

    def save_last_completed(self) -> None:
        """Call what `on_abort` was given, once; nothing on other ranks or where there is none."""
        with self._abort_lock:
            save, self._abort_save = self._abort_save, None
            if save is None or not self.is_main or (self.elastic and self.stop_alone):
                return
            try:
                save()
            except HowdahError as error:
                self.say(f"the last completed step could not be saved: {error.what}")

    def _abandoned(self) -> None:
        """In the watching thread: the main thread cannot act. Save, say why, and go."""
        self.pulse.take_over("save")
        self.save_last_completed()
        self.leave(self.stop_error(), consequence=self.stop_alone)

    def leave(self, error: BaseException, *, consequence: bool = False) -> None:
        """Write down why this rank ends, and end the process without any farewell.

        No `atexit`: Horovod's would wait for ranks that are gone. mpirun and horovodrun both end
        the other ranks when one ends so.
        """
        with self._abort_lock:  # a save that another thread has under way is seen through
            self._signals.disarm()
            told = failure.of(self.rank, error, consequence=consequence)
            if not self.is_main:
                # Nothing of this rank's end is seen before rank 0's checkpoint is whole.
                self._wait_for_the_others(told.exit_code)
            if self._opened:
                failure.write(self.local, told)
            if self._log is not None:
                print(told.text, file=self._log, flush=True)
            known = error if isinstance(error, HowdahError) else None
            stopped = isinstance(error, Interrupted | Terminated | TokensExpiring)
            status = "interrupted" if stopped else "failed"
            # What began this is told already; a second error on the way out must not hide it.
            with contextlib.suppress(HowdahError):
                if self.checkpoints is not None:
                    self.checkpoints.wait()
            with contextlib.suppress(HowdahError):
                self.close(status, known)
            self.pulse.tell(
                "failed",
                exit_code=told.exit_code,
                error=told.error or {"error": type(error).__name__, "what": told.text},
                consequence=consequence,
            )
            self._last_words(told)
            self._wait_for_the_others(told.exit_code)
            os._exit(told.exit_code)

    def _last_words(self, told: failure.Failure) -> None:
        """The error on the console, unless `howdah train` or rank 0 says the same."""
        if self.linked or (self._managed and self._opened):
            return
        if not self.is_main:
            # Mostly rank 0 has failed in the same way, says so, and the launcher ends us.
            # (mpirun takes its second before it says so.)
            if told.consequence or self._signals.torn_down_within(3.0):
                return
            print(f"rank {self.rank}: {told.text}", file=self._console, flush=True)
        else:
            print(f"training: {told.text}", file=self._console, flush=True)


def _age() -> float:
    """Seconds since the launcher began, or since this process did."""
    started = os.environ.get("HOWDAH_STARTED")
    return time.time() - float(started) if started else process_age()
