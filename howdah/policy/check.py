"""Checks the input of a command, or the values of a form, against a policy (rules.py)."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from howdah import redact, storage
from howdah.config import loader as configs
from howdah.config.model import Config
from howdah.config.options.source import TABLE_NAME
from howdah.config.types import named_by
from howdah.errors import ConfigError, HowdahError
from howdah.hadoop import conf as hadoop
from howdah.policy.paths import Roots
from howdah.policy.rules import ANY, Policy

DECIDED = frozenset(
    {
        "run.directory", "job.on", "data.spark.master", "data.partitions", "data.append.enabled",
        "data.append.frozen", "data.append.part", "model.init_from", "gate.better_than_published",
    }
)  # fmt: skip
"""Keys that Airflow's tasks set themselves: the form checks whether they may be sent, by
`Judge.key`; their values are checked here as well."""

_OUR_TAG = re.compile(r"airflow-(config-)?[0-9a-f]{16}")
"""Tags that Airflow's tasks add (howdah/airflow/application/ownership.py)."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PUNCTUATION = frozenset(
    {"data.columns.separator", "data.csv.delimiter", "data.csv.escape", "data.csv.quote"}
)
"""Keys whose values may be a tab or a line break."""
_LISTS = {"user": "users", "queue": "queues", "master": "masters", "tracking": "mlflow_uris"}
"""The policy's list of the values of a kind that are allowed."""
_SHOWN = 200


class Judge:
    """A policy on the machine where the commands run.

    Args:
        policy: the policy.
        name: its name in error messages, unless it has one.
        env: the environment with HADOOP_CONF_DIR, which defines hdfs:///.
        directory: relative paths are relative to it; None: the working directory.
        paths: check paths; False: the commands run on another machine.
    """

    def __init__(
        self,
        policy: Policy,
        name: str = "the policy",
        *,
        env: Mapping[str, str] = os.environ,
        directory: str | None = None,
        paths: bool = True,
    ) -> None:
        self.policy = policy
        self.name = policy.name or name
        self._env = env
        self._paths = paths
        self._default: str | None = None
        self._roots = Roots(policy.roots, self._default_authority, directory)
        self._base = configs.from_dict(policy.defaults).model_dump(mode="json")

    def _default_authority(self) -> str | None:
        if self._default is None:
            self._default = hadoop.load(self._env).default_authority() or ""
        return self._default

    # ------------------------------------------------------------------------------- refusals
    def refuse(self, problems: Iterable[HowdahError]) -> None:
        """Raise ConfigError with these problems, if there are any."""
        refused = list(problems)
        if refused:
            raise ConfigError(
                "the installation's policy does not allow what was requested",
                problems=refused,
                where=self.name,
                remedy="request what is allowed, or have the administrator of this installation"
                " change its policy (`howdah config policy` explains its keys)",
            )

    def _no(
        self, key: str, rule: str, why: str, allowed: Iterable[str], got: Any = None
    ) -> HowdahError:
        values = ", ".join(allowed) or "none"
        return HowdahError(
            f"{key} is refused by the policy's rule `{rule}`: {why}", where=key,
            expected=f"{rule}: {values}", got=None if got is None else _shown(got),
        )  # fmt: skip

    # --------------------------------------------------------------------------- configuration
    def config(self, config: Config, *, sent: Iterable[str] = ()) -> Iterator[HowdahError]:
        """The values of a configuration that are not allowed.

        Args:
            sent: keys that a user has sent; an Airflow task may have set others (`DECIDED`).
        """
        if self.policy.trusted:
            return
        now, decided = config.model_dump(mode="json"), DECIDED - set(sent)
        for name, field in configs.keys():  # noqa: SIM118 - a module
            value, base = configs.value_at(now, name), configs.value_at(self._base, name)
            # The same source with another format is another source.
            same = value == base and not (
                name == "data.source" and config.data.format != self._base["data"]["format"]
            )
            if same or (name == "yarn.tags" and _only_ours(value, base)):
                continue
            if name.startswith("alerts."):
                yield from self._alert(name, str(value))
                continue
            if name not in decided:
                yield from self.key(name)
            if name == "tune.space":
                yield from self._space(value, base, config)
                continue
            if name not in _PUNCTUATION:
                yield from self.printable(name, value)
            yield from self._values(name, named_by(field), value, base, config)

    def _space(
        self, value: Mapping[str, Any], base: Mapping[str, Any], config: Config
    ) -> Iterator[HowdahError]:
        """A study's trials set other keys: each of their values is one that might be sent."""
        fields = dict(configs.keys())
        for name, dimension in value.items():
            if base.get(name) == dimension:
                continue
            yield from self.key(name)
            base_value = configs.value_at(self._base, name)
            for choice in dimension.get("choices") or ():
                yield from self.printable(f"tune.space: {name}", choice)
                if name in fields and choice != base_value:
                    yield from self._values(
                        name, named_by(fields[name]), choice, base_value, config
                    )

    def key(self, name: str) -> Iterator[HowdahError]:
        """A problem if a key, or a field of the form, may not be sent."""
        if not self.policy.may_send(name):
            yield self._no(name, "keys", "it may not be sent", self.policy.keys)

    def default_of(self, name: str) -> Any:
        """The value of a key that is not sent."""
        return configs.value_at(self._base, name)

    def printable(self, name: str, value: Any) -> Iterator[HowdahError]:
        """A problem if strings of a value have line breaks or control characters."""
        if self.policy.trusted:
            return
        bad = [text for text in _texts(value) if not text.isprintable()]
        if bad:
            yield HowdahError(
                f"{name} is refused by the policy: it holds characters that cannot be seen",
                where=name, expected="no line breaks and control characters", got=_shown(bad[0]),
            )  # fmt: skip

    def _values(
        self, name: str, kind: str | None, value: Any, base: Any, config: Config
    ) -> Iterator[HowdahError]:
        if kind is None:
            return
        if kind in ("setting", "variable"):
            # A list of names is checked like a mapping with these keys.
            entries, defaults = (
                dict.fromkeys(each, True) if isinstance(each, list) else each or {}
                for each in (value, base)
            )
            yield from self._entries(name, kind, entries, defaults)
            return
        if value is None:
            if kind in ("user", "queue"):  # None means the worker's own user, or the default queue
                rule = _LISTS[kind]
                yield self._no(name, rule, "it may not be emptied", getattr(self.policy, rule))
            return
        if kind == "query" and config.data.format == "jdbc" and ANY not in self.policy.jdbc_tables:
            why = "a query can read any table of the database"
            yield self._no(name, "jdbc_tables", why, [f"(a query needs {ANY})"])
        if isinstance(value, list):
            defaults = base or []
            for item in value:
                if item not in defaults:
                    yield from self.value(name, kind, item)
            return
        if kind == "source" and config.data.names_table:
            kind = "jdbc_table" if config.data.format == "jdbc" else "table"
        yield from self.value(name, kind, value)

    def _entries(
        self, name: str, kind: str, value: Mapping, base: Mapping
    ) -> Iterator[HowdahError]:
        """Problems of a mapping's entries: added, changed or left out."""
        rule = {"setting": "spark_conf", "variable": "env"}[kind]
        allowed = getattr(self.policy, rule)
        for entry in {**base, **value}:
            same = entry in value and entry in base and value[entry] == base[entry]
            if not same and entry not in allowed and ANY not in allowed:
                verb = "set" if entry in value else "left out"
                yield self._no(name, rule, f"{_shown(entry)} may not be {verb}", allowed)

    # --------------------------------------------------------------------------- single values
    def value(self, name: str, kind: str, value: str) -> Iterator[HowdahError]:
        """A problem if a string may not name this.

        Args:
            name: the key, or the command's option.
            kind: one of config.types.Kind; "rows": a table or files; "output": files or
                `table:NAME`.
        """
        if self.policy.trusted:
            return
        if kind in _LISTS:
            allowed = getattr(self.policy, _LISTS[kind])
            if value not in allowed and ANY not in allowed:
                yield self._no(name, _LISTS[kind], "it is not one of them", allowed, value)
            return
        judge: Callable[[str, str], Iterator[HowdahError]] = getattr(self, f"_{kind}")
        yield from judge(name, value)

    def _alert(self, name: str, value: str) -> Iterator[HowdahError]:
        """Commands and addresses that alerts go to: a user who may trigger a run must neither run
        a program as the worker's user nor send elsewhere what the installation is informed of."""
        why = "only the installation's own defaults say where alerts go"
        yield self._no(name, "trusted", why, ["the installation's defaults"])

    def _path(self, name: str, value: str) -> Iterator[HowdahError]:
        if self._paths and (why := self._roots.problem(value)) is not None:
            below = [f"below {root}" if root != ANY else ANY for root in self.policy.roots]
            yield self._no(name, "roots", why, below, value)

    _source = _path

    def _query(self, name: str, value: str) -> Iterator[HowdahError]:
        for rule in ("tables", "roots"):
            allowed = getattr(self.policy, rule)
            if ANY not in allowed:
                why = "a query can read any table and any file"
                yield self._no(name, rule, why, [*allowed, f"(a query needs {ANY})"])
        yield from self._path(name, value)

    def _checkpoint(self, name: str, value: str) -> Iterator[HowdahError]:
        if value not in ("auto", "never"):
            yield from self._path(name, value)

    def _model(self, name: str, value: str) -> Iterator[HowdahError]:
        """A directory if it exists, as when it is opened; else a hub name."""
        if not self._paths:
            return
        exists = storage.is_local(value) and os.path.isdir(self._roots.directory_of(value))
        if exists or not _HUB_NAME.fullmatch(value):
            yield from self._path(name, value)
        elif not any(_hub_match(value, each) for each in self.policy.hub_models):
            yield self._no(
                name, "hub_models", "it is not one of them", self.policy.hub_models, value
            )

    def _revision(self, name: str, value: str) -> Iterator[HowdahError]:
        if not _REVISION.fullmatch(value):
            why = "a revision such as refs/pr/1 may be from any user"
            yield self._no(name, "hub_models", why, ["a commit, a tag or a branch"], value)

    def _table(self, name: str, value: str) -> Iterator[HowdahError]:
        if not TABLE_NAME.fullmatch(value) or not any(
            _table_match(value, each) for each in self.policy.tables
        ):
            yield self._no(name, "tables", "it is not one of them", self.policy.tables, value)

    def _jdbc_table(self, name: str, value: str) -> Iterator[HowdahError]:
        """A table of the database whose URL is the worker's, not a Hive table of that name."""
        schema = value.rpartition(".")[0]
        if not TABLE_NAME.fullmatch(value) or not any(
            pattern in (ANY, value) or (schema and pattern == f"{schema}.{ANY}")
            for pattern in self.policy.jdbc_tables
        ):
            allowed = self.policy.jdbc_tables
            yield self._no(name, "jdbc_tables", "it is not one of them", allowed, value)

    def _rows(self, name: str, value: str) -> Iterator[HowdahError]:
        """`howdah predict` takes a bare name that is not a local file for a table."""
        table = TABLE_NAME.fullmatch(value) and not (
            self._paths and os.path.lexists(self._roots.directory_of(value))
        )
        yield from self._table(name, value) if table else self._path(name, value)

    def _output(self, name: str, value: str) -> Iterator[HowdahError]:
        if value.startswith("table:"):
            yield from self._table(name, value.removeprefix("table:"))
        else:
            yield from self._path(name, value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _only_ours(value: list[str], base: list[str]) -> bool:
    return all(tag in base or _OUR_TAG.fullmatch(tag) for tag in value) and set(base) <= set(value)


def _hub_match(name: str, pattern: str) -> bool:
    parts, pattern_parts = name.split("/"), pattern.split("/")
    return pattern == ANY or (
        len(parts) == len(pattern_parts) and all(map(fnmatch.fnmatchcase, parts, pattern_parts))
    )


def _table_match(name: str, pattern: str) -> bool:
    parts = name.lower().split(".")
    if len(parts) == 3 and parts[0] == "spark_catalog":
        parts = parts[1:]
    parts = ["default", *parts] if len(parts) == 1 else parts
    *databases, last = pattern.lower().split(".")
    return pattern == ANY or (parts[:-1] == databases and last in (ANY, parts[-1]))


def _shown(value: Any) -> str:
    """A value in a message, without secrets and shortened."""
    text = redact.text(repr(value))
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
