"""The plan of a mini cluster: its daemons, ports and settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tools.minicluster.maven.jars import HADOOP_VERSION

HOST = "localhost"  # in every address and Kerberos principal; resolves to loopback
SERVICE = "howdah"  # the name service of two NameNodes


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a mini cluster, kept in its state file.

    Attributes:
        directory: directory of all its files.
        jars: the directory of `jars.fetch`.
        hadoop: the version of Hadoop.
        user: the user of the daemons: HDFS's superuser, who may impersonate anyone.
        ports: {name: port}; the names are those of `daemons.ports_of`.
        node_memory_mb, node_vcores, node_gpus: resources of each NodeManager.
        extra: {"hdfs-site": {key: value}}, which override the settings here.
        kerberos: `kerberos.options`; None: simple authentication.
        ha: two NameNodes and two ResourceManagers (variants/availability.py).
        tls: web ports speak HTTPS (variants/web.py).
        own: {daemon: {site: {key: value}}}, the changes of `MiniCluster.reconfigure`.
    """

    directory: str
    jars: str
    java_home: str
    user: str
    ports: dict[str, int]
    datanodes: int = 3
    nodemanagers: int = 2
    hadoop: str = HADOOP_VERSION
    node_memory_mb: int = 6144
    node_vcores: int = 8
    node_gpus: int = 0
    extra: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    kerberos: dict[str, Any] | None = None
    ha: bool = False
    tls: bool = False
    own: dict[str, dict[str, dict[str, str]]] = dataclasses.field(default_factory=dict)

    def path(self, *parts: str) -> Path:
        """A path in the cluster's directory."""
        return Path(self.directory, *parts)

    @property
    def hadoop_home(self) -> Path:
        """HADOOP_HOME: bin/ with the launchers, etc/hadoop."""
        return self.path("hadoop")

    @property
    def conf_dir(self) -> Path:
        """HADOOP_CONF_DIR of clients."""
        return self.hadoop_home / "etc" / "hadoop"

    @property
    def authority(self) -> str:
        """The authority of hdfs:// URLs."""
        return SERVICE if self.ha else self.address("namenode")

    def address(self, port: str) -> str:
        """localhost:PORT of a port by its name."""
        return f"{HOST}:{self.ports[port]}"
