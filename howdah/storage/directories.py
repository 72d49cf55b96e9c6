"""A run's directories: made with the run's mode, refused where other users may write.

A user who can write into a run directory can make the training resume from other tensors, answer in
the driver's place, or fake a later attempt (`attempts/999.json`): hashes detect damage, not who
wrote a file. So a directory that another user made beforehand, where all users may make
directories, is refused.

Write access by the directory's GROUP is up to its owner, and is not refused: Linux home directories
often have mode 0775 and a group of the user's own, and teams share runs by a group on purpose.
Storages without owners (s3, memory) are not checked: there the bucket's policy decides.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence

from howdah import storage
from howdah.errors import NotFound, PermissionDenied, StorageError

BELOW = ("attempts", "checkpoints", "job", "job/requests")
"""Directories of a run directory whose files decide how a run continues."""

_OTHERS_WRITE, _OTHERS_ENTER = 0o002, 0o001


def take(directory: str, mode: str, *, key: str, below: Sequence[str] = ()) -> None:
    """Make a directory, if it is missing, and check that only its user (and group) may write there.

    Args:
        directory: on any storage.
        mode: permission bits if it is made here (`run.mode`).
        key: the configuration's key that names it, for the message.
        below: directories in it that are checked too, where they exist.
    Raises:
        PermissionDenied: it, or one below, belongs to another user or may be written by all users.
        StorageError: it cannot be made or written to.
    """
    storage.make_dirs(directory, mode=int(mode, 8))
    top = storage.entry(directory)
    if top.owner is None or top.mode is None:
        return
    user = owner_here(directory)
    for path in (directory, *(storage.join(directory, name) for name in below)):
        try:
            entry = storage.entry(path)
        except NotFound:
            continue
        if entry.owner is None or entry.mode is None:
            continue
        reachable = path == directory or top.mode & _OTHERS_ENTER
        if entry.owner != user:
            what = f"the directory of {key} belongs to another user"
            remedy = f"give {key} another value (a new directory), or check what is in it and have"
            remedy += f" its owner changed: chown -R {user}"
        elif reachable and entry.mode & _OTHERS_WRITE:
            what = f"all users may write into the directory of {key}"
            remedy = f"check what is in it, then chmod -R o-w; or give {key} another value"
        else:
            continue
        raise PermissionDenied(
            what,
            where=path,
            expected=f"a directory of {user}, which others may not write to",
            got=f"owner {entry.owner}, mode {entry.mode:04o}",
            remedy=remedy,
        )


def owner_here(directory: str) -> str | None:
    """The owner that the storage gives to files of this process; None: it has no owners.

    Found by writing a file: Kerberos' rules, a file server that squashes users or an impersonated
    user make it another name than the local one.

    Raises:
        StorageError: nothing can be written there.
    """
    probe = storage.join(directory, f".howdah-{secrets.token_hex(6)}")
    try:
        storage.write_whole(probe, b"", mode=0o600)
        return storage.entry(probe).owner
    finally:
        with contextlib.suppress(StorageError):
            storage.remove(probe)
