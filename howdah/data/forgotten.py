"""Marks of rows that were forgotten: `<data.dataset>/forgotten/`.

    salt                      32 random bytes, as hex: made once
    <time>-<token>.json       one call of `howdah forget`: hashes of ids, versions that had them

No id and no text stands there: an id is SHA-256 of salt and id, 128 bits. The salt lies beside the
hashes, since the ETL needs it: who can read both and can list all ids of the source can find out
which of them were forgotten. So the directory is readable as the dataset is, not more.

The ETL leaves out rows whose id is marked; `howdah publish` refuses a run of a version that is.
"""

from __future__ import annotations

import datetime
import json
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from howdah import storage
from howdah.data.manifest import content_hash
from howdah.errors import AlreadyExists, DataError, NotFound

__all__ = ["DIRECTORY", "Forgotten", "add", "hashed", "load", "of_dataset"]

DIRECTORY = "forgotten"
_SALT = "salt"
_DIGITS = 32
_MARK = re.compile(r"\d{8}T\d{6}-[0-9a-f]{8}\.json")


@dataclass(frozen=True, kw_only=True)
class Forgotten:
    """All marks of a dataset."""

    salt: str
    ids: frozenset[str]
    """Of `hashed`."""
    versions: Mapping[str, str]
    """{hash of a dataset version that had such a row: when it was marked}."""

    @property
    def digest(self) -> str | None:
        """Changes with every mark; None: there is none."""
        return content_hash(sorted(self.ids)) if self.ids else None


NONE = Forgotten(salt="", ids=frozenset(), versions={})


def hashed(salt: str, row_id: str) -> str:
    """What stands for an id: hexadecimal digits, as etl/rows/forgotten.py has Spark compute them."""
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
    return Forgotten(
        salt=storage.read_text(storage.join(directory, _SALT)).strip(),
        ids=frozenset(one for mark in marks for one in mark["ids"]),
        versions={hash_: mark["created"] for mark in marks for hash_ in mark["versions"]},
    )


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
        by: who asks, for the file.
    """
    directory = storage.join(root, DIRECTORY)
    storage.make_dirs(directory)
    known = load(root)
    salt = known.salt or _salt(storage.join(directory, _SALT))
    new = {hashed(salt, row_id) for row_id in ids}
    if new <= known.ids and set(versions) <= set(known.versions):
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
    try:
        storage.create_exclusive(path, (secrets.token_hex(32) + "\n").encode())
    except AlreadyExists:
        pass
    return storage.read_text(path).strip()


def _read(path: str) -> dict[str, Any]:
    mark = storage.read_json(path)
    try:
        return {
            key: mark[key] + type(of)()
            for key, of in (("ids", []), ("versions", []), ("created", ""))
        }
    except (KeyError, TypeError):
        raise DataError(
            "marks of forgotten rows cannot be read",
            where=path,
            expected="ids, versions and created, as `howdah forget` writes them",
            remedy="restore the file: without it rows that were forgotten would come again",
        ) from None
