"""Secrets of the installation's defaults: Airflow stores none of them, commands get all of them.

Airflow keeps a task's result, its rendered fields and a trigger's arguments in its database and
shows them on its pages. So the configuration that goes from task to task has no secrets (values
with secrets are refused: trigger_form.secrets), and each command gets them from the defaults of the
machine where its task runs.
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
        ConfigError: the defaults no longer have this value.
    """
    missing = list(redact.left_out_of(config))
    if not missing:
        return dict(config)
    defaults = trigger_form.sections(trigger_form.installed_defaults())
    installed = configs.from_dict(defaults, where="the installation's defaults")
    values = installed.model_dump(mode="json")
    whole = _merged(config, values, redact.plain(values))
    if missing := list(redact.left_out_of(whole)):
        raise ConfigError(
            "the installation's defaults no longer have secrets of this run",
            where=", ".join(missing),
            expected=f"the defaults that the run was triggered with ({trigger_form.DEFAULTS})",
            remedy="set the keys in the defaults again, or trigger a new run",
        )
    return whole


def _merged(value: Any, installed: Any, shown: Any) -> Any:
    """`value`, replaced by the `installed` value wherever it equals its `shown` form."""
    if value == shown:
        return installed
    if isinstance(value, Mapping) and isinstance(installed, Mapping):
        return {
            key: _merged(item, installed[key], shown[key]) if key in installed else item
            for key, item in value.items()
        }
    if isinstance(value, list) and isinstance(installed, list) and len(value) == len(installed):
        return [_merged(*items) for items in zip(value, installed, shown, strict=True)]
    return value
