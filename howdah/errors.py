"""Errors that a user can act on: what, where, expected, got, remedy, and an exit code per class.

Howdah raises one of these for every expected failure; the command line prints `render(error)` and
exits with `error.exit_code`, without a traceback. Any other exception is a defect of Howdah.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howdah import redact


class HowdahError(Exception):
    """Base of all errors that a user can fix.

    Args:
        what: one sentence that says what is wrong.
        where: the file, key, row or host.
        expected: what would have been right.
        got: what was found instead.
        remedy: what the user can do now.
        problems: all problems, where a check reports several at once.
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
        problems: Sequence[HowdahError] = (),
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.expected = expected
        self.got = got
        self.remedy = remedy
        self.problems = list(problems)

    def __str__(self) -> str:
        return render(self)

    def __reduce__(self):  # keyword-only fields must survive pickling (Spark workers raise these)
        return _rebuild, (type(self), self.what, self.__dict__)

    def as_dict(self) -> dict[str, Any]:
        """The redacted JSON: {error, what, where, expected, got, remedy, exit_code[, problems]}."""
        what = redact.text(self.what)
        out = {"error": type(self).__name__, "what": what, "exit_code": self.exit_code}
        out.update({field: redact.plain(getattr(self, field)) for field in _FIELDS})
        if self.problems:
            out["problems"] = [problem.as_dict() for problem in self.problems]
        return out

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> HowdahError:
        """The error whose `as_dict` gave the fields. Fields may be missing.

        Only this module's classes are looked up: an error of another class, or of none, becomes a
        `cls`.

        >>> type(TrainingError.from_dict({"error": "FencedOff", "what": "taken over"})).__name__
        'TrainingError'
        """
        kind = globals().get(str(fields.get("error")))
        if not (isinstance(kind, type) and issubclass(kind, HowdahError)):
            kind = cls
        return kind(
            str(fields.get("what")),
            problems=[HowdahError.from_dict(problem) for problem in fields.get("problems") or ()],
            **{field: fields.get(field) for field in _FIELDS},
        )


def _rebuild(cls: type[HowdahError], what: str, fields: dict) -> HowdahError:
    error = cls.__new__(cls)
    Exception.__init__(error, what)
    error.__dict__.update(fields)
    return error


class CheckFailed(HowdahError):
    """A check failed (doctor, gate); `problems` has each bound that was missed."""

    exit_code = 1


class UsageError(HowdahError):
    """The command line's arguments are wrong."""

    exit_code = 2


class ConfigError(HowdahError):
    """The run configuration is wrong; `problems` has every problem, not only the first."""

    exit_code = 2


class DataError(HowdahError):
    """A source, dataset, shard or record is invalid."""

    exit_code = 3


class ExpectationsFailed(DataError):
    """A new dataset version is not what `data.expect` asks for; `problems` has each bound."""


class ForgottenRows(DataError):
    """A model was trained on a dataset version that had rows which were forgotten since."""


class TooManyErrors(DataError):
    """More rows, of a partition or a prediction, have an error than `score.max_error_fraction`
    allows."""


class ModelError(HowdahError):
    """A base model or an export cannot be used."""

    exit_code = 4


class CheckpointError(HowdahError):
    """A checkpoint cannot be written, read or resumed from."""

    exit_code = 4


class StorageError(HowdahError):
    """A storage refused a call, or failed."""

    exit_code = 5


class NotFound(StorageError):
    """The path does not exist."""


class AlreadyExists(StorageError):
    """The path exists, and is never overwritten."""


class PermissionDenied(StorageError):
    """The user may not read or write the path."""


class StorageFull(StorageError):
    """The disk or the quota is used up."""


class QuotaExceeded(StorageFull):
    """A directory's HDFS quota is used up; the disks may have room."""


class NotAuthenticated(StorageError):
    """The cluster requires a Kerberos ticket or a token, and accepts none of this process's."""


class TokensEnded(NotAuthenticated):
    """The cluster does not accept this process's delegation token, which has expired or was
    cancelled. No other node has a better one."""


class TokensExpiring(NotAuthenticated):
    """The delegation tokens are about to expire: all is saved, new ones are needed to resume."""


class StorageUnavailable(StorageError):
    """The storage does not answer now (down, restarting, on standby). A retry may succeed."""


class SafeMode(StorageUnavailable):
    """The NameNode is in safe mode: it accepts no writes for now."""


class ClusterError(HowdahError):
    """The cluster (Spark, YARN) refused a request, or failed."""

    exit_code = 5


class JobLost(ClusterError):
    """A job was ended from outside: killed, or its driver died."""


class TrainingError(HowdahError):
    """Training had to stop: a NaN, a rank lost."""

    exit_code = 6


class WorkersLost(TrainingError):
    """A job has lost its workers, by no error of the training's own."""


class Interrupted(HowdahError):
    """The user interrupted (SIGINT)."""

    exit_code = 130


class Terminated(HowdahError):
    """The process was terminated (SIGTERM)."""

    exit_code = 143


class TerminationSignal(BaseException):
    """SIGTERM, raised in a command's main thread wherever it is.

    Like KeyboardInterrupt it is not an Exception: code that goes on after a failure would take it
    for one, and the command would not end. It becomes `Terminated` where the command ends.
    """


INTERRUPTS = (KeyboardInterrupt, TerminationSignal, Interrupted, Terminated)
"""How a command learns that it is to end; the last two come from blocks that have cleaned up."""


_FIELDS = ("where", "expected", "got", "remedy")


def render(error: HowdahError) -> str:
    """The text that a user sees: a line with `what`, the problems, then one line for each field.

    >>> print(render(DataError("shard is truncated", where="a.tfrecord", got="12 bytes")))
    shard is truncated
      where:    a.tfrecord
      got:      12 bytes
    """
    lines = [redact.text(error.what)]
    for problem in error.problems:
        lines += ["- " + render(problem).replace("\n", "\n  ")]
    for field in _FIELDS:
        value = getattr(error, field)
        if value is not None:
            text = redact.text(str(value)).replace("\n", "\n            ")
            lines.append(f"  {field + ':':<10}{text}")
    return "\n".join(lines)
