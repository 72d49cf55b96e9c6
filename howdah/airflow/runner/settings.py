"""The fields of a Connection of type "howdah": the machine of the commands and their settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from howdah.config.types import Section, described, help_text, name_of_variable, problem_of
from howdah.errors import ConfigError


class NotifierSettings(Section):
    """An Airflow notifier and the events that it sends."""

    path: str = Field(pattern=r"^[A-Za-z_][\w.]*\.[A-Za-z_]\w*$")
    """Import path of its class: airflow.providers.smtp.notifications.smtp.SmtpNotifier."""
    events: list[Literal["failure", "drift"]] = Field(default=["failure", "drift"], min_length=1)
    """failure: a task has failed for good. drift: an alarm of howdah_daily."""
    arguments: dict[str, Any] = Field(default={})
    """Arguments of its class; texts may have Airflow's templates, and {{ howdah.what }}."""


class ConnectionSettings(Section):
    """The extra fields of a Connection; the defaults are this machine, without a cluster."""

    on: Literal["local", "yarn"] = "local"
    """Where a run trains if it does not set job.on: on this machine (local) or on YARN (yarn)."""
    command: str | None = None
    """The howdah program, an absolute path or a name on the PATH; empty: the one beside Airflow's
    Python (on an edge node: `howdah`)."""
    environment: dict[str, str] = Field(default={})
    """Additional environment variables of the program: HADOOP_CONF_DIR, JAVA_HOME..."""
    ssh_conn_id: str | None = None
    """SSH Connection of an edge node: the program runs there."""
    resourcemanager: list[str] = Field(default=[])
    """URLs of YARN's ResourceManager (of both, with high availability); empty: those of
    HADOOP_CONF_DIR."""
    run_root: str | None = None
    """Parent of the run directories, e.g. hdfs:///user/me/howdah/runs; empty: howdah-runs in
    Airflow's home directory."""
    files_url: str | None = None
    """URL under which a browser can read run_root, for links to reports; empty: links lead to the
    cluster's pages."""
    working_directory: str | None = None
    """Base of relative paths in a configuration; empty: Airflow's home directory (on an edge node:
    the login's)."""
    policy: str | None = None
    """Policy for values sent to DAGs with this Connection: a YAML file on Airflow's machines or on
    any storage; empty: the installation's ($HOWDAH_AIRFLOW_POLICY)."""
    keytab: str | None = None
    """Keytab on Airflow's machines for a Kerberised ResourceManager; empty: the process's
    ticket."""
    principal: str | None = None
    """Principal of the keytab."""
    notifiers: list[NotifierSettings] = Field(default=[])
    """Airflow's notifiers for failed tasks and drift alarms: [{"path": "airflow.providers...",
    "events": ["failure", "drift"], "arguments": {...}}]; the installation's policy limits them."""

    @field_validator("*", mode="before")
    @classmethod
    def _left_empty(cls, value: Any, info: Any) -> Any:
        """Replace an empty field, which Airflow's form sends as "" or null, by its default."""
        if value is None or (isinstance(value, str) and not value.strip()):
            return cls.model_fields[info.field_name].get_default()
        return value

    @field_validator("environment", mode="before")
    @classmethod
    def _environment(cls, value: Any) -> Any:
        return _parsed(value, "{")

    @field_validator("notifiers", mode="before")
    @classmethod
    def _notifiers(cls, value: Any) -> Any:
        return _parsed(value, "[")

    @field_validator("resourcemanager", mode="before")
    @classmethod
    def _urls(cls, value: Any) -> Any:
        value = _parsed(value, "[")
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, list):
            for url in value:
                if not str(url).startswith(("http://", "https://")):
                    raise ValueError(f"must be http://host:port or https://host:port, got {url!r}")
            return [str(url).rstrip("/") for url in value]
        return value

    @field_validator("environment")
    @classmethod
    def _names(cls, value: dict[str, str]) -> dict[str, str]:
        return {name_of_variable(name): each for name, each in value.items()}

    @model_validator(mode="after")
    def _together(self) -> ConnectionSettings:
        if (self.keytab is None) != (self.principal is None):
            raise ValueError("set both keytab and principal, or neither")
        if self.ssh_conn_id is not None and self.run_root is None:
            raise ValueError("an edge node (ssh_conn_id) needs run_root")
        return self


def _parsed(value: Any, bracket: str) -> Any:
    """The value of a JSON text: Airflow's form sends objects and lists as text."""
    if isinstance(value, str) and value.strip().startswith(bracket):
        return json.loads(value)
    return value


def from_extra(extra: Mapping[str, Any], conn_id: str) -> ConnectionSettings:
    """The extra fields, checked.

    Raises:
        ConfigError: with every problem, and the nearest name for an unknown field. Values are not
            shown, since they may be secrets.
    """
    try:
        return ConnectionSettings.model_validate(dict(extra))
    except ValidationError as error:
        problems = [
            problem_of(item, ConnectionSettings, "field")
            for item in error.errors(include_input=False)
        ]
        raise ConfigError(
            f"the Airflow Connection {conn_id} is not valid",
            problems=problems,
            remedy="see the fields' descriptions under Admin > Connections",
        ) from None


_TYPES: dict[str, dict[str, Any]] = {
    "on": {"type": "string", "enum": ["local", "yarn"], "default": "local"},
    "environment": {"type": ["object", "null"]},
    "resourcemanager": {"type": ["array", "null"], "items": {"type": "string"}},
    "notifiers": {"type": ["array", "null"], "items": {"type": "object"}},
}


def form_fields() -> dict[str, Any]:
    """The fields for Airflow's page of Connections."""
    return {
        name: {
            "label": name.replace("_", " ").capitalize(),
            "description": help_text(field),
            "schema": _TYPES.get(name, {"type": ["string", "null"]}),
        }
        for name, field in described(ConnectionSettings).model_fields.items()
    }
