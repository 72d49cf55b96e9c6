"""Limits that are no keys of the configuration, for the processes that a test starts."""

import json

from howdah.core.processes import LIMITS as VARIABLE


def divided(settings: dict) -> tuple[dict, dict[str, str]]:
    """(keys, environment with the limits) of {"limit.NAME" or a key of the configuration:
    value}."""
    small = {key.removeprefix("limit."): settings[key] for key in settings if _is_limit(key)}
    keys = {key: value for key, value in settings.items() if not _is_limit(key)}
    return keys, {VARIABLE: json.dumps(small)} if small else {}


def _is_limit(key: str) -> bool:
    return key.startswith("limit.")
