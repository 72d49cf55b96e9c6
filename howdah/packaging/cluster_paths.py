"""Paths on the cluster's storage: whose home and staging directory a submission uses.

One place for jobs on YARN (`yarn.*`) and applications of Spark (`data.spark.*`), whose sections
both have `staging` and `principal`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from howdah import storage
from howdah.config.data import SparkOptions
from howdah.config.model import Config
from howdah.config.yarn import YarnSection
from howdah.errors import ConfigError
from howdah.hadoop import conf as hadoop_conf
from howdah.hadoop.kerberos import short_name
from howdah.hadoop.web import current_user

__all__ = ["home", "refuse_local", "staging", "user"]

Section = SparkOptions | YarnSection


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
    """The staging directory: the section's `staging`, else `home`.

    Raises:
        ConfigError: neither is known.
    """
    return home(config, section) if section.staging is None else section.staging


def refuse_local(paths: Mapping[str, str]) -> None:
    """Refuse paths without a scheme: they are on this machine, where containers cannot read them.

    Args:
        paths: {key or option: path or URL}.
    Raises:
        ConfigError: with every such key at once.
    """
    local = {key: path for key, path in paths.items() if "://" not in path}
    if local:
        raise ConfigError(
            "on YARN a path must be one that every node sees",
            where=", ".join(local),
            expected="hdfs://..., or file://... on a file system that all nodes mount",
            got=", ".join(local.values()),
            remedy="put it on HDFS (hdfs dfs -put), and name its URL",
        )
