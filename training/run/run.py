"""One rank's side of a run: its place in the job, and the parts that act for it.

    metrics      MetricsLogger    logs and shows metrics, on every rank
    heartbeat    Heartbeat        reports phases and progress to the agent
    stops        StopSignals      signals and expiring tokens
    last_save    LastSave         saves if the loop cannot
    owned        RunDirectory     rank 0's hold on the run directory; None on other ranks

A run directory (any storage) holds config.yaml, run.json, metrics.jsonl, logs/rank.N, tensorboard/,
attempts/, checkpoints/, export/, predictions/ and report.html. Only rank 0 writes to it, except
that each rank has a log. Growing files are kept on local disk (training/run/local_dir.py) and, for
a remote run, published as they grow (training/run/mirror.py).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any, TextIO

from howdah import redact, storage
from howdah.attempts import Attempt
from howdah.config.model import Config
from howdah.errors import HowdahError, Interrupted, StorageError, Terminated, TokensExpiring
from howdah.models.runs.run_json import cpu_seconds, versions
from howdah.process.env import RankEnv
from howdah.training.checkpoint.fence import Fence, FencedOff
from howdah.training.checkpoint.manager import Checkpoints
from howdah.training.checkpoint.state import TrainState
from howdah.training.comm.base import Comm, Waits
from howdah.training.elastic.heartbeat import Heartbeat
from howdah.training.process import failure
from howdah.training.process.ending import FinalBarrier, print_failure
from howdah.training.process.stopping import StopSignals
from howdah.training.process.token_expiry import TokenExpiry
from howdah.training.run.last_save import LastSave
from howdah.training.run.local_dir import RunLock, local_directory
from howdah.training.run.metrics_logger import MetricsLogger
from howdah.training.run.mirror import Mirror
from howdah.training.run.rank_files import RankFiles
from howdah.training.run.run_directory import RunDirectory

_LEAVE_SECONDS = 30.0
"""Time that a rank which ends with an error waits for storage to record it."""
_TAKE_OVER_SECONDS = 10.0
"""Time that a new rank 0 waits for the kernel to release a killed one's lock on its machine."""


class Run:
    """One rank's side of a run.

    Args:
        console: stream on which rank 0 shows progress; the other ranks only write to their logs.
        log: the rank's log; None: there is only `console`.
        heartbeat: reports to the agent that started this process; None: no agent did. With an
            agent, this process has no rank before its first world (`enter`), and may get several.
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
        """True if an agent started this process, which may train in one world or in several."""
        self.elastic = False
        """True if the other ranks continue when this process ends, so that it need not save."""
        self.loss_reported = False
        """True if a rank of this world is lost: its collectives cannot succeed any more."""
        self.is_main = env.rank == 0 and not self.linked
        self.local = local_directory(self.directory, config.run.mode)
        self.run_id = ""
        self.attempt = 0
        self.update_lock = threading.Lock()
        """Lock that the loop holds while weights change, so that no snapshot is taken then."""
        self.heartbeat = heartbeat or Heartbeat(None, Waits())
        self.metrics = MetricsLogger(
            config.training.logging_steps, console=console if self.is_main else None, log=log
        )
        self.stops = StopSignals(
            # A signal under an agent ends the container, whatever the other ranks do.
            several_ranks=env.size > 1 or self.linked,
            abandon=self._abandon,
            tokens=TokenExpiry(config.checkpoint.grace_seconds),
        )
        self.last_save = LastSave(
            allowed=lambda: self.is_main and not (self.elastic and self.stops.alone), say=self.say
        )
        self.final_barrier = FinalBarrier(config.checkpoint.grace_seconds)
        self.gpu = False
        """True if this rank computes on a GPU; set once its framework has started."""
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

        A process that an agent started has no rank yet, and only handles signals.

        Raises:
            UsageError: another process of this machine is using the run directory.
            StorageError: the run directory cannot be written.
        """
        self.stops.install()
        if self.is_main:  # another run may live here until then: other ranks touch nothing yet
            self._lock.take()
            self._files.put_on_record()
            self._take_possession()

    def enter(self, env: RankEnv, world: int) -> None:
        """Set this process's place in a world that begins; only with an agent.

        A process that becomes rank 0 opens the run directory, and has the newest fence.

        Raises:
            UsageError, StorageError: see `open`.
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
        """Broadcast the run's id and attempt, which only rank 0 knows, and which every rank needs
        to publish and export. Every rank enters once its world has formed."""
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
            StorageError: the remaining files cannot be published.
            FencedOff: a later attempt has the run directory, and nothing was written there.
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
        self.stops.uninstall()
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
        """Leave the run directory, if this process has it, to the process that is rank 0 now.

        A checkpoint that is being written is lost, unless it gets its name before the new rank 0
        takes its fence. The new rank 0 sees which checkpoints are complete, and when the next one
        is due.
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
        """The dataset version to train on, see RunDirectory.choose_dataset; called on rank 0."""
        if self.owned is None:
            return choose(self.config.data.dataset)
        return self.owned.choose_dataset(choose)

    def say(self, line: str) -> None:
        """Show a line: rank 0 on the console, every rank in its log."""
        self.metrics.say(line)

    def log(self, line: str) -> None:
        """Write a line to this rank's log alone: details for whoever looks into a problem."""
        self.metrics.log(line)

    def update(self, **fields: Any) -> None:
        """Write fields to run.json (rank 0; the others do nothing). Mappings are merged.

        Raises:
            FencedOff: a later attempt has the run directory.
        """
        if self.owned is not None:
            self.owned.file.update(**fields)

    def used(self, comm: Comm) -> None:
        """Write the usage of all ranks to run.json. Every rank enters."""
        usages = comm.gather_json({"cpu": cpu_seconds(), "gpu": int(self.gpu)})
        if self.owned is not None:
            cpu, gpus = (sum(one[kind] for one in usages) for kind in ("cpu", "gpu"))
            self.owned.file.used(cpu_seconds=cpu, gpus=gpus, of="all ranks")

    def check_fence(self) -> None:
        """Raise FencedOff if a later attempt has the run directory; on any rank, after `share`.

        Raises:
            StorageError: it is unknown, because storage does not answer.
        """
        if self.owned is not None:
            self.owned.fence.check()
        elif self.attempt:
            Fence(self.directory, self.attempt, Attempt.of_environment()).check()

    def meta(self, state: TrainState) -> dict[str, Any]:
        """The contents of a checkpoint's meta.json: the state and its origin."""
        return state.to_meta() | {
            "run_id": self.run_id,
            "attempt": self.attempt,
            "world_size": self.world_size,
            "framework": self.config.training.framework,
            "config": redact.config(self.config).model_dump(mode="json"),
            "versions": versions(self.config.training.framework),
        }

    def evaluated(
        self, state: TrainState, split: str, metrics: dict[str, Any], *, exported: bool = False
    ) -> None:
        """Log an evaluation during training, or that of the exported model, and report it to the
        job's driver."""
        self.metrics.evaluated(state, split, metrics, exported=exported)
        if self.rank == 0:
            figures = {key: value for key, value in metrics.items() if isinstance(value, float)}
            self.heartbeat.send("evaluation", step=state.step, split=split, metrics=figures)

    # ----------------------------------------------------------------------------- stepping
    def begin(self, state: TrainState, *, total_steps: int) -> None:
        """Begin the steps: from now on a stop request waits for a step's end."""
        storage.be_patient()  # from now on there is work to lose
        if self.owned is not None:
            self.owned.begin(state.step)
            if mlflow_run := self.owned.file.values.get("mlflow_run_id"):
                self.heartbeat.send("tracking", mlflow_run_id=mlflow_run)
        self.stops.stepping(True)
        self.metrics.begin(state.step, total_steps=total_steps)
        self.heartbeat.begin(self.rank, state.step, total_steps)

    def step_done(self, state: TrainState, **values: Any) -> None:
        """Count and report a step; for the arguments see MetricsLogger.step_done."""
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
        """End the steps, at least those of this world: a stop request takes effect at once."""
        self.metrics.end()
        self.stops.stepping(False)

    def finish(self, state: TrainState, metrics: dict[str, dict], **fields: Any) -> None:
        """Write the run's results to run.json (rank 0).

        Args:
            metrics: {split: metrics} of the exported weights.
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
        """The error to raise once the state is saved; it names the newest checkpoint.

        If the launcher is ending the job, the last completed step is saved here first: otherwise
        the message would name the checkpoint before it.
        """
        if self.stops.alone:
            self.last_save.save()
        newest = None
        with contextlib.suppress(StorageError):  # storage is not the reason for this end
            newest = self.checkpoints.newest() if self.checkpoints else None
        if newest is None:
            return self.stops.error(where=self.directory)
        return self.stops.error(
            where=self.directory,
            got=f"the newest checkpoint is step-{newest.step}",
            remedy="start it again in the same way: it resumes from there",
        )

    def leave(self, error: BaseException, *, consequence: bool = False) -> None:
        """Record why this rank ends, and end the process at once.

        `atexit` functions do not run: Horovod's would wait for ranks that are gone. mpirun and
        horovodrun both end the other ranks when one ends in this way.
        """
        with self.last_save.lock:  # waits for a save that another thread has under way
            self.stops.disarm()
            why = failure.of(self.rank, error, consequence=consequence)
            if not self.is_main:
                # This rank's end must not be noticed before rank 0's checkpoint is complete.
                self.final_barrier.wait(why.exit_code)
            fenced_off = isinstance(error, FencedOff) or self._fenced_off_its_names()
            # A full local disk, which may be the reason for this end, must not hide it from the
            # agent.
            with contextlib.suppress(HowdahError, OSError):
                if not (fenced_off and self._files.shares_names):
                    self._files.write_failure(why)
            with contextlib.suppress(OSError):
                if self._log is not None:
                    print(why.text, file=self._log, flush=True)
            howdah_error = error if isinstance(error, HowdahError) else None
            stopped = isinstance(error, Interrupted | Terminated | TokensExpiring)
            status = "interrupted" if stopped else "failed"
            # A second error on the way out must not hide the first one, and a storage that does not
            # answer must not delay the process that replaces this rank.
            with contextlib.suppress(HowdahError):
                if self.checkpoints is not None:
                    self.checkpoints.wait()
            with contextlib.suppress(HowdahError, OSError), storage.waiting_at_most(_LEAVE_SECONDS):
                self.close(status, howdah_error)
            self.heartbeat.send(
                "failed",
                exit_code=why.exit_code,
                error=failure.describe(error),
                consequence=consequence,
                step=self.heartbeat.step,
            )
            # `howdah train` shows the failure's file, the driver of an agent the message above.
            if not (self.linked or (self._files.shown_by_command and not fenced_off)):
                print_failure(why, self._console, self.stops)
            self.final_barrier.wait(why.exit_code)
            os._exit(why.exit_code)

    def _abandon(self) -> None:
        """Save, report and end in the watching thread, because the main thread cannot act."""
        self.heartbeat.take_over("save")
        self.last_save.save()
        self.leave(self.stop_error(), consequence=self.stops.alone)

    def _fenced_off_its_names(self) -> bool:
        """True if the files that describe this rank's end belong to a later attempt by now."""
        if not self._files.shares_names:
            return False
        try:
            self.check_fence()
        except FencedOff:
            return True
        except StorageError:  # the write that follows reports it
            pass
        return False
