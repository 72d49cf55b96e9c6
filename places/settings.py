"""What each place needs of the configuration, checked before a job starts; its files' names."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping

from howdah.config.model import Config
from howdah.core import machine
from howdah.errors import ConfigError
from howdah.storage import is_local

__all__ = ["CHECKS", "CONFIG", "JOB", "LOG", "VERDICT", "for_spark", "spark_is_here"]

CONFIG, JOB, LOG, VERDICT = "config.yaml", "application", "driver.log", "finish.json"
"""Files in a job's own directory."""
_AUTHENTICATED = ("spark.authenticate", "spark.network.crypto.enabled")

Progress = Callable[[str], None]


def _local(config: Config, progress: Progress) -> None:
    threads = config.job.workers * config.job.worker.vcores
    if threads > machine.cores():
        progress(
            f"{config.job.workers} workers of {config.job.worker.vcores} threads share"
            f" {machine.cores()} cores"
        )


def _spark(config: Config, progress: Progress) -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError("PySpark is not installed", where="job.on: spark",
                          remedy="pip install 'howdah[etl]'")  # fmt: skip
    options = config.data.spark
    if options.master == "yarn":
        raise ConfigError(
            "a job inside a Spark application on YARN is not built: YARN itself runs the job",
            where="data.spark.master", expected="local[N], local-cluster[...] or spark://...",
            got="yarn", remedy="howdah submit --on yarn",
        )  # fmt: skip
    if config.job.worker.gpus and "spark.executor.resource.gpu.amount" not in options.conf:
        raise ConfigError(
            "the session would give its tasks no GPU", where="job.worker.gpus",
            expected="data.spark.conf with spark.executor.resource.gpu.amount and its"
            " discoveryScript, which the cluster's administrator knows",
            got="1",
        )  # fmt: skip
    ours = for_spark(config)
    if other := sorted(key for key in ours if options.conf.get(key, ours[key]) != ours[key]):
        raise ConfigError(
            "the job's driver needs other settings of the session", where="data.spark.conf",
            expected=", ".join(f"{key}={ours[key]}" for key in other),
            got=", ".join(f"{key}={options.conf[key]}" for key in other), remedy="leave them out",
        )  # fmt: skip
    if spark_is_here(options.master):
        _fits(config)
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


def _fits(config: Config) -> None:
    """A local Spark has as many slots as its master says; more workers would wait for ever."""
    cores, needed = _slots(config.data.spark.master), config.job.fewest * config.job.worker.vcores
    if cores is not None and needed > cores:
        raise ConfigError(
            "the session has fewer cores than the job's workers need", where="data.spark.master",
            expected=f"at least {needed}: {config.job.fewest} workers of"
            f" {config.job.worker.vcores} threads",
            got=f"{config.data.spark.master} ({cores})",
            remedy=f"data.spark.master=local[{config.job.most * config.job.worker.vcores}]",
        )  # fmt: skip


def _slots(master: str) -> int | None:
    inside = master.partition("[")[2].rstrip("]")
    if not inside:
        return 1
    parts = [part.strip() for part in inside.split(",")]
    if master.startswith("local-cluster"):
        return int(parts[0]) * int(parts[1])
    return machine.cores() if parts[0] == "*" else int(parts[0])


def spark_is_here(master: str) -> bool:
    """Whether a Spark of this master is processes of this machine, on loopback."""
    return master.startswith("local")


def for_spark(config: Config) -> dict[str, str]:
    """Settings of the session that holds a job's workers."""
    settings = {
        # A worker that ends is replaced by the job's driver, which knows whether it should be.
        "spark.task.maxFailures": "1",
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.speculation": "false",
        "spark.task.cpus": str(config.job.worker.vcores),
        "spark.scheduler.mode": "FAIR",
        "spark.dynamicAllocation.enabled": "false",
        "spark.python.task.killTimeout": "1s",
    }
    if config.job.worker.gpus:
        settings["spark.task.resource.gpu.amount"] = "1"
    return settings


def _ray(config: Config, progress: Progress) -> None:
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
    paths = {
        "run.directory": config.run.directory, "data.dataset": config.data.dataset,
        "model.base": config.model.base if os.path.isdir(config.model.base) else None,
    }  # fmt: skip
    local = [key for key, path in paths.items() if path and is_local(path)]
    if local:
        progress(f"{', '.join(local)}: every machine must have this path (a shared file system)")


CHECKS: Mapping[str, Callable[[Config, Progress], None]] = {
    "local": _local, "spark": _spark, "ray": _ray,
}  # fmt: skip
"""{place: its check}; what it raises is reported with all other problems."""
