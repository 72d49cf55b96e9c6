"""What the nodes get from us: Howdah's wheel, a Python environment, the user's files.

Each lies on the cluster's storage under its hash: uploaded once, used by every job after it, and
localised once on each node by YARN.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from howdah import package, storage
from howdah.config_model import Config
from howdah.errors import ConfigError
from howdah.hadoop import conf as settings
from howdah.hadoop.kerberos import short_name
from howdah.hadoop.web import current_user
from howdah.package import Package
from yarn.spec import Shipment, Source, file_names

__all__ = ["plan", "staging", "upload"]

Progress = Callable[[str], None]


def staging(config: Config) -> str:
    """The staging directory: `yarn.staging`, else .howdah in the user's home on HDFS.

    Raises:
        ConfigError: neither is known.
    """
    return home(config) if config.yarn.staging is None else config.yarn.staging


def home(config: Config) -> str:
    """.howdah in the user's home on HDFS: where clients look who know an application's id alone.

    Raises:
        ConfigError: fs.defaultFS is not known.
    """
    default_fs = settings.load().known_default_fs()
    return storage.join(default_fs, "user", user(config), ".howdah")


def user(config: Config) -> str:
    """Whose job it is: the proxied user, else the principal's, else the login's."""
    if config.run.user:
        return config.run.user
    if config.yarn.principal:
        return re.split("[/@]", config.yarn.principal)[0]
    if settings.load().kerberos:
        return short_name() or current_user()
    return current_user()


def plan(config: Config, progress: Progress) -> tuple[Shipment, list[Package]]:
    """What is to be shipped, made where it is not in the cache; nothing is uploaded.

    Raises:
        ConfigError: `yarn.files` names two files alike.
        ClusterError, StorageError: a package cannot be made.
    """
    directory = storage.join(staging(config), "packages")
    wheel = package.wheel()
    packages = [wheel]
    environment = None
    if config.yarn.environment == "archive":
        started = time.monotonic()
        made = package.environment(config.training.framework, progress=progress)
        seconds = time.monotonic() - started
        progress(
            f"environment {made.name}: {made.size / 2**20:,.0f} MiB, ready in {seconds:.1f} s;"
            f" nodes need glibc {made.glibc} or newer"
        )
        packages.append(made)
        environment = Source(url=storage.join(directory, made.name), kind="archive")
    files = {}
    for name, path in file_names(config).items():
        if not storage.is_local(path):
            files[name] = Source(url=path)
            continue
        local = storage.local_path(path)
        if not storage.exists(local) or storage.is_dir(local):
            raise ConfigError(
                "a file to ship is not there",
                where="yarn.files",
                expected="a file",
                got=path,
                remedy="name files, not directories, of this machine or of the cluster's storage",
            )
        made = package.of_file(local)
        packages.append(made)
        files[name] = Source(url=storage.join(directory, made.name))
    shipment = Shipment(
        wheel=Source(url=storage.join(directory, wheel.name)),
        wheel_name=wheel.name,
        environment=environment,
        files=files,
    )
    return shipment, packages


def upload(config: Config, packages: list[Package], progress: Progress) -> None:
    """Put on the cluster's storage what is not there yet."""
    directory = storage.join(staging(config), "packages")
    for item in packages:
        started = time.monotonic()
        said: list[str] = []
        package.publish(item, directory, said.append)
        if said:
            seconds = time.monotonic() - started
            progress(f"uploaded {item.name}: {item.size / 2**20:,.1f} MiB in {seconds:.1f} s")
