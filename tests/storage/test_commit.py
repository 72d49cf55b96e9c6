"""Atomic publication on every storage: killed at each point, two writers, a lost answer.

A version here is a directory of `manifest.json`, which says its name, and of two parts that say it,
too. A reader takes a directory without its manifest for unfinished.
"""

import contextlib
import os
import threading

import pytest

from howdah import storage
from howdah.errors import (
    AlreadyExists,
    NotFound,
    PermissionDenied,
    StorageError,
    StorageUnavailable,
)
from howdah.storage import commit
from howdah.storage.backends import backend_of
from tests.storage.test_contract import together

PARTS = ("part-a", "part-b")


@pytest.fixture
def place(any_storage):
    """A directory with the version `old`, to be replaced, and the staged version `.fresh`."""
    for name in ("old", ".fresh"):
        write(storage.join(any_storage, name), name)
    return any_storage


def write(path, name, files=storage):
    for part in PARTS:
        files.write_whole(storage.join(path, part), name.encode())
    files.write_whole(storage.join(path, "manifest.json"), name.encode())


def holds(root, name):
    """The version that a directory is; None if it is none (yet). Never a mixture, or a part."""
    path = storage.join(root, name)
    try:
        text = storage.read_text(storage.join(path, "manifest.json"))
    except NotFound:
        return None
    assert {storage.read_text(storage.join(path, part)) for part in PARTS} == {text}
    return text


def names(root):
    return [entry.name for entry in storage.list_dir(root, unfinished=True)]


class Wrapped:
    """`howdah.storage` whose calls go through `_call`."""

    def __init__(self):
        self.real = {}
        """The calls themselves, where `howdah.storage` has these in their place."""
        for name in ("exists", "rename_dir", "remove", "write_whole"):
            setattr(self, name, lambda *words, name=name, **more: self._call(name, *words, **more))

    def _call(self, name, *words, **more):
        return self.real.get(name, getattr(storage, name))(*words, **more)


class Failing(Wrapped):
    """The given calls of rename_dir, counted from 1, fail; `removes=False`: all removals do."""

    def __init__(self, *calls, error=None, removes=True):
        super().__init__()
        self.calls, self.count, self.removes = calls, 0, removes
        self.error = error or PermissionDenied("no right to write there", where="the parent")

    def _call(self, name, *words, **more):
        if name == "rename_dir":
            self.count += 1
            if self.count in self.calls:
                raise self.error
        if name == "remove" and not self.removes:
            raise StorageError("cannot remove", where=words[0])
        return super()._call(name, *words, **more)


def put(root, files=storage, target="old", *, overwrite=True, keep=True):
    """Publish `.fresh`; the path of the old one if it could not be removed."""
    target = storage.join(root, target)
    aside = commit.hidden(target, "old")
    with commit.stage(storage.join(root, ".fresh"), files=files) as staged:
        replaced = staged.publish(target, aside=aside if overwrite else None, keep=keep)
    return None if replaced is None or commit.discard(replaced, files=files) else replaced


# --------------------------------------------------------------------------- published, or not
def test_the_old_version_is_replaced_and_removed(place):
    assert put(place) is None
    assert names(place) == ["old"] and holds(place, "old") == ".fresh"


def test_publishing_to_a_free_name_removes_nothing(place):
    assert put(place, Failing(removes=False), target="new") is None  # none to be removed
    assert names(place) == ["new", "old"] and holds(place, "new") == ".fresh"


def test_a_file_is_published_like_a_directory(any_storage):
    target = storage.join(any_storage, "out.csv")
    storage.write_whole(target, b"old")
    with commit.stage(commit.hidden(target, "tmp")) as staged:
        storage.write_whole(staged.path, b"new")
        assert [entry.name for entry in storage.list_dir(any_storage)] == ["out.csv"]
        staged.publish(target, aside=storage.join(any_storage, "before.csv"))
    assert names(any_storage) == ["before.csv", "out.csv"]
    assert storage.read_bytes(target) == b"new"


def test_without_overwrite_the_old_version_stays(place):
    with pytest.raises(AlreadyExists) as caught:
        put(place, overwrite=False)
    assert names(place) == [".fresh", "old"] and holds(place, "old") == "old"
    assert storage.join(place, ".fresh") in caught.value.remedy


@pytest.mark.parametrize("call", [1, 2])
def test_a_failed_rename_leaves_the_old_version_and_keeps_the_new_one(place, call):
    with pytest.raises(PermissionDenied) as caught:
        put(place, Failing(call))
    assert names(place) == [".fresh", "old"]
    assert holds(place, "old") == "old" and holds(place, ".fresh") == ".fresh"
    error = caught.value
    assert error.where == storage.join(place, "old") and "no right to write" in error.got
    assert "the old one is in its place" in error.remedy
    assert storage.join(place, ".fresh") in error.remedy


def test_without_keep_the_staged_version_is_removed(place):
    with pytest.raises(PermissionDenied) as caught:
        put(place, Failing(2), keep=False)
    assert names(place) == ["old"] and holds(place, "old") == "old"
    assert ".fresh" not in caught.value.remedy


def test_an_old_version_that_cannot_be_put_back_is_kept_and_both_are_named(place):
    with pytest.raises(PermissionDenied) as caught:
        put(place, Failing(2, 3), keep=False)
    fresh, aside = names(place)
    assert fresh == ".fresh" and aside.startswith(".old-old.")
    assert holds(place, aside) == "old" and holds(place, fresh) == ".fresh"
    for name in (fresh, aside):
        assert storage.join(place, name) in caught.value.remedy


def test_an_interrupt_between_the_renames_leaves_the_old_version(place):
    with pytest.raises(KeyboardInterrupt):
        put(place, Failing(2, error=KeyboardInterrupt()))
    assert names(place) == ["old"] and holds(place, "old") == "old"


def test_an_old_version_that_cannot_be_removed_is_named(place):
    aside = put(place, Failing(removes=False))
    assert holds(place, "old") == ".fresh"
    assert storage.read_text(storage.join(aside, "part-a")) == "old"


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyboardInterrupt()])
def test_unpublished_files_are_removed(any_storage, error):
    path = storage.join(any_storage, ".fresh")
    with pytest.raises(type(error)), commit.stage(path):
        write(path, "half")
        raise error
    with commit.stage(path):
        write(path, "given up")
    assert names(any_storage) == []


def test_a_failed_removal_is_repeated_before_the_next_writer_begins(any_storage, monkeypatch):
    first, second = (storage.join(any_storage, name) for name in (".one", ".two"))
    with monkeypatch.context() as patch:
        patch.setattr(storage, "remove", Failing(removes=False).remove)
        with pytest.raises(ValueError, match="a bug"), commit.stage(first):  # not the removal's
            write(first, "half")
            raise ValueError("a bug")
    assert names(any_storage) == [".one"]
    with commit.stage(second):
        assert names(any_storage) == []
    assert not commit._undeleted


# --------------------------------------------------------------------------------------- killed
class Killed(BaseException):
    """The process is gone: none of its calls reaches the storage any more."""


class Dying(Wrapped):
    """Killed at a call, counted from 1; on S3 also between the copies that a rename is there."""

    def __init__(self, at):
        super().__init__()
        self.at, self.count = at, 0

    def one_more(self):
        self.count += 1
        if self.count >= self.at:
            raise Killed

    def _call(self, name, *words, **more):
        self.one_more()
        return super()._call(name, *words, **more)


@contextlib.contextmanager
def copies_counted(dying, root):
    with pytest.MonkeyPatch.context() as patch:
        if storage.scheme(root) == "s3":
            s3 = backend_of(root)._fs
            copy = s3.cp_file
            patch.setattr(s3, "cp_file", lambda *words: (dying.one_more(), copy(*words)))
        yield


def replace_by(root, version, files=storage):
    """Write a version beside `model` and put it there: what an export does."""
    target = storage.join(root, "model")
    aside = storage.join(root, f"model.old-{version}")
    with commit.stage(storage.join(root, f"model.new-{version}"), files=files) as staged:
        write(staged.path, version, files)
        replaced = staged.publish(target, aside=aside)
    if replaced is not None:
        commit.discard(replaced, files=files)
    commit.sweep(storage.list_dir(root), lambda entry: entry.name.startswith("model."))


@pytest.mark.parametrize("replacing", [False, True])
def test_killed_at_each_point_the_target_is_whole_or_missing_and_the_next_run_completes(
    any_storage, replacing
):
    at, seen = 0, set()
    while True:
        at += 1
        root = storage.join(any_storage, f"killed-{at}")
        storage.make_dirs(root)
        if replacing:
            replace_by(root, "1")
        dying = Dying(at)
        with contextlib.suppress(Killed), copies_counted(dying, root):
            replace_by(root, "2", dying)
        contents = {name: holds(root, name) for name in names(root)}
        seen.add(contents.get("model"))
        assert contents.get("model") in (None, "1", "2")
        if replacing:  # one of them is whole: under its name, or beside it
            assert {"1", "2"} & set(contents.values())
            assert contents.get("model") or {"1", "2"} <= set(contents.values())
        replace_by(root, "3")
        assert names(root) == ["model"] and holds(root, "model") == "3"
        if dying.count < at:
            break
    renames = (1 + replacing) * (4 if storage.scheme(any_storage) == "s3" else 1)
    assert at == len(PARTS) + 1 + 1 + renames + replacing + 1  # files, exists, remove; it lived
    assert seen == {None, "2"} | ({"1"} if replacing else set())


def test_killed_during_a_retraction_nothing_that_looks_whole_stays(any_storage, monkeypatch):
    at, seen = 0, set()
    while True:
        at += 1
        path, doomed = (storage.join(any_storage, f"{name}-{at}") for name in ("v", "doomed"))
        write(path, "1")
        dying = Dying(at)
        with contextlib.suppress(Killed), copies_counted(dying, path), monkeypatch.context() as now:
            rename, remove = storage.rename_dir, storage.remove

            def in_two(path, recursive=False, dying=dying, remove=remove):
                dying.one_more()
                remove(storage.join(path, PARTS[0]))
                dying.one_more()  # half of it is gone
                remove(path, recursive)

            dying.real = {"rename_dir": rename}
            now.setattr(storage, "rename_dir", dying.rename_dir)
            now.setattr(storage, "remove", in_two)
            commit.retract(path, doomed)
        seen.add(holds(any_storage, f"v-{at}"))
        if dying.count < at:
            break
        commit.retract(path, doomed) if storage.exists(path) else commit.discard(doomed)
        assert not storage.exists(path) and not storage.exists(doomed)
    assert seen == {"1", None}


# ---------------------------------------------------------------------------------- two writers
def test_of_many_writers_one_wins_and_the_others_leave_nothing(any_storage):
    if any_storage.startswith("s3://"):
        pytest.skip("S3 has no rename: its users decide by a file that is created exclusively")
    target = storage.join(any_storage, "v")

    def one(n):
        try:
            with commit.stage(storage.join(any_storage, f"staged-{n}")) as staged:
                write(staged.path, str(n))
                staged.publish(target)
        except AlreadyExists:
            return False
        return True

    won = together(4, one)
    assert won.count(True) == 1
    assert names(any_storage) == ["v"] and holds(any_storage, "v") == str(won.index(True))


def test_of_two_concurrent_replacements_one_is_whole(place):
    """The second one comes between the two renames of the first."""
    second = storage.join(place, ".second")
    write(second, "second")

    class Meeting(Failing):
        def _call(self, name, *words, **more):
            if name == "rename_dir" and self.count == 1:  # what was there is aside
                with commit.stage(second) as staged:
                    staged.publish(storage.join(place, "old"), aside=storage.join(place, "old.2"))
            return super()._call(name, *words, **more)

    with pytest.raises(AlreadyExists) as caught:
        put(place, Meeting())
    assert holds(place, "old") == "second"
    assert holds(place, ".fresh") == ".fresh" and ".fresh" in caught.value.remedy
    (aside,) = (name for name in names(place) if name.startswith(".old-old."))
    assert holds(place, aside) == "old" and aside in caught.value.remedy


# ------------------------------------------------------------------------------- answers lost
class Silent(Failing):
    """The given renames are done, but their answers are lost; `away`: and nothing answers since."""

    def __init__(self, *calls, away=False):
        super().__init__(*calls, error=StorageUnavailable("no answer", where="the storage"))
        self.away, self.over = away, False

    def _call(self, name, *words, **more):
        if self.over:
            raise self.error
        try:
            return super()._call(name, *words, **more)
        except StorageUnavailable:
            storage.rename_dir(*words)
            self.over = self.away
            raise


@pytest.mark.parametrize("keep", [False, True])
def test_a_rename_whose_answer_is_lost_is_done(place, keep):
    assert put(place, Silent(2), keep=keep) is None
    assert names(place) == ["old"] and holds(place, "old") == ".fresh"
    write(storage.join(place, ".fresh"), "again")
    put(place, Silent(1), target="new", keep=keep)
    assert holds(place, "new") == "again"


def test_an_old_version_whose_rename_aside_got_no_answer_comes_back(place):
    with pytest.raises(StorageUnavailable) as caught:
        put(place, Silent(1))
    assert names(place) == [".fresh", "old"] and holds(place, "old") == "old"
    assert "the old one is in its place" in caught.value.remedy


@pytest.mark.parametrize("call", [1, 2])
def test_without_any_answer_nothing_is_removed_and_both_are_named(place, call):
    with pytest.raises(StorageUnavailable) as caught:
        put(place, Silent(call, away=True), keep=False)
    contents = {name: holds(place, name) for name in names(place)}
    assert set(contents.values()) == {"old", ".fresh"}
    assert all(word in caught.value.remedy for word in (".fresh", ".old-old."))


# ------------------------------------------------------------------------------ verify, sweep
def test_size_defects_are_found(any_storage):
    storage.write_whole(storage.join(any_storage, "a"), b"1234")
    storage.write_whole(storage.join(any_storage, "rejects", "b"), b"12")
    assert commit.size_defect(any_storage, {"a": 4, "rejects/b": None}) is None
    assert commit.size_defect(any_storage, {}) is None
    wrong = commit.size_defect(any_storage, {"a": 4, "rejects/b": 3})
    assert (wrong.expected, wrong.got) == (3, 2)
    assert str(wrong) == "rejects/b has 2 bytes instead of 3"
    for name in ("c", "rejects", "none/c"):
        assert str(commit.size_defect(any_storage, {name: None})) == f"{name} is missing"


def test_a_sweep_removes_only_what_dead_writers_left(any_storage):
    for name in ("dead/x", "dead-file", "alive/x"):
        storage.write_whole(storage.join(any_storage, name), b"x")
    entries = storage.list_dir(any_storage)
    storage.remove(storage.join(any_storage, "dead-file"))  # another one sweeps, too
    swept = commit.sweep(entries, lambda entry: entry.name.startswith("dead"))
    assert [storage.name(path) for path in swept] == ["dead", "dead-file"]
    assert names(any_storage) == ["alive"]


# ------------------------------------------------------------------------------------- caches
def test_of_many_that_fill_a_cache_at_once_the_first_is_used(tmp_path):
    """Files and directories; each writer has a name of its own, none of which stays."""
    all_made, made = threading.Barrier(4), []

    def fill(fresh):
        made.append(fresh)
        if "file" in fresh:
            storage.write_whole(fresh, b"same")
        else:
            write(fresh, "same")
        all_made.wait()

    for name in ("file", "directory"):
        target = str(tmp_path / "cache" / name)
        cached = together(4, lambda n, target=target: commit.cached(target, fill))
        assert cached == [target] * 4
        assert commit.cached(target, pytest.fail) == target  # not made again
    assert len(set(made)) == 8
    assert sorted(os.listdir(tmp_path / "cache")) == ["directory", "file"]
    assert holds(str(tmp_path / "cache"), "directory") == "same"


def test_a_failed_make_leaves_nothing_in_the_cache(tmp_path):
    def fail(fresh):
        os.makedirs(fresh)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        commit.cached(str(tmp_path / "v"), fail)
    assert os.listdir(tmp_path) == []
