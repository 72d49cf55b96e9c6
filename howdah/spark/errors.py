"""Turn Spark's failures into errors with a cause and a remedy."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from functools import wraps

from howdah import faults
from howdah.config.data import SparkOptions
from howdah.errors import ClusterError, DataError, HowdahError
from howdah.spark.applications import failed_container

_MARK = "howdah-error:"
_QUOTA = re.compile(
    r"RemoteException\((?P<java_class>[\w.$]*QuotaExceededException)\): (?P<message>.+)"
)
_CODEC = re.compile(r"ClassNotFoundException: \S+Codec\b")
KERBEROS_MARKS = (
    "Client cannot authenticate via:[TOKEN, KERBEROS]",
    "Failed to find any Kerberos tgt",
    "GSS initiate failed",
    "Ticket expired",
    "Unable to obtain password from user",
    "Login failure for",
)


def crossing(function: Callable) -> Callable:
    """Carry a HowdahError from a Python worker to the driver (see `translated`)."""

    @wraps(function)
    def wrapped(*args, **kwargs):
        try:
            yield from function(*args, **kwargs)
        except HowdahError as error:
            raise RuntimeError(f"{_MARK}{json.dumps(error.as_dict())}") from error

    return wrapped


@contextlib.contextmanager
def translated(
    doing: str, kind: type[HowdahError] = ClusterError, *, writes: str | None = None
) -> Iterator[None]:
    """Raise Spark's exceptions as a HowdahError.

    Args:
        doing: the failed step, for the message: "read the source".
        kind: class of the error, unless a worker has raised a HowdahError.
        writes: the path that Spark itself writes: a quota that is used up is named with it.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except ConnectionError as error:  # Py4J does not catch it when it reconnects
        raise _driver_ended(doing, error) from error
    except (PySparkException, Py4JError) as error:
        text = str(error)
        carried = _carried(text)
        if carried is not None:
            raise carried from error
        if _jvm_is_gone(error):
            raise _driver_ended(doing, error) from error
        quota = _QUOTA.search(text) if writes is not None else None
        if quota is not None:
            remote = faults.Remote(quota["java_class"], quota["message"])
            raise faults.of_remote(remote, writes, doing) from error
        remedy = "if memory ran out: data.spark.driver_memory, or of executors"
        remedy += " data.spark.executor_memory (JVM) or spark.executor.memoryOverhead (Python) in"
        remedy += " data.spark.conf; otherwise see Spark's log on the executors"
        if issubclass(kind, DataError):
            remedy = "check that the source is complete, and that data.format and data.csv fit it"
            if "ChecksumException" in text:  # Hadoop's local file system compares files with them
                remedy = "remove the .crc file beside it if the file is right (its name: a dot, the"
                remedy += " file's name, .crc), or restore the file"
            elif _CODEC.search(text):
                remedy = "write the files with zstd, gzip or snappy, which Spark has itself, or"
                remedy += " name a jar of this codec in data.spark.conf (spark.jars)"
        lost = failed_container(text)
        where = None if lost is None else f"container {lost}"
        raise kind(
            f"Spark could not {doing}", where=where, got=first_line(error), remedy=remedy
        ) from error


def _jvm_is_gone(error: Exception) -> bool:
    """True if Py4J got no answer: an exception of Java's, or a missing method, has a trace."""
    from py4j.protocol import Py4JError, Py4JNetworkError

    if isinstance(error, Py4JNetworkError):
        return True
    text = str(error)
    called = text.startswith("An error occurred while calling") and "Trace:" not in text
    return type(error) is Py4JError and called


def _driver_ended(doing: str, error: Exception) -> ClusterError:
    """The error for a JVM that was killed or ran out of memory; the source may be fine."""
    return ClusterError(
        f"Spark's driver (JVM) ended while it tried to {doing}",
        got=first_line(error),
        remedy="start the command again; if it ends again, raise data.spark.driver_memory, and read"
        " the log of the application",
    )


def _carried(text: str) -> HowdahError | None:
    at = text.find(_MARK)
    if at < 0:
        return None
    fields, _ = json.JSONDecoder().raw_decode(text[at + len(_MARK) :])
    return HowdahError.from_dict(fields)


def first_line(error: BaseException) -> str:
    """The most specific line of an exception's text: the innermost cause of a Java stack."""
    if "[FAILED_JDBC" in str(error):  # says that it failed; its cause says why
        while (cause := getattr(error, "_cause", None)) is not None:
            error = cause
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    if causes:
        return causes[-1].removeprefix("Caused by:").strip()
    specific = [line for line in lines if not line.startswith(("An error occurred", "Traceback"))]
    return (specific or lines or [type(error).__name__])[0].lstrip(": ")


def not_started(options: SparkOptions, user: str | None, error: Exception) -> ClusterError:
    """The error for a session that did not start."""
    text = str(error)
    line = first_line(error)
    if user is not None and "is not allowed to impersonate" in text:
        match = re.search(r"User: \S+ is not allowed to impersonate \S+", text)
        return ClusterError(
            "the cluster does not let you act for another user",
            where=f"run.user {user}",
            got=match.group() if match else line,
            remedy="have hadoop.proxyuser.<you>.hosts and .groups set in the cluster's"
            " core-site.xml, or unset run.user",
        )
    if any(mark in text for mark in KERBEROS_MARKS):
        return ClusterError(
            "the cluster needs a Kerberos ticket, and there is no valid one",
            where=f"data.spark.master {options.master}",
            got=line,
            remedy="run kinit, or set data.spark.keytab and data.spark.principal",
        )
    return ClusterError(
        "Spark did not start",
        where=f"data.spark.master {options.master}",
        got=line,
        remedy="check the master's address, data.spark.queue, data.spark.driver_memory and"
        " data.spark.conf",
    )
