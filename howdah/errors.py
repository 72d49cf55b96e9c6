"""Errors a user can act on: what, where, expected, got, remedy, and an exit code of their own.

Everything that Howdah refuses is refused with one of these; the command line prints `render(error)`
and exits with `error.exit_code`, without a traceback. Any other exception is a defect of Howdah.
"""

from __future__ import annotations

from collections.abc import Sequence


class HowdahError(Exception):
    """Base of all errors that are the caller's to mend.

    Args:
        what: one sentence that says what is wrong.
        where: file, key, row or host that it is about.
        expected: what would have been right.
        got: what was found instead.
        remedy: what the user can do now.
    """

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        expected: str | None = None,
        got: str | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.expected = expected
        self.got = got
        self.remedy = remedy

    def __str__(self) -> str:
        return render(self)

    def __reduce__(self):  # keyword-only fields must survive pickling (Spark workers raise these)
        return _rebuild, (type(self), self.what, self.__dict__)


def _rebuild(cls: type[HowdahError], what: str, fields: dict) -> HowdahError:
    error = cls.__new__(cls)
    Exception.__init__(error, what)
    error.__dict__.update(fields)
    return error


class CheckFailed(HowdahError):
    """A check said no (doctor, gate); `problems` holds each bound that was missed."""

    exit_code = 1

    def __init__(self, what: str, *, problems: Sequence[HowdahError] = (), **fields) -> None:
        super().__init__(what, **fields)
        self.problems = list(problems)


class UsageError(HowdahError):
    """The command line's words are off."""

    exit_code = 2


class ConfigError(HowdahError):
    """The run configuration is wrong; `problems` holds every problem found, not only the first."""

    exit_code = 2

    def __init__(self, what: str, *, problems: Sequence[HowdahError] = (), **fields) -> None:
        super().__init__(what, **fields)
        self.problems = list(problems)


class DataError(HowdahError):
    """A source, dataset, shard or record is not what it must be."""

    exit_code = 3


class ModelError(HowdahError):
    """A base model or an export cannot be used."""

    exit_code = 4


class CheckpointError(HowdahError):
    """A checkpoint cannot be written, read or continued from."""

    exit_code = 4


class StorageError(HowdahError):
    """Storage refused or failed."""

    exit_code = 5


class NotFound(StorageError):
    """The path does not exist."""


class AlreadyExists(StorageError):
    """The path exists and is never overwritten."""


class PermissionDenied(StorageError):
    """The user may not read or write the path."""


class StorageFull(StorageError):
    """The disk or the quota is used up."""


class QuotaExceeded(StorageFull):
    """A directory's quota on HDFS is used up; the disks may have room."""


class NotAuthenticated(StorageError):
    """The cluster wants a Kerberos ticket or a token, and there is none that it takes."""


class TokensExpiring(NotAuthenticated):
    """The delegation tokens are about to end: all is saved, and new ones are needed to go on."""


class StorageUnavailable(StorageError):
    """Storage does not answer now: down, restarting, on standby. Trying again may help."""


class SafeMode(StorageUnavailable):
    """The NameNode takes no writes for now."""


class ClusterError(HowdahError):
    """The cluster refused or failed (Spark, YARN)."""

    exit_code = 5


class TrainingError(HowdahError):
    """Training had to stop: a NaN, a rank lost."""

    exit_code = 6


class Interrupted(HowdahError):
    """The user interrupted (SIGINT)."""

    exit_code = 130


class Terminated(HowdahError):
    """The process was asked to end (SIGTERM)."""

    exit_code = 143


_FIELDS = ("where", "expected", "got", "remedy")


def render(error: HowdahError) -> str:
    """The text a user sees: one line of what, then the fields that are known, one a line.

    >>> print(render(DataError("shard is truncated", where="a.tfrecord", got="12 bytes")))
    shard is truncated
      where:    a.tfrecord
      got:      12 bytes
    """
    lines = [error.what]
    for problem in getattr(error, "problems", ()):
        lines += ["- " + render(problem).replace("\n", "\n  ")]
    for field in _FIELDS:
        value = getattr(error, field)
        if value is not None:
            text = str(value).replace("\n", "\n            ")
            lines.append(f"  {field + ':':<10}{text}")
    return "\n".join(lines)


def as_dict(error: HowdahError) -> dict:
    """The same for `--json`: {error, what, where, expected, got, remedy, exit_code[, problems]}."""
    out = {"error": type(error).__name__, "what": error.what, "exit_code": error.exit_code}
    out.update({field: getattr(error, field) for field in _FIELDS})
    if getattr(error, "problems", None):
        out["problems"] = [as_dict(problem) for problem in error.problems]
    return out
