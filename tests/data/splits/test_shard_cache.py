"""The node's shard cache: one fetch for all, bounded, no file removed while it is in use."""

import errno
import fcntl
import io
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from howdah import storage
from howdah.data.splits.planner import Planner, PlanSpec
from howdah.data.splits.shard_cache import NoRoom, ShardCache
from howdah.data.splits.shard_files import ShardFiles
from howdah.data.splits.shards import ShardSet
from howdah.errors import ConfigError, DataError, PermissionDenied, StorageFull
from howdah.training.data.readers import BatchSource
from tests import ROOT as REPOSITORY
from tests.fixtures.dataset import build_dataset

ROOT = str(REPOSITORY)
LIMIT = 120  # seconds; detects a hang


def filled(byte: bytes, size: int, calls: list | None = None):
    def fill(file):
        if calls is not None:
            calls.append(byte)
        file.write(byte * size)

    return fill


def total(cache: ShardCache) -> int:
    """Bytes of all files, unfinished ones included."""
    size = 0
    for folder, _, names in os.walk(cache.directory):
        for name in names:
            try:
                size += os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return size


def held_now(cache: ShardCache) -> int:
    """`total`, while no other process makes room."""
    with open(os.path.join(cache.directory, "space.lock"), "ab") as space:
        fcntl.flock(space, fcntl.LOCK_EX)
        return total(cache)


@pytest.fixture
def cache(tmp_path) -> ShardCache:
    made = ShardCache(str(tmp_path / "cache"), limit_bytes=300)
    made.in_use = made.use("set")
    return made


# ---------------------------------------------------------------------------------- the files
def test_the_least_recently_used_file_is_removed_and_a_pinned_one_stays(cache):
    calls = []
    for name in ("a", "b", "c"):
        pin = cache.take(f"set/{name}", 100, filled(name.encode(), 100, calls))
        assert pin.file.read() == name.encode() * 100
        pin.release()
    cache.take("set/a", 100, filled(b"a", 100, calls)).release()  # b is now the oldest
    held = cache.take("set/c", 100, filled(b"c", 100, calls))
    for name in ("d", "e"):
        cache.take(f"set/{name}", 100, filled(name.encode(), 100, calls)).release()
        assert total(cache) <= 300
    assert [cache.holds(f"set/{name}", 100) for name in "abcde"] == [False, False, True, True, True]
    assert held.file.read() == b"c" * 100
    assert calls == [b"a", b"b", b"c", b"d", b"e"]  # one fetch each


def test_there_is_no_room_while_all_files_are_pinned(cache):
    pins = [cache.take(f"set/{name}", 100, filled(b"x", 100)) for name in "abc"]
    with pytest.raises(NoRoom, match="full of shards in use") as caught:
        cache.take("set/d", 100, filled(b"d", 100))
    assert caught.value.exit_code == 5
    assert "shard_cache" in caught.value.remedy
    pins.pop().release()
    cache.take("set/d", 100, filled(b"d", 100)).release()
    assert [cache.holds(f"set/{name}", 100) for name in "abcd"] == [True, True, False, True]


def test_an_index_stays_while_its_set_is_in_use(cache):
    cache.fetch("set/a.index", 100, filled(b"i", 100))
    for name in "bcd":
        cache.take(f"set/{name}", 100, filled(b"x", 100)).release()
    assert cache.holds("set/a.index", 100)
    cache.in_use.release()
    for name in "efg":
        cache.take(f"set/{name}", 100, filled(b"x", 100)).release()
    assert not cache.holds("set/a.index", 100)


def test_a_fetch_that_fails_leaves_nothing(cache):
    def fill(file):
        file.write(b"half")
        raise DataError("altered")

    with pytest.raises(DataError):
        cache.take("set/a", 100, fill)
    assert os.listdir(os.path.join(cache.directory, "set")) == ["in-use"]
    cache.take("set/a", 100, filled(b"a", 100)).release()


def test_a_file_of_another_size_is_fetched_again(cache):
    cache.take("set/a", 100, filled(b"a", 100)).release()
    os.truncate(cache.path("set/a"), 7)
    pin = cache.take("set/a", 100, filled(b"a", 100))
    assert pin.file.read() == b"a" * 100


def test_a_full_disk_removes_old_files_before_it_is_an_error_with_the_bytes_needed(
    cache, monkeypatch
):
    """The disk has 250 bytes, the cache's limit is 300."""
    real = os.posix_fallocate

    def fallocate(handle, offset, size):
        if total(cache) + size > 250:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    for name in "abc":
        cache.take(f"set/{name}", 100, filled(b"x", 100)).release()
    assert [cache.holds(f"set/{name}", 100) for name in "abc"] == [False, True, True]
    with pytest.raises(StorageFull, match="no room on the disk") as caught:
        cache.take("set/large", 260, filled(b"x", 260))
    assert not isinstance(caught.value, NoRoom)
    assert "free" in caught.value.expected and "free" in caught.value.got
    assert caught.value.where == cache.directory
    assert not os.path.exists(cache.path("set/large") + ".part")


def test_a_key_cannot_lead_out_of_the_cache(cache):
    with pytest.raises(storage.StorageError, match="leave its directory"):
        cache.take("set/../../a", 1, filled(b"x", 1))


def test_a_cache_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(tmp_path).st_uid + 1)
    with pytest.raises(PermissionDenied, match="another user"):
        ShardCache(str(tmp_path)).use("set")


# ------------------------------------------------------------------------------ many processes
_FETCH = textwrap.dedent("""
    import os, sys, time
    sys.path.insert(0, {root!r})
    from howdah.data.splits.shard_cache import ShardCache
    place, path, hang = sys.argv[1:]
    def fill(file):
        with open(path, "a") as log:
            log.write("fetched\\n")
        if hang == "hang":
            file.write(b"half")
            file.flush()
            time.sleep(600)
        file.write(b"x" * 100)
    cache = ShardCache(place)
    used = cache.use("set")
    pin = cache.take("set/a", 100, fill)
    print(pin.file.read() == b"x" * 100, flush=True)
""").format(root=ROOT)


def fetcher(cache: ShardCache, log: str, hang: str = "") -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", _FETCH, cache.directory, log, hang],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for(condition) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_of_several_processes_one_fetches(cache, tmp_path):
    log = str(tmp_path / "fetches")
    ranks = [fetcher(cache, log) for _ in range(4)]
    assert [rank.communicate(timeout=LIMIT)[0].strip() for rank in ranks] == ["True"] * 4
    with open(log) as file:
        assert file.read() == "fetched\n"


def test_when_a_fetching_process_is_killed_a_waiting_one_fetches(cache, tmp_path):
    log = str(tmp_path / "fetches")
    first = fetcher(cache, log, "hang")
    part = cache.path("set/a") + ".part"
    wait_for(lambda: os.path.exists(part) and os.stat(part).st_size == 100 and os.path.exists(log))
    second = fetcher(cache, log)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert second.communicate(timeout=LIMIT)[0].strip() == "True"
    with open(log) as file:
        assert file.read() == "fetched\n" * 2
    assert not os.path.exists(part)


def test_a_killed_fetch_s_part_is_removed_to_make_room(cache, tmp_path):
    first = fetcher(cache, str(tmp_path / "fetches"), "hang")
    part = cache.path("set/a") + ".part"
    wait_for(lambda: os.path.exists(part) and os.stat(part).st_size == 100)
    first.kill()
    first.communicate()
    for name in "bcd":
        cache.take(f"set/{name}", 100, filled(b"x", 100)).release()
    assert not os.path.exists(part)


# -------------------------------------------------------------------------- a remote dataset
@pytest.fixture(params=["none", "gzip"])
def remote(request, tmp_path, tiny_model_dir):
    """A dataset of 12 shards on remote storage."""
    path = f"memory://{tmp_path.name}-{os.getpid()}/v=1"
    yield build_dataset(
        path, model_dir=tiny_model_dir, rows={"train": 240}, shards=12, compression=request.param
    )
    storage.remove(storage.parent(path), recursive=True)


def plan(shards: ShardSet) -> Planner:
    """Groups of two shards (40 rows), windows of 24 rows."""
    spec = PlanSpec(
        dataset_hash="d", split="train", seed=5, global_batch_size=8, window_batches=3,
        group_shards=2,
    )  # fmt: skip
    return Planner(shards.lengths, spec)


def least(shards: ShardSet) -> int:
    """Bytes that a cache must hold for `plan`: two groups, and the indexes."""
    return sum(sorted(shards.files.sizes)[-4:]) + shards.files.index_bytes


def read_all(shards: ShardSet, *, prefetch: int = 2, watch=lambda: None) -> list:
    """(epoch, row id) of two epochs."""
    planner = plan(shards)
    stop = 2 * planner.steps_per_epoch
    source = BatchSource(
        shards,
        planner,
        rank=0,
        world=1,
        max_tokens=4096,
        stop_step=stop,
        row_ids=True,
        prefetch=prefetch,
    )
    seen = []
    for batch in source:
        watch()
        seen += [(batch.epoch, row_id) for row_id in batch.row_ids if row_id]
    return seen


def counted(monkeypatch) -> list[str]:
    """A list that gets the names of shards as they are fetched."""
    opened: list[str] = []
    real = ShardFiles._copy

    def copy(self, path, crc32c, **more):
        fill = real(self, path, crc32c, **more)
        if ".index" in path:
            return fill
        return lambda file: (opened.append(storage.name(path)), fill(file))

    monkeypatch.setattr(ShardFiles, "_copy", copy)
    return opened


EVERYTHING = sorted((epoch, f"train-{n}".encode()) for epoch in (0, 1) for n in range(240))


@pytest.mark.parametrize("block_rows", [8, 512])  # one step; more than both epochs
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_cache_of_two_groups_is_enough_and_is_never_exceeded(
    remote, tmp_path, monkeypatch, prefetch, block_rows
):
    needed = least(ShardSet(remote, "train", cache=ShardCache(str(tmp_path / "probe"))))
    opened = counted(monkeypatch)
    monkeypatch.setattr("howdah.training.data.readers._BLOCK_ROWS", block_rows)
    monkeypatch.setattr("howdah.data.splits.shards._ROOM_SECONDS", 10.0)
    cache = ShardCache(str(tmp_path / "cache"), needed)
    shards = ShardSet(remote, "train", cache=cache)
    shards.check_room(plan(shards))
    held = []
    seen = read_all(shards, prefetch=prefetch, watch=lambda: held.append(held_now(cache)))
    assert sorted(seen) == EVERYTHING
    assert max(held) <= needed
    assert len(set(opened)) == 12
    assert len(opened) <= 24  # at most once an epoch


def test_two_ranks_in_step_fetch_a_shard_at_most_once_an_epoch(remote, tmp_path, monkeypatch):
    """The cache is the smallest possible; each rank has its own reader and prefetcher."""
    # One step at a time: else the first rank could finish a group before the second one begins it,
    # and its shards would be removed and fetched again, which is no error.
    monkeypatch.setattr("howdah.training.data.readers._BLOCK_ROWS", 4)
    needed = least(ShardSet(remote, "train", cache=ShardCache(str(tmp_path / "probe"))))
    opened = counted(monkeypatch)
    sets = [
        ShardSet(remote, "train", cache=ShardCache(str(tmp_path / "cache"), needed))
        for _ in range(2)
    ]
    planner = plan(sets[0])
    sources = [
        BatchSource(
            shards, planner, rank=rank, world=2, max_tokens=4096, row_ids=True, prefetch=1,
            stop_step=2 * planner.steps_per_epoch,
        )
        for rank, shards in enumerate(sets)
    ]  # fmt: skip
    seen = []
    for pair in zip(*sources, strict=True):
        seen += [(b.epoch, row_id) for b in pair for row_id in b.row_ids if row_id]
    assert sorted(seen) == EVERYTHING
    assert len(set(opened)) == 12
    assert len(opened) <= 24


def test_ranks_at_different_steps_share_a_cache_of_two_groups(remote, tmp_path, monkeypatch):
    """One starts when the other has read ahead as far as it can: neither waits for ever."""
    monkeypatch.setattr("howdah.training.data.readers._BLOCK_ROWS", 8)
    needed = least(ShardSet(remote, "train", cache=ShardCache(str(tmp_path / "probe"))))
    sets = [
        ShardSet(remote, "train", cache=ShardCache(str(tmp_path / "cache"), needed))
        for _ in range(2)
    ]
    planner = plan(sets[0])
    sources = [
        BatchSource(shards, planner, rank=rank, world=2, max_tokens=4096, prefetch=20, row_ids=True)
        for rank, shards in enumerate(sets)
    ]
    ahead = iter(sources[0])
    seen = [next(ahead)]
    wait_for(lambda: not any(t.name == "batches" and _busy(t, "put") for t in _threads()))
    behind = iter(sources[1])
    seen += list(behind)
    seen += list(ahead)
    ids = sorted(row_id for batch in seen for row_id in batch.row_ids if row_id)
    assert ids == sorted(f"train-{n}".encode() for n in range(240))


def _threads() -> list[threading.Thread]:
    return threading.enumerate()


def _busy(thread: threading.Thread, resting: str) -> bool:
    """True if the thread is not in the function in which it waits."""
    frame = sys._current_frames().get(thread.ident)
    names = []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return bool(names) and resting not in names


def test_the_data_is_the_same_as_without_a_cache(remote, tmp_path):
    shards = ShardSet(remote, "train", cache=ShardCache(str(tmp_path / "cache")))
    assert shards.verify() == 0
    assert sorted(read_all(shards)) == EVERYTHING
    rows = np.arange(5)
    got = shards.gather(np.zeros(5, int), rows, shards.lengths[0][rows])
    want = np.concatenate([shards.example(0, row).input_ids for row in rows])
    assert (got == want).all()


def test_a_cache_that_cannot_hold_two_groups_is_refused(remote, tmp_path):
    probe = ShardSet(remote, "train", cache=ShardCache(str(tmp_path / "probe")))
    small = ShardCache(str(tmp_path / "cache"), least(probe) - 1)
    shards = ShardSet(remote, "train", cache=small)
    with pytest.raises(ConfigError, match="too small") as caught:
        shards.check_room(plan(shards))
    assert caught.value.where == "training.shard_cache_bytes"
    assert str(least(probe)) in caught.value.expected
    assert str(least(probe) - 1) in caught.value.got


def damage(dataset, number: int) -> str:
    path = dataset.shard_path(dataset.manifest.splits["train"][number])
    data = bytearray(storage.read_bytes(path))
    data[len(data) // 2] ^= 1
    storage.write_whole(path, bytes(data))
    return path


def test_a_shard_altered_in_transfer_is_refused_before_a_row_of_it_is_used(remote, tmp_path):
    path = damage(remote, 3)
    cache = ShardCache(str(tmp_path / "cache"))
    with pytest.raises(DataError) as caught:
        ShardSet(remote, "train", cache=cache).verify()
    assert caught.value.where.startswith(f"{path}, offset ")
    small = least(ShardSet(remote, "train", cache=cache))
    shards = ShardSet(remote, "train", cache=ShardCache(str(tmp_path / "small"), small))
    with pytest.raises(DataError) as caught:
        read_all(shards)
    assert caught.value.where.startswith(f"{path}, offset ")


def test_a_shard_altered_once_in_transfer_is_fetched_again(remote, tmp_path, monkeypatch):
    number = 0
    path = remote.shard_path(remote.manifest.splits["train"][3])
    real, good = storage.open_read, storage.read_bytes(path)

    def open_read(opened_path):
        nonlocal number
        if opened_path == path:
            number += 1
            if number == 1:
                return io.BytesIO(good[:-1] + bytes([good[-1] ^ 1]))
        return real(opened_path)

    monkeypatch.setattr(storage, "open_read", open_read)
    shards = ShardSet(remote, "train", cache=ShardCache(str(tmp_path / "cache")))
    shards.files.fetch(3)
    assert number == 2
    assert sorted(read_all(shards)) == EVERYTHING


def damage_copy(cache: ShardCache, dataset, number: int) -> None:
    """Damage as by a disk or another program: the size stays."""
    folder = os.path.join(cache.directory, dataset.manifest.dataset_hash)
    name = dataset.manifest.splits["train"][number].name
    (copy,) = [
        one for one in os.listdir(folder) if f"-{name}" in one and not one.endswith(".index")
    ]
    with open(os.path.join(folder, copy), "r+b") as file:
        data = bytearray(file.read())
        at = data.index(b"train-") - 4  # before a row's key
        data[at : at + 60] = bytes(60)
        file.seek(0)
        file.write(data)


def test_a_copy_that_was_damaged_since_the_last_run_is_fetched_again(remote, tmp_path):
    cache = ShardCache(str(tmp_path / "cache"))
    assert ShardSet(remote, "train", cache=cache).verify() == 0
    damage_copy(cache, remote, 1)
    shards = ShardSet(remote, "train", cache=cache)
    assert shards.verify() == 0
    assert sorted(read_all(shards)) == EVERYTHING


@pytest.mark.parametrize("verified", [True, False])  # a rank that joins later verifies nothing
def test_damaged_copies_are_found_on_every_node(remote, tmp_path, verified):
    # Two nodes, one rank each; an earlier run has left everything in both caches.
    caches = [ShardCache(str(tmp_path / f"node{number}")) for number in range(2)]
    for number, cache in enumerate(caches):
        assert ShardSet(remote, "train", cache=cache).verify() == 0
        for shard in range(12):  # of the other rank's share
            if shard % 2 != number:
                damage_copy(cache, remote, shard)
    for rank, cache in enumerate(caches):
        shards = ShardSet(remote, "train", cache=cache)
        if verified:
            assert shards.verify(rank, 2) == 0
        assert sorted(read_all(shards)) == EVERYTHING
        ids = shards.gather(
            np.repeat(np.arange(12), 20), np.tile(np.arange(20), 12), np.concatenate(shards.lengths)
        )
        local = ShardSet(remote, "train", cache=ShardCache(str(tmp_path / "anew")))
        assert (ids == local.gather(
            np.repeat(np.arange(12), 20), np.tile(np.arange(20), 12), np.concatenate(local.lengths)
        )).all()  # fmt: skip
