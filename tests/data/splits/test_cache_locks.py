"""Where the shard cache lies: its locks on NFS, and directories below the home directory."""

import contextlib
import errno
import fcntl
import os

from howdah.data.splits.shard_cache import ShardCache
from tests.data.splits.test_shard_cache import filled


def test_locks_are_taken_as_nfs_takes_them(tmp_path, monkeypatch):
    """flock(2): NFS wants a file that is open to read for a shared lock, to write for an exclusive
    one; else EBADF. Home directories, where the cache lies by default, are often on NFS."""
    real = fcntl.flock

    def flock(file, operation):
        handle = file if isinstance(file, int) else file.fileno()
        mode = fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE
        refused = os.O_WRONLY if operation & fcntl.LOCK_SH else os.O_RDONLY
        if not operation & fcntl.LOCK_UN and mode == refused:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return real(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    small = ShardCache(str(tmp_path / "cache"), 100)
    with contextlib.closing(small.use("set").file):
        small.take("set/a", 60, filled(b"a", 60)).release()
        with small.request_room():
            assert small.room_requested()
        assert not small.room_requested()
        small.take("set/b", 60, filled(b"b", 60)).release()  # removes the first one
    assert not small.holds("set/a", 60) and small.holds("set/b", 60)


def test_a_directory_below_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    ShardCache("~/cache").use("set").release()
    assert [entry.name for entry in tmp_path.iterdir()] == ["cache"]
