"""Upload the packages that a cluster's nodes need, and make Spark's settings for them.

Nodes need only Java installed (and with `data.spark.java_archive` not even that). The Python
environment, the wheel and, for the installed PySpark, its jars are in a staging directory on the
cluster's storage, each under its hash: uploaded once, localised once on each node.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from howdah import storage
from howdah.config.data import SparkOptions
from howdah.config.model import Config
from howdah.core.activity import Progress
from howdah.errors import ClusterError, ConfigError
from howdah.hadoop import web
from howdah.hadoop.conf import load as hadoop_settings
from howdah.packaging import cluster_paths, package
from howdah.packaging.staging import Staging, ready
from howdah.spark import properties

ENVIRONMENT = "environment"
"""Name of the unpacked Python environment in a container's working directory."""
PYTHON = f"./{ENVIRONMENT}/bin/python"
RUN = "HOWDAH_ETL_RUN"
"""Variable of a driver that spark-submit has started in a container: its directory on storage."""
_JAVA = "java_home"
_AUTHORITIES = "authorities"
_JAVA_PROGRAM = re.compile(r"(?:\./)?(?:([^/]+)/)?bin/java")
_CONTAINER_ENVIRONMENTS = ("spark.yarn.appMasterEnv", "spark.executorEnv")
_JARS = ("spark.yarn.archive", "spark.yarn.jars")


@dataclass(frozen=True, kw_only=True)
class SparkShipment:
    """Uploaded packages and the settings that bring them into containers."""

    staging: Staging
    """Holds them."""
    conf: dict[str, str]


def spark_home(options: SparkOptions) -> str:
    """SPARK_HOME: `data.spark.home`, else that of the PySpark installed here.

    Raises:
        ConfigError: no Spark there.
        ClusterError: no PySpark is installed.
    """
    if options.home is None:
        spec = importlib.util.find_spec("pyspark")
        if spec is None or not spec.submodule_search_locations:
            raise ClusterError(
                "Spark is not installed",
                expected="PySpark in this environment, or a Spark at data.spark.home",
                remedy="pip install pyspark, or set data.spark.home",
            )
        return spec.submodule_search_locations[0]
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


def ship(
    config: Config, kind: str, progress: Progress, *, extra: Sequence[str] = ()
) -> SparkShipment:
    """Upload the packages that are missing; the packages' settings for Spark.

    Args:
        kind: of the Python environment (`packaging.kinds.KINDS`).
        extra: further distributions in it.

    Raises:
        ConfigError, ClusterError, StorageError: something is missing or cannot be uploaded, or
            others may write to the staging directory.
    """
    options = config.data.spark
    target = ready(cluster_paths.staging(config, options), "yarn.staging")
    environment = target.put(package.environment(kind, progress=progress, extra=extra), progress)
    wheel = target.put(package.wheel(), progress)
    archives = [f"{environment}#{ENVIRONMENT}"]
    conf = {
        "spark.yarn.dist.pyFiles": wheel,
        "spark.pyspark.python": PYTHON,
        "spark.executorEnv.PYTHONHASHSEED": "0",
        "spark.executorEnv.TOKENIZERS_PARALLELISM": "false",
        # Four failures of one task fail the job, so storage must outlast an outage within a task.
        **{f"spark.executorEnv.{k}": v for k, v in storage.patient_environment().items()},
        # What Python's workers write; tables of Spark's own keep the modes of their warehouse.
        f"spark.executorEnv.{storage.UMASK}": f"{0o777 & ~config.most_open:03o}",
        "spark.executor.memory": options.executor_memory,
        "spark.executor.cores": str(options.executor_cores),
        # A driver that fails reports the cause; a second attempt would only hide it.
        "spark.yarn.maxAppAttempts": "1",
        # Without it YARN says SUCCEEDED of an application whose driver's JVM was killed.
        "spark.yarn.am.clientModeTreatDisconnectAsFailed": "true",
    }
    name = config.run.user or os.environ.get("HADOOP_USER_NAME")
    if name and not hadoop_settings().kerberos:
        # Without Kerberos a process chooses its user; Python's would be the node's user.
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
            url = target.put(package.of_file(storage.local_path(url)), progress)
        archives.append(f"{url}#{_JAVA}")
        for prefix in _CONTAINER_ENVIRONMENTS:
            conf[f"{prefix}.JAVA_HOME"] = home
    if (authorities := web.authorities_file()) is not None:
        directory, name = os.path.split(authorities)
        url = target.put(package.zipped(directory, "authorities", glob.escape(name)), progress)
        archives.append(f"{url}#{_AUTHORITIES}")
        for prefix in _CONTAINER_ENVIRONMENTS:  # relative: Spark gives it to Python as it is
            conf[f"{prefix}.{web.TRUST}"] = f"./{_AUTHORITIES}/{name}"
    conf["spark.yarn.dist.archives"] = ",".join(archives)
    if not _names_jars(options):
        jars = os.path.join(spark_home(options), "jars")
        archive = package.zipped(jars, "spark-jars", "*.jar", progress)
        conf["spark.yarn.archive"] = target.put(archive, progress)
    return SparkShipment(staging=target, conf=conf)


def java_inside(archive: str) -> str:
    """The directory of an archive that holds bin/java: "" its root, else one folder, as vendors
    pack it.

    Raises:
        ConfigError: there is none.
    """
    with storage.open_read(archive) as file:
        try:
            if archive.lower().endswith(".zip"):
                java = _java_in(zipfile.ZipFile(file).namelist())
            else:
                with tarfile.open(fileobj=file, mode="r:*") as packed:
                    java = _java_in(member.name for member in packed)
            got = "none"
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
            java, got = None, str(error)
    if java is None:
        raise ConfigError(
            "the archive holds no Java",
            where=f"data.spark.java_archive {archive}",
            expected="a .tar.gz or .zip with bin/java at its root or in its one folder",
            got=got,
        )
    return java


def _java_in(names: Iterable[str]) -> str | None:
    for name in names:
        match = _JAVA_PROGRAM.fullmatch(name)
        if match is not None:
            return match.group(1) or ""
    return None


def _names_jars(options: SparkOptions) -> bool:
    """True if the cluster's Spark is configured with its jars' path on the cluster."""
    if any(key in options.conf for key in _JARS):
        return True
    if options.home is None:
        return False
    defaults = properties.defaults_of(spark_home(options), os.environ)
    return any(line.strip().startswith(_JARS) for line in defaults.splitlines())


def refuse_two_identities(config: Config) -> None:
    """Refuse a keytab together with a proxied user.

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
