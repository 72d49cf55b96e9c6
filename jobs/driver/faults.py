"""Whose fault a failure is, by the error that its process reported: the job's, its node's, or
neither's.

Pure functions. A fault of the job would come again on any node, and ends it. A fault of a node (a
full disk, a broken GPU, a library that is missing there) ends a worker there and no more.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from howdah import storage
from howdah.config.model import Config
from howdah.packaging.cluster_paths import of_ranks

Fault = Literal["job", "node", "passing", "unknown"]
"""The job's own; the node's; that of something temporary (storage that is away); not known."""

_JOB = {
    "ConfigError", "UsageError", "DataError", "ModelError", "CheckpointError",
    "TrainingError",  # a loss that is not finite; a lost rank (RankLost) is another's failure
    "TokensExpiring", "Interrupted", "Terminated",
}  # fmt: skip
_PASSING = {"StorageUnavailable", "SafeMode"}
_OF_A_PATH = {"StorageFull", "NotFound", "AlreadyExists", "PermissionDenied"}
"""On storage that all nodes share every node meets them, on a local disk one node."""
_LIBRARY = {"ImportError", "ModuleNotFoundError"}
_MACHINE = {*_LIBRARY, "MemoryError", "OutOfMemoryError", "ResourceExhaustedError"}
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DISK = {*_FULL, errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.ESTALE}
_LIMITS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
_GPU = re.compile(
    r"\bCUDA\b|\bcuDNN\b|\bcuBLAS\b|\bCUBLAS_|\bNVML\b|\bNCCL\b|\bHIP error|uncorrectable ECC"
    r"|out of memory|cannot allocate memory",
    re.IGNORECASE,
)
_VARYING = re.compile(r"0x[0-9a-f]+|(?<![\w.])/[^\s:;,'\")]+|\d+", re.IGNORECASE)


def shared_paths(config: Config) -> tuple[str, ...]:
    """What of a job lies on storage that every node sees."""
    return tuple(of_ranks(config).values())


def fault_of(error: Mapping[str, Any] | None, shared: Sequence[str]) -> Fault:
    """Whose fault an error is.

    Args:
        error: as a training process reports it (training/process/failure.py): class (`error`),
            the names of its base classes (`kinds`), `what`, `where`, `message`, and of an OSError
            `errno`. None: the process has reported none.
        shared: `shared_paths`.
    """
    if not error:
        return "unknown"
    kinds, number = _kinds(error), error.get("errno")
    where = str(error.get("where") or "")
    if "RankLost" in kinds:
        return "unknown"
    if kinds & _JOB or "QuotaExceeded" in kinds:
        return "job"
    if kinds & _PASSING:
        return "passing"
    if "NotAuthenticated" in kinds:  # the tokens are the job's, a clock or a krb5.conf the node's
        return "unknown"
    if "StorageError" in kinds or kinds & _OF_A_PATH:
        if not _is_shared(where, shared):
            return "node" if where else "unknown"
        return "job" if kinds & _OF_A_PATH else "passing"
    if number in _FULL and where and _is_shared(where, shared):
        return "job"
    if number in _DISK | _LIMITS or kinds & _MACHINE or _LIBRARY & set(error.get("causes") or ()):
        return "node"
    if _GPU.search(_message(error)):
        return "node"
    return "unknown"


def of_cluster(error: Mapping[str, Any] | None) -> bool:
    """The error comes from the cluster to all ranks at once, such as a collective that does not
    return: that two nodes have it at the same step proves nothing."""
    return "ClusterError" in _kinds(error or {})


def of_disk(error: Mapping[str, Any] | None) -> bool:
    """A node's error is of a file or a disk: another may have the same one of its own."""
    kinds = _kinds(error or {})
    return bool(kinds & {"StorageError", "OSError", *_OF_A_PATH})


def signature(error: Mapping[str, Any] | None) -> str | None:
    """The part of an error that is equal on every node: class and message, without numbers and
    local paths; None where the process has reported no error.

    >>> signature({"error": "RuntimeError", "what": "index 31 is out of bounds (/d/a.py:7)"})
    'RuntimeError: index # is out of bounds (#:#)'
    """
    if not error or not error.get("what"):
        return None
    return f"{error.get('error')}: {_VARYING.sub('#', _message(error))}"


def _kinds(error: Mapping[str, Any]) -> set[str]:
    bases = error.get("kinds")
    return {str(error.get("error")), *(map(str, bases) if isinstance(bases, list) else ())}


def _message(error: Mapping[str, Any]) -> str:
    """One line of an error: its message; of a traceback alone, its end."""
    message = str(error.get("message") or "").strip()
    if message:
        return message.partition("\n")[0]
    lines = str(error.get("what") or "").strip().splitlines() or [""]
    return lines[-1 if lines[0].startswith("Traceback") else 0]


def _is_shared(where: str, shared: Sequence[str]) -> bool:
    """The path is on storage that all nodes share: a remote one, or below one of the job's own."""
    if not storage.is_local(where):
        return True
    path = _plain(where)
    return any(
        path == own or path.startswith(own.rstrip("/") + "/")
        for own in (_plain(one) for one in shared if storage.is_local(one))
    )


def _plain(path: str) -> str:
    return os.path.normpath(storage.local_path(path))
