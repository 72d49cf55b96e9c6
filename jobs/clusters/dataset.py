"""Makes a job's dataset in the Spark application that then trains on it.

While the ETL runs, the job has a status and takes requests just as later under its driver
(jobs/driver), so that `howdah status`, `kill` and `submit --wait` need not distinguish the two.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from typing import Any

from howdah import storage
from howdah.config import loader
from howdah.config.model import Config
from howdah.core.activity import Progress
from howdah.errors import ConfigError, HowdahError, Interrupted, Terminated
from howdah.jobs import checks
from howdah.jobs.status.claim import Claim
from howdah.jobs.status.status_file import ETL, StatusFile, status_path
from howdah.spark.interrupts import interrupts

_EVENTS = 50
_LAST_STATUS_SECONDS = 30.0


def check(config: Config, progress: Progress) -> None:
    """Check the source and the tokenizer as far as that is possible without Spark.

    Raises:
        ConfigError, DataError, ModelError, StorageError: one of them is missing or unusable.
    """
    from howdah.etl import pipeline

    pipeline.prepare(config, progress)


def log(line: str) -> None:
    """Write a line into the driver's log.

    It goes to stderr, which escapes what the locale's encoding lacks; stdout would raise an error.
    """
    print(line, file=sys.stderr, flush=True)


def make(config: Config, path: str, application: str) -> None:
    """Make the dataset in this process's active session, unless it exists, and write its version
    into the configuration at `path`.

    Raises:
        HowdahError: the ETL's own error, which the job's status shows too.
    """
    from howdah.etl import pipeline

    stage = _Stage(config, application)
    with stage:
        result = pipeline.run(config, progress=stage.say)
        values = config.model_dump(mode="json")
        values["data"]["dataset"] = result.path
        trained = loader.from_dict(values)
        checks.dataset(trained)
        storage.write_whole(path, loader.dump_yaml(trained).encode(), mode=0o600)


class _Stage:
    """The job's status while the ETL runs; a request to stop ends the ETL as SIGTERM does."""

    def __init__(self, config: Config, application: str) -> None:
        self._config = config
        self._state, self._error = ETL, None
        self._code: int | None = None
        self._events: deque[dict[str, Any]] = deque(maxlen=_EVENTS)
        path = status_path(config.run.directory)
        claim = Claim(path, application=application, number=1, started=time.time())
        self._file = StatusFile(
            config.run.directory, claim=claim, status=self._status, on_request=self._request,
            say=self.say, superseded=lambda later: self._stop(),
        )  # fmt: skip
        self._interrupts = interrupts("the job, while its dataset was made,")

    def say(self, line: str) -> None:
        """Log a line as an event of the job and in the driver's log."""
        log(line)
        self._events.append({"time": time.time(), "what": line})
        self._file.touch()

    def __enter__(self) -> None:
        self._interrupts.__enter__()
        self._file.start()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            self._interrupts.__exit__(kind, error, trace)
        except HowdahError as stopped:
            self._end(stopped)
            raise
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            over = isinstance(error, Interrupted | Terminated)
            self._state = "killed" if over else "failed"
            self._code = 1
            if isinstance(error, HowdahError):
                self._error, self._code = error.as_dict(), error.exit_code
        self._file.close(_LAST_STATUS_SECONDS, None)

    def _status(self) -> dict[str, Any]:
        """The keys that readers of a job's status use (jobs/driver/job_status.py)."""
        return {
            "state": self._state, "wanted": self._config.job.workers, "world_size": 0,
            "generation": 0, "restarts": 0, "preemptions": 0, "step": None, "page": None,
            "last_checkpoint": None, "ranks": [], "lines": [], "events": list(self._events),
            "attempt": 1, "error": self._error, "exit_code": self._code, "updated": time.time(),
        }  # fmt: skip

    def _request(self, request: dict[str, Any]) -> None:
        if request.get("type") != "stop":
            raise ConfigError("the dataset is being made", expected="a request to stop")
        self._stop()

    def _stop(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
