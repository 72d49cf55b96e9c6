"""One rank's side of a run: its place in the job, and the parts that act for it.

    metrics      MetricsLogger    what is logged and shown, on every rank
    heartbeat    Heartbeat        phases and progress, for the agent
    stops        StopRequests     signals and expiring tokens
    last_save    LastSave         the save where the loop cannot
    owned        RunDirectory     rank 0's hold on the run directory; None on other ranks

A run directory (any storage) holds config.yaml, run.json, metrics.jsonl, logs/rank.N, tensorboard/,
attempts/, checkpoints/, export/, predictions/ and report.html. Only rank 0 writes to it, save that
each rank has its own log. What grows is kept on local disk (training/run/local_dir.py) and, of a
remote run, published as it grows (training/run/mirror.py).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any, TextIO

from howdah import redact, storage
from howdah.attempts import Attempt
from howdah.config.loader import Config
from howdah.errors import HowdahError, Interrupted, StorageError, Terminated, TokensExpiring
from howdah.models.runs.metrics_log import read_metrics
from howdah.models.runs.run_json import cpu_seconds, versions
from howdah.process.env import RankEnv
from howdah.training.checkpoint.fence import Fence, FencedOff
from howdah.training.checkpoint.manager import Checkpoints
from howdah.training.checkpoint.state import TrainState
from howdah.training.comm.base import Comm, Waits
from howdah.training.elastic.heartbeat import Heartbeat
from howdah.training.process import failure
from howdah.training.process.ending import FinalBarrier, print_failure
from howdah.training.process.stop_requests import StopRequests
from howdah.training.run.last_save import LastSave
from howdah.training.run.local_dir import RunLock, local_directory
from howdah.training.run.metrics_logger import MetricsLogger
from howdah.training.run.mirror import Mirror
from howdah.training.run.rank_files import RankFiles
from howdah.training.run.run_directory import RunDirectory

__all__ = ["Run", "read_metrics"]

_LEAVE_SECONDS = 30.0
"""How long a rank that ends by an error waits for storage to write that down."""
_TAKE_OVER_SECONDS = 10.0
"""How long a new rank 0 waits for the kernel to release the lock of a killed one on its machine."""


class Run:
    """One rank's side of a run.

    Args:
        config: the run's configuration.
        env: this process's place in the job.
        console: where rank 0 shows progress; the other ranks' copies go to their logs.
        log: the rank's log; None where `console` is all there is.
        heartbeat: reports to the agent that started this process; None: no agent did. With one,
            this process has no rank before its first world (`enter`), and may have several.
    """

    def __init__(
        self,
        config: Config,
        env: RankEnv,
        *,
        console: TextIO,
        log: TextIO | None = None,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self.config = config
        self.directory = config.run.directory
        self.rank, self.world_size = env.rank, env.size
        self.linked = heartbeat is not None
        """An agent started this process, which may train in one world or in several."""
        self.elastic = False
        """The other ranks train on where this process ends: their memory need not be saved."""
        self.loss_known = False
        """A rank of this world is known to be gone: no collective of it can succeed any more."""
        self.is_main = env.rank == 0 and not self.linked
        self.local = local_directory(self.directory, config.run.mode)
        self.run_id = ""
        self.attempt = 0
        self.update_lock = threading.Lock()
        """Held by the loop while weights change, so that no snapshot is taken in between."""
        self.heartbeat = heartbeat or Heartbeat(None, Waits())
        self.metrics = MetricsLogger(
            config.training.logging_steps, console=console if self.is_main else None, log=log
        )
        self.stops = StopRequests(
            # What ends a container ends this process, whatever the others do: no step to agree on.
            several_ranks=env.size > 1 or self.linked,
            grace_seconds=config.checkpoint.grace_seconds,
            abandon=self._abandon,
        )
        self.last_save = LastSave(
            allowed=lambda: self.is_main and not (self.elastic and self.stops.alone), say=self.say
        )
        self.final_barrier = FinalBarrier(config.checkpoint.grace_seconds)
        self.gpu = False
        """This rank computes on a GPU; set once its framework has started."""
        self.owned: RunDirectory | None = None
        """Rank 0's hold on the run directory; None on other ranks."""
        self._console, self._log = console, log
        self._mirror = Mirror(say=self.say)
        self._mirror.belongs_to(env.rank, env.size)
        self._files = RankFiles(
            env.rank, self.local, self.directory, self._mirror, linked=self.linked
        )
        self._lock = RunLock(self.local, ".lock", self.directory)

    # -------------------------------------------------------------------- opening and closing
    def open(self) -> None:
        """Handle signals; on rank 0 take the run directory: lock, fence, run.json, metrics.

        A process that an agent started has no rank yet: it handles its signals.

        Raises:
            UsageError: another process of this machine is using the run directory.
            StorageError: the run directory cannot be written.
        """
        self.stops.signals.install()
        if self.is_main:  # another run may live here until then: other ranks touch nothing yet
            self._lock.take()
            self._files.put_on_record()
            self._take_possession()

    def enter(self, env: RankEnv, world: int) -> None:
        """A world begins for a process that an agent started: this is its place there.

        A process that becomes rank 0 opens the run directory, and has the later fence from then on.

        Args:
            env: rank and size.
            world: its number.
        Raises:
            As `open`.
        """
        self.rank, self.world_size = env.rank, env.size
        self.is_main = env.rank == 0
        self._mirror.belongs_to(env.rank, env.size)
        self._files.enter_world(world)
        if not self.is_main:
            self._hand_over()
            return
        if self.owned is None:
            self._lock.take(patience=_TAKE_OVER_SECONDS)
            self.metrics.show_on(self._console)
            self._take_possession()
        self.owned.file.world(world, self.world_size)

    def share(self, comm: Comm) -> None:
        """Broadcast the run's id and attempt. Every rank enters, after comm.init: only rank 0 knows
        them, and every rank publishes and exports under them."""
        shared = comm.broadcast_json({"run_id": self.run_id, "attempt": self.attempt})
        self.run_id, self.attempt = shared["run_id"], shared["attempt"]
        if self.owned is not None:
            self.owned.file.note(
                comm=comm.backend, parallel=self.config.training.parallel.model_dump()
            )
        if self.linked:
            self._files.publish_output(self.rank, self.attempt)
            return
        if not self.is_main:
            self._mirror.check = self.check_fence
            self._files.put_on_record()

    def close(self, status: str, error: HowdahError | None = None) -> None:
        """Write the run's end: finished, interrupted or failed.

        Raises:
            StorageError: what is left cannot be published.
            FencedOff: a later attempt has the run directory; nothing was written there.
        """
        self.metrics.end()
        fenced_off: FencedOff | None = None
        try:
            if self._files.shares_names:
                self.check_fence()
            if self.owned is not None:
                self.owned.file.gpus = self.world_size if self.gpu else 0
                self.owned.file.end(status, None if error is None else redact.text(error.what))
            self.metrics.close(status)
            self._mirror.close()
        except FencedOff as later:
            fenced_off = later
            self._mirror.abandon()
            self.metrics.abandon()
        if not (fenced_off and self._files.shares_names):
            self._files.end()
        self._lock.release()
        self.stops.signals.uninstall()
        if fenced_off is not None:
            raise fenced_off

    def _take_possession(self) -> None:
        self.owned = RunDirectory(
            self.config,
            self.local,
            metrics=self.metrics,
            mirror=self._mirror,
            saved=lambda step, path: self.heartbeat.send("checkpoint", step=step, path=path),
            world_size=self.world_size,
        )
        self.run_id, self.attempt = self.owned.run_id, self.owned.attempt

    def _hand_over(self) -> None:
        """Another process is rank 0 now: leave it the run directory, if this one has it.

        A checkpoint that is being written is given up, unless it gets its name before the new
        rank 0 takes its fence: that one sees what is whole, and when the next one is due.
        """
        owned, self.owned = self.owned, None
        if owned is None:
            return
        self.last_save.arm(None)
        owned.hand_over()
        self._lock.release()
        self.attempt = 0

    # ---------------------------------------------------------------------- the run directory
    @property
    def checkpoints(self) -> Checkpoints | None:
        """The run's checkpoints, on rank 0; None on other ranks."""
        return None if self.owned is None else self.owned.checkpoints

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """The attempts in run.json, the newest last; [] on ranks other than 0."""
        return [] if self.owned is None else self.owned.file.values["attempts"]

    def choose_dataset(self, choose: Callable[[str], str]) -> str:
        """The dataset's version to train on, as RunDirectory.choose_dataset; rank 0 only."""
        if self.owned is None:
            return choose(self.config.data.dataset)
        return self.owned.choose_dataset(choose)

    def say(self, line: str) -> None:
        """Show a line: rank 0 on the console, every rank in its log."""
        self.metrics.say(line)

    def update(self, **fields: Any) -> None:
        """Put fields into run.json (rank 0; the others do nothing). Mappings are merged.

        Raises:
            FencedOff: a later attempt has the run directory.
        """
        if self.owned is not None:
            self.owned.file.update(**fields)

    def used(self, comm: Comm) -> None:
        """Put what all ranks have used into run.json. Every rank enters."""
        said = comm.gather_json({"cpu": cpu_seconds(), "gpu": int(self.gpu)})
        if self.owned is not None:
            self.owned.file.used(
                cpu_seconds=sum(one["cpu"] for one in said), gpus=sum(one["gpu"] for one in said),
                of="all ranks",
            )  # fmt: skip

    def check_fence(self) -> None:
        """Raise FencedOff where a later attempt has the run directory; on any rank, after `share`.

        Raises:
            StorageError: not known, since storage does not answer.
        """
        if self.owned is not None:
            self.owned.fence.check()
        elif self.attempt:
            Fence(self.directory, self.attempt, Attempt.of_environment()).check()

    def meta(self, state: TrainState) -> dict[str, Any]:
        """What a checkpoint's meta.json holds: the state, and where it comes from."""
        return state.to_meta() | {
            "run_id": self.run_id,
            "attempt": self.attempt,
            "world_size": self.world_size,
            "framework": self.config.training.framework,
            "config": redact.config(self.config).model_dump(mode="json"),
            "versions": versions(self.config.training.framework),
        }

    # ----------------------------------------------------------------------------- stepping
    def begin(self, state: TrainState, *, total_steps: int) -> None:
        """The steps begin: from here on a stop request waits for a step's end.

        Args:
            state: where the run stands.
            total_steps: steps of the whole run.
        """
        storage.be_patient()  # from here on there is work to lose
        if self.owned is not None:
            self.owned.begin(state.step)
            if mlflow_run := self.owned.file.values.get("mlflow_run_id"):
                self.heartbeat.send("tracking", mlflow_run_id=mlflow_run)
        self.stops.signals.stepping(True)
        self.metrics.begin(state.step, total_steps=total_steps)
        self.heartbeat.begin(self.rank, state.step, total_steps)

    def step_done(self, state: TrainState, **values: Any) -> None:
        """A step is done; the arguments are those of MetricsLogger.step_done."""
        if self._mirror.fenced_off is not None:
            raise self._mirror.fenced_off
        seconds = self.metrics.step_done(state, **values)
        self.heartbeat.step_done(
            step=state.step,
            epoch=self.metrics.epoch(state),
            loss=values["loss"],
            rows=values["rows"],
            seconds=seconds,
        )
        if self.owned is not None:
            self.owned.note_first_step()

    def end_steps(self) -> None:
        """The steps are over, of this world at least: a stop request is acted on at once."""
        self.metrics.end()
        self.stops.signals.stepping(False)

    def finish(self, state: TrainState, metrics: dict[str, dict], **fields: Any) -> None:
        """Put the run's results into run.json (rank 0).

        Args:
            state: at the end.
            metrics: {split: metrics} of the exported weights.
            fields: more for run.json.
        """
        self.update(
            metrics=metrics,
            **self.metrics.summary(state),
            best_step=state.best_step,
            stopped_early=state.stopped_early,
            **fields,
        )

    # --------------------------------------------------------------------------------- ending
    def stop_error(self) -> HowdahError:
        """What to raise once the state is saved; it names the checkpoint that holds.

        Where the launcher tears the job down, the last completed step is saved here, first: the
        message would name the checkpoint before it.
        """
        if self.stops.alone:
            self.last_save.save()
        newest = None
        with contextlib.suppress(StorageError):  # which is not what we end for
            newest = self.checkpoints.newest() if self.checkpoints else None
        if newest is None:
            return self.stops.error(where=self.directory)
        return self.stops.error(
            where=self.directory,
            got=f"the newest checkpoint is step-{newest.step}",
            remedy="start it again in the same way: it goes on from there",
        )

    def leave(self, error: BaseException, *, consequence: bool = False) -> None:
        """Write down why this rank ends, and end the process at once.

        No `atexit`: Horovod's would wait for ranks that are gone. mpirun and horovodrun both end
        the other ranks when one ends so.
        """
        with self.last_save.lock:  # a save that another thread has under way is seen through
            self.stops.signals.disarm()
            why = failure.of(self.rank, error, consequence=consequence)
            if not self.is_main:
                # Nothing of this rank's end is seen before rank 0's checkpoint is whole.
                self.final_barrier.wait(why.exit_code)
            fenced_off = isinstance(error, FencedOff) or self._fenced_off_its_names()
            # Local disks may be full, which this rank may end for: the agent must hear of it.
            with contextlib.suppress(HowdahError, OSError):
                if not (fenced_off and self._files.shares_names):
                    self._files.write_failure(why)
            with contextlib.suppress(OSError):
                if self._log is not None:
                    print(why.text, file=self._log, flush=True)
            known = error if isinstance(error, HowdahError) else None
            stopped = isinstance(error, Interrupted | Terminated | TokensExpiring)
            status = "interrupted" if stopped else "failed"
            # The first error is reported already: a second one on the way out must not hide it, nor
            # a storage that does not answer hold up the process that takes this rank's place.
            with contextlib.suppress(HowdahError):
                if self.checkpoints is not None:
                    self.checkpoints.wait()
            with contextlib.suppress(HowdahError, OSError), storage.waiting_at_most(_LEAVE_SECONDS):
                self.close(status, known)
            self.heartbeat.send(
                "failed",
                exit_code=why.exit_code,
                error=failure.describe(error),
                consequence=consequence,
                step=self.heartbeat.step,
            )
            # `howdah train` shows the failure's file, an agent's driver what it is sent.
            if not (self.linked or (self._files.shown_by_command and not fenced_off)):
                print_failure(why, self._console, self.stops.signals)
            self.final_barrier.wait(why.exit_code)
            os._exit(why.exit_code)

    def _abandon(self) -> None:
        """In the watching thread: the main thread cannot act. Save, say why, and end."""
        self.heartbeat.take_over("save")
        self.last_save.save()
        self.leave(self.stop_error(), consequence=self.stops.alone)

    def _fenced_off_its_names(self) -> bool:
        """The files that say how this rank has ended are a later attempt's by now."""
        if not self._files.shares_names:
            return False
        try:
            self.check_fence()
        except FencedOff:
            return True
        except StorageError:  # the write that follows says so
            pass
        return False
