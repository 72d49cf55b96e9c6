"""Typed StorageErrors, with path, cause and remedy, for errors of file systems and NameNodes."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterator

from howdah.errors import (
    AlreadyExists,
    NotAuthenticated,
    NotFound,
    PermissionDenied,
    QuotaExceeded,
    SafeMode,
    StorageError,
    StorageFull,
    StorageUnavailable,
    TokensEnded,
)

LOGIN_REMEDY = (
    "kinit, or set KRB5_CLIENT_KTNAME to a keytab; in a container the job's tokens must be in"
    " HADOOP_TOKEN_FILE_LOCATION"
)


LOOK_UP = "look up"
"""The `doing` of `entry`: for it a path below a file is not found, for others it is an error."""

_OTHER_NAME = "give another path, or move what has this name out of the way"


class Remote(Exception):
    """An exception of a NameNode: its Java class (short or full name) and its message."""

    def __init__(self, java_class: str, message: str) -> None:
        super().__init__(f"{java_class}: {message}")
        self.java_class = java_class.rpartition(".")[2].rpartition("$")[2] or java_class
        self.message = message.strip().partition("\n\tat ")[0].strip()


class Replaced(StorageError):
    """The file was replaced while it was read: the rest is of another file."""


def replaced(path: str) -> Replaced:
    """The error for a reader that finds another file than it opened."""
    return Replaced(
        "the file was replaced or removed while it was read", where=path, remedy="read it again"
    )


@contextlib.contextmanager
def typed(path: str, doing: str, free: Callable[[str], int | None] | None = None) -> Iterator[None]:
    """Raise StorageErrors that name `path` instead of OSError and Remote.

    Args:
        doing: "read", "write", ...: completes "cannot ...".
        free: returns the free bytes, for the message of StorageFull.
    """
    try:
        yield
    except Remote as error:
        typed_error = of_remote(error, path, doing)
        if isinstance(typed_error, QuotaExceeded) and free is not None:
            left = free(path)
            if left is not None:
                typed_error.got = f"{typed_error.got}; {left:,} bytes free"
        raise typed_error from None
    except (ConnectionError, TimeoutError) as error:
        raise unavailable(path, doing, str(error) or type(error).__name__) from None
    except FileNotFoundError:
        raise not_found(path, doing) from None
    except FileExistsError:
        raise AlreadyExists(f"cannot {doing}: it already exists", where=path) from None
    except (NotADirectoryError, IsADirectoryError) as error:
        if doing == LOOK_UP and isinstance(error, NotADirectoryError):
            raise not_found(path, doing) from None
        kind = "a directory" if isinstance(error, IsADirectoryError) else "a file, or below one"
        raise StorageError(
            f"cannot {doing}: it is {kind}", where=path, remedy=_OTHER_NAME
        ) from None
    except PermissionError as error:
        raise PermissionDenied(
            f"cannot {doing}: permission denied",
            where=path,
            got=f"user {local_user()}: {error.strerror or error}",
            remedy="ask for read and write access, or give another directory",
        ) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            left = free(path) if free is not None else None
            raise StorageFull(
                f"cannot {doing}: no space left",
                where=path,
                got=f"{left:,} bytes free" if left is not None else str(error),
                remedy="free space or raise the quota; what was there before is intact",
            ) from None
        raise StorageError(f"cannot {doing}", where=path, got=str(error)) from error


def below_a_file(path: str, doing: str, file: str) -> StorageError:
    """The error for a directory that cannot be made, since `file`, it or above it, is a file."""
    return StorageError(
        f"cannot {doing}: {file} is a file, not a directory", where=path, remedy=_OTHER_NAME
    )


def local_user() -> str:
    """The operating system's name for this process's user; its number if it has no name."""
    try:
        import pwd

        return pwd.getpwuid(os.geteuid()).pw_name
    except (KeyError, ImportError):
        return str(os.geteuid())


# ---------------------------------------------------------------------- NameNode's exceptions
_NOT_FOUND = {"FileNotFoundException", "PathNotFoundException"}
_QUOTA = {
    "DSQuotaExceededException",
    "NSQuotaExceededException",
    "QuotaExceededException",
    "QuotaByStorageTypeExceededException",
}
_EXISTS = {"FileAlreadyExistsException", "AlreadyBeingCreatedException"}
_INVALID_NAME = {
    "InvalidPathException",
    "PathComponentTooLongException",
    "IllegalArgumentException",
}
_NO_DIRECTORY = {
    "ParentNotDirectoryException",
    "PathIsNotDirectoryException",
    "PathIsNotEmptyDirectoryException",
}
_AUTHENTICATION = {"SaslException", "AuthenticationException", "GSSException"}
_AWAY = {
    "StandbyException",
    "RetriableException",
    "ObserverRetryOnActiveException",
    "NoRouteToHostException",
    "ConnectException",
    "SocketException",
    "UnknownHostException",
    "ConnectTimeoutException",
    "SocketTimeoutException",
    "ServerTooBusyException",
    "LeaseExpiredException",
    "NotReplicatedYetException",
    "ReplicaNotFoundException",
    "BlockMissingException",
    "EOFException",
    "ClosedChannelException",
    "InterruptedIOException",
}
_DATANODE_FAILURE = re.compile(
    r"Cannot allocate block|does not match actual last block|could only be written to"
    r"|not sufficiently replicated|Unable to close file|Failed to (?:add|find|replace)"
    r"|All datanodes .* are bad|Failed on local exception|End of File Exception"
)
"""Messages of plain IOExceptions about lost DataNodes, and pipelines that a restart has broken."""


def of_remote(error: Remote, path: str, doing: str) -> StorageError:
    """The typed error of a NameNode's exception."""
    kind, message = error.java_class, error.message.partition("\n")[0]
    if "SafeModeException" in kind or (
        kind in ("RetriableException", "RemoteException") and "safe mode" in message
    ):
        return SafeMode(
            f"cannot {doing}: the NameNode is in safe mode",
            where=path,
            got=message,
            remedy="wait until it has left safe mode (hdfs dfsadmin -safemode get), or ask the"
            " cluster's administrators; what was there before is intact",
        )
    if kind in _NOT_FOUND or (kind == "ParentNotDirectoryException" and doing == LOOK_UP):
        return not_found(path, doing)
    if kind in _EXISTS:
        return AlreadyExists(f"cannot {doing}: it already exists", where=path)
    if kind in _QUOTA:
        return _quota(kind, message, path, doing)
    if "not allowed to impersonate" in message:
        return PermissionDenied(
            f"cannot {doing}: the cluster does not let this user act as another",
            where=path,
            got=message,
            remedy="ask for hadoop.proxyuser.<this user>.hosts and .groups in the cluster's"
            " core-site.xml, or leave out run.user",
        )
    # While a NameNode becomes the active one it has not read all tokens, and says "try again".
    becoming_active = (
        kind in _AWAY or "StandbyException" in message or "RetriableException" in message
    )
    if not becoming_active and (kind == "InvalidToken" or "$InvalidToken" in message):
        return TokensEnded(
            f"cannot {doing}: the cluster does not accept the delegation token: it has expired, or"
            " was cancelled",
            where=path,
            got=message,
            remedy="submit again: a submission gets new tokens, and the run resumes; outside of"
            " containers unset HADOOP_TOKEN_FILE_LOCATION and kinit",
        )
    if becoming_active and "InvalidToken" in message:
        return unavailable(path, doing, f"{kind}: {message}")
    if kind in _AUTHENTICATION or "SIMPLE authentication is not enabled" in message:
        return not_authenticated(path, doing, f"{kind}: {message}")
    if kind in ("AccessControlException", "AuthorizationException", "SecurityException"):
        return PermissionDenied(
            f"cannot {doing}: permission denied",
            where=path,
            got=message,
            remedy="ask for read and write access, or give another directory",
        )
    if kind in _INVALID_NAME or message.startswith("Invalid path name"):  # DataNodes before 3.3
        return StorageError(
            f"cannot {doing}: HDFS does not take this name",
            where=path,
            got=message,
            remedy="leave out ':' and control characters; a name has at most 255 bytes",
        )
    if kind in _NO_DIRECTORY:
        return StorageError(
            f"cannot {doing}: a directory is not as required",
            where=path,
            got=message,
            remedy="check which parts of the path are files, and that the directory is empty",
        )
    if kind in _AWAY or (kind.endswith("IOException") and _DATANODE_FAILURE.search(message)):
        return unavailable(path, doing, f"{kind}: {message}")
    return StorageError(f"cannot {doing}", where=path, got=f"{kind}: {message}")


def not_found(path: str, doing: str) -> NotFound:
    """The error for a missing path."""
    return NotFound(
        f"cannot {doing}: no such file or directory", where=path, remedy="check the path"
    )


def unavailable(path: str, doing: str, cause: str) -> StorageUnavailable:
    """The error for a storage that does not answer."""
    if "could only be written to" in cause:
        return StorageUnavailable(
            f"cannot {doing}: no DataNode accepts the data",
            where=path,
            got=cause,
            remedy="check that DataNodes run and have room (hdfs dfsadmin -report); what was"
            " published before is intact",
        )
    return StorageUnavailable(
        f"cannot {doing}: storage does not answer",
        where=path,
        got=cause,
        remedy="check that the NameNode and DataNodes run and can be reached from here (host,"
        " port, HADOOP_CONF_DIR); `howdah doctor` checks them",
    )


def not_authenticated(path: str, doing: str, cause: str) -> NotAuthenticated:
    """The error for a missing ticket or token, or one that the cluster does not accept."""
    return NotAuthenticated(
        f"cannot {doing}: the cluster requires a Kerberos ticket or a token, and accepts none",
        where=path,
        got=cause,
        remedy=LOGIN_REMEDY,
    )


def may_have_ticket() -> bool:
    """Whether a keytab or a ticket cache is configured; its contents are not checked."""
    if os.environ.get("KRB5_CLIENT_KTNAME") or os.environ.get("KRB5CCNAME"):
        return True
    return os.path.exists(f"/tmp/krb5cc_{os.getuid()}")


def _quota(kind: str, message: str, path: str, doing: str) -> QuotaExceeded:
    """QuotaExceeded, with directory, quota and use from the message; both count replicas.

    HDFS reserves a whole block for each replica while a block is written: below a quota of block
    size times replication no file can be written.
    """
    names = kind == "NSQuotaExceededException"
    directory = re.search(
        r"quota \([^)]*\) of (?:directory )?([^ ]+) is exceeded|quota of ([^ ]+) is exc", message
    )
    got = message
    numbers = re.search(r"quota ?[=:] ?(\d+).*?(?:consumed|file count) ?[=:] ?(\d+)", message)
    if numbers is not None:
        quota, needed = int(numbers.group(1)), int(numbers.group(2))
        unit = "names" if names else "bytes, replicas included"
        of_directory = f" of {directory.group(1) or directory.group(2)}" if directory else ""
        got = f"quota{of_directory} {quota:,} {unit}; with this write {needed:,}"
    return QuotaExceeded(
        f"cannot {doing}: the quota is used up",
        where=path,
        got=got,
        remedy=(
            "remove files there"
            if names
            else "remove files there (HDFS also reserves a whole block a replica while it writes)"
        )
        + ", or ask for a larger quota; what was there before is intact",
    )
