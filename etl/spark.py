"""The Spark session of the ETL, and how its failures become errors that a user can act on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import wraps

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import howdah.errors
from howdah import storage
from howdah.config_model import SparkOptions
from howdah.errors import ClusterError, DataError, HowdahError, as_dict

MINIMUM_JAVA = 17
_LOCAL = re.compile(r"local(-cluster)?(\[.*\])?$")
_MARK = "howdah-error:"


def is_local_master(master: str) -> bool:
    """True for local, local[N], local[*], local-cluster[...]."""
    return bool(_LOCAL.match(master))


def require_java() -> str:
    """Path of a Java that Spark can run on.

    Raises:
        ClusterError: there is none, or one that is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    remedy = "install a JRE 17 (Debian: openjdk-17-jre-headless), or set JAVA_HOME to one"
    if not java or not os.path.exists(java):
        raise ClusterError(
            "Spark needs Java, and there is none",
            where=f"JAVA_HOME={home}" if home else "PATH",
            expected=f"Java {MINIMUM_JAVA} or newer",
            remedy=remedy,
        )
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    if answer.returncode or not found or int(found.group(1)) < MINIMUM_JAVA:
        raise ClusterError(
            "Spark needs a newer Java",
            where=java,
            expected=f"Java {MINIMUM_JAVA} or newer",
            got=(answer.stderr.splitlines() or ["no answer to java -version"])[0],
            remedy=remedy,
        )
    return java


@contextlib.contextmanager
def session(options: SparkOptions, *, hive: bool = False) -> Iterator[SparkSession]:
    """A session by the options, stopped at the end; a session that is active is used, not stopped.

    Args:
        options: `data.spark`.
        hive: with Hive support (tables by name); with a local master and no Hive configuration the
            metastore is an embedded one in the warehouse directory.
    """
    if SparkContext._active_spark_context is not None:
        yield SparkSession.builder.getOrCreate()
        return
    require_java()
    settings = _settings(options, hive)
    builder = SparkSession.builder.master(options.master).appName("howdah etl")
    for key, value in settings.items():
        builder = builder.config(key, value)
    if hive:
        builder = builder.enableHiveSupport()
    with _environment(options.master):
        try:
            spark = builder.getOrCreate()
        except Exception as error:
            raise ClusterError(
                "Spark did not start",
                where=f"data.spark.master {options.master}",
                got=first_line(error),
                remedy="check the master's address, data.spark.driver_memory and data.spark.conf",
            ) from error
        try:
            spark.sparkContext.setLogLevel("ERROR")
            yield spark
        finally:
            _stop(spark)


def _stop(spark: SparkSession) -> None:
    # After an interrupt the gateway may be gone already; there is nothing left to stop then.
    with contextlib.suppress(Exception):
        spark.sparkContext.cancelAllJobs()
    with contextlib.suppress(Exception):
        spark.stop()


def _settings(options: SparkOptions, hive: bool) -> dict[str, str]:
    settings = {
        "spark.driver.memory": options.driver_memory,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    if is_local_master(options.master):
        cores = _cores(options.master)
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
            warehouse = storage.local_path(
                options.conf.get("spark.sql.warehouse.dir", "spark-warehouse")
            )
            settings["spark.sql.warehouse.dir"] = warehouse
            settings["spark.hadoop.javax.jdo.option.ConnectionURL"] = (
                f"jdbc:derby:;databaseName={warehouse}/metastore_db;create=true"
            )
            settings["spark.driver.extraJavaOptions"] = (
                f"-Dderby.stream.error.file={warehouse}/derby.log"
            )
    return settings | options.conf


def _cores(master: str) -> int:
    inside = re.search(r"\[(\d+|\*)", master)
    if inside is None:
        return 1
    return (os.cpu_count() or 1) if inside.group(1) == "*" else int(inside.group(1))


def _hive_site() -> bool:
    places = [os.environ.get("HIVE_CONF_DIR"), os.environ.get("SPARK_CONF_DIR")]
    places += [os.path.join(os.environ[k], "conf") for k in ("SPARK_HOME",) if k in os.environ]
    return any(place and os.path.exists(os.path.join(place, "hive-site.xml")) for place in places)


@contextlib.contextmanager
def _environment(master: str) -> Iterator[None]:
    """Local Python workers run this interpreter and find this package, installed or not."""
    if not is_local_master(master):
        yield
        return
    root = os.path.dirname(os.path.dirname(os.path.abspath(howdah.errors.__file__)))
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    wanted = {
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
        "TOKENIZERS_PARALLELISM": "false",
    }
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


# ------------------------------------------------------------------------------------- errors
def crossing(function: Callable) -> Callable:
    """Let a HowdahError raised in a Python worker reach the driver as itself (see `translated`)."""

    @wraps(function)
    def wrapped(*args, **kwargs):
        try:
            yield from function(*args, **kwargs)
        except HowdahError as error:
            raise RuntimeError(f"{_MARK}{json.dumps(as_dict(error))}") from error

    return wrapped


@contextlib.contextmanager
def translated(doing: str, kind: type[HowdahError] = ClusterError) -> Iterator[None]:
    """Turn what Spark raises into a HowdahError.

    Args:
        doing: what was being done, for the message: "read the source".
        kind: the error for failures that are not a HowdahError of a worker.
    """
    from py4j.protocol import Py4JError

    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        carried = _carried(text)
        if carried is not None:
            raise carried from error
        remedy = "if memory ran out: data.spark.driver_memory, or spark.executor.memory in"
        remedy += " data.spark.conf; otherwise Spark's log on the executors tells more"
        if issubclass(kind, DataError):
            remedy = "check that the source is whole, and that data.format and data.csv fit it"
        raise kind(f"Spark could not {doing}", got=first_line(error), remedy=remedy) from error


def _carried(text: str) -> HowdahError | None:
    at = text.find(_MARK)
    if at < 0:
        return None
    fields, _ = json.JSONDecoder().raw_decode(text[at + len(_MARK) :])
    kind = getattr(howdah.errors, fields.pop("error"), HowdahError)
    known = {key: fields[key] for key in ("where", "expected", "got", "remedy")}
    return kind(fields["what"], **known)


def first_line(error: BaseException) -> str:
    """The telling line of an exception: of a Java stack the innermost cause's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    if causes:
        return causes[-1].removeprefix("Caused by:").strip()
    telling = [line for line in lines if not line.startswith(("An error occurred", "Traceback"))]
    return (telling or lines or [type(error).__name__])[0].lstrip(": ")
