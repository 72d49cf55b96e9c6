"""What the nodes of a cluster get from us, and the Spark settings that say so.

Nothing is installed there but Java (and not even that: `data.spark.java_archive`). The Python
environment, the wheel and, of our own PySpark, its jars lie in a staging directory on the
cluster's storage, each under its hash: uploaded once, localised once on each node.
"""

from __future__ import annotations

import getpass
import importlib.util
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from howdah import package, storage
from howdah.config_data import SparkOptions
from howdah.config_model import Config
from howdah.errors import ClusterError, ConfigError
from howdah.hadoop.conf import load as hadoop_settings

Progress = Callable[[str], None]

ENVIRONMENT = "environment"
"""Name of the unpacked Python environment in a container's working directory."""
PYTHON = f"./{ENVIRONMENT}/bin/python"
RUN = "HOWDAH_ETL_RUN"
"""Set in the container of a driver that spark-submit started: its directory on storage."""
_JAVA = "java_home"
_JAVA_PROGRAM = re.compile(r"(?:\./)?(?:([^/]+)/)?bin/java")
_CONTAINER_ENVIRONMENTS = ("spark.yarn.appMasterEnv", "spark.executorEnv")
_JARS = ("spark.yarn.archive", "spark.yarn.jars")


@dataclass(frozen=True, kw_only=True)
class Shipment:
    """Uploaded packages and the settings that bring them into containers."""

    directory: str
    """The staging directory."""
    conf: dict[str, str]


def spark_home(options: SparkOptions) -> str:
    """SPARK_HOME: `data.spark.home`, else that of the PySpark installed here.

    Raises:
        ConfigError: no Spark there.
        ClusterError: no PySpark is installed.
    """
    if options.home is None:
        found = importlib.util.find_spec("pyspark")
        if found is None or not found.submodule_search_locations:
            raise ClusterError(
                "Spark is not installed",
                expected="PySpark in this environment, or a Spark at data.spark.home",
                remedy="pip install pyspark, or set data.spark.home",
            )
        return found.submodule_search_locations[0]
    home = storage.local_path(options.home)
    if not os.path.isfile(os.path.join(home, "bin", "spark-submit")):
        raise ConfigError(
            "there is no Spark at data.spark.home",
            where=home,
            expected="a directory with bin/spark-submit and jars/",
            remedy="give the cluster's SPARK_HOME (often /opt/spark or /usr/lib/spark)",
        )
    return home


def on_yarn(options: SparkOptions) -> bool:
    """Whether the master is YARN."""
    return options.master == "yarn"


def staging(config: Config) -> str:
    """The staging directory: `data.spark.staging`, else .howdah in the user's home on HDFS.

    Raises:
        ConfigError: neither is known.
    """
    if config.data.spark.staging is not None:
        return config.data.spark.staging
    default_fs = hadoop_settings().known_default_fs()
    return storage.join(default_fs, "user", user(config), ".howdah")


def user(config: Config) -> str:
    """Whose home directory it is: the proxied user, else the principal's, else the login's."""
    if config.run.user:
        return config.run.user
    if config.data.spark.principal:
        return re.split("[/@]", config.data.spark.principal)[0]
    return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()


def ship(config: Config, kind: str, progress: Progress) -> Shipment:
    """Upload what is not there yet and return the settings for it.

    Args:
        kind: of the Python environment (`package_kinds.KINDS`).

    Raises:
        ConfigError, ClusterError, StorageError: something is missing or cannot be uploaded.
    """
    options = config.data.spark
    directory = storage.join(staging(config), "packages")
    environment = package.publish(package.environment(kind, progress=progress), directory, progress)
    wheel = package.publish(package.wheel(), directory, progress)
    archives = [f"{environment}#{ENVIRONMENT}"]
    conf = {
        "spark.yarn.dist.pyFiles": wheel,
        "spark.pyspark.python": PYTHON,
        "spark.executorEnv.PYTHONHASHSEED": "0",
        "spark.executorEnv.TOKENIZERS_PARALLELISM": "false",
        "spark.executor.memory": options.executor_memory,
        "spark.executor.cores": str(options.executor_cores),
        # A driver that failed has told why; YARN's second attempt would only hide it.
        "spark.yarn.maxAppAttempts": "1",
    }
    name = config.run.user or os.environ.get("HADOOP_USER_NAME")
    if name and not hadoop_settings().kerberos:
        # Without Kerberos a container says who it is; Python's storage would name the node's user.
        for prefix in _CONTAINER_ENVIRONMENTS:
            conf[f"{prefix}.HADOOP_USER_NAME"] = name
    if options.queue is not None:
        conf["spark.yarn.queue"] = options.queue
    if options.executors is not None:
        conf["spark.executor.instances"] = str(options.executors)
    if options.keytab is not None:
        conf["spark.kerberos.keytab"] = storage.local_path(options.keytab)
        conf["spark.kerberos.principal"] = options.principal
    if options.java_archive is not None:
        url = options.java_archive
        home = "/".join(filter(None, [".", _JAVA, java_inside(url)]))
        if storage.is_local(url):
            url = _publish_file(storage.local_path(url), directory, progress)
        archives.append(f"{url}#{_JAVA}")
        for prefix in _CONTAINER_ENVIRONMENTS:
            conf[f"{prefix}.JAVA_HOME"] = home
    conf["spark.yarn.dist.archives"] = ",".join(archives)
    if not _names_jars(options):
        jars = os.path.join(spark_home(options), "jars")
        archive = package.zipped(jars, "spark-jars", "*.jar", progress)
        conf["spark.yarn.archive"] = package.publish(archive, directory, progress)
    return Shipment(directory=directory, conf=conf)


def java_inside(archive: str) -> str:
    """The directory of an archive that holds bin/java: "" its root, else one folder, as vendors
    pack it.

    Raises:
        ConfigError: there is none.
    """
    with storage.open_read(archive) as file:
        try:
            if archive.lower().endswith(".zip"):
                found = _java_in(zipfile.ZipFile(file).namelist())
            else:
                with tarfile.open(fileobj=file, mode="r:*") as packed:
                    found = _java_in(member.name for member in packed)
            got = "none"
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
            found, got = None, str(error)
    if found is None:
        raise ConfigError(
            "the archive holds no Java",
            where=f"data.spark.java_archive {archive}",
            expected="a .tar.gz or .zip with bin/java at its root or in its one folder",
            got=got,
            remedy="give a JRE's or JDK's archive as its vendor packs it",
        )
    return found


def _java_in(names: Iterable[str]) -> str | None:
    for name in names:
        match = _JAVA_PROGRAM.fullmatch(name)
        if match is not None:
            return match.group(1) or ""
    return None


def _publish_file(path: str, directory: str, progress: Progress) -> str:
    """Upload a user's file under its hash; its ending, which tells the kind, stays."""
    return package.publish(package.of_file(path), directory, progress)


def _names_jars(options: SparkOptions) -> bool:
    """True if the cluster's Spark says itself where its jars lie on the cluster."""
    if any(key in options.conf for key in _JARS):
        return True
    if options.home is None:
        return False
    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(spark_home(options), "conf")
    try:
        with open(os.path.join(folder, "spark-defaults.conf"), encoding="utf-8") as file:
            return any(line.strip().startswith(_JARS) for line in file)
    except FileNotFoundError:
        return False


def refuse_own_paths(paths: Mapping[str, str]) -> None:
    """Plain paths are this machine's: containers do not see them.

    Args:
        paths: {key or option: path or URL}.

    Raises:
        ConfigError: with every such key at once.
    """
    own = {key: path for key, path in paths.items() if "://" not in path}
    if own:
        raise ConfigError(
            "on YARN a path must be one that every node sees",
            where=", ".join(own),
            expected="hdfs://..., or file://... on a file system that all nodes mount",
            got=", ".join(own.values()),
            remedy="put it on HDFS (hdfs dfs -put), and name its URL",
        )


def refuse_two_identities(config: Config) -> None:
    """Spark acts with a keytab or for a proxied user.

    Raises:
        ConfigError: both are given.
    """
    options = config.data.spark
    if config.run.user is not None and options.keytab is not None:
        raise ConfigError(
            "Spark takes a keytab or a proxied user, not both",
            where="run.user, data.spark.keytab",
            got=f"{config.run.user}, {options.keytab}",
            remedy="unset data.spark.keytab and data.spark.principal, and run kinit first",
        )
