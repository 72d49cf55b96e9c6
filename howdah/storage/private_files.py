"""Reads files that hold a secret: tokens of a server, URLs with a password.

A secret that other users can read is exposed. Which users can read a file is not in its mode bits
alone, and a file that a platform mounts cannot be changed by the process that reads it:

- Kubernetes mounts a Secret with `fsGroup` as root:GROUP, mode 0440 whatever `defaultMode` says
  (kubernetes/kubernetes issue 57923); the process is a member of the group.
- systemd's LoadCredential= gives root's file an access control list with the service's user. Its
  mode reads 0440, since with a list the bits of the group show the list's mask (acl(5)).

So a file is accepted with mode 0600 or 0400; with mode 0440 where its group is one of this
process's groups; and with an access control list that names this process's user or groups alone.
Mode 0640 is refused: it is what an ordinary umask leaves by accident, and `chmod 600` is possible.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Collection

from howdah import storage
from howdah.errors import NotFound, PermissionDenied, StorageError

_MOST_BYTES = 65536
_ACL = "system.posix_acl_access"
_USER, _GROUP_OBJECT, _GROUP, _MASK = 0x02, 0x04, 0x08, 0x10
"""Tags of an access control list's entries (Linux: include/uapi/linux/posix_acl.h)."""
_READ = 4


def read(path: str, *, what: str, where: str) -> str:
    """The text of a file that no other user may read, at most 64 KiB.

    Args:
        path: on any storage.
        what: the file, for messages: "the file of tokens".
        where: the key that names it, and the path.
    Raises:
        PermissionDenied: other users may read it, or its storage has no modes.
        NotFound, StorageError: it cannot be read, is larger, or is not a file of text.
    """
    if storage.is_local(path):
        mode, problem, data = _read_local(storage.local_path(path), what, where)
    else:
        mode = storage.entry(path).mode
        if mode is None:
            raise PermissionDenied(
                f"nothing says who may read {what}",
                where=where,
                expected="a file with permission bits, on this machine or on HDFS",
                got=f"{storage.scheme(path)}://, which has none",
                remedy="copy it to this machine, and set its mode to 0600",
            )
        problem = "mode bits of other users" if mode & 0o077 else None
        data = b"" if problem else storage.read_bytes(path)
    if problem is not None:
        raise PermissionDenied(
            f"other users may read {what}",
            where=where,
            expected="mode 0600; or 0440 with a group of this process, as mounted secrets have",
            got=f"mode {mode & 0o7777:04o}: {problem}",
            remedy=f"chmod 600 {path}, and change the secret if others may have read it",
        )
    if len(data) > _MOST_BYTES:
        raise StorageError(
            f"{what} is too large", where=where, expected=f"at most {_MOST_BYTES:,} bytes"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise StorageError(f"{what} is not a file of text", where=where, expected="UTF-8") from None


def _read_local(local: str, what: str, where: str) -> tuple[int, str | None, bytes]:
    """(mode, who else may read it, contents) of one opened file: what is checked is what is read.

    The file is opened without blocking, so that a named pipe is refused instead of waited for.
    """
    try:
        descriptor = os.open(local, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            os.close(descriptor)
            raise StorageError(f"{what} is not a file", where=where, expected="a regular file")
        with open(descriptor, "rb") as file:
            acl = b""
            with contextlib.suppress(OSError):  # no list, or a file system without them
                acl = os.getxattr(descriptor, _ACL)
            groups = {os.getegid(), *os.getgroups()}
            problem = readers_beside(info, acl, os.geteuid(), groups)
            return info.st_mode, problem, b"" if problem else file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(
            f"{what} cannot be read", where=where, got="no such file", expected="a file here"
        ) from None
    except OSError as error:
        raise StorageError(
            f"{what} cannot be read", where=where, got=error.strerror, expected="a file here"
        ) from None


def readers_beside(
    info: os.stat_result, acl: bytes, user: int, groups: Collection[int]
) -> str | None:
    """Who beside its owner, root and this process's user may read or write a file; None: no user.

    Args:
        info: of the file: its mode and group.
        acl: the extended attribute system.posix_acl_access; b"": the file has no list.
        user: this process's.
        groups: this process's.
    """
    mode = stat.S_IMODE(info.st_mode)
    if mode & 0o007:
        return "all users"
    if not mode & 0o070:  # with a list: its mask, which bounds every entry
        return None
    if not acl:
        if mode & 0o277 == 0o040 and info.st_gid in groups:
            return None
        return "its group"
    if mode & 0o030:
        return "writers of an access control list"
    for tag, permissions, number in struct.iter_unpack("<HHI", acl[4:]):
        if not permissions & _READ:
            continue
        if tag == _USER and number not in (0, user):
            return f"user {number} by an access control list"
        if tag == _GROUP and number not in groups:
            return f"group {number} by an access control list"
        if tag == _GROUP_OBJECT and info.st_gid not in groups:
            return "its group"
    return None
