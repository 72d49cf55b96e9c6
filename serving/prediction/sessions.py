"""Spark sessions whose executors have a model: on this machine, or shipped to a cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from howdah.config.data import SparkOptions
from howdah.config.model import Config
from howdah.core.activity import Progress
from howdah.errors import ClusterError, ConfigError
from howdah.serving.prediction.cluster import ModelFiles, environment_kind, memory_overhead_mib
from howdah.serving.prediction.executor import ModelLocation
from howdah.spark import applications, shipping
from howdah.spark.session import SparkApplication, is_local_master, session
from howdah.spark.sizing import OVERHEAD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BATCHES = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2048",
    # Spark 4.1 and newer: fewer rows per batch if texts are megabytes long.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(32 * 2**20),
}
"""Size of the batches that a Python worker gets."""
_DIST_FILES = "spark.yarn.dist.files"


def refuse_other_spark(options: SparkOptions) -> None:
    """Refuse a `data.spark.home` that is not the installed PySpark.

    Raises:
        ConfigError: it is another Spark.
    """
    if options.home is not None and not os.path.samefile(
        shipping.spark_home(options),
        shipping.spark_home(options.model_copy(update={"home": None})),
    ):
        raise ConfigError(
            "predictions run with the PySpark that is installed here",
            where="data.spark.home",
            got=options.home,
            remedy="leave it out (--set data.spark.home=null): Spark's jars are shipped to YARN",
        )


@contextlib.contextmanager
def explained(config: Config) -> Iterator[None]:
    """Add YARN's diagnostics of the application to a ClusterError."""
    options = config.data.spark
    try:
        yield
    except ClusterError as error:
        if shipping.on_yarn(options):
            home = shipping.spark_home(options)
            hadoop = applications.Hadoop(spark_home=home, env={**os.environ, "SPARK_HOME": home})
            applications.explain(error, hadoop, config.run.user)
        raise


@contextlib.contextmanager
def ready(
    model: ModelFiles, config: Config, framework: str, progress: Progress, *, hive: bool, name: str
) -> Iterator[tuple[SparkSession, ModelLocation, str | None]]:
    """Yield a session, the model's location in its Python workers, and its application id on YARN.

    It is the active session if there is one, else a new one for this call.

    Args:
        hive: the session needs the Hive metastore.
        name: name of the application.
    """
    try:
        from pyspark import SparkContext
    except ImportError:
        raise ClusterError(
            "Spark is not installed",
            where=f"--master {config.data.spark.master}",
            remedy="install pyspark, or give files and no --master",
        ) from None
    options = config.data.spark
    started: list[SparkApplication] = []

    def announce(application: SparkApplication) -> None:
        started.append(application)
        if shipping.on_yarn(options):
            progress(f"application {application.id}, its pages: {application.ui}")

    shipped: dict[str, str] = {}
    running = SparkContext._active_spark_context  # the caller's session
    if running is None and shipping.on_yarn(options):
        options, shipped = _shipped(config, model, framework, progress)
    local = is_local_master(options.master if running is None else running.master)
    with contextlib.ExitStack() as stack:
        spark = stack.enter_context(
            session(
                options, hive=hive, shipped=shipped, user=config.run.user, ready=announce, name=name
            )
        )
        stack.enter_context(_batches(spark, options, restored=running is not None))
        if not local and not shipped:
            stack.enter_context(model.added_to(spark.sparkContext))
        application = started[0].id if shipping.on_yarn(options) and started else None
        yield spark, model.location(shipped=not local), application


@contextlib.contextmanager
def _batches(spark: SparkSession, options: SparkOptions, *, restored: bool) -> Iterator[None]:
    """Set batch sizes to `_BATCHES`, unless the user's settings set them."""
    before = {key: spark.conf.get(key, None) for key in _BATCHES if key not in options.conf}
    for key in before:
        spark.conf.set(key, _BATCHES[key])
    try:
        yield
    finally:
        if restored:
            for key, value in before.items():
                spark.conf.unset(key) if value is None else spark.conf.set(key, value)


def _shipped(
    config: Config, model: ModelFiles, framework: str, progress: Progress
) -> tuple[SparkOptions, dict[str, str]]:
    """Return the options, and settings that ship Python, Howdah and the model to executors."""
    options = config.data.spark
    conf = shipping.ship(config, environment_kind(framework), progress).conf
    files = [f"{url}#{name}" for name, url in model.urls().items()]
    if _DIST_FILES in options.conf:  # ship the user's files, too
        files.append(options.conf[_DIST_FILES])
        user_conf = {key: value for key, value in options.conf.items() if key != _DIST_FILES}
        options = options.model_copy(update={"conf": user_conf})
    conf[_DIST_FILES] = ",".join(files)
    overhead = memory_overhead_mib(options, framework, model)
    if overhead is not None:
        conf[OVERHEAD[0]] = f"{overhead}m"
        progress(
            f"an executor: {options.executor_memory} for the JVM and {overhead:,} MiB for Python"
            f" (weights of {model.decoded_bytes / 2**20:,.0f} MiB; {OVERHEAD[0]}"
            " in data.spark.conf overrides it)"
        )
    return options, conf
