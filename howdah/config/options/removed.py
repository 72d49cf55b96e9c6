"""Configuration keys that no longer exist, and what stands in the place of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

REMOVED: dict[str, str] = {
    "alerts.webhook": "alerts.command gets the alert on its stdin: curl posts it to an address.",
    "alerts.webhook_file": (
        "alerts.command gets the alert on its stdin: curl reads the address from a file (--config)."
    ),
    "cost": (
        "run.json's `hours` has what a run has used, in hours of CPUs, vcores, GiB and GPUs: "
        "multiply them by your prices."
    ),
    "serve.shadow": "`howdah score --model NAME/v=4` classifies the same texts by another version.",
}
"""{key or section: one sentence that says what stands in its place}, in alphabetical order. The
loader, `--set`, a policy, a study's search space and the Airflow form refuse these keys with it."""


def replacement(path: Sequence[Any]) -> str | None:
    """The sentence of a removed key, or of a removed section that it was in; None for other keys.

    >>> replacement(["no", "such", "key"])
    """
    for count in range(len(path), 0, -1):
        if (sentence := REMOVED.get(".".join(str(part) for part in path[:count]))) is not None:
            return sentence
    return None
