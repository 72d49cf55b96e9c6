"""The exit code of each example, from run.json, since some launchers hide a failure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from howdah import storage
from howdah.config.loader import load
from howdah.config.model import Config
from howdah.errors import HowdahError, NotFound, TrainingError, UsageError, render
from howdah.models.runs import record
from howdah.run_files import RUN_JSON


def read_run(config: Config) -> dict:
    """run.json of the run directory; {} without one."""
    path = storage.join(config.run.directory, RUN_JSON)
    try:
        return storage.read_object(path, record.KEPT_SHAPE, remedy=record.REMEDY)
    except NotFound:
        return {}


def attempts_of(config: Config) -> list[dict]:
    """The attempts of run.json."""
    return read_run(config).get("attempts") or []


def require_new_attempt(config: Config, before: list[dict], raised: Exception | None) -> None:
    """Raise TrainingError unless a new attempt has begun since `before`, and finished."""
    run = read_run(config)
    begun = len(run.get("attempts") or []) > len(before)
    status = run.get("status", f"no {RUN_JSON}") if begun else "no rank has begun the run"
    if status != "finished":
        lines = [type(raised).__name__, *str(raised).strip().splitlines()] if raised else [None]
        raise TrainingError(
            "training did not finish",
            where=storage.join(config.run.directory, RUN_JSON),
            expected="status: finished, of a new attempt",
            got=f"{status}: {run.get('error') or lines[-1] or 'the system reports no failure'}",
            remedy="see logs/rank.* in the run directory; a new start of Howdah's training resumes"
            " from its newest checkpoint",
        )
    print(f"finished: {run['steps']} steps, {config.run.directory}/{RUN_JSON}")


def main(
    start: Callable[[str, Config], object],
    look: Callable[[Config], Any] = attempts_of,
    judge: Callable[[Config, Any, Exception | None], None] = require_new_attempt,
) -> int:
    """Train the configuration of the command line on a system; return the exit code.

    Args:
        start: starts the ranks from (path of the configuration, its values) and waits for their
            end.
        look: what the run directory has before the start, for `judge`.
        judge: raises TrainingError unless the training is complete, from (configuration, result of
            `look`, exception of `start`).
    """
    try:
        if len(sys.argv) != 2:
            raise UsageError("expected one argument", expected=f"python {sys.argv[0]} CONFIG.yaml")
        config = load(sys.argv[1])
        before = look(config)
        raised = None
        try:
            start(sys.argv[1], config)
        except HowdahError:
            raise
        except Exception as error:  # noqa: BLE001 - each system has its own types
            raised = error
        judge(config, before, raised)
    except HowdahError as error:
        print(f"{sys.argv[0]}: {render(error)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0
