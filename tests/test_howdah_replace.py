"""A new output in the place of an old one: whatever fails, one of them is there, and is named."""

from __future__ import annotations

import uuid

import pytest

from howdah import storage
from howdah.errors import AlreadyExists, PermissionDenied, StorageError
from howdah.replace import put_in_place


class Failing:
    """`howdah.storage` of which the given calls, counted from 1 over all its renames, fail."""

    def __init__(self, *calls: int, error: BaseException | None = None, removes: bool = True):
        self.calls, self.count, self.removes = calls, 0, removes
        self.error = error or PermissionDenied("no right to write there", where="the parent")

    exists = staticmethod(storage.exists)

    def rename_dir(self, source, target):
        self.count += 1
        if self.count in self.calls:
            raise self.error
        storage.rename_dir(source, target)

    def remove(self, path, recursive=False):
        if not self.removes:
            raise StorageError("cannot remove", where=path)
        storage.remove(path, recursive)


@pytest.fixture(params=["local", "memory", pytest.param("hdfs", marks=pytest.mark.hadoop)])
def place(request, tmp_path):
    """A directory with `old`, to be replaced by `.fresh`: each a directory with one file."""
    if request.param == "hdfs":
        request.getfixturevalue("hadoop_env")
        root = request.getfixturevalue("hdfs_dir")
    else:
        root = str(tmp_path) if request.param == "local" else f"memory://{uuid.uuid4().hex}"
    for name in ("old", ".fresh"):
        storage.write_whole(storage.join(root, name, "part"), name.encode())
    return root


def put(root, files=storage, target="old", **options):
    given = {"overwrite": True, "keep": True, **options}
    fresh, target = storage.join(root, ".fresh"), storage.join(root, target)
    return put_in_place(fresh, target, files=files, **given)


def names(root):
    return [entry.name for entry in storage.list_dir(root)]


def holds(root, name):
    return storage.read_text(storage.join(root, name, "part"))


def test_the_old_one_goes_once_the_new_one_is_there(place):
    assert put(place) is None
    assert names(place) == ["old"] and holds(place, "old") == ".fresh"


def test_nothing_was_there(place):
    assert put(place, target="new") is None
    assert names(place) == ["new", "old"] and holds(place, "new") == ".fresh"


def test_without_overwrite_what_is_there_stays(place):
    with pytest.raises(AlreadyExists) as caught:
        put(place, overwrite=False)
    assert names(place) == [".fresh", "old"] and holds(place, "old") == "old"
    assert storage.join(place, ".fresh") in caught.value.remedy


@pytest.mark.parametrize("call", [1, 2])
def test_a_rename_that_fails_leaves_the_old_one_and_keeps_the_new_one(place, call):
    with pytest.raises(PermissionDenied) as caught:
        put(place, Failing(call))
    assert names(place) == [".fresh", "old"]
    assert holds(place, "old") == "old" and holds(place, ".fresh") == ".fresh"
    error = caught.value
    assert error.where == storage.join(place, "old") and "no right to write" in error.got
    assert "the old one is in its place" in error.remedy
    assert storage.join(place, ".fresh") in error.remedy


def test_what_is_quickly_made_again_is_not_kept(place):
    with pytest.raises(PermissionDenied) as caught:
        put(place, Failing(2), keep=False)
    assert names(place) == ["old"] and holds(place, "old") == "old"
    assert ".fresh" not in caught.value.remedy


def test_an_old_one_that_cannot_be_put_back_is_kept_and_both_are_named(place):
    with pytest.raises(PermissionDenied) as caught:
        put(place, Failing(2, 3), keep=False)
    fresh, aside = names(place)
    assert fresh == ".fresh" and aside.startswith(".old-old.")
    assert holds(place, aside) == "old" and holds(place, fresh) == ".fresh"
    for name in (fresh, aside):
        assert storage.join(place, name) in caught.value.remedy


def test_an_interrupt_between_the_renames_leaves_the_old_one(place):
    with pytest.raises(KeyboardInterrupt):
        put(place, Failing(2, error=KeyboardInterrupt()))
    assert names(place) == ["old"] and holds(place, "old") == "old"


def test_an_old_one_that_cannot_be_removed_is_told(place):
    aside = put(place, Failing(removes=False))
    assert holds(place, "old") == ".fresh"
    assert storage.read_text(storage.join(aside, "part")) == "old"
