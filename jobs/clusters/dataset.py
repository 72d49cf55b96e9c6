"""Makes a job's dataset in the Spark application that then trains on it.

While the ETL runs, the job has a status and takes requests just as later under its driver
(jobs/driver), so that `howdah status`, `kill` and `submit --wait` need not distinguish the two.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from howdah import storage
from howdah.config import loader
from howdah.config.model import Config
from howdah.core.activity import Progress
from howdah.errors import ConfigError, HowdahError, Interrupted, Terminated
from howdah.jobs import checks
from howdah.jobs.say import say
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


def make(config: Config, path: str, application: str) -> None:
    """Make the dataset in this process's active session, unless it exists, and write its version
    into the configuration at `path`.

    Raises:
        HowdahError: the ETL's own error, which the job's status shows too.
    """
    from howdah.etl import pipeline

    with _stage(config, application) as event:
        result = pipeline.run(config, progress=event)
        values = config.model_dump(mode="json")
        values["data"]["dataset"] = result.path
        trained = loader.from_dict(values)
        checks.dataset(trained)
        storage.write_whole(path, loader.dump_yaml(trained).encode(), mode=0o600)


@contextlib.contextmanager
def _stage(config: Config, application: str) -> Iterator[Progress]:
    """Write the job's status while the ETL runs inside; a request to stop ends it as SIGTERM does.

    Yields the function that logs a line, as an event of the job and in the driver's log.
    """
    events: deque[dict[str, Any]] = deque(maxlen=_EVENTS)
    end: dict[str, Any] = {"state": ETL, "error": None, "exit_code": None}

    def status() -> dict[str, Any]:
        """The keys that readers of a job's status use (jobs/driver/job_status.py)."""
        return {
            "wanted": config.job.workers, "world_size": 0, "generation": 0, "restarts": 0,
            "preemptions": 0, "step": None, "page": None, "last_checkpoint": None, "ranks": [],
            "lines": [], "events": list(events), "attempt": 1, "updated": time.time(), **end,
        }  # fmt: skip

    def event(line: str) -> None:
        say(line)
        events.append({"time": time.time(), "what": line})
        file.touch()

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def carry_out(request: dict[str, Any]) -> None:
        if request.get("type") != "stop":
            raise ConfigError("the dataset is being made", expected="a request to stop")
        stop()

    claim = Claim(
        status_path(config.run.directory), application=application, number=1, started=time.time()
    )
    file = StatusFile(
        config.run.directory, claim=claim, status=status, on_request=carry_out, say=event,
        superseded=lambda later: stop(),
    )  # fmt: skip
    try:
        with interrupts("the job, while its dataset was made,"):
            file.start()
            yield event
    except BaseException as error:
        stopped = isinstance(error, Interrupted | Terminated)
        end |= {"state": "killed" if stopped else "failed", "exit_code": 1}
        if isinstance(error, HowdahError):
            end |= {"error": error.as_dict(), "exit_code": error.exit_code}
        raise
    finally:
        file.close(_LAST_STATUS_SECONDS, None)
