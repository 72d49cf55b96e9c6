"""Spark's settings for spark-submit: in a file of mode 0600, never in an argument list.

Every user of a machine can read the argument lists of its processes (`ps`), and settings hold
secrets: keys of an object store, passwords of a metastore. PySpark itself passes each setting as
`--conf` to a JVM that lives as long as the session.

A file that --properties-file names replaces the Spark's spark-defaults.conf, so our file begins
with the text of spark-defaults.conf. In Java's Properties format the last value of a key counts.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping

from howdah.errors import ConfigError

REDACTION = r"secret|password|passwd|token|access[.]?key|account[.]key|encryption[.-]key|[.]sas[.]"
"""Names (and values) that Spark must hide in its web pages and event logs: its default, and names
that the default lacks, such as fs.azure.account.key.<account>."""
_REGEX = "spark.redaction.regex"
_OPTION = "--properties-file"
_SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
_ZONE = "-Duser.timezone="


def as_text(settings: Mapping[str, str]) -> str:
    """Settings in the format of Java's Properties, ASCII.

    >>> as_text({"spark.a": " b = 1", "spark.pfad": "C:\\\\ü"})
    'spark.a=\\\\ b = 1\\nspark.pfad=C:\\\\\\\\\\\\u00fc\\n'
    """
    return "".join(f"{_key(key)}={_value(str(value))}\n" for key, value in settings.items())


def _key(text: str) -> str:
    return re.sub(r"([ :=#!])", r"\\\1", _value(text).removeprefix("\\"))


def _value(text: str) -> str:
    shown = "".join(_ESCAPES.get(letter) or _ascii(letter) for letter in text)
    return f"\\{shown}" if shown.startswith(" ") else shown  # else a leading blank is lost


def _ascii(letter: str) -> str:
    if " " <= letter <= "~":
        return letter
    units = letter.encode("utf-16-be")
    return "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2))


def defaults_of(home: str, environ: Mapping[str, str]) -> str:
    """The text of a Spark's spark-defaults.conf; empty if it has none.

    Raises:
        ConfigError: it cannot be read.
    """
    folder = environ.get("SPARK_CONF_DIR") or os.path.join(home, "conf")
    return _read(os.path.join(folder, "spark-defaults.conf"), missing="")


def _read(path: str, *, missing: str | None = None) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        if missing is not None:
            return missing
        raise ConfigError(
            "there is no such file of Spark's settings", where=f"{_OPTION} {path}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "Spark's settings cannot be read", where=path, got=str(error), expected="UTF-8 text"
        ) from None


def redacting(settings: Mapping[str, str], defaults: str) -> dict[str, str]:
    """The settings with a pattern that matches the secrets of all storages.

    A configured pattern stays as it is; the one of spark-defaults.conf is extended.
    """
    if _REGEX in settings:
        return dict(settings)
    patterns = _of_defaults(_REGEX, defaults)
    pattern = f"(?i:{REDACTION})"
    return {**settings, _REGEX: f"(?:{patterns})|{pattern}" if patterns is not None else pattern}


def in_utc(settings: Mapping[str, str], defaults: str) -> dict[str, str]:
    """The settings with UTC as the time zone of the driver's and the executors' JVMs.

    The session's time zone is not enough: a JDBC driver makes times of days and hours in the zone
    of its JVM, so that rows would have another time, and another id, on a node in another zone.
    Other options of the JVMs stay, and so does a time zone among them.

    >>> in_utc({"spark.driver.extraJavaOptions": "-Xss4m"}, "")["spark.driver.extraJavaOptions"]
    '-Xss4m -Duser.timezone=UTC'
    """
    zoned = dict(settings)
    for key in _JAVA_OPTIONS:
        options = settings.get(key) or _of_defaults(key, defaults) or ""
        if _ZONE not in options:
            zoned[key] = f"{options} {_ZONE}UTC".strip()
    return zoned


def _of_defaults(key: str, defaults: str) -> str | None:
    """A setting's last value in the text of spark-defaults.conf; None: it is not there."""
    lines = re.sub(r"\\\n[ \t\f]*", "", defaults)  # a backslash continues a line
    line = rf"^[ \t]*{re.escape(key)}(?:[ \t]*[=:]|[ \t]|$)[ \t]*(.*?)[ \t]*$"
    values = re.findall(line, lines, re.MULTILINE)
    return values[-1] if values else None


@contextlib.contextmanager
def written(settings: Mapping[str, str], defaults: str) -> Iterator[str]:
    """The path of a file with `defaults` and then the settings; removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="howdah-spark-conf-") as directory:  # 0700
        path = os.path.join(directory, "spark.properties")
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            # Two line ends, since the last line of the defaults may end with a continuation.
            file.write(f"{defaults}\n\n{as_text(settings)}")
        yield path


@contextlib.contextmanager
def launching(
    settings: Mapping[str, str], home: str, submit_args: str | None = None
) -> Iterator[dict[str, str | None]]:
    """Environment variables with which PySpark starts its JVM with these settings from a file.

    A --properties-file in PYSPARK_SUBMIT_ARGS replaces spark-defaults.conf, as in Spark.

    Args:
        home: SPARK_HOME.
        submit_args: PYSPARK_SUBMIT_ARGS; None: of the environment.
    """
    command = submit_args or os.environ.get(_SUBMIT_ARGS) or "pyspark-shell"
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(
            f"${_SUBMIT_ARGS} cannot be read as a command line", got=f"{command}: {error}"
        ) from None
    arguments = []
    for word in words:  # --properties-file=FILE is the same
        arguments += word.split("=", 1) if word.startswith(f"{_OPTION}=") else [word]
    defaults = None
    while _OPTION in arguments[:-1]:
        at = arguments.index(_OPTION)
        defaults = _read(arguments[at + 1])
        del arguments[at : at + 2]
    if defaults is None:
        defaults = defaults_of(home, os.environ)
    with written(settings, defaults) as path:
        yield {_SUBMIT_ARGS: shlex.join([_OPTION, path, *arguments])}
