"""TensorBoard and MLflow, which get metrics besides metrics.jsonl, from rank 0; and what Weights &
Biases (training/run/wandb_tracker.py) shares with MLflow."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from howdah import redact, storage
from howdah.config.model import Config, MlflowOptions, TrackingSection
from howdah.core import activity, threads
from howdah.errors import ClusterError, ConfigError, StorageError
from howdah.training.checkpoint.fence import FencedOff
from howdah.training.run.event_file import EventFile

_START_SECONDS = 900.0
"""Limit for the start: MLflow's client retries a server that does not answer, for two minutes per
call, and then fails."""
CLOSE_SECONDS = 60.0
"""Maximum time that a finished run waits for a tracking server."""


def require(options: TrackingSection) -> None:
    """Require the packages of the configured trackers.

    Raises:
        ConfigError: one is not installed.
    """
    for name in ("mlflow", "wandb"):
        spec = None if getattr(options, name) is None else importlib.util.find_spec(name)
        # A directory wandb/, which W&B makes wherever it runs, is a package without a file.
        if getattr(options, name) is not None and (spec is None or spec.origin is None):
            raise ConfigError(
                f"the package {name} is not installed",
                where=f"tracking.{name}",
                remedy=f"pip install {name}, where rank 0 runs; or leave out tracking.{name}",
            )


class TensorBoard:
    """Event files for TensorBoard.

    Args:
        resumed_at: step that the run resumes from; later points of earlier attempts are hidden.
    """

    def __init__(self, directory: str, resumed_at: int) -> None:
        self._file = EventFile(directory, resumed_at)
        self._logged = resumed_at

    def log(self, step: int, values: dict[str, float]) -> None:
        self._file.scalars(step, values)
        self._logged = max(self._logged, step)

    def resume(self, step: int) -> None:
        """Make TensorBoard drop the points after `step`, if there are any."""
        if self._logged > step:
            self._file.resume(step)
            self._logged = step

    def close(self, status: str) -> None:
        self._file.close()

    def hand_over(self) -> None:
        """Finish the event file; another process writes the next one."""
        self._file.close()

    def abandon(self) -> None:
        """Close the event file without waiting values."""
        self._file.abandon()


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The facts about a run in a tracking server besides parameters and metrics."""

    tags: Mapping[str, str]
    """Tags such as user, directory and commit, under MLflow's names if it has one."""
    dataset: tuple[str, str] | None
    """(path, hash) of the dataset version."""
    report: Callable[[], str]
    """Returns report.html once the run has finished."""
    ending: Callable[[], Mapping[str, str]] = lambda: {}
    """Returns tags that are only known at the end of an attempt, such as hours and verdict."""


class Point(NamedTuple):
    """Metrics of a step, and when they were measured."""

    step: int
    values: dict[str, float]
    seconds: float


class ServerTracker:
    """A tracker whose server may be slow or away: a thread sends, since no step may wait.

    Args:
        title: the server's name in messages.
        say: called with a line when the server stops answering (once).
        check: called before anything is sent; raises FencedOff if a later attempt has the run.
    """

    def __init__(
        self, title: str, say: Callable[[str], None], check: Callable[[], None] = lambda: None
    ) -> None:
        self._title, self._say, self._check = title, say, check
        self._waiting: list[Point] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._status: str | None = None
        self._over = False
        """True if a later attempt has the run."""
        self._warned = False
        self._thread: threading.Thread

    def _start(self) -> None:
        # An exception must not end the thread, nor training: it only costs points of a chart.
        self._thread = threads.start(
            self._loop, name=self._title, failed=threads.RESTART, say=self._say
        )

    def _deliver(self, points: list[Point]) -> None:
        """Send metrics, in the thread; a server that fails is reported by `_warn`."""
        raise NotImplementedError

    def _end(self, status: str | None) -> None:
        """End the run on the server, in the thread, unless it has a later attempt. The status is
        None if another process continues the run."""
        raise NotImplementedError

    def _warn(self, line: str) -> None:
        """Warn, once: training continues without the server, and metrics.jsonl has all metrics."""
        if not self._warned:
            self._say(f"warning: {line}".splitlines()[0])
        self._warned = True

    def log(self, step: int, values: dict[str, float]) -> None:
        """Log metrics of a step; they are sent within two seconds."""
        with self._lock:
            self._waiting.append(Point(step, values, time.time()))

    def _loop(self) -> None:
        while not self._stop.wait(2.0):
            self._send()
        if self._over:
            return
        self._send(ask=self._status is not None)
        if self._status is None or self._ours():
            self._end(self._status)

    def _send(self, *, ask: bool = True) -> None:
        if not self._waiting or (ask and not self._ours()):
            return
        with self._lock:
            points, self._waiting = self._waiting, []
        self._deliver(points)

    def _ours(self) -> bool:
        """True unless a later attempt has the run; if storage does not answer, only at the end."""
        try:
            self._check()
        except FencedOff:
            return False  # `abandon` drops the waiting values, or `hand_over` sends them
        except StorageError:
            return self._stop.is_set()  # at the end, values that are not sent would be lost
        return True

    def resume(self, step: int) -> None:
        """Do nothing: a server keeps the points of steps that are done again."""

    def abandon(self) -> None:
        """Stop sending, because a later attempt has the server's run."""
        self._over = True
        self._stop.set()

    def hand_over(self) -> None:
        """Let the thread send waiting values and end, because another process continues the run."""
        self._stop.set()

    def close(self, status: str) -> None:
        """Send waiting values and end the run, unless the server does not answer in time.

        Args:
            status: finished, failed or interrupted.
        """
        self._status = status
        self._stop.set()
        with activity.current().at_most(CLOSE_SECONDS):
            self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._say(
                f"warning: {self._title} did not answer within {CLOSE_SECONDS:.0f} s: its run lacks"
                " the last metrics and its end; metrics.jsonl has all metrics"
            )


class MlflowTracker(ServerTracker):
    """One MLflow run for any world size, which later attempts continue.

    Args:
        options: the configuration's tracking.mlflow.
        config: the whole configuration, whose leaves become the run's parameters.
        run_id: MLflow's id of the run to continue; None begins one.
    Raises:
        ClusterError: the server cannot be reached at the start.
    """

    # MLflow's limits for all of its stores, in characters.
    _MAX_PARAMETER, _MAX_TAG, _MAX_DIGEST = 500, 5000, 36

    def __init__(
        self,
        options: MlflowOptions,
        config: Config,
        *,
        run_id: str | None,
        run_name: str,
        provenance: Provenance,
        say: Callable[[str], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        # MLflow must not report usage to its makers unless the user has enabled that.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        import mlflow
        from mlflow.exceptions import MlflowException

        super().__init__("MLflow", say, check)
        logging.getLogger("mlflow").setLevel(logging.ERROR)
        self._error = MlflowException
        self._report, self._ending = provenance.report, provenance.ending
        check()
        try:
            with activity.current().at_most(_START_SECONDS):
                self._client = mlflow.MlflowClient(tracking_uri=options.uri)
                if run_id is None:
                    number = self._experiment(options.experiment)
                    run_id = self._client.create_run(number, run_name=run_name).info.run_id
                    self._log_parameters(run_id, config)
                else:
                    self._client.update_run(run_id, status="RUNNING")
                self._log_provenance(run_id, provenance)
        except (MlflowException, OSError) as error:
            raise ClusterError(
                "the MLflow server cannot be used",
                where=f"tracking.mlflow.uri: {redact.text(options.uri)}",
                got=redact.text(str(error).splitlines()[0]),
                remedy="start it, correct the URI, or leave out tracking.mlflow",
            ) from None
        self.run_id = run_id
        self._start()

    def _experiment(self, name: str) -> str:
        """The id of the experiment, which is made if there is none."""
        if (experiment := self._client.get_experiment_by_name(name)) is None:
            try:
                return self._client.create_experiment(name)
            except self._error:  # another run may have made it just now
                if (experiment := self._client.get_experiment_by_name(name)) is None:
                    raise
        return experiment.experiment_id

    def _log_parameters(self, run_id: str, config: Config) -> None:
        from mlflow.entities import Param

        leaves = _leaves(redact.config(config).model_dump(mode="json"))
        params = [Param(key, str(value)[: self._MAX_PARAMETER]) for key, value in leaves]
        for start in range(0, len(params), 100):  # MLflow's limit of a batch
            self._client.log_batch(run_id, params=params[start : start + 100])

    def _log_provenance(self, run_id: str, provenance: Provenance) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag, RunTag

        tags = [RunTag(name, value[: self._MAX_TAG]) for name, value in provenance.tags.items()]
        self._client.log_batch(run_id, tags=tags)
        if provenance.dataset is not None:
            path, digest = provenance.dataset
            name, source = storage.name(storage.parent(path)), json.dumps({"uri": path})
            digest = digest[: self._MAX_DIGEST]
            dataset = Dataset(name=name, digest=digest, source_type="howdah", source=source)
            context = InputTag("mlflow.data.context", "training")
            # A second attempt may repeat this: MLflow ignores a dataset that the run already has.
            self._client.log_inputs(run_id, [DatasetInput(dataset, [context])])

    def _deliver(self, points: list[Point]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, int(point.seconds * 1000), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for start in range(0, len(metrics), 1000):  # MLflow's limit of a batch
            try:
                self._client.log_batch(self.run_id, metrics=metrics[start : start + 1000])
            except (self._error, OSError) as error:
                self._warn(f"MLflow does not accept metrics: {error}")

    def _end(self, status: str | None) -> None:
        if status is None:
            return
        if status == "finished":
            self._send_report()
        state = {"finished": "FINISHED", "interrupted": "KILLED"}.get(status, "FAILED")
        try:
            for name, value in self._ending().items():
                self._client.set_tag(self.run_id, name, value[: self._MAX_TAG])
            self._client.set_terminated(self.run_id, status=state)
        except (self._error, OSError) as error:
            self._say(f"warning: MLflow's run could not be ended: {error}".splitlines()[0])

    def _send_report(self) -> None:
        """Add report.html to the run's artifacts, whose store may not be writable from here."""
        try:
            self._client.log_text(self.run_id, self._report(), "report.html")
        except Exception as error:  # noqa: BLE001 - any artifact store's
            self._say(f"warning: MLflow does not accept report.html: {error}".splitlines()[0])


def _leaves(value: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for key, item in value.items():
        if isinstance(item, dict) and item:
            leaves += _leaves(item, f"{prefix}{key}.")
        else:
            leaves.append((prefix + key, item))
    return leaves
