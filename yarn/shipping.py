"""Packages for the nodes: Howdah's wheel, a Python environment, the user's files.

The staging directory stores each under its hash: it is uploaded once, used by all later jobs, and
localised once on each node by YARN.
"""

from __future__ import annotations

import time

from howdah import storage
from howdah.config.model import Config
from howdah.core.activity import Progress
from howdah.errors import ConfigError
from howdah.packaging import package
from howdah.packaging.cluster_paths import staging
from howdah.packaging.package import Package
from howdah.packaging.staging import PACKAGES, ready
from howdah.yarn.spec import ContainerFile, YarnShipment, file_names


def plan(
    config: Config, progress: Progress, *, kind: str | None = None
) -> tuple[YarnShipment, list[Package]]:
    """The packages of a job, built if they are not in the local cache. Nothing is uploaded.

    Args:
        kind: the environment's kind; None: the framework that trains.

    Raises:
        ConfigError: a file of `yarn.files` is missing, or its name is in use.
        ClusterError, StorageError: a package cannot be built.
    """
    directory = storage.join(staging(config, config.yarn), PACKAGES)
    wheel = package.wheel()
    packages = [wheel]
    environment = None
    if config.yarn.python is None:
        began = time.monotonic()
        made = package.environment(kind or config.training.framework, progress=progress)
        seconds = time.monotonic() - began
        progress(f"environment {made.name}: {made.size / 2**20:,.0f} MiB, ready in {seconds:.1f} s")
        packages.append(made)
        environment = ContainerFile(url=storage.join(directory, made.name), kind="archive")
    files = {}
    for name, path in file_names(config).items():
        if not storage.is_local(path):
            files[name] = ContainerFile(url=path)
            continue
        local = storage.local_path(path)
        if not storage.exists(local) or storage.is_dir(local):
            raise ConfigError(
                f"{path} is not a file",
                where="yarn.files",
                remedy="name files, not directories, on this machine or on the cluster's storage",
            )
        made = package.of_file(local)
        packages.append(made)
        files[name] = ContainerFile(url=storage.join(directory, made.name))
    shipment = YarnShipment(
        wheel=ContainerFile(url=storage.join(directory, wheel.name)),
        wheel_name=wheel.name,
        wheel_sha256=package.sha256(wheel.path),
        environment=environment,
        files=files,
    )
    return shipment, packages


def upload(config: Config, packages: list[Package], progress: Progress) -> None:
    """Upload the packages that are not in the staging directory yet.

    Raises:
        ConfigError: other users may write to the staging directory.
    """
    directory = ready(staging(config, config.yarn), "yarn.staging")
    for item in packages:
        began = time.monotonic()
        uploads: list[str] = []
        directory.put(item, uploads.append)
        if uploads:
            seconds = time.monotonic() - began
            progress(f"uploaded {item.name}: {item.size / 2**20:,.1f} MiB in {seconds:.1f} s")
