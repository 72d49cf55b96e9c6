"""New delegation tokens for Python's part of the ETL: Spark renews those of its JVMs alone.

With a keytab Spark's driver gets new tokens long before the old ones end, and hands them to its
executors' JVMs. Python reads the file that YARN gave its container at the start, and those tokens
end for good after 7 days (dfs.namenode.delegation.token.max-lifetime). The new ones are not
renewed: they end a day after they were made (...renew-interval), and others replace them.

So a thread of the driver looks for new ones, for its own process and for the tasks. A task gets
those of the time when its job was planned, and the path of a file that always holds the newest:
in the application's staging directory, as Spark's keytab is, readable by its user alone. Each
container keeps what it has found in a file of its own, for all its tasks.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from howdah import storage
from howdah.core import threads
from howdah.errors import NotAuthenticated, StorageError
from howdah.hadoop import tokens

_LEAST_SECONDS = 60.0
"""Storage opens no connection with tokens that have less left."""
_LOOK_SECONDS = 10.0
_FILE = "howdah-tokens"


@dataclass(frozen=True)
class TaskTokens:
    """What a task writes with: tokens in Hadoop's format, and the file of the newest, if any."""

    data: bytes
    newest: str | None = None


class Keeper:
    """Context in which this process, and a file for the tasks, have the tokens that Spark has.

    Outside a secure cluster it does nothing.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._secure = _users(spark).isSecurityEnabled()
        self._data: bytes | None = None
        self._newest: str | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()

    def __enter__(self) -> Keeper:
        if self._secure:
            threads.start(self._watch, name="etl-tokens", failed=threads.RESTART)
        return self

    def __exit__(self, *_) -> None:
        self._over.set()  # not waited for: after an interrupt its call to the JVM may have no end

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            # What fails is tried again soon; the tokens there live on for hours meanwhile.
            with contextlib.suppress(Exception):
                self._take(_held(self._spark))

    def _take(self, data: bytes) -> None:
        with self._lock:
            if data != self._data:
                use(data)
                self._newest = _publish(self._spark, data)
                self._data = data

    def secrets(self, progress: Callable[[str], None] = lambda line: None) -> TaskTokens | None:
        """The tokens that Spark's driver holds now; used by this process as well.

        None without Kerberos, and where the driver holds no tokens for HDFS.

        Raises:
            NotAuthenticated: they end within a minute: nothing could be written any more.
        """
        if not self._secure:
            return None
        data = _held(self._spark)
        end = ends(tokens.parse(data))
        if end is None:
            return None
        until = datetime.fromtimestamp(end, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
        if end < time.time() + _LEAST_SECONDS:
            raise NotAuthenticated(
                "the delegation tokens reach their maximum lifetime before the shards are written",
                where="the Spark application's tokens for HDFS",
                got=f"they end at {until} UTC",
                remedy="set data.spark.keytab and data.spark.principal, so that Spark gets new"
                " tokens; or read fewer partitions at a time (data.partitions) or use more"
                " executors: reading and cleaning must take less than the tokens' maximum lifetime"
                " (dfs.namenode.delegation.token.max-lifetime)",
            )
        progress(f"the tokens of the tasks that write end at {until} UTC")
        try:
            self._take(data)
        except (Py4JError, PySparkException, StorageError, ValueError) as error:
            reason = str(error).splitlines()[0]
            progress(f"newer tokens do not reach the tasks, which go on with these: {reason}")
        return TaskTokens(data, self._newest)


def _users(spark: SparkSession):
    return spark.sparkContext._jvm.org.apache.hadoop.security.UserGroupInformation


def _held(spark: SparkSession) -> bytes:
    """The credentials of Spark's driver."""
    stream = spark.sparkContext._jvm.java.io.ByteArrayOutputStream()
    held = _users(spark).getCurrentUser().getCredentials()
    held.writeTokenStorageToStream(spark.sparkContext._jvm.java.io.DataOutputStream(stream))
    return bytes(stream.toByteArray())


def _publish(spark: SparkSession, data: bytes) -> str | None:
    """Put the tokens where every task of this application finds them, in one rename.

    Returns the path; None where there is no such place that Python's storage reads.
    """
    context = spark.sparkContext
    hadoop = context._jvm.org.apache.hadoop.fs
    if context.master != "yarn":
        return None
    conf = context._jsc.hadoopConfiguration()
    staging = os.environ.get("SPARK_YARN_STAGING_DIR")  # that of the driver's own container
    if staging is None:
        top = context.getConf().get("spark.yarn.stagingDir")
        top = top or hadoop.FileSystem.get(conf).getHomeDirectory().toString()
        staging = f"{top}/.sparkStaging/{context.applicationId}"
    directory = hadoop.Path(staging)
    files = directory.getFileSystem(conf)
    path = files.makeQualified(hadoop.Path(directory, _FILE))
    if not path.toString().startswith("hdfs://") or not files.exists(directory):
        return None
    new = path.suffix(".new")
    mode, buffer = hadoop.permission.FsPermission("600"), 4096
    copies, block = files.getDefaultReplication(new), files.getDefaultBlockSize(new)
    stream = files.create(new, mode, True, buffer, copies, block, None)
    try:
        stream.write(bytearray(data))
    finally:
        stream.close()
    options = context._gateway.new_array(hadoop.Options.Rename, 1)
    options[0] = hadoop.Options.Rename.OVERWRITE
    hadoop.FileContext.getFileContext(path.toUri(), conf).rename(new, path, options)
    return path.toString()


# ------------------------------------------------------------------------------ in any process
def ends(held: Iterable[tokens.Token]) -> float | None:
    """Seconds since 1970 at which the first of the tokens for HDFS ends; None if there is none."""
    return min((token.expires for token in held if token.kind == tokens.HDFS_KIND), default=None)


def use(data: bytes | None) -> None:
    """From now on this process' storage reads these tokens, if they outlive those it has.

    Nothing to do outside a container of YARN: there a keytab or a ticket logs in.
    """
    if data is None or not os.environ.get(tokens.ENVIRONMENT):
        return
    path = os.path.join(os.getcwd(), _FILE)
    # Another process of this container may have written the file.
    if os.path.exists(path) and _outlives(tokens.load({tokens.ENVIRONMENT: path}), tokens.load()):
        os.environ[tokens.ENVIRONMENT] = path
    if _outlives(tokens.parse(data), tokens.load()):
        storage.write_whole(path, data, mode=0o600)
        os.environ[tokens.ENVIRONMENT] = path


def _outlives(new: Iterable[tokens.Token], held: Iterable[tokens.Token]) -> bool:
    end, before = ends(new), ends(held)
    return end is not None and (before is None or before < end)


# ------------------------------------------------------------------------------------ in a task
_looked = float("-inf")


def using(function: Callable[..., Iterator], secrets: TaskTokens | None) -> Callable[..., Iterator]:
    """The same function of batches for a task, with these tokens or newer ones."""
    return function if secrets is None else partial(_with, function, secrets)


def _with(function: Callable[..., Iterator], secrets: TaskTokens, batches: Iterable) -> Iterator:
    # First with what is there: the container's own tokens are renewed up to their greatest life,
    # those given here are not, and the stages before this one may have taken long.
    if not _use_newest(secrets.newest):
        use(secrets.data)
        _use_newest(secrets.newest)
    yield from function(batches)


def _use_newest(path: str | None) -> bool:
    """Take the tokens of the file that the driver keeps; False where it cannot be read."""
    global _looked
    if path is None or not os.environ.get(tokens.ENVIRONMENT):
        return False
    if time.monotonic() - _looked < _LOOK_SECONDS:
        return True
    # Where none of the tokens there is good any more, the task's own work fails.
    with contextlib.suppress(StorageError, ValueError, IndexError):
        use(storage.read_bytes(path))
        _looked = time.monotonic()
        return True
    return False
