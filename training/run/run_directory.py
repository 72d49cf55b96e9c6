"""Rank 0's hold on the run directory: fence, run.json, checkpoints and their schedule, metrics."""

from __future__ import annotations

import os
from collections.abc import Callable

from howdah import redact, storage
from howdah.config.model import Config
from howdah.errors import CheckpointError, StorageError, render
from howdah.models.runs.hours import tags_of
from howdah.models.runs.identity import Identity
from howdah.models.runs.metrics_log import FILE_NAME as METRICS_FILE
from howdah.models.runs.metrics_log import MetricsLog
from howdah.models.runs.run_json import RunFile, freeze_config
from howdah.run_files import REPORT
from howdah.storage import directories
from howdah.training.checkpoint.fence import Fence
from howdah.training.checkpoint.manager import Checkpoints
from howdah.training.checkpoint.read import Checkpoint, load
from howdah.training.checkpoint.schedule import CheckpointSchedule
from howdah.training.checkpoint.state import CheckpointProgress
from howdah.training.run.local_dir import job_age
from howdah.training.run.metrics_logger import MetricsLogger
from howdah.training.run.mirror import Mirror
from howdah.training.run.tracking import MlflowTracker, Provenance, TensorBoard, require
from howdah.training.run.wandb_tracker import WandbTracker


class RunDirectory:
    """A run directory that this process has taken possession of.

    Args:
        saved: called with step and path of each checkpoint that is complete on storage.
    Raises:
        ConfigError: a configured tracker's package is not installed.
        StorageError: the directory cannot be written.
    """

    def __init__(
        self,
        config: Config,
        local: str,
        *,
        metrics: MetricsLogger,
        mirror: Mirror,
        saved: Callable[[int, str], None],
        world_size: int,
    ) -> None:
        require(config.tracking)
        self._config, self._local = config, local
        self._logger, self._mirror = metrics, mirror
        self._path = config.run.directory
        mode = config.run.mode
        directories.take(self._path, mode, key="run.directory", below=directories.BELOW)
        if config.checkpoint.directory is not None:
            directories.take(config.checkpoint.directory, mode, key="checkpoint.directory")
        self.fence = fence = Fence.take(self._path)
        self.attempt = fence.attempt
        fence.check()
        self.file = RunFile(self._path, check=fence.check)
        if not self.file.is_of_finished:  # otherwise its configuration stays until `_admit`
            freeze_config(config, self._path)
        mirror.check = fence.check
        self._submission = os.environ.get("HOWDAH_APPLICATION")
        self.file.begin(
            config, world_size=world_size, attempt=self.attempt, submission=self._submission
        )

        self.saves = CheckpointProgress()
        """Record of the saves since this process took the directory, over all its worlds."""
        self.save_times = CheckpointSchedule(config.checkpoint)

        def whole(step: int, path: str) -> None:
            self.save_times.whole(step)
            saved(step, path)
            self.file.catch_up()  # storage answers again

        self.checkpoints = Checkpoints(
            config.checkpoint_directory,
            keep=config.checkpoint.keep,
            metric=config.evaluation.metric,
            fence=fence,
            say=metrics.say,
            saving=mirror.publish,  # a resumed run does not log metrics of earlier steps again
            saved=whole,
        )
        path = os.path.join(local, METRICS_FILE)
        published = storage.join(self._path, METRICS_FILE)
        self._metrics = MetricsLog(path, published, self.attempt, fence.check)
        metrics.write_to(self._metrics)
        self._mirrored: list[str] = []
        self._publish(path, published)
        self._tracking = self._first_step_noted = False

    def _publish(self, local: str, published: str, *, in_parts: bool = True) -> None:
        if not storage.is_local(self._path):
            self._mirrored.append(local)
            self._mirror.add(local, published, in_parts=in_parts)

    def hand_over(self) -> None:
        """Stop writing to the directory, because another process takes it over."""
        for local in self._mirrored:
            self._mirror.drop(local)
        self._mirror.resume()  # only this process's log is left, whose name is unique
        self._logger.hand_over()

    @property
    def run_id(self) -> str:
        """The run's id, the same for all attempts."""
        return self.file.values["run_id"]

    # ------------------------------------------------------------------------------ resuming
    def choose_dataset(self, choose: Callable[[str], str]) -> str:
        """The dataset version to train on: the one that this submission began with.

        The ETL may have committed another one since. A restart within a submission keeps its
        version; a run that the user starts again gets the newest, or is refused.

        Args:
            choose: returns the version for `data.dataset`, or for the path of a version.
        """
        configured = self._config.data.dataset
        path = choose(self.file.dataset_of(self._submission) or configured)
        self.file.update_attempt(dataset=path)
        return path

    def newer_checkpoint(self, expect: Identity, than: int) -> Checkpoint | None:
        """The newest checkpoint if its step is later than `than`, the step in memory: a lost rank 0
        may have saved later than the others committed.

        If checkpoints cannot be read, a warning is logged, and the state in memory is used.
        """
        try:
            saved = self.checkpoints.newest()
            if saved is None or saved.step <= than:
                return None
            checkpoint = self.checkpoints.latest(expect, in_memory=than)
        except (StorageError, CheckpointError) as error:
            self._logger.say(f"warning: {render(error)}\n  resuming from memory instead")
            return None
        if checkpoint is None or checkpoint.step <= than:  # the newest one was corrupt
            return None
        self._note_resumed(checkpoint)
        return checkpoint

    def resume_checkpoint(self, expect: Identity, *, when_used: bool = False) -> Checkpoint | None:
        """The checkpoint that `checkpoint.resume` selects; None: begin with the base model.

        Args:
            when_used: its tensors are read on use.
        Raises:
            CheckpointError: it belongs to another run, is corrupt, or does not exist.
        """
        self.file.of(expect)
        rule = self._config.checkpoint.resume
        checkpoint = None
        begun = self.file.has_begun(self._submission)
        if rule == "auto" or begun:
            checkpoint = self.checkpoints.latest(expect, when_used=when_used)
        elif rule == "never":
            self._set_aside(-1)
        # A run that began from a path and was lost before its first checkpoint begins there again.
        if checkpoint is None and rule not in ("auto", "never"):
            checkpoint = load(rule, expect, when_used=when_used)
            is_here = self.checkpoints.is_here(checkpoint)
            self._set_aside(checkpoint.step if is_here else -1)
            if not (is_here or begun) and self._metrics.last[0] >= 0:
                self._logger.say(f"the metrics so far are kept as {self._metrics.set_aside()}")
        self._note_resumed(checkpoint)
        return checkpoint

    def _note_resumed(self, checkpoint: Checkpoint | None) -> None:
        """Log and record where the run resumes from; None: from the base model."""
        self._admit()
        self.file.update_attempt(
            resumed_from=None if checkpoint is None else checkpoint.path,
            resumed_at_step=0 if checkpoint is None else checkpoint.step,
        )
        if checkpoint is None:
            self._logger.say("starting from the base model")
            return
        before, now = checkpoint.meta.get("framework"), self._config.training.framework
        change = f", trained with {before} until here, and with {now} from here on"
        self._logger.say(
            f"resuming from checkpoint step-{checkpoint.step}"
            f" ({storage.absolute(checkpoint.path)})" + change * (before not in (None, now))
        )

    def resumed_from_memory(self, step: int) -> None:
        """Record that all ranks resume from a rank's memory of this step."""
        if "resumed_at_step" not in self.file.values["attempts"][-1]:
            self._admit()
            self.file.note(resumed_from="memory", resumed_at_step=step)

    def _admit(self) -> None:
        """Replace a finished run's record, once dataset, base model and checkpoint exist."""
        if self.file.is_of_finished:
            self.file.admit()
            freeze_config(self._config, self._path)

    def _set_aside(self, after_step: int) -> None:
        moved = self.checkpoints.set_aside(after_step)
        if moved:
            self._logger.say(
                f"{len(moved)} checkpoints of later steps are kept under other names:"
                f" {', '.join(moved)}"
            )

    # ------------------------------------------------------------------------------ stepping
    def begin(self, step: int) -> None:
        """Begin the steps of a world after `step`."""
        self._track(step)
        if not self.save_times.has_begun:  # the run begins from the base or from a checkpoint
            self.save_times.begin(step)

    def note_first_step(self) -> None:
        """Write the time until the first step to run.json, once."""
        if not self._first_step_noted:
            self._first_step_noted = True
            self.file.note(seconds_to_first_step=round(job_age(), 3))

    def _provenance(self) -> Provenance:
        """Tags, dataset and report of this run for tracking servers."""
        run = self.file.values
        attempt, git = run["attempts"][-1], run.get("git")
        tags = {
            "mlflow.user": attempt["user"],
            "mlflow.source.name": "howdah",
            "mlflow.source.type": "JOB",
            "howdah.run_id": run["run_id"],
            "howdah.run_directory": redact.text(self._path),
            "howdah.version": run["versions"]["howdah"],
        }
        if git is not None:
            tags["mlflow.source.git.commit"] = git["commit"]
        if attempt.get("command"):
            tags["howdah.command"] = attempt["command"]
        if base := (run.get("base") or {}).get("source"):
            tags["howdah.base"] = base
        if attempt["submission"] is not None:
            tags["howdah.application"] = attempt["submission"]
        path, digest = run.get("dataset"), run.get("dataset_hash")
        return Provenance(
            tags=tags,
            dataset=(redact.text(path), digest) if path and digest else None,
            report=lambda: storage.read_text(storage.join(self._path, REPORT)),
            ending=lambda: (
                tags_of(self.file.values.get("hours"))
                | {f"howdah.{k}": v for k, v in self.file.values.get("verdict", {}).items()}
            ),
        )

    def _track(self, resumed_at: int) -> None:
        """Open the trackers, once."""
        if self._tracking:
            return
        self._tracking = True
        if self._config.tracking.tensorboard:
            local = os.path.join(self._local, "tensorboard")
            self._logger.track(TensorBoard(local, resumed_at))
            self._publish(local, storage.join(self._path, "tensorboard"), in_parts=False)
        options = self._config.tracking.mlflow
        if options is not None:
            tracker = MlflowTracker(
                options,
                self._config,
                run_id=self.file.values.get("mlflow_run_id"),
                run_name=self._config.run.name,
                provenance=self._provenance(),
                say=self._logger.say,
                check=self.fence.check,
            )
            self._logger.track(tracker)
            self.file.update(mlflow_run_id=tracker.run_id)
            # Airflow reads this line for its link (howdah/airflow/links.py).
            self._logger.say(f"MLflow run: {tracker.run_id}")
        project = self._config.tracking.wandb
        if project is not None:
            local = os.path.join(self._local, "wandb")
            published = storage.join(self._path, "wandb")
            self._publish(local, published, in_parts=False)
            tracker = WandbTracker(
                project,
                self._config,
                directory=self._local,
                published=published,
                run_id=self.run_id,
                run_name=self._config.run.name,
                provenance=self._provenance(),
                say=self._logger.say,
                check=self.fence.check,
            )
            self._logger.track(tracker)
