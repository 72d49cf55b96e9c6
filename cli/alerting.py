"""Alerts for how a command ended (howdah/alerts.py)."""

from __future__ import annotations

from howdah.cli import common
from howdah.errors import HowdahError

_COMMANDS = {"drift", "etl", "gate", "publish", "score", "submit", "train", "tune"}
_NO_FAILURES = (0, 2, 130, 143)
"""Exit codes of success, wrong arguments and interruptions."""


def ended(command: str | None, error: BaseException | None, code: int) -> None:
    """Send an alert if a command has failed, where its configuration asks for one; after a success
    the next failure is news.

    Args:
        error: that it ended by; None: it has reported its error itself.
        code: its exit code.
    """
    config = common.loaded()
    if command not in _COMMANDS or config is None or not config.alerts.asks:
        return
    from howdah import alerts

    if error is None:
        if code == 0:
            alerts.succeeded(config, command, say=common.say)
        if code not in _NO_FAILURES:
            what = alerts.run_error(config) or f"howdah {command} ended with exit code {code}"
            alerts.of_error(config, command, HowdahError(what), say=common.say)
        return
    alerts.of_error(config, command, error, say=common.say)


def begun(command: str | None) -> None:
    """Look at the disk before a command that writes much."""
    config = common.loaded()
    if command in ("etl", "train") and config is not None and config.alerts.asks:
        from howdah import alerts

        alerts.low_disk(config, say=common.say)
