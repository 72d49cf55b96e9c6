"""One contract for every storage: what holds on files holds in memory, on S3 and on HDFS."""

import concurrent.futures
import io
import os
import threading

import pytest

from howdah import storage
from howdah.errors import AlreadyExists, DataError, NotFound, StorageError

ODD_NAMES = [
    "ü ö",
    "x=1",
    "a#b",
    "a%20b",
    "a+b",
    "a&b;c",
    "a?b",
    "a[1]",
    "😀",
    "a'b\"c",
    "~a",
    "@{}",
]


@pytest.fixture
def base(any_storage):
    """An empty directory on each storage."""
    return any_storage


def names(directory: str) -> list[str]:
    """Every name, also unfinished ones."""
    return [e.name for e in storage.list_dir(directory, unfinished=True)]


def test_modes_and_owners_of_files_and_directories(base, tmp_path):
    private = storage.join(base, "above", "private")
    storage.make_dirs(private, mode=0o700)
    made = storage.entry(private)
    if made.mode is None:
        assert made.owner is None
        assert storage.scheme(base) in ("memory", "s3")
    else:
        assert made.mode == 0o700 and made.owner
        assert storage.entry(storage.parent(private)).mode & 0o050  # its parents are as always
    local = tmp_path / "of-this-machine"
    local.write_bytes(b"x" * 10)
    whole, copy = storage.join(private, "whole"), storage.join(private, "copy")
    storage.write_whole(whole, b"secret", mode=0o600)
    storage.write_whole(whole, b"secrets", mode=0o600)  # replaced
    storage.upload(str(local), copy, mode=0o640)
    assert storage.read_bytes(whole) == b"secrets" and storage.size(copy) == 10
    entries = {entry.name: entry for entry in storage.list_dir(private)}
    if made.mode is not None:
        assert (entries["whole"].mode, entries["copy"].mode) == (0o600, 0o640)
        assert {entry.owner for entry in entries.values()} == {made.owner}
    storage.set_mode(copy, 0o644)
    assert storage.entry(copy).mode in (0o644, None)
    storage.make_dirs(private, mode=0o755)  # what is there stays as it is
    assert storage.entry(private).mode == made.mode


def test_write_whole_replaces_and_reads_back(base):
    path = storage.join(base, "a", "b.json")
    storage.write_whole(path, b'{"x": 1}')
    storage.write_whole(path, b'{"x": 2}')
    assert storage.read_json(path) == {"x": 2}
    assert storage.size(path) == 8
    assert names(storage.parent(path)) == ["b.json"]
    storage.write_whole(path, b"")
    assert storage.read_bytes(path) == b"" and storage.size(path) == 0


def test_create_exclusive_keeps_the_first(base):
    path = storage.join(base, "manifest.json")
    storage.create_exclusive(path, b"first")
    for data in (b"second", b"first", b""):
        with pytest.raises(AlreadyExists) as caught:
            storage.create_exclusive(path, data)
        assert caught.value.where == path
    assert storage.read_bytes(path) == b"first"
    storage.create_exclusive(storage.join(base, "empty"), b"")
    with pytest.raises(AlreadyExists):
        storage.create_exclusive(storage.join(base, "empty"), b"x")
    assert names(base) == ["empty", "manifest.json"]


def test_create_exclusive_does_not_land_in_a_directory_of_that_name(base):
    path = storage.join(base, "name")
    storage.write_whole(storage.join(path, "inside"), b"x")
    if not base.startswith("s3://"):  # there a directory is only a prefix: no name is taken
        for write in (storage.create_exclusive, storage.write_whole):
            with pytest.raises(StorageError):
                write(path, b"y")
    assert names(path) == ["inside"]


def together(count: int, act) -> list:
    """Results of act(0..count-1), started at one moment in threads; the first error is raised."""
    start = threading.Barrier(count)

    def run(n: int):
        start.wait()
        return act(n)

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_create_exclusive_has_one_winner_among_many(base):
    path = storage.join(base, "manifest.json")

    def create(n: int) -> bool:
        try:
            storage.create_exclusive(path, str(n).encode())
        except AlreadyExists:
            return False
        return True

    won = together(8, create)
    assert won.count(True) == 1
    assert storage.read_bytes(path) == str(won.index(True)).encode()
    assert names(base) == ["manifest.json"]


def test_a_replaced_file_is_whole_to_every_reader(base):
    """Writers and a reader of one name at once: it sees one writer's bytes, all of them."""
    path = storage.join(base, "current.json")
    whole = [bytes([65 + n]) * 40_000 for n in range(3)]
    storage.write_whole(path, whole[0])
    left = len(whole)
    lock = threading.Lock()

    def act(n: int) -> set[bytes]:
        nonlocal left
        if n == len(whole):
            seen = set()
            while left:
                seen.add(storage.read_bytes(path))
            return seen
        try:
            for _ in range(5):
                storage.write_whole(path, whole[n])
        finally:
            with lock:
                left -= 1
        return set()

    seen = together(len(whole) + 1, act)[-1]
    assert seen <= set(whole)
    assert storage.read_bytes(path) in whole and names(base) == ["current.json"]


def test_a_reader_never_mixes_two_files(base):
    """A file replaced between two reads of one handle: the old one's bytes, or a typed error."""
    path = storage.join(base, "big")
    old, new = b"o" * 9_000_000, b"n" * 9_000_000
    storage.write_whole(path, old)
    with storage.open_read(path) as file:
        assert file.read(10) == b"o" * 10
        storage.write_whole(path, new)
        try:
            rest = file.read()
        except StorageError as error:
            assert error.where == path
        else:
            assert set(rest) == {ord("o")}
    assert storage.read_bytes(path) == new


def test_rename_dir_publishes_once(base):
    for attempt in ("1", "2"):
        storage.write_whole(storage.join(base, f"step.{attempt}", "w"), attempt.encode())
        storage.write_whole(storage.join(base, f"step.{attempt}", "manifest.json"), b"{}")
    target = storage.join(base, "steps", "step")
    storage.rename_dir(storage.join(base, "step.1"), target)
    with pytest.raises(AlreadyExists) as caught:
        storage.rename_dir(storage.join(base, "step.2"), target)
    assert caught.value.where == target
    assert storage.read_bytes(storage.join(target, "w")) == b"1"
    assert names(target) == ["manifest.json", "w"]  # not moved into it
    assert not storage.exists(storage.join(base, "step.1"))
    assert storage.exists(storage.join(base, "step.2", "w"))  # refused: nothing lost
    with pytest.raises(NotFound):
        storage.rename_dir(storage.join(base, "step.1"), storage.join(base, "other"))
    with pytest.raises(StorageError):
        storage.rename_dir(storage.join(base, "step.1"), target)


def test_rename_dir_of_many_has_one_winner(base):
    if base.startswith("s3://"):
        pytest.skip("S3 has no rename: it does not notice a second publisher (documented)")
    target = storage.join(base, "step")
    for n in range(4):
        storage.write_whole(storage.join(base, f"step.{n}", "w"), str(n).encode())

    def publish(n: int) -> bool:
        try:
            storage.rename_dir(storage.join(base, f"step.{n}"), target)
        except AlreadyExists:
            return False
        return True

    won = together(4, publish)
    assert won.count(True) == 1
    assert storage.read_bytes(storage.join(target, "w")) == str(won.index(True)).encode()
    assert names(target) == ["w"]


def test_listing_is_sorted_and_typed(base):
    for name in ("b", "a", "c.txt"):
        storage.write_whole(storage.join(base, name), name.encode())
    storage.make_dirs(storage.join(base, "dir", "deeper"))
    storage.make_dirs(storage.join(base, "dir"))  # being there is fine
    entries = storage.list_dir(base)
    assert [e.name for e in entries] == ["a", "b", "c.txt", "dir"]
    assert [e.is_dir for e in entries] == [False, False, False, True]
    assert [e.size for e in entries] == [1, 1, 5, 0]
    assert entries[0] == storage.entry(entries[0].path)
    assert storage.is_dir(storage.join(base, "dir")) and not storage.is_dir(entries[0].path)
    assert storage.modified(entries[0].path) > 1_600_000_000
    assert storage.list_dir(storage.join(base, "dir", "deeper")) == []
    with pytest.raises(StorageError):
        storage.list_dir(entries[0].path)


def test_modes_do_not_depend_on_the_umask(base):
    """What is made with a mode has it whatever the umask says; what is there keeps its own."""
    kept = not base.startswith(("memory", "s3"))
    before = os.umask(0o077)
    try:
        deep = storage.join(base, "deep", "er")
        storage.make_dirs(deep, mode=0o750)
        storage.make_dirs(deep, mode=0o700)
        storage.write_whole(storage.join(deep, "file"), b"x", mode=0o640)
        storage.write_whole(storage.join(deep, "private"), b"x", mode=0o600)
    finally:
        os.umask(before)
    storage.write_whole(storage.join(deep, "private"), b"y", mode=0o600)
    modes = {entry.name: entry.mode for entry in storage.list_dir(deep)}
    assert modes == ({"file": 0o640, "private": 0o600} if kept else dict.fromkeys(modes))
    assert storage.entry(deep).mode == (0o750 if kept else None)
    owners = {entry.owner for entry in storage.list_dir(deep)}
    assert owners == {storage.entry(deep).owner} and (None in owners) != kept


def test_odd_names_are_names(base):
    for name in ODD_NAMES:
        path = storage.join(base, name, name)
        storage.write_whole(path, name.encode())
        storage.create_exclusive(path + ".2", b"2")
        assert names(storage.join(base, name)) == [name, name + ".2"]
        listed = storage.list_dir(storage.join(base, name))
        assert storage.read_bytes(listed[0].path) == name.encode()
    assert names(base) == sorted(ODD_NAMES)
    for name in ODD_NAMES:
        moved = storage.join(base, name + "-moved")
        storage.rename_dir(storage.join(base, name), moved)
        assert storage.size(storage.join(moved, name)) == len(name.encode())
        storage.remove(storage.join(moved, name))
        storage.remove(moved, recursive=True)
    assert names(base) == []


def test_colons_are_refused_by_hdfs_and_fine_elsewhere(base):
    path = storage.join(base, "a:b")
    if not base.startswith(("hdfs", "webhdfs")):
        storage.write_whole(path, b"x")
        assert storage.read_bytes(path) == b"x"
        return
    for write in (storage.write_whole, storage.create_exclusive):
        with pytest.raises(StorageError, match="does not take this name") as caught:
            write(path, b"x")
        assert caught.value.where == path and "':'" in caught.value.remedy


def test_find_matches_as_on_files(base):
    for name in ("a/1.csv", "a/2.csv", "a/b/3.csv", "a/.hidden.csv", "c[1].csv", "a/b/c/4.txt"):
        storage.write_whole(storage.join(base, name), b"x")

    def matches(pattern: str) -> list[str]:
        hits = storage.find(f"{base}/{pattern}")
        return [hit.partition(storage.name(base) + "/")[2] for hit in hits]

    assert matches("a/*.csv") == ["a/1.csv", "a/2.csv"]
    assert matches("a/1.csv") == ["a/1.csv"]
    assert matches("*/?.csv") == ["a/1.csv", "a/2.csv"]
    assert matches("**/*.csv") == ["a/1.csv", "a/2.csv", "a/b/3.csv", "c[1].csv"]
    assert matches("a/b/**/4.txt") == ["a/b/c/4.txt"]
    for path in (".hive-staging/5.csv", "a/.hidden/6.csv", "a/.7.csv"):  # ** is no hidden name
        storage.write_whole(storage.join(base, path), b"x")
    assert matches("**/*.csv") == ["a/1.csv", "a/2.csv", "a/b/3.csv", "c[1].csv"]
    assert matches("a/.hidden/*.csv") == ["a/.hidden/6.csv"]
    assert matches("c[[]1].csv") == ["c[1].csv"]
    assert matches("none/*.csv") == [] and matches("none.csv") == [] and matches("a/1.csv/*") == []


def test_missing_paths_are_typed_or_harmless(base):
    missing = storage.join(base, "nope")
    for ask in (storage.read_bytes, storage.list_dir, storage.size, storage.open_read):
        with pytest.raises(NotFound) as caught:
            ask(missing)
        assert caught.value.where == missing and caught.value.remedy
    storage.remove(missing)
    storage.remove(missing, recursive=True)
    assert not storage.exists(missing) and not storage.is_dir(missing)
    storage.write_whole(missing, b"there now")
    below = storage.join(missing, "below")
    assert not storage.exists(below) and not storage.is_dir(below)


def test_directories_are_no_files(base):
    directory = storage.join(base, "dir")
    storage.write_whole(storage.join(directory, "x"), b"x")
    with pytest.raises(StorageError):
        storage.read_bytes(directory)
    with pytest.raises(StorageError):
        storage.remove(directory)  # not empty, not asked for
    assert names(directory) == ["x"]
    if not base.startswith("s3://"):  # keys may be prefixes of each other there
        with pytest.raises(StorageError):
            storage.write_whole(storage.join(directory, "x", "below-a-file"), b"y")
    storage.remove(directory, recursive=True)
    assert not storage.exists(directory)


def test_handles_read_write_and_seek(base):
    """Sizes on both sides of every window and buffer."""
    path = storage.join(base, "deep", "er", "x.bin")
    data = os.urandom(9 * 2**20 + 12_345)
    with storage.open_write(path) as file:
        file.write(b"")
        at = 0
        for count in (1, 100, 70_000, 5 * 2**20, len(data)):
            file.write(memoryview(data)[at : at + count])
            at = min(len(data), at + count)
            assert file.tell() == at
    assert storage.size(path) == len(data)
    with storage.open_read(path) as file:
        assert file.seekable() and file.readable()
        assert file.seek(1_000_000) == 1_000_000
        assert file.read(16) == data[1_000_000:1_000_016] and file.tell() == 1_000_016
        assert file.read(0) == b""
        file.seek(-10, io.SEEK_END)
        assert file.read(100) == data[-10:] and file.read(1) == b""
        file.seek(3)
        pieces = iter(lambda: file.read(65_537), b"")
        assert b"".join(pieces) == data[3:]
        file.seek(0)
        buffer = bytearray(1000)
        assert file.readinto(buffer) == 1000 and buffer == data[:1000]
        assert file.read() == data[1000:]


def test_parquet_goes_through_handles(base):
    """pyarrow asks more of a handle than we do ourselves."""
    import pyarrow
    import pyarrow.parquet as parquet

    path = storage.join(base, "part.parquet")
    table = pyarrow.table({"n": list(range(10_000)), "s": [f"row {n}" for n in range(10_000)]})
    with storage.open_write(path) as file, parquet.ParquetWriter(file, table.schema) as writer:
        writer.write_table(table, row_group_size=3000)
    with storage.open_read(path) as file:
        assert parquet.ParquetFile(file).read() == table


def test_download_and_upload(base, tmp_path, monkeypatch):
    local = tmp_path / "local.bin"
    data = os.urandom(3_000_000)
    local.write_bytes(data)
    path = storage.join(base, "deep", "er", "x.bin")
    storage.upload(str(local), path)
    storage.upload(str(local), path)  # replaces
    assert names(storage.parent(path)) == ["x.bin"]
    storage.download(path, str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == data
    monkeypatch.setattr(storage, "_PARALLEL_BYTES", 400_000)  # several blocks at once
    storage.download(path, str(tmp_path / "back2"))
    assert (tmp_path / "back2").read_bytes() == data
    with pytest.raises(NotFound):
        storage.download(path + "x", str(tmp_path / "none"))
    assert sorted(p.name for p in tmp_path.glob("*back*")) == ["back", "back2"]
    assert not list(tmp_path.glob("*none*"))


def test_a_failed_write_is_not_visible(base, tmp_path):
    """The source of an upload vanishes half-way: the old file stands, no litter."""
    path = storage.join(base, "x")
    storage.write_whole(path, b"old")
    with pytest.raises(NotFound):
        storage.upload(str(tmp_path / "none"), path)
    assert storage.read_bytes(path) == b"old" and names(base) == ["x"]


def test_not_utf8_and_not_json(base):
    path = storage.join(base, "x")
    storage.write_whole(path, b"ab\xff")
    with pytest.raises(DataError, match="UTF-8"):
        storage.read_text(path)
    storage.write_whole(path, b'{"a": ]')
    with pytest.raises(DataError, match="JSON"):
        storage.read_json(path)


def many(base: str, count: int, threads: int = 8) -> None:
    """`count` small files, written from several threads, listed and found."""
    directory = storage.join(base, "many")
    storage.make_dirs(directory)

    def write(first: int) -> None:
        for n in range(first, count, threads):
            with storage.open_write(storage.join(directory, f"part-{n:05d}")) as file:
                file.write(b"x")

    together(threads, write)
    entries = storage.list_dir(directory)
    assert [e.name for e in entries] == [f"part-{n:05d}" for n in range(count)]
    assert {e.size for e in entries} == {1}
    paths = storage.find(storage.join(directory, "part-0000*"))
    assert [storage.name(p) for p in paths] == [f"part-{n:05d}" for n in range(10)]
    storage.remove(directory, recursive=True)
    assert not storage.exists(directory)


def test_many_small_files(base):
    many(base, 200)


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_ten_thousand_files(base):
    many(base, 10_000, threads=16)


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_more_than_two_gigabytes(base, tmp_path):
    """No 32-bit size anywhere; nothing holds a whole file (memory:// does, and S3's server)."""
    if base.startswith(("memory", "s3")):
        pytest.skip("these servers hold files in memory")
    big, size = tmp_path / "big", 2**31 + 8
    with open(big, "wb") as file:
        file.write(b"begin")
        file.seek(2**31 + 5)
        file.write(b"end")
    path = storage.join(base, "big-copy")
    storage.upload(str(big), path)
    assert storage.size(path) == size
    with storage.open_read(path) as file:
        file.seek(2**31 + 2)
        assert file.read() == b"\0\0\0end"
    storage.download(path, str(tmp_path / "back"))
    assert storage.size(str(tmp_path / "back")) == size
    with open(tmp_path / "back", "rb") as file:
        assert file.read(5) == b"begin"
        file.seek(-3, io.SEEK_END)
        assert file.read() == b"end"


def test_a_path_below_a_file_names_the_file(base):
    """It does not say that the path exists already, which it does not."""
    if not base.startswith(("/", "file://", "memory://")):
        pytest.skip("S3's keys may be prefixes of each other; HDFS has its own words")
    file = storage.join(base, "file")
    storage.write_whole(file, b"x")
    sentence = f"{file.removeprefix('file://')} is a file, not a directory"
    for below in (storage.join(file, "x"), storage.join(file, "x", "y")):
        for act in (
            lambda path: storage.create_exclusive(path, b"y"),
            lambda path: storage.write_whole(path, b"y"),
            lambda path: storage.open_write(path).close(),
            storage.make_dirs,
            lambda path: storage.make_dirs(path, mode=0o700),
        ):
            with pytest.raises(StorageError) as caught:
                act(below)
            assert not isinstance(caught.value, AlreadyExists)
            assert caught.value.where == below and caught.value.remedy
            assert sentence in caught.value.what
    assert storage.read_bytes(file) == b"x" and names(base) == ["file"]
    with pytest.raises(StorageError, match="is a file, not a directory"):
        storage.make_dirs(file)
