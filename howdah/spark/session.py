"""Spark sessions: on this machine, on YARN, or in the driver's own container."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from howdah import storage
from howdah.config.data import SparkOptions
from howdah.core import threads
from howdah.core.processes import environ, marked, stderr_without, utf8_locale
from howdah.doctor.checks import java_major
from howdah.errors import ClusterError
from howdah.packaging import spark_versions
from howdah.process import isolation
from howdah.spark import classes, connectors, properties, sizing
from howdah.spark.errors import not_started
from howdah.spark.interrupts import sigint_kept
from howdah.spark.paths import path_of
from howdah.spark.shipping import PYTHON, RUN, spark_home

_END_SECONDS = 60.0  # for an interrupted session to be killed and stopped
_MARK = "HOWDAH_JVM"
"""Environment variable of a JVM: which of this machine's starts it belongs to."""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOCAL = re.compile(r"local(-cluster)?(\[.*\])?$")


def is_local_master(master: str) -> bool:
    """True for local, local[N], local[*], local-cluster[...]."""
    return bool(_LOCAL.match(master))


def require_java(home: str) -> str:
    """Path of a Java that fits the Spark at `home` and this Python.

    Raises:
        ClusterError: there is no Java, or the combination does not work.
    """
    import pyspark

    java_home = os.environ.get("JAVA_HOME")
    java = os.path.join(java_home, "bin", "java") if java_home else shutil.which("java")
    spark = spark_versions.version_of(home) or pyspark.__version__
    python = sys.version_info[:2]
    works = spark_versions.working(java=None, python=python)
    remedy = "install a JRE 17 (Debian: openjdk-17-jre-headless), or set JAVA_HOME to one"
    if not java or not os.path.exists(java):
        raise ClusterError(
            "Spark needs Java, but none was found",
            where=f"JAVA_HOME={java_home}" if java_home else "PATH",
            expected=works,
            remedy=remedy,
        )
    os.getcwd()  # raises where the working directory was removed: no JVM starts there
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:  # not executable, or of another kind of processor
        raise ClusterError(
            "Java cannot be started",
            where=java,
            expected=works,
            got=error.strerror,
            remedy=remedy,
        ) from None
    major = java_major(answer.stderr + answer.stdout)
    lines = [one for one in answer.stderr.splitlines() if not one.startswith("Picked up ")]
    output = (lines or ["no answer to java -version"])[0]  # JAVA_TOOL_OPTIONS has a line before it
    wrong = [] if major else ["java -version prints no version"]
    wrong += spark_versions.problems(spark, java=major, python=python)
    if answer.returncode or wrong:
        raise ClusterError(
            "Spark, Java and Python do not fit together: " + "; ".join(wrong or [output]),
            where=java,
            expected=works,
            got=f"Spark {spark}, Python {python[0]}.{python[1]}, {output}",
            remedy=remedy,
        )
    return java


_NOTICE = "^WARNING: Using incubator modules: jdk.incubator.vector$"
"""A line of the JVM about an option that Spark gives it: no user can act upon it."""


@dataclass(frozen=True, kw_only=True)
class SparkApplication:
    """A running Spark application: its id and the URL of its page."""

    id: str
    ui: str | None


@contextlib.contextmanager
def session(
    options: SparkOptions,
    *,
    hive: bool = False,
    shipped: Mapping[str, str] | None = None,
    short: bool = False,
    user: str | None = None,
    ready: Callable[[SparkApplication], None] | None = None,
    name: str = "howdah etl",
) -> Iterator[Any]:
    """A session by the options, stopped at the end; an active session is used and not stopped.

    Args:
        options: `data.spark`.
        hive: with Hive support (tables by name); a local master without Hive configuration gets an
            embedded metastore in the warehouse directory.
        shipped: settings that bring the packages to a cluster's nodes (`shipping.ship`).
        short: a local session of seconds: its JVM starts fast, and runs long queries slower.
        user: proxied user (doAs).
        ready: called with the application once it runs.
        name: of the application.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    if is_active():
        yield SparkSession.builder.getOrCreate()
        return
    settings = _settings(options, hive, shipped or {})
    if not in_container():
        home = spark_home(options)
        java = require_java(home)
        if short:
            settings.setdefault(_JAVA_OPTIONS, classes.options(home, java))
        defaults = properties.defaults_of(home, os.environ)
        settings = properties.in_utc(properties.redacting(settings, defaults), defaults)
    if hive:
        settings["spark.sql.catalogImplementation"] = "hive"
    conf = SparkConf().setMaster(options.master).setAppName(name).setAll(list(settings.items()))
    with _environment(options):
        try:
            with environ(_acting_for(options, user)):
                if not in_container():
                    _launch(options, settings, name)
                with sigint_kept():
                    SparkContext.getOrCreate(conf)
                spark = SparkSession.builder.config(map=settings).getOrCreate()
        except Exception as error:
            raise not_started(options, user, error) from error
        over = False
        try:
            context = spark.sparkContext
            context.setLogLevel("ERROR")
            if options.master == "yarn" and not in_container():
                _stop_as_failed_at_exit(context)
            if ready is not None:
                ready(SparkApplication(id=context.applicationId, ui=context.uiWebUrl))
            if short:
                threads.start(_warm_up, spark, name="spark-warm", failed=threads.REPORT)
            yield spark
            over = True
        finally:
            if over:
                _stop(spark)
            else:
                _end(spark, killed=options.master == "yarn" and not in_container())


def _warm_up(spark: Any) -> None:
    """Run a query that takes what the work's own ones take, in the second in which the first Python
    worker starts: of the JVM that has just started these take the most time when they are first
    used. Measured: 0.8 s of 10.9."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    with contextlib.suppress(Exception):  # it is stopped with the session
        columns = [F.col("id").cast("string").alias("name"), F.xxhash64("id").alias("hash")]
        rows = spark.range(0, 8, 1, 2).select(*columns, (F.col("id") > 3).alias("label"))
        counts = rows.groupBy("label").agg(F.count("*").alias("n"), F.min("name").alias("first"))
        rank = F.row_number().over(Window.partitionBy("label").orderBy("hash"))
        joined = rows.withColumn("rank", rank).join(F.broadcast(counts), "label", "left")
        sorted_rows = joined.repartition(1, "hash").sortWithinPartitions("hash").persist()
        sorted_rows.write.format("noop").mode("overwrite").save()
        sorted_rows.unionByName(sorted_rows).distinct().collect()
        sorted_rows.unpersist()


def is_active() -> bool:
    """True if this process has a session, which `session` would use."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def _launch(options: SparkOptions, settings: Mapping[str, str], name: str) -> None:
    """Start the JVM, unless this process has one, with its settings from a file.

    PySpark would start it with all settings of the builder in its argument list; to a JVM that runs
    it sends them through Py4J's socket.
    """
    from pyspark import SparkContext

    initial = {"spark.master": options.master, "spark.app.name": name, **settings}
    with _jvm_start(initial, spark_home(options)):
        SparkContext.setSystemProperty("howdah.launched", "true")  # starts the JVM


@contextlib.contextmanager
def _jvm_start(settings: Mapping[str, str], home: str) -> Iterator[None]:
    """Around PySpark's start of a JVM: its settings are in a file, and a start that does not come
    to its end leaves no process.

    A JVM that cannot tell its port, since the file for it is gone, would stay for ever.
    """
    mark = uuid.uuid4().hex
    with (
        stderr_without(_NOTICE),
        properties.launching(settings, home) as variables,
        environ({**variables, _MARK: mark}),
    ):
        try:
            yield
        except BaseException:
            for _ in range(2):  # a process that was just forked has its environment a moment later
                for pid in marked(_MARK, mark):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.1)
            raise


@contextlib.contextmanager
def driver_jvm(options: SparkOptions, *, user: str | None = None) -> Iterator[Any]:
    """The Py4J view of a JVM with Spark's classes and a driver's settings, but no application.

    For questions that need no executors, such as what the metastore says. It has ended when the
    block ends: an embedded metastore can then be opened by a session's JVM.

    Args:
        options: `data.spark`.
        user: proxied user (doAs).
    Raises:
        ClusterError: it does not start.
    """
    from pyspark.java_gateway import launch_gateway

    home = spark_home(options)
    require_java(home)
    settings = _settings(options, True, {})
    settings = properties.redacting(settings, properties.defaults_of(home, os.environ))
    settings |= {"spark.master": options.master, "spark.app.name": "howdah"}
    with _environment(options):
        try:
            with (
                environ(_acting_for(options, user)),
                _jvm_start(settings, home),
            ):
                gateway = launch_gateway()
        except Exception as error:
            raise not_started(options, user, error) from error
        try:
            yield gateway.jvm
        finally:
            # At the end of its stdin the JVM exits. A call to it could wait for an answer to the
            # one that a signal has interrupted. Py4J's thread would still name it each object that
            # this process lets go of, and log a traceback where the JVM ends during that.
            gateway._gateway_client.is_connected = False
            gateway.proc.stdin.close()
            try:
                gateway.proc.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                gateway.proc.kill()
                gateway.proc.wait()


def in_container() -> bool:
    """True in a driver that spark-submit has started in a container of the cluster."""
    return bool(os.environ.get(RUN))


def _end(spark: Any, *, killed: bool) -> None:
    """Stop a session that was interrupted; `killed`: kill its YARN application first.

    In a new thread: Py4J has one connection a thread, and on this thread's the call that the signal
    interrupted may be unfinished. The next call on it would wait for that one and read its answer.
    """

    def work() -> None:
        if killed:
            _kill(spark)
        _stop(spark, failed=True)

    # A failure is ignored: the end of this process ends the session too.
    thread = threads.start(work, name="spark-end", failed=lambda error: None)
    thread.join(_END_SECONDS)


def _kill(spark: Any) -> None:
    """Kill the YARN application: stopping the session would report it as succeeded."""
    with contextlib.suppress(Exception):  # without a gateway the driver's end ends it
        jvm = spark.sparkContext._jvm
        client = jvm.org.apache.hadoop.yarn.client.api.YarnClient.createYarnClient()
        client.init(spark.sparkContext._jsc.hadoopConfiguration())
        client.start()
        application_id = jvm.org.apache.hadoop.yarn.api.records.ApplicationId.fromString(
            spark.sparkContext.applicationId
        )
        client.killApplication(application_id)


def _stop_as_failed_at_exit(context: Any) -> None:
    """Let the JVM stop the session with exit code 1 if it ends before the session was stopped.

    When this process is killed, its JVM reads the end of its stdin and exits; Spark's own hook
    would stop the session with exit code 0 then, and YARN would say SUCCEEDED.
    """
    gateway, jvm = context._gateway, context._jvm
    number = gateway.new_array(jvm.java.lang.Object, 1)
    number[0] = 1
    kinds = gateway.new_array(jvm.java.lang.Class, 0)
    handles = jvm.java.lang.invoke.MethodHandles
    kind = jvm.java.lang.invoke.MethodType.methodType(
        jvm.java.lang.Void.TYPE, jvm.java.lang.Integer.TYPE, kinds
    )
    stop = handles.publicLookup().bind(context._jsc.sc(), "stop", kind)
    hook = jvm.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(
        jvm.java.lang.Class.forName("java.lang.Runnable"), handles.insertArguments(stop, 0, number)
    )
    # Before Spark's hook, whose priority is 40.
    jvm.org.apache.hadoop.util.ShutdownHookManager.get().addShutdownHook(hook, 50)


def _stop(spark: Any, *, failed: bool = False) -> None:
    # After an interrupt the gateway may be gone, and with it the session.
    with contextlib.suppress(Exception):
        spark.sparkContext.cancelAllJobs()
    if failed:
        # An exit code of the driver: an application that could not be killed is FAILED on YARN.
        with contextlib.suppress(Exception):
            spark.sparkContext._jsc.sc().stop(1)
    with contextlib.suppress(Exception):
        spark.stop()


def _settings(options: SparkOptions, hive: bool, shipped: Mapping[str, str]) -> dict[str, str]:
    settings = {
        "spark.driver.memory": options.driver_memory,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
        # The driver keeps the plan of each action as text, which could fill its heap.
        "spark.sql.maxPlanStringLength": str(1 << 20),
    }
    if not in_container() and is_local_master(options.master):
        cores = sizing.local_cores(options.master)
        settings |= {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(max(2, cores)),
            "spark.default.parallelism": str(max(2, cores)),
            "spark.sql.execution.arrow.maxRecordsPerBatch": "5000",
        }
        configured = any("hive.metastore.uris" in key for key in options.conf)
        if hive and not configured and not _hive_site():
            warehouse = path_of(options.conf.get("spark.sql.warehouse.dir", ""))
            if not warehouse or not storage.is_local(warehouse):  # Derby's files must be here
                warehouse = "spark-warehouse"
            warehouse = storage.local_path(warehouse)
            settings["spark.sql.warehouse.dir"] = warehouse
            settings["spark.hadoop.javax.jdo.option.ConnectionURL"] = (
                f"jdbc:derby:;databaseName={warehouse}/metastore_db;create=true"
            )
            storage.make_dirs(warehouse)  # Derby logs to stderr where its log cannot be made
            log = f"-Dderby.stream.error.file={warehouse}/derby.log"
            settings[_JAVA_OPTIONS] = shlex.quote(log)  # Spark divides options as a shell does
    return connectors.joined({**settings, **shipped}, options.conf)


def _hive_site() -> bool:
    names = ("HIVE_CONF_DIR", "SPARK_CONF_DIR", "HADOOP_CONF_DIR")
    folders = [os.environ.get(name) for name in names]
    folders += [os.path.join(os.environ[k], "conf") for k in ("SPARK_HOME",) if k in os.environ]
    return any(
        folder and os.path.exists(os.path.join(folder, "hive-site.xml")) for folder in folders
    )


@contextlib.contextmanager
def _environment(options: SparkOptions) -> Iterator[None]:
    """Set the environment of Spark's launcher and its Python workers."""
    if in_container():
        yield
        return
    with tempfile.TemporaryDirectory(prefix="howdah-spark-") as directory:
        log = os.path.join(directory, "log4j2.properties")
        with open(log, "w", encoding="utf-8") as file:
            file.write(QUIET_LOG)
        before = os.environ.get("SPARK_SUBMIT_OPTS", "")
        variables: dict[str, str | None] = {
            # the caller's SPARK_HOME may be another Spark than the PySpark of this process
            "SPARK_HOME": spark_home(options),
            "SPARK_SUBMIT_OPTS": before
            if "log4j2" in before
            else f"{before} -Dlog4j2.configurationFile={pathlib.Path(log).as_uri()}".strip(),
            "TOKENIZERS_PARALLELISM": "false",
        }
        if not utf8_locale(os.environ):
            variables["LC_ALL"] = "C.UTF-8"  # Java takes file names by it
        if is_local_master(options.master):
            # Local Python workers run this interpreter and import this package, installed or not.
            # They begin in this working directory, whose files are not to be imported.
            variables |= {
                name: isolation.environment().get(name) for name in isolation.VARIABLES
            } | {
                "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
                "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
            }
        elif options.master == "yarn":
            variables["PYSPARK_PYTHON"] = PYTHON
            # Spark would give executors this process's PYTHONPATH, ahead of what is shipped.
            variables["PYTHONPATH"] = os.environ.get(isolation.VARIABLE)
        with environ(variables):
            yield


def _acting_for(options: SparkOptions, user: str | None) -> dict[str, str | None]:
    """Variables for Spark's launcher alone, which submits the application as the proxied user."""
    if user is None or options.master != "yarn" or in_container():
        return {}  # elsewhere Java reads HADOOP_PROXY_USER
    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    return {
        "PYSPARK_SUBMIT_ARGS": f"--proxy-user {shlex.quote(user)} {arguments}",
        # Not set: Hadoop would apply the proxy user a second time.
        "HADOOP_PROXY_USER": None,
        "HADOOP_USER_NAME": None,
    }


QUIET_LOG = """\
# Errors only, with the time; the launcher's own reports of an application as well.
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
# Without a level here it logs that it sets one.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
# A task that fails finally fails the job, whose error names the cause: no stack trace before it.
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.client.name = org.apache.spark.deploy.yarn.Client
logger.client.level = ${sys:howdah.client.level:-error}
"""
