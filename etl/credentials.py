"""New delegation tokens for Python's part of the ETL: Spark renews those of its JVMs alone.

With a keytab Spark's driver gets new tokens long before the old ones end, and hands them to its
executors' JVMs. Python reads the file that YARN gave its container at the start, and those tokens
end for good after 7 days (dfs.namenode.delegation.token.max-lifetime). So the tasks that write are
given the driver's, and each process keeps them in a file of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial

from pyspark.sql import SparkSession

from howdah.errors import NotAuthenticated
from howdah.hadoop import tokens

_LEAST_SECONDS = 60.0
"""Storage opens no connection with tokens that have less left."""


def renewed(spark: SparkSession, progress: Callable[[str], None]) -> bytes | None:
    """The tokens that Spark's driver holds now, in Hadoop's format; used by this process as well.

    None without Kerberos, and where the driver holds no tokens for HDFS.

    Raises:
        NotAuthenticated: they end within a minute: nothing could be written any more.
    """
    jvm = spark.sparkContext._jvm
    users = jvm.org.apache.hadoop.security.UserGroupInformation
    if not users.isSecurityEnabled():
        return None
    stream = jvm.java.io.ByteArrayOutputStream()
    held = users.getCurrentUser().getCredentials()
    held.writeTokenStorageToStream(jvm.java.io.DataOutputStream(stream))
    data = bytes(stream.toByteArray())
    end = ends(tokens.parse(data))
    if end is None:
        return None
    told = datetime.fromtimestamp(end, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    if end < time.time() + _LEAST_SECONDS:
        raise NotAuthenticated(
            "the delegation tokens come to the end of their life before the shards are written",
            where="the Spark application's tokens for HDFS",
            got=f"they end at {told} UTC",
            remedy="give data.spark.keytab and data.spark.principal: Spark gets new tokens then;"
            " or make the dataset of less at a time (data.partitions), or with more executors:"
            " reading and cleaning the source must take less than the tokens' greatest life"
            " (dfs.namenode.delegation.token.max-lifetime)",
        )
    progress(f"the tokens of the tasks that write end at {told} UTC")
    use(data)
    return data


def ends(held: Iterable[tokens.Token]) -> float | None:
    """Seconds since 1970 at which the first of the tokens for HDFS ends; None if there is none."""
    return min((token.expires for token in held if token.kind == tokens.HDFS_KIND), default=None)


def use(data: bytes | None) -> None:
    """From now on this process' storage reads these tokens, if they outlive those it has.

    Nothing to do outside a container of YARN: there a keytab or a ticket logs in.
    """
    if data is None or not os.environ.get(tokens.ENVIRONMENT):
        return
    end, held = ends(tokens.parse(data)), ends(tokens.load())
    if end is None or (held is not None and held >= end):
        return
    path = os.path.join(os.getcwd(), f"howdah-tokens-{os.getpid()}")
    handle = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.replace(f"{path}.new", path)
    os.environ[tokens.ENVIRONMENT] = path


def using(function: Callable[..., Iterator], data: bytes | None) -> Callable[..., Iterator]:
    """The same function of batches for a task, with these tokens."""
    return function if data is None else partial(_with, function, data)


def _with(function: Callable[..., Iterator], data: bytes, batches: Iterable) -> Iterator:
    use(data)
    yield from function(batches)
