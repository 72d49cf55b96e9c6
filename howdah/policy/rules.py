"""The policy of an installation that several users share, a YAML file: what they may request.

A user who may trigger a run in Airflow is not thereby trusted as the user that the workers run as.
The policy lists the keys of the configuration that users may send, and the paths, tables and so on
that these may name. It applies only to values that differ from the installation's defaults, which
its administrator has written. Howdah's commands check their input against it (`howdah --policy FILE
...`; howdah/policy/check.py), and Airflow's tasks pass them the one in force. docs/operations.md,
"Who may trigger what".
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError, field_validator

from howdah.config import loader as configs
from howdah.config import yaml_text
from howdah.config.form_keys import OPEN, OWN
from howdah.config.options.removed import replacement
from howdah.config.types import Section, described, help_text, problem_of
from howdah.errors import ConfigError
from howdah.policy.paths import shape_problem

ENVIRONMENT = "HOWDAH_AIRFLOW_POLICY"
"""Environment variable with the path of this installation's policy."""

ANY = "*"
"""The entry of a list of names that allows all of them."""

_TABLE = re.compile(r"\*|\w+(\.\w+)?\.(\w+|\*)", re.ASCII)
_JDBC_TABLE = re.compile(r"\*|\w+(\.(\w+|\*))?", re.ASCII)
_HUB = re.compile(r"[A-Za-z0-9][\w.*-]*(/[\w.*-]+)?", re.ASCII)


def _usual_keys() -> list[str]:
    return [*OWN, *OPEN, "training", "evaluation", "gate"]


class Policy(Section):
    """What users may send. Values that equal the installation's defaults are always allowed."""

    trusted: bool = False
    """true: every user who may trigger a run is trusted like the workers' own user, and can run
    code as that user. For a single user, or a team that shares everything. The other keys have no
    effect then."""
    keys: list[str] = Field(default_factory=_usual_keys)
    """Keys and sections of the configuration that may be sent, and fields of the form; '*': all.
    Their values are still checked against the lists below."""
    roots: list[str] = ["hdfs:///"]
    """Absolute directories that must contain every path: /data, hdfs:///data (hdfs:/// is
    fs.defaultFS, no other cluster), s3://bucket/x; '*': anywhere. Local paths are checked with
    symbolic links resolved, on the machine where commands run. The run_root of a Connection is
    always allowed."""
    hub_models: list[str] = [
        "distilbert-*", "distilbert/*", "bert-*", "google-bert/*", "roberta-*", "xlm-roberta-*",
        "FacebookAI/*",
    ]  # fmt: skip
    """Allowed models of the hub; '*' matches anything but '/'."""
    tables: list[str] = []
    """Hive tables that may be read and written, as database.table or database.*; '*': all. A query
    (data.query_file) can read any table and any file, so it needs '*' here and in `roots`."""
    jdbc_tables: list[str] = []
    """Tables of the database that the worker's data.jdbc.url_file or HOWDAH_JDBC_URL names, as
    schema.table, schema.* or table; '*': all. They are not Hive tables: `tables` does not permit
    them."""
    users: list[str] = []
    """Users that run.user, yarn.view_users, yarn.modify_users and principals may name; '*': all."""
    queues: list[str] = []
    """YARN queues; '*': all."""
    masters: list[str] = ["local[*]", "yarn"]
    """Spark masters, spelt as they are sent; '*': any."""
    mlflow_uris: list[str] = []
    """MLflow tracking URIs and projects of Weights & Biases, spelt as they are sent; '*': any."""
    conn_ids: list[str] | None = None
    """Airflow Connections of type howdah; '*': all. null: howdah_default, and those whose field
    `policy` names a policy of their own."""
    spark_conf: list[str] = []
    """Exact names of Spark settings that data.spark.conf may have; '*': any, which amounts to
    `trusted` (spark.driver.extraJavaOptions runs code)."""
    env: list[str] = []
    """Exact names of variables that job.env may have; '*': any, which amounts to `trusted`
    (LD_PRELOAD runs code)."""
    notifiers: list[str] = ["airflow.providers.*"]
    """Import paths of the notifiers that Airflow Connections may name, or a package and .*; '*':
    any, which amounts to `trusted` (importing a module runs its code)."""
    defaults: dict[str, Any] = {}
    """A partial configuration: a key is not checked if it has the value given here. Airflow's tasks
    put the form's defaults of the installation here."""
    name: str | None = None
    """Name of this policy in error messages; null: its file."""

    @field_validator("keys")
    @classmethod
    def _known_keys(cls, value: list[str]) -> list[str]:
        names = [name for name, _ in configs.keys()]  # noqa: SIM118 - a module
        sections = {n.rpartition(".")[0] for n in names} | {n.partition(".")[0] for n in names}
        for name in value:
            if name not in {ANY, *OWN, *names, *sections}:
                near = difflib.get_close_matches(name, [*names, *sections, *OWN], n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                if (sentence := replacement(name.split("."))) is not None:
                    hint = f"; it was removed: {sentence}"
                raise ValueError(f"there is no configuration key {name!r}{hint}")
        return value

    @field_validator("roots")
    @classmethod
    def _absolute(cls, value: list[str]) -> list[str]:
        for root in value:
            if root == ANY:
                continue
            problem = shape_problem(root)
            if problem is None and not root.startswith("/") and "://" not in root:
                problem = "it is relative, to a directory that differs between users"
            if problem is not None:
                raise ValueError(f"{root!r} cannot be a root: {problem}")
        return value

    @field_validator("tables", "jdbc_tables", "hub_models")
    @classmethod
    def _patterns(cls, value: list[str], info: Any) -> list[str]:
        shape, takes = {
            "tables": (_TABLE, "database.table, database.* or *"),
            "jdbc_tables": (_JDBC_TABLE, "schema.table, schema.*, table or *"),
            "hub_models": (_HUB, "a hub name, '*' in it, or *"),
        }[info.field_name]
        for entry in value:
            if entry != ANY and not shape.fullmatch(entry):
                raise ValueError(f"{entry!r} is not {takes}")
        return value

    @field_validator("defaults")
    @classmethod
    def _a_configuration(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            configs.from_dict(value, where="defaults")
        except ConfigError as error:
            raise ValueError("; ".join(str(each) for each in error.problems)) from None
        return value

    def may_notify_by(self, path: str) -> bool:
        """Whether a Connection may name the notifier with this import path."""
        return self.trusted or any(
            each in (ANY, path) or (each.endswith(".*") and path.startswith(each[:-1]))
            for each in self.notifiers
        )

    def may_send(self, key: str) -> bool:
        """Whether a key of the configuration, or a field of the form, may be sent."""
        return self.trusted or any(
            each == ANY or key == each or key.startswith(each + ".") for each in self.keys
        )


def load(path: str) -> Policy:
    """The policy in a file (any storage).

    Raises:
        ConfigError: with every problem at once. NotFound: no such file.
    """
    raw = yaml_text.read(path, "the policy")
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        raise ConfigError(
            "the policy is not a YAML mapping of its keys",
            where=path,
            got=type(raw).__name__,
            remedy="`howdah config policy` shows its keys",
        )
    return from_dict(raw, where=path)


def from_dict(raw: Mapping[str, Any], where: str = "policy") -> Policy:
    """A Policy of plain values; raises ConfigError with every problem at once."""
    try:
        return Policy.model_validate(dict(raw))
    except ValidationError as error:
        problems = [problem_of(item, Policy, "key") for item in error.errors()]
        raise ConfigError(
            f"{len(problems)} problem{'s' if len(problems) > 1 else ''} in the policy {where}",
            problems=problems,
            remedy="`howdah config policy` explains its keys",
        ) from None


def in_force(path: str | None = None, env: Mapping[str, str] = os.environ) -> tuple[Policy, str]:
    """The installation's policy, and where it comes from.

    Args:
        path: a file to use instead of $HOWDAH_AIRFLOW_POLICY; without both, the default is in
            force.
    Raises:
        ConfigError, NotFound: the file is not a policy, or does not exist.
    """
    path = path or env.get(ENVIRONMENT)
    if path:
        return load(path), path
    return Policy(), f"the default policy ({ENVIRONMENT} is not set)"


def to_yaml(policy: Policy) -> str:
    """The whole policy with its defaults, as YAML that `load` reads back the same."""
    return configs.to_yaml(policy.model_dump(mode="json"))


def explain(policy: Policy) -> list[dict[str, Any]]:
    """Each key of a policy: key, type, default, help, value."""
    return [
        {
            "key": name,
            "type": configs.type_text(field.annotation),
            "default": field.get_default(call_default_factory=True),
            "help": help_text(field),
            "value": getattr(policy, name),
        }
        for name, field in described(Policy).model_fields.items()
    ]
