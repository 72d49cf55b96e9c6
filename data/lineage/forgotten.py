"""Marks of rows that were forgotten: `<data.dataset>/forgotten/`.

    salt                      32 random bytes, as hex: made once
    <time>-<token>.json       one call of `howdah model forget`: hashes of ids, and versions
                              that had them

No id and no text stands there: an id is SHA-256 of salt and id, 128 bits. The salt lies beside the
hashes, since the ETL needs it: who can read both and can list all ids of the source can find out
which of them were forgotten. So the directory is readable as the dataset is, not more.

The ETL leaves out rows whose id is marked; `howdah publish` refuses a run of a version that is.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from howdah import storage
from howdah.data.manifest import content_hash
from howdah.errors import AlreadyExists, DataError, NotFound

DIRECTORY = "forgotten"
_SALT = "salt"
_DIGITS = 32
_MARK = re.compile(r"\d{8}T\d{6}-[0-9a-f]{8}\.json")


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What one call of `howdah model forget` has marked."""

    created: str
    """ISO 8601, UTC."""
    ids: frozenset[str]
    """Hashes of row ids, as `hashed` makes them."""
    versions: tuple[str, ...]
    """Hashes of dataset versions that had one of the ids."""


@dataclass(frozen=True, kw_only=True)
class Forgotten:
    """All marks of a dataset, the oldest first."""

    salt: str
    marks: tuple[Mark, ...]

    @cached_property
    def ids(self) -> frozenset[str]:
        """Hashes of all forgotten row ids."""
        return frozenset(one for mark in self.marks for one in mark.ids)

    @property
    def versions(self) -> dict[str, str]:
        """{hash of a dataset version that had such a row: when it was marked first}."""
        return {hash_: mark.created for mark in self.marks[::-1] for hash_ in mark.versions}

    @property
    def digest(self) -> str | None:
        """Changes with every new id; None: there is none."""
        return content_hash(sorted(self.ids)) if self.ids else None

    def when(self, row_id: str) -> str | None:
        """When an id was marked first; None: it is not."""
        return next((mark.created for mark in self._with({row_id})), None)

    def versions_with(self, row_ids: Collection[str]) -> set[str]:
        """Hashes of versions that were marked together with one of the ids."""
        return {hash_ for mark in self._with(row_ids) for hash_ in mark.versions}

    def _with(self, row_ids: Collection[str]) -> Iterator[Mark]:
        hashes = {hashed(self.salt, row_id) for row_id in row_ids}
        return (mark for mark in self.marks if not hashes.isdisjoint(mark.ids))


NONE = Forgotten(salt="", marks=())


def hashed(salt: str, row_id: str) -> str:
    """What stands for an id, in hexadecimal; etl/rows/forgotten.py has Spark compute the same."""
    return sha256(f"{salt}{row_id}".encode()).hexdigest()[:_DIGITS]


def load(root: str) -> Forgotten:
    """The marks of the dataset at `root` (data.dataset), which need not exist.

    Raises:
        DataError: a file of marks that cannot be read: a row that must not come back could.
    """
    directory = storage.join(root, DIRECTORY)
    try:
        names = [entry.name for entry in storage.list_dir(directory) if not entry.is_dir]
    except NotFound:
        return NONE
    marks = [_read(storage.join(directory, name)) for name in names if _MARK.fullmatch(name)]
    if not marks:
        return NONE
    salt = storage.read_text(storage.join(directory, _SALT)).strip()
    return Forgotten(salt=salt, marks=tuple(marks))


def of_dataset(dataset: Mapping[str, Any]) -> str | None:
    """When the dataset version {path, hash} of a run was marked; None: it is not."""
    path, hash_ = dataset.get("path"), dataset.get("hash")
    if not path or not hash_:
        return None
    return load(storage.parent(path.rstrip("/"))).versions.get(hash_)


def add(root: str, ids: Collection[str], versions: Collection[str], by: str) -> str | None:
    """Mark ids and versions; the file's path, or None where all of them are marked already.

    Args:
        versions: hashes of versions that have, or had, one of the ids.
        by: user and host, for the file.
    """
    directory = storage.join(root, DIRECTORY)
    storage.make_dirs(directory)
    forgotten = load(root)
    salt = forgotten.salt or _salt(storage.join(directory, _SALT))
    new = {hashed(salt, row_id) for row_id in ids}
    if new <= forgotten.ids and set(versions) <= set(forgotten.versions):
        return None
    now = datetime.datetime.now(datetime.UTC)
    body = {
        "created": now.isoformat(timespec="seconds"),
        "by": by,
        "ids": sorted(new),
        "versions": sorted(versions),
    }
    path = storage.join(directory, f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}.json")
    storage.create_exclusive(path, (json.dumps(body, indent=1) + "\n").encode())
    return path


def _salt(path: str) -> str:
    with contextlib.suppress(AlreadyExists):
        storage.create_exclusive(path, (secrets.token_hex(32) + "\n").encode())
    return storage.read_text(path).strip()


def _read(path: str) -> Mark:
    mark = storage.read_json(path)
    try:
        return Mark(
            created=mark["created"], ids=frozenset(mark["ids"]), versions=tuple(mark["versions"])
        )
    except (KeyError, TypeError):
        raise DataError(
            "marks of forgotten rows cannot be read",
            where=path,
            expected="ids, versions and created, as `howdah model forget` writes them",
            remedy="restore the file: without it forgotten rows would come back",
        ) from None
