"""The staging directory: containers run its files, so only its owner may write to it.

Packages (Python environment, wheel, Spark's jars, the user's files) are in `<staging>/packages`;
YARN's NodeManagers run them with the job's tokens. From the submission on YARN checks size and
modification time of each file and refuses one that has changed; before that, only the directory's
permissions protect the files. So the directory and each file in it must belong to this user, and no
other user may write to them. A note beside each file has its SHA-256, and the modification time at
which the file had it.

This user's name on the storage is the owner of a file that this process has just written. So the
rules by which a cluster maps principals to names (hadoop.security.auth_to_local) are not needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from howdah import storage
from howdah.errors import ConfigError, DataError, NotFound
from howdah.packaging import package
from howdah.packaging.package import Package
from howdah.storage.directories import owner_here

PACKAGES = "packages"
PRIVATE = 0o700
_THROUGH = 0o711
"""Mode of the staging directory itself: a user who may see an application can open its entry in
`applications/` by name, but cannot list the directory."""
_FILE, _PUBLIC_FILE = 0o600, 0o644
_OTHERS_WRITE = 0o022
_NOTE = ".sha256"


@dataclass(frozen=True)
class Staging:
    """A staging directory whose owner and mode have been checked."""

    directory: str
    owner: str | None
    """This user's name on its storage; None: the storage has no owners (S3)."""

    @property
    def packages(self) -> str:
        """The directory of the packages."""
        return storage.join(self.directory, PACKAGES)

    def put(self, item: Package, progress: Callable[[str], None] | None = None) -> str:
        """Upload a package, unless it is there unaltered; its URL.

        Several processes may upload at once: the name is the hash, the file appears whole, and a
        second upload replaces it by the same bytes.
        """
        target = storage.join(self.packages, item.name)
        digest = package.sha256(item.path)
        if self._there(target, item, digest):
            return target
        if progress is not None:
            size = item.size / 2**20
            progress(f"uploading {item.name} ({size:,.0f} MiB) to {self.packages}")
        storage.upload(item.path, target, mode=_PUBLIC_FILE if item.public else _FILE)
        self._write_note(target, digest, storage.entry(target))
        return target

    def _there(self, target: str, item: Package, digest: str) -> bool:
        """True if the file there belongs to this user and has these contents."""
        try:
            entry = storage.entry(target)
        except NotFound:
            return False
        if entry.is_dir or entry.size != item.size or not _only_ours(entry, self.owner):
            return False
        if self._read_note(target) == _note_of(digest, entry):
            return True
        # There is no note of this file: another process uploads it now, or was killed before it
        # wrote the note. Do not replace it: YARN may have recorded its modification time.
        if package.stored_sha256(target) != digest or storage.entry(target) != entry:
            return False
        self._write_note(target, digest, entry)
        return True

    def _read_note(self, target: str) -> dict | None:
        note = target + _NOTE
        try:
            if not _only_ours(storage.entry(note), self.owner):
                return None
            contents = storage.read_json(note)
        except (NotFound, DataError):
            return None
        return contents if isinstance(contents, dict) else None

    def _write_note(self, target: str, digest: str, entry: storage.Entry) -> None:
        note = json.dumps(_note_of(digest, entry)).encode()
        storage.write_whole(target + _NOTE, note, mode=_FILE)


def ready(directory: str, key: str) -> Staging:
    """The staging directory, created if it does not exist.

    Args:
        directory: on the cluster's storage.
        key: of the configuration, for messages.
    Raises:
        ConfigError: it belongs to another user, or others may write to it.
        StorageError: it cannot be created or written to.
    """
    owner: str | None = None
    for path, mode in (
        (directory, _THROUGH),
        (storage.join(directory, PACKAGES), PRIVATE),
    ):
        if not storage.exists(path):
            storage.make_dirs(path, mode=mode)
        owner = owner_here(path)
        entry = storage.entry(path)
        if owner is None or entry.mode is None:
            return Staging(directory, None)
        _refuse_others(path, entry, owner, key)
        if mode == PRIVATE and entry.mode & 0o777 != PRIVATE:  # it was made with another umask
            storage.set_mode(path, PRIVATE)
    return Staging(directory, owner)


def _refuse_others(path: str, entry: storage.Entry, owner: str, key: str) -> None:
    if entry.owner != owner:
        raise ConfigError(
            "another user owns the staging directory, and could replace what your containers run",
            where=f"{key} {path}",
            expected=f"a directory of {owner}",
            got=f"owner {entry.owner}",
            remedy=f"set {key} to a directory of your own, or leave it out: .howdah in your home",
        )
    if (entry.mode or 0) & _OTHERS_WRITE:
        raise ConfigError(
            "other users may write to the staging directory, and replace what your containers run",
            where=f"{key} {path}",
            expected="mode 700 (an access list counts: its mask is the group's part)",
            got=f"mode {entry.mode or 0:o}",
            remedy=f"hdfs dfs -setfacl -b {path}; hdfs dfs -chmod 700 {path}",
        )


def _only_ours(entry: storage.Entry, owner: str | None) -> bool:
    """True if no other user can have written a file, or the storage has no owners."""
    if owner is None or entry.owner is None or entry.mode is None:
        return True
    return entry.owner == owner and not entry.mode & _OTHERS_WRITE


def _note_of(digest: str, entry: storage.Entry) -> dict:
    return {"sha256": digest, "bytes": entry.size, "modified": entry.modified}
