"""Jobs on Spark: containers are tasks of a session that the job's driver holds."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from howdah.config.model import Config
from howdah.core.activity import Progress
from howdah.errors import ConfigError
from howdah.hadoop import conf as hadoop_conf
from howdah.jobs import checks
from howdah.jobs.backend import DriverBackend
from howdah.jobs.clusters.cluster import DriverCluster, say_what_is_shared
from howdah.jobs.driver.workers import GANG_ATTEMPTS
from howdah.jobs.say import say
from howdah.packaging import cluster_paths
from howdah.spark import connectors, shipping, sizing
from howdah.storage import local_path

_AUTHENTICATED = ("spark.authenticate", "spark.network.crypto.enabled")
_NO_ROWS_MEMORY = "512m"
"""Heap of an executor that only holds a rank: no rows pass through its JVM."""


class SparkCluster(DriverCluster):
    """A Spark session with any master."""

    name = "spark"
    starting = "starting a Spark session"

    def check_cluster(self, progress: Progress) -> None:
        config = self.config
        if importlib.util.find_spec("pyspark") is None:
            remedy = "pip install 'howdah[etl]'"
            raise ConfigError("PySpark is not installed", where="job.on: spark", remedy=remedy)
        options = config.data.spark
        _refuse_other_sparks(config)
        if config.job.worker.gpus and "spark.executor.resource.gpu.amount" not in options.conf:
            raise ConfigError(
                "the Spark session would not give its tasks a GPU",
                where="job.worker.gpus",
                expected="data.spark.conf with spark.executor.resource.gpu.amount and its"
                " discoveryScript, which the cluster's administrator knows",
            )
        ours = for_spark(config, etl=self.etl)
        if other := sorted(key for key in ours if options.conf.get(key, ours[key]) != ours[key]):
            raise ConfigError(
                "the job's driver sets these keys of the session itself",
                where="data.spark.conf",
                expected=", ".join(f"{key}={ours[key]}" for key in other),
                remedy="leave them out",
            )
        if _is_here(options.master):
            _fits(config)
            return
        if shipping.on_yarn(options):  # YARN makes the secret, and `for_spark` turns on both keys
            _on_yarn(config)
            return
        off = [key for key in _AUTHENTICATED if options.conf.get(key, "").lower() != "true"]
        if off:
            raise ConfigError(
                "Spark would send the job's key over the network without encryption",
                where="data.spark.conf",
                expected=f"{', '.join(off)}: true, and the cluster's spark.authenticate.secret",
            )
        say_what_is_shared(config, progress)

    def where(self) -> str:
        return f"Spark, {self.config.data.spark.master}"

    @property
    def ranks_are_here(self) -> bool:
        same_python = os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable
        is_here = _is_here(self.config.data.spark.master)
        return super().ranks_are_here and same_python and is_here

    @property
    def keeps_schemes(self) -> bool:
        return shipping.on_yarn(self.config.data.spark)

    def queue_seconds(self) -> float:
        """How long a session on YARN may wait for room in its queue: as long as workers may."""
        job = self.config.job
        return job.gang_seconds * GANG_ATTEMPTS if self.keeps_schemes else 0.0

    def prepare(self, progress: Progress) -> None:
        shipped_for_spark(self.config, etl=self.etl, progress=progress)

    @contextmanager
    def containers(
        self, path: str, application: str, directory: str, secret_env: Mapping[str, str]
    ) -> Iterator[DriverBackend]:
        from howdah.etl import pipeline
        from howdah.jobs.clusters.dataset import make
        from howdah.jobs.clusters.spark_driver import SparkDriver
        from howdah.spark.session import session

        config, etl = self.config, self.etl
        shipped = shipped_for_spark(config, etl=etl, progress=say)
        hive = etl and pipeline.needs_hive(config)
        name = f"howdah {config.run.name}"
        with session(config.data.spark, shipped=shipped, hive=hive, name=name) as spark:
            if etl:
                make(config, path, application)
            context = spark.sparkContext
            address = "127.0.0.1"
            if not _is_here(config.data.spark.master):
                address = socket.gethostbyname(context.getConf().get("spark.driver.host"))
            with open(path, encoding="utf-8") as file:  # read after `make`, which may change it
                text = file.read()
            yield SparkDriver(
                context, application, directory, text, secret_env=secret_env, address=address
            )


def _refuse_other_sparks(config: Config) -> None:
    """Refuse a Spark home or deploy mode that this Python's PySpark cannot serve in this process,
    since the job's driver holds the session."""
    options = config.data.spark
    if options.deploy_mode != "client":
        raise ConfigError(
            "the job's driver holds the Spark session, on this machine",
            where="data.spark.deploy_mode",
            expected="client",
        )
    home = shipping.spark_home(options.model_copy(update={"home": None}))
    if options.home is not None and not os.path.samefile(shipping.spark_home(options), home):
        raise ConfigError(
            f"the job's driver can only use the PySpark that is installed with it, {home}",
            where=f"data.spark.home: {local_path(options.home)}",
            remedy="leave it out, or install Howdah beside the PySpark of that version",
        )


def _on_yarn(config: Config) -> None:
    """Check what executors on YARN cannot have: Kerberos tokens that last, and local paths."""
    if hadoop_conf.load().kerberos:
        raise ConfigError(
            "a job on Spark cannot renew the Kerberos tokens of its training processes",
            where="hadoop.security.authentication",
            remedy="use howdah submit --on yarn, which renews them",
        )
    cluster_paths.refuse_local(checks.paths_of_ranks(config))


def _fits(config: Config) -> None:
    """Check that a local Spark has a core per worker thread; other workers would wait for ever."""
    cores = sizing.local_cores(config.data.spark.master)
    required = config.job.fewest * config.job.worker.vcores
    if required > cores:
        raise ConfigError(
            "the session has fewer cores than the job's workers need",
            where=f"data.spark.master: {config.data.spark.master}",
            expected=f"at least {required} cores",
            remedy=f"data.spark.master=local[{config.job.most * config.job.worker.vcores}]",
        )


def _is_here(master: str) -> bool:
    """True if a Spark with this master runs on this machine alone, on loopback."""
    return master.startswith("local")


def for_spark(config: Config, *, etl: bool) -> dict[str, str]:
    """Settings that a session needs to hold a job's workers.

    Args:
        etl: the session makes the dataset first.
    """
    settings = {
        "spark.speculation": "false",
        "spark.task.cpus": str(config.job.worker.vcores),
        "spark.scheduler.mode": "FAIR",
        "spark.dynamicAllocation.enabled": "false",
        "spark.python.task.killTimeout": "1s",
    }
    if not etl:
        # Spark must not retry a worker: the job's driver decides whether to replace it. Tasks of
        # an ETL may be retried; there a retried worker's task ends at once (_Task).
        settings["spark.task.maxFailures"] = settings["spark.stage.maxConsecutiveAttempts"] = "1"
    if config.job.worker.gpus:
        settings["spark.task.resource.gpu.amount"] = "1"
    if shipping.on_yarn(config.data.spark):
        settings |= dict.fromkeys(_AUTHENTICATED, "true")
        settings |= _executors(config)
    return settings


def _executors(config: Config) -> dict[str, str]:
    """Settings for one executor per worker; YARN limits the memory of both together."""
    job = config.job
    instances = max(job.most, config.data.spark.executors or 0)
    return {
        "spark.executor.instances": str(instances),
        "spark.executor.cores": str(job.worker.vcores),
        sizing.OVERHEAD[0]: f"{job.worker.memory // 2**20}m",
        # Spark allows two failures for each executor by default; job.max_restarts decides instead.
        "spark.executor.maxNumFailures": str((job.restarts + job.attempts) * instances),
    }


def shipped_for_spark(config: Config, *, etl: bool, progress: Progress) -> dict[str, str]:
    """The settings of `for_spark`, and on YARN those that ship Python and Howdah to the nodes.

    Uploads the archives that the cluster's storage does not have yet.
    """
    shipped: dict[str, str] = {}
    if shipping.on_yarn(config.data.spark):
        extra = ("pandas",) if etl else ()
        framework = config.training.framework
        shipped = shipping.ship(config, framework, progress, extra=extra).conf
        if not etl:
            shipped["spark.executor.memory"] = _NO_ROWS_MEMORY
    if etl:
        shipped |= connectors.settings(config, progress)
    return {**shipped, **for_spark(config, etl=etl)}
