"""Howdah's errors as Airflow's exceptions: with or without a retry, and the text for the log."""

from __future__ import annotations

import howdah.airflow.required

from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from howdah.errors import HowdahError, render

_PERMANENT = {1, 2, 3, 4}
"""Exit codes that a retry would repeat: the gate, configuration, data, model."""


class HowdahCommandFailed(AirflowException):
    """A `howdah` command failed; a retry may succeed (cluster, storage, a rank lost).

    Args:
        error: the error object of the command's --json: what, where, expected, got, remedy.
        code: the command's exit code.
    """

    def __init__(self, error: Mapping[str, Any], code: int) -> None:
        super().__init__(render(HowdahError.from_dict(error)))
        self.details = dict(error)
        self.code = code


class HowdahCommandRefused(HowdahCommandFailed, AirflowFailException):
    """A `howdah` command refused its input: Airflow does not try again."""


def failed(error: Mapping[str, Any], code: int) -> HowdahCommandFailed:
    """The exception to raise for an error object and exit code of a command."""
    # A crash exits with 1 too, but without an error object: a retry may succeed.
    permanent = code in _PERMANENT and (code != 1 or "error" in error)
    return (HowdahCommandRefused if permanent else HowdahCommandFailed)(error, code)


def of_error(error: HowdahError) -> HowdahCommandFailed:
    """The exception to raise for a HowdahError of this process."""
    return failed(error.as_dict(), error.exit_code)
