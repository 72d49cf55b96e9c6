"""What each place needs of the configuration, checked before a job starts; its files' names."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping

from howdah.config.model import Config
from howdah.core import machine
from howdah.core.activity import Progress
from howdah.errors import ConfigError
from howdah.hadoop import conf as hadoop_conf
from howdah.packaging import cluster_paths
from howdah.spark import connectors, shipping, sizing
from howdah.storage import is_local, local_path

__all__ = [
    "CHECKS", "CONFIG", "ETL", "JOB", "LOG", "VERDICT", "for_spark", "ranks_are_here",
    "shipped_for_spark", "spark_is_here",
]  # fmt: skip

CONFIG, JOB, LOG, VERDICT = "config.yaml", "application", "driver.log", "finish.json"
"""Files in a job's own directory."""
ETL = "--etl"
ATTENDED = "--attended"
"""The driver ends with the command that started it: its standard input then ends."""
"""The driver's argument: it makes the dataset first."""
_AUTHENTICATED = ("spark.authenticate", "spark.network.crypto.enabled")
_NO_ROWS_MEMORY = "512m"
"""Of an executor's JVM that holds a rank alone: no row passes through it."""


def _local(config: Config, etl: bool, progress: Progress) -> None:
    _refuse_etl(config, etl)
    threads = config.job.workers * config.job.worker.vcores
    if threads > machine.cores():
        progress(
            f"{config.job.workers} workers of {config.job.worker.vcores} threads share"
            f" {machine.cores()} cores"
        )


def _refuse_etl(config: Config, etl: bool) -> None:
    if etl:
        raise ConfigError(
            "--etl makes the dataset in the Spark application that then trains",
            where="--etl", expected="job.on: spark", got=f"job.on: {config.job.on}",
            remedy="--on spark; or run `howdah etl` first, and submit without --etl",
        )  # fmt: skip


def _spark(config: Config, etl: bool, progress: Progress) -> None:
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
    ours = for_spark(config, etl=etl)
    if other := sorted(key for key in ours if options.conf.get(key, ours[key]) != ours[key]):
        raise ConfigError(
            "the job's driver needs other settings of the session", where="data.spark.conf",
            expected=", ".join(f"{key}={ours[key]}" for key in other),
            got=", ".join(f"{key}={options.conf[key]}" for key in other), remedy="leave them out",
        )  # fmt: skip
    if spark_is_here(options.master):
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
    _shared(config, progress)


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
    cluster_paths.refuse_local(_paths(config))


def _paths(config: Config) -> dict[str, str]:
    """Paths that ranks use, by their keys; a model's name on the hub is not a path."""
    paths = cluster_paths.of_ranks(config)
    if not os.path.isdir(config.model.base):
        del paths["model.base"]
    return paths


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


def spark_is_here(master: str) -> bool:
    """Whether a Spark of this master is processes of this machine, on loopback."""
    return master.startswith("local")


def ranks_are_here(config: Config) -> bool:
    """Whether ranks run in the environment of this Python: what they need can be looked for."""
    job = config.job
    if "PYTHONPATH" in job.env:
        return False
    if job.on == "spark":
        own = os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable
        return own and spark_is_here(config.data.spark.master)
    return job.on == "local" or config.ray.address is None


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
        "spark.executor.maxNumFailures": str((job.max_restarts + job.attempts) * instances),
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


def _ray(config: Config, etl: bool, progress: Progress) -> None:
    _refuse_etl(config, etl)
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("Ray is not installed", where="job.on: ray",
                          remedy="pip install 'howdah[ray]'")  # fmt: skip
    if config.ray.address is None:
        return
    if os.environ.get("RAY_USE_TLS") != "1":
        progress(
            "WARNING: without RAY_USE_TLS=1 the job's key crosses the network to Ray's nodes"
            " unencrypted: use a network of your own (docs/places.md)"
        )
    _shared(config, progress)


def _shared(config: Config, progress: Progress) -> None:
    """Local paths mean the same on every machine only where a file system is shared."""
    local = [key for key, path in _paths(config).items() if is_local(path)]
    if local:
        progress(f"{', '.join(local)}: every machine must have this path (a shared file system)")


CHECKS: Mapping[str, Callable[[Config, bool, Progress], None]] = {
    "local": _local, "spark": _spark, "ray": _ray,
}  # fmt: skip
"""{place: its check of (configuration, whether its job makes the dataset first, progress)}; what it
raises is reported with all other problems."""
