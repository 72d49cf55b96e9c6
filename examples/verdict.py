"""The exit code of each example, from run.json, since some launchers hide a failure."""

from __future__ import annotations

import sys
from collections.abc import Callable

from howdah import storage
from howdah.config.loader import Config, load
from howdah.errors import HowdahError, NotFound, TrainingError, UsageError, render


def main(
    start: Callable[[str, Config], object],
    judge: Callable[[Config, dict, Exception | None], None] | None = None,
) -> int:
    """Train the configuration of the command line on a system; return the exit code.

    Args:
        start: starts the ranks from (path of the configuration, its values) and waits for their
            end.
        judge: raises TrainingError unless the training is complete, from (configuration, run.json
            before, exception of `start`); None: the new attempt in run.json must have finished.
    """
    try:
        if len(sys.argv) != 2:
            raise UsageError("expected one argument", expected=f"python {sys.argv[0]} CONFIG.yaml")
        config = load(sys.argv[1])
        before = _read(config)
        raised = None
        try:
            start(sys.argv[1], config)
        except HowdahError:
            raise
        except Exception as error:  # noqa: BLE001 - each system has its own types
            raised = error
        (judge or _judge)(config, before, raised)
    except HowdahError as error:
        print(f"{sys.argv[0]}: {render(error)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _read(config: Config) -> dict:
    try:
        return storage.read_json(storage.join(config.run.directory, "run.json"))
    except NotFound:
        return {}


def _judge(config: Config, before: dict, raised: Exception | None) -> None:
    """Raise TrainingError unless a new attempt has begun since `before`, and finished."""
    run = _read(config)
    begun = len(run.get("attempts", [])) > len(before.get("attempts", []))
    status = run.get("status", "no run.json") if begun else "no rank has begun the run"
    if status != "finished":
        lines = [type(raised).__name__, *str(raised).strip().splitlines()] if raised else [None]
        raise TrainingError(
            "training did not finish",
            where=storage.join(config.run.directory, "run.json"),
            expected="status: finished, of a new attempt",
            got=f"{status}: {run.get('error') or lines[-1] or 'the system reports no failure'}",
            remedy="see logs/rank.* in the run directory; a new start of Howdah's training resumes"
            " from its newest checkpoint",
        )
    print(f"finished: {run['steps']} steps, {config.run.directory}/run.json")
