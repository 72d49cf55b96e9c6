"""How Spark's failures become errors that a user can act on."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any

import howdah.errors
from howdah.config_data import SparkOptions
from howdah.errors import ClusterError, DataError, HowdahError, as_dict
from howdah.spark.applications import failed_container

_MARK = "howdah-error:"
KERBEROS_MARKS = (
    "Client cannot authenticate via:[TOKEN, KERBEROS]",
    "Failed to find any Kerberos tgt",
    "GSS initiate failed",
    "Ticket expired",
    "Unable to obtain password from user",
    "Login failure for",
)


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
    from pyspark.errors import PySparkException

    try:
        yield
    except ConnectionError as error:  # Py4J lets it through when it connects anew
        raise _driver_ended(doing, error) from error
    except (PySparkException, Py4JError) as error:
        text = str(error)
        carried = _carried(text)
        if carried is not None:
            raise carried from error
        if _jvm_is_gone(error):
            raise _driver_ended(doing, error) from error
        remedy = "if memory ran out: data.spark.driver_memory, or of executors"
        remedy += " data.spark.executor_memory (JVM) or spark.executor.memoryOverhead (Python) in"
        remedy += " data.spark.conf; otherwise Spark's log on the executors tells more"
        if issubclass(kind, DataError):
            remedy = "check that the source is whole, and that data.format and data.csv fit it"
        lost = failed_container(text)
        where = None if lost is None else f"container {lost}"
        raise kind(
            f"Spark could not {doing}", where=where, got=first_line(error), remedy=remedy
        ) from error


def _jvm_is_gone(error: Exception) -> bool:
    """Whether Py4J had no answer at all: what Java throws, or a method it lacks, has a trace."""
    from py4j.protocol import Py4JError, Py4JNetworkError

    if isinstance(error, Py4JNetworkError):
        return True
    text = str(error)
    called = text.startswith("An error occurred while calling") and "Trace:" not in text
    return type(error) is Py4JError and called


def _driver_ended(doing: str, error: Exception) -> ClusterError:
    """Spark's driver was killed, or ran out of memory: the source may be without fault."""
    return ClusterError(
        f"Spark's driver (JVM) ended when it was to {doing}",
        got=first_line(error),
        remedy="start the command again; if that comes again, data.spark.driver_memory, and the log"
        " of the application",
    )


def _carried(text: str) -> HowdahError | None:
    at = text.find(_MARK)
    if at < 0:
        return None
    fields, _ = json.JSONDecoder().raw_decode(text[at + len(_MARK) :])
    return rebuilt(fields)


def rebuilt(fields: Mapping[str, Any]) -> HowdahError:
    """The error of which `as_dict` made the fields, of its own class."""
    kind = getattr(howdah.errors, fields["error"], HowdahError)
    known = {key: fields[key] for key in ("where", "expected", "got", "remedy")}
    if fields.get("problems"):
        known["problems"] = [rebuilt(problem) for problem in fields["problems"]]
    return kind(fields["what"], **known)


def first_line(error: BaseException) -> str:
    """The telling line of an exception: of a Java stack the innermost cause's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    if causes:
        return causes[-1].removeprefix("Caused by:").strip()
    telling = [line for line in lines if not line.startswith(("An error occurred", "Traceback"))]
    return (telling or lines or [type(error).__name__])[0].lstrip(": ")


def not_started(options: SparkOptions, user: str | None, error: Exception) -> ClusterError:
    """Why there is no Spark session, and what to do."""
    text = str(error)
    line = first_line(error)
    if user is not None and "is not allowed to impersonate" in text:
        found = re.search(r"User: \S+ is not allowed to impersonate \S+", text)
        return ClusterError(
            "the cluster does not let you act for another user",
            where=f"run.user {user}",
            got=found.group() if found else line,
            remedy="have hadoop.proxyuser.<you>.hosts and .groups set in the cluster's"
            " core-site.xml, or unset run.user",
        )
    if any(mark in text for mark in KERBEROS_MARKS):
        return ClusterError(
            "the cluster wants a Kerberos ticket, and there is none that it takes",
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
