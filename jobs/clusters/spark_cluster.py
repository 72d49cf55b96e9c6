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
from howdah.jobs.backend import DriverBackend
from howdah.jobs.clusters.cluster import DriverCluster, paths_of_ranks, say_what_is_shared
from howdah.jobs.driver.workers import GANG_ATTEMPTS
from howdah.packaging import cluster_paths
from howdah.spark import connectors, shipping, sizing
from howdah.storage import local_path

_AUTHENTICATED = ("spark.authenticate", "spark.network.crypto.enabled")
_NO_ROWS_MEMORY = "512m"
"""Of an executor's JVM that holds a rank alone: no row passes through it."""


class SparkCluster(DriverCluster):
    """A Spark session, of whatever master."""

    name = "spark"
    starting = "starting a Spark session"

    def check_cluster(self, progress: Progress) -> None:
        config = self.config
        if importlib.util.find_spec("pyspark") is None:
            raise ConfigError("PySpark is not installed", where="job.on: spark",
                              remedy="pip install 'howdah[etl]'")  # fmt: skip
        options = config.data.spark
        _refuse_other_sparks(config)
        if config.job.worker.gpus and "spark.executor.resource.gpu.amount" not in options.conf:
            raise ConfigError(
                "the session would give its tasks no GPU", where="job.worker.gpus",
                expected="data.spark.conf with spark.executor.resource.gpu.amount and its"
                " discoveryScript, which the cluster's administrator knows",
                got="1",
            )  # fmt: skip
        ours = for_spark(config, etl=self.etl)
        if other := sorted(key for key in ours if options.conf.get(key, ours[key]) != ours[key]):
            raise ConfigError(
                "the job's driver needs other settings of the session", where="data.spark.conf",
                expected=", ".join(f"{key}={ours[key]}" for key in other),
                got=", ".join(f"{key}={options.conf[key]}" for key in other),
                remedy="leave them out",
            )  # fmt: skip
        if _is_here(options.master):
            _fits(config)
            return
        if shipping.on_yarn(options):  # it makes the secret itself, and `for_spark` turns both on
            _on_yarn(config)
            return
        off = [key for key in _AUTHENTICATED if options.conf.get(key, "").lower() != "true"]
        if off:
            raise ConfigError(
                "the job's key would cross the network as anyone on it can read it",
                where="data.spark.conf",
                expected=f"{', '.join(off)}: true, spark.authenticate.secret as the cluster has it",
                got="not set",
                remedy="turn on Spark's authentication and encryption; there is no way without",
            )  # fmt: skip
        say_what_is_shared(config, progress)

    def where(self) -> str:
        return f"Spark, {self.config.data.spark.master}"

    @property
    def ranks_are_here(self) -> bool:
        own_python = os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable
        is_here = _is_here(self.config.data.spark.master)
        return super().ranks_are_here and own_python and is_here

    @property
    def keeps_schemes(self) -> bool:
        return shipping.on_yarn(self.config.data.spark)

    def queue_seconds(self) -> float:
        """A session on YARN starts when its queue has room: it may wait as workers may."""
        job = self.config.job
        return job.gang_seconds * GANG_ATTEMPTS if self.keeps_schemes else 0.0

    def prepare(self, progress: Progress) -> None:
        shipped_for_spark(self.config, etl=self.etl, progress=progress)

    @contextmanager
    def containers(
        self, path: str, application: str, directory: str, secret_env: Mapping[str, str]
    ) -> Iterator[DriverBackend]:
        from howdah.jobs.clusters.dataset import make, needs_hive
        from howdah.jobs.clusters.spark_place import SparkDriver
        from howdah.spark.session import session

        config, etl = self.config, self.etl
        shipped = shipped_for_spark(config, etl=etl, progress=print)
        hive = etl and needs_hive(config)
        name = f"howdah {config.run.name}"
        with session(config.data.spark, shipped=shipped, hive=hive, name=name) as spark:
            if etl:
                make(config, path, application)
            context = spark.sparkContext
            address = "127.0.0.1"
            if not _is_here(config.data.spark.master):
                address = socket.gethostbyname(context.getConf().get("spark.driver.host"))
            with open(path, encoding="utf-8") as file:  # by now it may name another dataset
                text = file.read()
            yield SparkDriver(
                context, application, directory, text, secret_env=secret_env, address=address
            )


def _refuse_other_sparks(config: Config) -> None:
    """The driver of the job holds the session: in this process, by the PySpark of this Python."""
    options = config.data.spark
    if options.deploy_mode != "client":
        raise ConfigError(
            "the job's driver holds the Spark session, on this machine",
            where="data.spark.deploy_mode", expected="client", got=options.deploy_mode,
        )  # fmt: skip
    own = shipping.spark_home(options.model_copy(update={"home": None}))
    if options.home is not None and not os.path.samefile(shipping.spark_home(options), own):
        raise ConfigError(
            "the job's driver uses the PySpark that is installed with it",
            where="data.spark.home", expected=own, got=local_path(options.home),
            remedy="leave it out, or install Howdah beside the PySpark of that version",
        )  # fmt: skip


def _on_yarn(config: Config) -> None:
    """Executors have what YARN gives them: shipped Python, paths of the cluster's storage."""
    if hadoop_conf.load().kerberos:
        raise ConfigError(
            "a job on Spark has no way to renew its Kerberos tokens in training processes",
            where="hadoop.security.authentication", expected="simple", got="kerberos",
            remedy="howdah submit --on yarn renews them",
        )  # fmt: skip
    cluster_paths.refuse_local(paths_of_ranks(config))


def _fits(config: Config) -> None:
    """A local Spark has as many slots as its master says; more workers would wait for ever."""
    cores = sizing.local_cores(config.data.spark.master)
    needed = config.job.fewest * config.job.worker.vcores
    if needed > cores:
        raise ConfigError(
            "the session has fewer cores than the job's workers need", where="data.spark.master",
            expected=f"at least {needed}: {config.job.fewest} workers of"
            f" {config.job.worker.vcores} threads",
            got=f"{config.data.spark.master} ({cores})",
            remedy=f"data.spark.master=local[{config.job.most * config.job.worker.vcores}]",
        )  # fmt: skip


def _is_here(master: str) -> bool:
    """True if a Spark of this master is processes of this machine, on loopback."""
    return master.startswith("local")


def for_spark(config: Config, *, etl: bool) -> dict[str, str]:
    """Settings that the session needs which holds a job's workers.

    Args:
        etl: it makes the dataset first.
    """
    settings = {
        "spark.speculation": "false",
        "spark.task.cpus": str(config.job.worker.vcores),
        "spark.scheduler.mode": "FAIR",
        "spark.dynamicAllocation.enabled": "false",
        "spark.python.task.killTimeout": "1s",
    }
    if not etl:
        # A worker that ends is replaced by the job's driver, which knows whether it should be. The
        # ETL's tasks may fail and be tried again; a worker's task that is ends at once (_Task).
        settings["spark.task.maxFailures"] = settings["spark.stage.maxConsecutiveAttempts"] = "1"
    if config.job.worker.gpus:
        settings["spark.task.resource.gpu.amount"] = "1"
    if shipping.on_yarn(config.data.spark):
        settings |= dict.fromkeys(_AUTHENTICATED, "true")
        settings |= _executors(config)
    return settings


def _executors(config: Config) -> dict[str, str]:
    """An executor a worker: YARN limits the memory of both together."""
    job = config.job
    instances = max(job.most, config.data.spark.executors or 0)
    return {
        "spark.executor.instances": str(instances),
        "spark.executor.cores": str(job.worker.vcores),
        sizing.OVERHEAD[0]: f"{job.worker.memory // 2**20}m",
        # By default two for each executor: how many may fail is job.max_restarts' to say.
        "spark.executor.maxNumFailures": str((job.restarts + job.attempts) * instances),
    }


def shipped_for_spark(config: Config, *, etl: bool, progress: Progress) -> dict[str, str]:
    """`for_spark`, and on YARN the settings that bring Python and Howdah to the nodes.

    Uploads what the cluster's storage does not have yet.
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
