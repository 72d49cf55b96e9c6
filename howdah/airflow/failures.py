"""Howdah's errors as Airflow takes them: which of them a retry may mend, and what the log says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from howdah.airflow import require

require()

from airflow.sdk.exceptions import AirflowException, AirflowFailException  # noqa: E402

from howdah.errors import HowdahError, as_dict, render  # noqa: E402

__all__ = ["HowdahCommandFailed", "HowdahCommandRefused", "failed", "of_error"]

_HOPELESS = {1, 2, 3, 4}
"""Exit codes that the same command meets again: the gate, configuration, data, model."""


class HowdahCommandFailed(AirflowException):
    """A `howdah` command failed; a retry may do better (cluster, storage, a rank lost).

    Args:
        error: the error object of the command's --json: what, where, expected, got, remedy.
        code: its exit code.
    """

    def __init__(self, error: Mapping[str, Any], code: int) -> None:
        super().__init__(text_of(error))
        self.told = dict(error)
        self.code = code


class HowdahCommandRefused(HowdahCommandFailed, AirflowFailException):
    """A `howdah` command failed by what it was given: Airflow does not try again."""


def failed(error: Mapping[str, Any], code: int) -> HowdahCommandFailed:
    """The exception to raise for an error object and exit code of a command."""
    # A crash ends with 1 as well, without a word of its own: that may not happen again.
    hopeless = code in _HOPELESS and (code != 1 or "error" in error)
    return (HowdahCommandRefused if hopeless else HowdahCommandFailed)(error, code)


def of_error(error: HowdahError) -> HowdahCommandFailed:
    """The same for an error of Howdah's in this process."""
    return failed(as_dict(error), error.exit_code)


def text_of(error: Mapping[str, Any]) -> str:
    """What a user reads: the error object as `howdah` itself writes it."""
    fields = ("where", "expected", "got", "remedy")
    made = HowdahError(str(error.get("what")), **{key: error.get(key) for key in fields})
    if error.get("problems"):
        made.problems = [  # type: ignore[attr-defined]
            HowdahError(str(item.get("what")), **{key: item.get(key) for key in fields})
            for item in error["problems"]
        ]
    return render(made)
