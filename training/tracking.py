"""TensorBoard and MLflow: where figures go besides metrics.jsonl; rank 0 only."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from howdah import activity
from howdah.config_model import Config, MlflowOptions
from howdah.errors import ClusterError
from training.eventfile import EventFile

__all__ = ["MlflowTracker", "TensorBoard", "Tracker", "flat"]

_START_SECONDS = 900.0
"""MLflow's client tries a server that is away some times, for two minutes each, and then fails."""
_CLOSE_SECONDS = 60.0
"""A run that is finished does not wait longer for an MLflow server."""


class Tracker:
    """Takes figures by step. The two below are all there are."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Note figures of a step."""
        raise NotImplementedError

    def go_on(self, step: int) -> None:
        """Steps after `step` follow, some of which may have been logged before."""

    def let_go(self) -> None:
        """Write nothing more: the run goes on in another process."""
        raise NotImplementedError

    def close(self, status: str) -> None:
        """Write out what is left; status is finished, failed or interrupted."""
        raise NotImplementedError


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of nested mappings by path: {"a": {"b": 1}} -> {"a/b": 1.0}; lists left out."""
    out: dict[str, float] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            out |= flat(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            out[prefix + key] = float(value)
    return out


class TensorBoard(Tracker):
    """Event files for TensorBoard.

    Args:
        directory: local directory of the event files.
        resumed_at: step that the run goes on from; later points of earlier attempts are hidden.
    """

    def __init__(self, directory: str, resumed_at: int) -> None:
        self._file = EventFile(directory, resumed_at)
        self._logged = resumed_at

    def log(self, step: int, values: dict[str, float]) -> None:
        """Note figures of a step."""
        self._file.scalars(step, values)
        self._logged = max(self._logged, step)

    def go_on(self, step: int) -> None:
        """Have TensorBoard drop the points after `step` where there are some."""
        if self._logged > step:
            self._file.go_on(step)
            self._logged = step

    def close(self, status: str) -> None:
        """Finish the event file."""
        self._file.close()

    def let_go(self) -> None:
        """Finish the event file; another process writes the next one."""
        self._file.close()


class MlflowTracker(Tracker):
    """One MLflow run, whatever the world size, continued by later attempts.

    Figures are sent by a thread, in batches: a slow server must not slow a step.

    Args:
        options: the configuration's tracking.mlflow.
        config: the whole configuration, whose leaves become the run's parameters.
        run_id: MLflow's id of the run to go on with; None begins one.
        run_name: name of a run that begins.
        say: takes a line when the server stops to answer (once).
    Raises:
        ClusterError: the server cannot be reached at the start.
    """

    _MAX_PARAMETER = 500  # characters, MLflow's limit for all of its stores

    def __init__(
        self,
        options: MlflowOptions,
        config: Config,
        *,
        run_id: str | None,
        run_name: str,
        say: Callable[[str], None],
    ) -> None:
        # Nothing of a run is told to MLflow's makers, unless the user says so.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        import mlflow
        from mlflow.exceptions import MlflowException

        logging.getLogger("mlflow").setLevel(logging.ERROR)
        self._error = MlflowException
        self._say = say
        try:
            with activity.at_most(_START_SECONDS):
                self._client = mlflow.MlflowClient(tracking_uri=options.uri)
                if run_id is None:
                    experiment = self._client.get_experiment_by_name(options.experiment)
                    number = (
                        experiment.experiment_id
                        if experiment
                        else self._client.create_experiment(options.experiment)
                    )
                    run_id = self._client.create_run(number, run_name=run_name).info.run_id
                    self._log_parameters(run_id, config)
                else:
                    self._client.update_run(run_id, status="RUNNING")
        except (MlflowException, OSError) as error:
            raise ClusterError(
                "the MLflow server cannot be used",
                where=f"tracking.mlflow.uri: {options.uri}",
                got=str(error).splitlines()[0],
                remedy="start it, mend the URI, or leave out tracking.mlflow",
            ) from None
        self.run_id = run_id
        self._waiting: list[Any] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._status: str | None = None
        self._warned = False
        self._thread = threading.Thread(target=self._loop, name="mlflow", daemon=True)
        self._thread.start()

    def _log_parameters(self, run_id: str, config: Config) -> None:
        from mlflow.entities import Param

        leaves = _leaves(config.model_dump(mode="json"))
        params = [Param(key, str(value)[: self._MAX_PARAMETER]) for key, value in leaves]
        for start in range(0, len(params), 100):  # MLflow's limit of a batch
            self._client.log_batch(run_id, params=params[start : start + 100])

    def log(self, step: int, values: dict[str, float]) -> None:
        """Note figures of a step; they are sent within two seconds."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        with self._lock:
            self._waiting += [Metric(name, value, now, step) for name, value in values.items()]

    def _loop(self) -> None:
        while not self._stop.wait(2.0):
            self._send()
        if self._status is None:  # the run goes on, by another process
            self._send()
        else:
            self._end(self._status)

    def _send(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting, []
        for start in range(0, len(batch), 1000):  # MLflow's limit of a batch
            try:
                self._client.log_batch(self.run_id, metrics=batch[start : start + 1000])
            except (self._error, OSError) as error:
                # Training goes on without the server: metrics.jsonl has every figure.
                if not self._warned:
                    self._say(f"warning: MLflow does not take figures: {error}".splitlines()[0])
                self._warned = True

    def let_go(self) -> None:
        """Have the thread send what is left and end; the run goes on, by another process."""
        self._stop.set()

    def close(self, status: str) -> None:
        """Send what is left and end MLflow's run; a server that does not answer is given up."""
        self._status = status
        self._stop.set()
        with activity.at_most(_CLOSE_SECONDS):
            self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            self._say(
                f"warning: MLflow does not answer within {_CLOSE_SECONDS:.0f} s: its run lacks the"
                " last figures and its end; metrics.jsonl has every figure"
            )

    def _end(self, status: str) -> None:
        self._send()
        state = {"finished": "FINISHED", "interrupted": "KILLED"}.get(status, "FAILED")
        try:
            self._client.set_terminated(self.run_id, status=state)
        except (self._error, OSError) as error:
            self._say(f"warning: MLflow's run could not be ended: {error}".splitlines()[0])


def _leaves(value: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, item in value.items():
        if isinstance(item, dict) and item:
            found += _leaves(item, f"{prefix}{key}.")
        else:
            found.append((prefix + key, item))
    return found
