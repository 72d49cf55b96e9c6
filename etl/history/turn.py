"""One commit at a time on top of a version: two would lose the part of the run that is slower.

Right before its commit a run takes the lease `<data.dataset>/_turn-<version>.<n>.json`, and gives
it back when it has committed. Only then it looks whether another version has come: a run that comes
later meets the lease, or the new version.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from howdah import storage
from howdah.data.manifest import Dataset, newest
from howdah.errors import AlreadyExists, DataError
from howdah.storage import lease


@contextlib.contextmanager
def turn(dataset: str, began: Dataset | None) -> Iterator[None]:
    """Inside, no other run commits a version on top of the one that was newest as this run began.

    Args:
        dataset: data.dataset.
        began: the newest version then; None: there was none.
    Raises:
        DataError: another version has come since, or is being committed.
    """
    name = "first" if began is None else storage.name(began.path)
    try:
        turns = lease.acquire(storage.join(dataset, f"_turn-{name}"))
    except AlreadyExists as error:
        running = f"{error.got} ({error.where})"
        raise _outrun(dataset, began, "no other run that commits", running) from None
    with turns:
        now = newest(dataset)
        if (now and now.path) != (began and began.path):
            raise _outrun(dataset, began, "nothing newer", now.path if now else "no version")
        if turns.lost():  # this process was suspended since it took the lease
            raise _outrun(dataset, began, "no other run that commits", turns.path)
        yield


def _outrun(dataset: str, began: Dataset | None, expected: str, got: str) -> DataError:
    return DataError(
        "another version was committed during this run, or is being committed now",
        where=dataset,
        expected=f"{expected} than {began.path}" if began is not None else expected,
        got=got,
        remedy="run the command again: it begins with the new version. Append one part at a time",
    )
