"""What a Connection of type "howdah" says: where commands run, and what they find there."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from howdah.config_types import Section
from howdah.errors import ConfigError, HowdahError

__all__ = ["ConnectionSettings", "form_fields", "from_extra"]


class ConnectionSettings(Section):
    """The extra fields of a Connection; none given: this machine, without a cluster."""

    backend: Literal["local", "yarn"] = "local"
    """Where training runs unless the run says otherwise: this machine, or YARN."""
    command: str | None = None
    """The howdah program, an absolute path or a name on the PATH; none: the one beside Airflow's
    Python (on an edge node: `howdah`)."""
    environment: dict[str, str] = Field(default={})
    """More environment variables of the program: HADOOP_CONF_DIR, JAVA_HOME..."""
    ssh_conn_id: str | None = None
    """SSH Connection of an edge node: the program runs there."""
    resourcemanager: list[str] = Field(default=[])
    """URLs of YARN's ResourceManager (of both, of a pair); none: as HADOOP_CONF_DIR says."""
    run_root: str | None = None
    """Where run directories lie, e.g. hdfs:///user/me/howdah/runs; none: howdah-runs in Airflow's
    home directory."""
    files_url: str | None = None
    """URL under which run_root can be read in a browser, for links to reports; none: a cluster's
    own pages."""
    working_directory: str | None = None
    """What relative paths of a configuration are relative to; none: Airflow's home directory (on
    an edge node: the login's)."""
    keytab: str | None = None
    """Keytab on Airflow's machines for asking a Kerberised ResourceManager; none: the ticket."""
    principal: str | None = None
    """Principal of the keytab."""

    @field_validator("*", mode="before")
    @classmethod
    def _left_empty(cls, value: Any, info: Any) -> Any:
        """A field that was left empty in Airflow's form comes as an empty text or null."""
        if value is None or (isinstance(value, str) and not value.strip()):
            return cls.model_fields[info.field_name].get_default()
        return value

    @field_validator("environment", mode="before")
    @classmethod
    def _environment(cls, value: Any) -> Any:
        return _parsed(value, "{")

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
        for name in value:
            if not (name.isascii() and name.isidentifier()):
                raise ValueError(f"no name of an environment variable: {name!r}")
        return value

    @model_validator(mode="after")
    def _together(self) -> ConnectionSettings:
        if (self.keytab is None) != (self.principal is None):
            raise ValueError("give keytab and principal together, or neither")
        if self.ssh_conn_id is not None and self.run_root is None:
            raise ValueError(
                "an edge node (ssh_conn_id) needs run_root: this machine's directories are not its"
            )
        return self


def _parsed(value: Any, bracket: str) -> Any:
    """A text that holds JSON as what it holds: Airflow's form hands objects on so."""
    if isinstance(value, str) and value.strip().startswith(bracket):
        return json.loads(value)
    return value


def from_extra(extra: Mapping[str, Any], conn_id: str) -> ConnectionSettings:
    """The extra fields, checked.

    Raises:
        ConfigError: with every problem; an unknown field names the nearest known one. Values are
            not shown: one of them may be a secret.
    """
    try:
        return ConnectionSettings.model_validate(dict(extra))
    except ValidationError as error:
        problems = [_problem(item) for item in error.errors(include_input=False)]
        raise ConfigError(
            f"the Airflow Connection {conn_id} is not what Howdah takes",
            problems=problems,
            remedy="Admin > Connections shows the fields and what they mean",
        ) from None


def _problem(item: Any) -> HowdahError:
    place = ".".join(str(part) for part in item["loc"]) or None
    if item["type"] == "extra_forbidden":
        known = list(ConnectionSettings.model_fields)
        near = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        return HowdahError(f"unknown field {item['loc'][-1]!r}", where=place, remedy=remedy)
    return HowdahError(item["msg"].removeprefix("Value error, "), where=place)


_TYPES: dict[str, dict[str, Any]] = {
    "backend": {"type": "string", "enum": ["local", "yarn"], "default": "local"},
    "environment": {"type": ["object", "null"]},
    "resourcemanager": {"type": ["array", "null"], "items": {"type": "string"}},
}


def form_fields() -> dict[str, Any]:
    """The fields as Airflow's page of Connections shows them."""
    return {
        name: {
            "label": name.replace("_", " ").capitalize(),
            "description": " ".join((field.description or "").split()),
            "schema": _TYPES.get(name, {"type": ["string", "null"]}),
        }
        for name, field in ConnectionSettings.model_fields.items()
    }
