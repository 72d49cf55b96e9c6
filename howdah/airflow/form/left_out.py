"""Secrets of the installation's defaults: Airflow stores none of them, commands get all of them.

What a task returns, its rendered fields and a trigger's arguments are kept in Airflow's database
and shown on its pages. So the configuration that goes from task to task is without secrets (users
send none: trigger_form.secrets), and each command gets them from the defaults of the machine where
its task runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from howdah import redact
from howdah.airflow.form import trigger_form
from howdah.config import loader as configs
from howdah.errors import ConfigError


def leave_out(config: Mapping[str, Any]) -> dict[str, Any]:
    """A nested configuration without its secrets."""
    return redact.plain(config)


def put_back(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the secrets that this installation's defaults have.

    Raises:
        ConfigError: the defaults have another value by now, or none.
    """
    missing = list(redact.left_out_of(config))
    if not missing:
        return dict(config)
    defaults = trigger_form.sections(trigger_form.installed_defaults())
    known = configs.from_dict(defaults, where="the installation's defaults")
    values = known.model_dump(mode="json")
    whole = _merged(config, values, redact.plain(values))
    if missing := list(redact.left_out_of(whole)):
        raise ConfigError(
            "the installation's defaults no longer have secrets of this run",
            where=", ".join(missing),
            expected=f"the defaults that the run was triggered with ({trigger_form.DEFAULTS})",
            got=redact.LEFT_OUT,
            remedy="give the keys in the defaults again, or trigger a new run",
        )
    return whole


def _merged(value: Any, known: Any, shown: Any) -> Any:
    """`value`, with what is in `known` wherever it is equal to what is `shown` of that."""
    if value == shown:
        return known
    if isinstance(value, Mapping) and isinstance(known, Mapping):
        return {
            key: _merged(item, known[key], shown[key]) if key in known else item
            for key, item in value.items()
        }
    if isinstance(value, list) and isinstance(known, list) and len(value) == len(known):
        return [_merged(*items) for items in zip(value, known, shown, strict=True)]
    return value
