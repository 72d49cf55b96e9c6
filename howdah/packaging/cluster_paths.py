"""Paths on the cluster's storage: which ones a job's ranks open, and whose home and staging
directory a submission uses.

One place for jobs on YARN (`yarn.*`) and applications of Spark (`data.spark.*`), whose sections
both have a `principal`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from howdah import storage
from howdah.config.data import SparkOptions
from howdah.config.model import Config
from howdah.config.types import UsedBy, mark_of
from howdah.config.yarn import YarnSection
from howdah.errors import ConfigError
from howdah.hadoop import conf as hadoop_conf
from howdah.hadoop.kerberos import short_name
from howdah.hadoop.web import current_user

Section = SparkOptions | YarnSection
_NO_CHECKPOINTS = ("auto", "never")


def of_ranks(config: Config) -> dict[str, str]:
    """{key: path} of what the ranks of a run read and write. A model may be a hub's name."""
    return paths_of(config, "ranks")


def paths_of(config: Config, used: UsedBy) -> dict[str, str]:
    """{key: path} of the paths that are set and that these processes open, by the types of the
    configuration's keys."""
    return {key: path for key, path in _paths(config, "", used) if path not in _NO_CHECKPOINTS}


def _paths(section: BaseModel, prefix: str, used: UsedBy) -> Iterator[tuple[str, str]]:
    for name, field in type(section).model_fields.items():
        value, key = getattr(section, name), prefix + name
        if isinstance(value, BaseModel):
            yield from _paths(value, f"{key}.", used)
            continue
        mark = mark_of(field)
        if mark is not None and mark.used == used:
            values = [value] if isinstance(value, str) else value or ()
            yield from ((key, path) for path in values)


def user(config: Config, section: Section) -> str:
    """The user of a submission: the proxied user, else the principal's, else the current one."""
    if config.run.user:
        return config.run.user
    if section.principal:
        return re.split("[/@]", section.principal)[0]
    if hadoop_conf.load().kerberos:
        return short_name() or current_user()
    return current_user()


def home(config: Config, section: Section) -> str:
    """.howdah in the user's home on the cluster's storage.

    Raises:
        ConfigError: fs.defaultFS is not known.
    """
    default_fs = hadoop_conf.load().known_default_fs()
    return storage.join(default_fs, "user", user(config, section), ".howdah")


def staging(config: Config, section: Section) -> str:
    """The staging directory: yarn.staging, else `home`.

    Raises:
        ConfigError: neither is known.
    """
    return config.yarn.staging or home(config, section)


def refuse_local(paths: Mapping[str, str]) -> None:
    """Refuse paths without a scheme: they are on this machine, where containers cannot read them.

    Args:
        paths: {key or option: path or URL}.
    Raises:
        ConfigError: with every such key at once.
    """
    local = {key: path for key, path in paths.items() if "://" not in path}
    if local:
        unknown = "; set HADOOP_CONF_DIR to the directory of the cluster's core-site.xml as well"
        unknown *= hadoop_conf.directory() is None
        raise ConfigError(
            "on YARN a path must be one that every node sees",
            where=", ".join(local),
            expected="hdfs://..., or file://... on a file system that all nodes mount",
            got=", ".join(local.values()),
            remedy="put it on HDFS (hdfs dfs -put), and name its URL" + unknown,
        )
