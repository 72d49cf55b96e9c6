"""One commit at a time on top of a version: two would lose the part of the run that is slower.

Right before its commit a run creates `<data.dataset>/_turn-<version>.<n>.json`, exclusively, and
removes it when it has committed. Only then it looks for a newer version: a later run meets the
file, or the new version. The file of a dead run stays, and the next run takes the next n: if it
were removed, two runs that find it dead could both continue.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from howdah import storage
from howdah.data.manifest import Dataset, newest
from howdah.errors import AlreadyExists, DataError, NotFound, StorageError
from howdah.etl.workspace.staging import Lease, is_live


@contextlib.contextmanager
def turn(dataset: str, began: Dataset | None, lease: Lease) -> Iterator[None]:
    """Inside, no other run commits a version on top of the one that was newest as this run began.

    Args:
        dataset: data.dataset.
        began: the newest version then; None: there was none.
        lease: this run's.
    Raises:
        DataError: another version has come since, or is being committed.
    """
    path = _take(dataset, began, lease)
    try:
        now = newest(dataset)
        if (now and now.path) != (began and began.path):
            raise _outrun(dataset, began, "nothing newer", now.path if now else "no version")
        yield
    finally:
        with contextlib.suppress(StorageError):  # one that stays is taken for a dead run's
            storage.remove(path)


def _take(dataset: str, began: Dataset | None, lease: Lease) -> str:
    body = {"version": storage.name(lease.directory), "token": lease.token}
    name = "first" if began is None else storage.name(began.path)
    number = 1
    while True:
        path = storage.join(dataset, f"_turn-{name}.{number}.json")
        try:
            storage.create_exclusive(path, json.dumps(body).encode())
            return path
        except AlreadyExists:
            pass
        try:
            other = storage.read_json(path)
        except NotFound:  # it has ended meanwhile
            continue
        directory = storage.join(dataset, str(other.get("version")))
        if is_live(directory, str(other.get("token"))):
            raise _outrun(dataset, began, "no other run that commits", directory)
        number += 1


def _outrun(dataset: str, began: Dataset | None, expected: str, got: str) -> DataError:
    return DataError(
        "another version was committed while this one was made, or is at this moment",
        where=dataset,
        expected=f"{expected} than {began.path}" if began is not None else expected,
        got=got,
        remedy="run the command again: it begins with the new version. Append one part at a time",
    )
