"""How each example ends: by what stands in run.json, since some launchers hide a failure."""

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
    """Train the configuration of the command line on a system; the process's exit code.

    Args:
        start: starts the ranks by (path of the configuration, its values) and waits for their end.
        judge: raises TrainingError unless all is done, by (configuration, run.json before, what
            `start` has raised); None: the new attempt in run.json has finished.
    """
    try:
        if len(sys.argv) != 2:
            usage = f"python {sys.argv[0]} CONFIG.yaml"
            raise UsageError("one argument", expected=usage, got=" ".join(sys.argv[1:]))
        config = load(sys.argv[1])
        before = _read(config)
        raised = None
        try:
            start(sys.argv[1], config)
        except HowdahError:
            raise
        except Exception as error:  # noqa: BLE001 - each system has types of its own
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
    """Raise TrainingError unless ranks have begun after `before` was read, and finished."""
    found = _read(config)
    begun = len(found.get("attempts", [])) > len(before.get("attempts", []))
    status = found.get("status", "no run.json") if begun else "no rank has begun the run"
    if status != "finished":
        said = (str(raised).strip().splitlines() or [type(raised).__name__])[-1] if raised else None
        raise TrainingError(
            "training did not finish",
            where=storage.join(config.run.directory, "run.json"),
            expected="status: finished, of a new attempt",
            got=f"{status}: {found.get('error') or said or 'the system reports no failure'}",
            remedy="logs/rank.* in the run directory say why; start again: training by Howdah goes"
            " on from its newest checkpoint",
        )
    print(f"finished: {found['steps']} steps, {config.run.directory}/run.json")
