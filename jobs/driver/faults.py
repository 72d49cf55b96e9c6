"""Pure functions that decide from a process's error whether the job or its node is at fault.

A fault of the job would recur on any node, and ends the job. A fault of a node (a full disk, a
broken GPU, a missing library) only ends a worker on that node.
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
"""What is at fault: the job; the node; something temporary (unreachable storage); not known."""

_JOB = {
    "ConfigError", "UsageError", "DataError", "ModelError", "CheckpointError",
    "TrainingError",  # such as a loss that is not finite; RankLost is another rank's failure
    "TokensEnded", "TokensExpiring", "Interrupted", "Terminated",
}  # fmt: skip
_PASSING = {"StorageUnavailable", "SafeMode"}
_OF_A_PATH = {"StorageFull", "NotFound", "AlreadyExists", "PermissionDenied"}
"""Errors that every node meets on shared storage, and one node on its local disk."""
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
    """The job's paths on storage that every node shares."""
    return tuple(of_ranks(config).values())


def fault_of(error: Mapping[str, Any] | None, shared: Sequence[str]) -> Fault:
    """What is at fault for an error.

    Args:
        error: a training process's report (training/process/failure.py): class (`error`), the names
            of its base classes (`kinds`), `what`, `where`, `message`, and the `errno` of an
            OSError. None: the process has not reported an error.
        shared: the result of `shared_paths`.
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
    if "NotAuthenticated" in kinds:  # the job's tokens, or the node's clock or krb5.conf
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
    """True if all ranks get the error from the cluster at once, such as a collective that does not
    return: the same step on two nodes then does not prove a fault of the job."""
    return "ClusterError" in _kinds(error or {})


def of_disk(error: Mapping[str, Any] | None) -> bool:
    """True for an error of a file or disk, which two nodes may have independently."""
    kinds = _kinds(error or {})
    return bool(kinds & {"StorageError", "OSError", *_OF_A_PATH})


def signature(error: Mapping[str, Any] | None) -> str | None:
    """The part of an error that is equal on every node: class and message, without numbers and
    local paths; None if the process has not reported an error.

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
    """One line of an error: its message, or the last line of a mere traceback."""
    message = str(error.get("message") or "").strip()
    if message:
        return message.partition("\n")[0]
    lines = str(error.get("what") or "").strip().splitlines() or [""]
    return lines[-1 if lines[0].startswith("Traceback") else 0]


def _is_shared(where: str, shared: Sequence[str]) -> bool:
    """True if the path is on storage that all nodes share: remote, or below a path of the job."""
    if not storage.is_local(where):
        return True
    path = os.path.normpath(storage.local_path(where))
    roots = (os.path.normpath(storage.local_path(p)) for p in shared if storage.is_local(p))
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)
