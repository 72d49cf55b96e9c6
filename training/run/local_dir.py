"""The local directory for a run's growing files, locks and process records.

For a local run directory it is the directory itself. For a remote one it is a private directory of
this machine, from which training/run/mirror.py publishes growing files.

The private directory is in the directory for temporary files, which is on this machine's disk,
while homes may be shared by several machines. XDG_RUNTIME_DIR is not used: it is in memory, which
is too small for the logs and event files of a long run, and it is removed when the user logs out,
while a run in the background still needs its lock and records.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
import stat
import tempfile
import time
from dataclasses import dataclass
from typing import TextIO

from howdah import storage
from howdah.core.processes import locked, process_start
from howdah.errors import HowdahError, PermissionDenied, StorageError, UsageError
from howdah.faults import typed

_KEPT_SECONDS = 30 * 86400.0
"""Time that local copies of a remote run are kept after their last change."""
_NAMES = 20
_PROBE_SECONDS = 0.5


def local_directory(run_directory: str, mode: str = "0750") -> str:
    """The local directory of a run's logs, process records and growing files; created if missing.

    Copies of remote runs that were not used for 30 days are removed when another run begins.

    Args:
        mode: `run.mode`, for a run directory on this machine that does not exist yet.
    Raises:
        PermissionDenied: other users have taken every name of the private directory.
    """
    if storage.is_local(run_directory):
        directory = storage.local_path(run_directory)
        storage.make_dirs(directory, mode=int(mode, 8))
        return directory
    base = _private_directory()
    key = hashlib.sha256(run_directory.rstrip("/").encode()).hexdigest()[:16]
    directory = os.path.join(base, f"{storage.name(run_directory) or 'run'}-{key}")
    new = not os.path.isdir(directory)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    os.utime(directory)  # marks it as used, so that no sweep removes it
    if new:
        _sweep(base)
    return directory


def _private_directory() -> str:
    """This user's directory for local copies, the same for all processes of the machine.

    All users share the directory for temporary files, and another user may have taken a name. So
    there are several names: the first that this user owns is used, else the first that is free.
    """
    parent, user = tempfile.gettempdir(), os.getuid()
    names = [f"howdah-{user}", *(f"howdah-{user}-{number}" for number in range(1, _NAMES))]
    paths = [os.path.join(parent, name) for name in names]
    for make in (False, True):
        for path in paths:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path, mode=0o700)
            with contextlib.suppress(FileNotFoundError):
                info = os.lstat(path)
                if stat.S_ISDIR(info.st_mode) and info.st_uid == user:
                    return path
    info = os.lstat(paths[0])
    raise PermissionDenied(
        "other users own the directories for local copies of remote runs",
        where=f"{paths[0]}, and {_NAMES - 1} more names",
        got=f"{paths[0]} with owner {info.st_uid}, mode {info.st_mode:o}",
        remedy="have them removed by their owner or an administrator, or set TMPDIR to a directory"
        f" of user {user}",
    )


def _sweep(base: str) -> None:
    """Remove copies that were not used for _KEPT_SECONDS, if they can be removed."""
    oldest = time.time() - _KEPT_SECONDS
    for entry in os.scandir(base):
        with contextlib.suppress(OSError, HowdahError):
            if entry.is_dir(follow_symlinks=False) and _newest(entry.path) < oldest:
                _remove_unused(entry.path)


def _newest(directory: str) -> float:
    """Time of the last change in a directory, in seconds since 1970."""
    times = [os.stat(directory).st_mtime]
    for folder, folders, files in os.walk(directory):
        times += [os.lstat(os.path.join(folder, name)).st_mtime for name in (*folders, *files)]
    return max(times)


def _remove_unused(directory: str) -> None:
    if any(record.is_local and record.alive for record in RankRecord.read_all(directory)):
        return
    with contextlib.ExitStack() as locks:
        for name in os.listdir(directory):
            if name.endswith(".lock"):
                file = locks.enter_context(open(os.path.join(directory, name), "rb"))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: in use
        shutil.rmtree(directory)


# --------------------------------------------------------------------------------- processes
def process_age() -> float:
    """Seconds since this process was started, the interpreter's start-up included."""
    with open("/proc/uptime", encoding="ascii") as file:
        uptime = float(file.read().split()[0])
    start = process_start(os.getpid()) or 0
    return max(0.0, uptime - start / os.sysconf("SC_CLK_TCK"))


def job_age() -> float:
    """Seconds since `howdah train` or an agent began to start this process, or since its start."""
    started = os.environ.get("HOWDAH_STARTED")
    return time.time() - float(started) if started else process_age()


@dataclass(frozen=True)
class RankRecord:
    """`ranks/<rank>.json`: the process of a rank, to stop it."""

    rank: int
    pid: int
    start: int
    host: str
    ended: bool = False
    """True if the rank has finished, or has written its failure."""

    @classmethod
    def of_this_process(cls, rank: int) -> RankRecord:
        pid = os.getpid()
        return cls(rank=rank, pid=pid, start=process_start(pid) or 0, host=socket.gethostname())

    def write(self, directory: str) -> None:
        """Write the record to `<directory>/ranks/`."""
        path = os.path.join(directory, "ranks", f"{self.rank}.json")
        storage.write_whole(path, json.dumps(self.__dict__).encode())

    @property
    def is_local(self) -> bool:
        """True if the process is on this machine."""
        return self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        """True if this process is running, and not another one with its pid; only meaningful on its
        machine."""
        return process_start(self.pid) == self.start

    @classmethod
    def read_all(cls, directory: str) -> list[RankRecord]:
        """The records in `<directory>/ranks/`, by rank."""
        folder = os.path.join(directory, "ranks")
        if not os.path.isdir(folder):
            return []
        entries = [entry for entry in storage.list_dir(folder) if entry.name.endswith(".json")]
        records = [cls(**storage.read_object(entry.path)) for entry in entries]
        return sorted(records, key=lambda record: record.rank)

    @classmethod
    def clear(cls, directory: str) -> None:
        """Remove the records of an earlier attempt."""
        storage.remove(os.path.join(directory, "ranks"), recursive=True)


class RunLock:
    """A lock with which only one process of a machine holds a run directory at a time.

    It is an flock on a file in the local directory, which is never stale, since the kernel releases
    it when its holder dies. Across machines the fence protects the run: the later attempt wins, and
    the earlier one cannot commit any more.

    Args:
        directory: `local_directory(run_directory)`.
        name: name of the lock file; rank 0 and `howdah train` have different ones.
    """

    def __init__(self, directory: str, name: str, run_directory: str) -> None:
        self._path = os.path.join(directory, name)
        self._run_directory = run_directory
        self._file: TextIO | None = None

    def take(self, patience: float = _PROBE_SECONDS) -> None:
        """Take the lock.

        Args:
            patience: seconds to wait for a holder that is about to end; `howdah status` and
                `howdah train` hold it for a moment, to see whether a run does.
        Raises:
            UsageError: another process has it; the error names the process.
            StorageError: the file cannot be written: the disk is full, or it is a directory.
        """
        with typed(self._path, "lock"):
            file = open(self._path, "a+", encoding="utf-8")  # noqa: SIM115 - the lock lives with it
        deadline = time.monotonic() + patience
        while not locked(file):
            if time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise UsageError(
                "another training run is using this run directory",
                where=self._run_directory,
                got=holder,
                remedy="wait for it, stop it, or set another run.directory",
            )
        try:
            with typed(self._path, "lock", storage.free_bytes):
                now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
                file.truncate(0)
                file.write(f"pid {os.getpid()} on {socket.gethostname()}, since {now}\n")
                file.flush()
        except StorageError:
            with contextlib.suppress(OSError):  # closing tries to write the buffered line again
                file.close()
            raise
        self._file = file

    def fileno(self) -> int:
        """Descriptor of the held lock. A child that inherits it holds the lock while it lives."""
        if self._file is None:
            raise ValueError("the lock is not held")
        return self._file.fileno()

    def release(self) -> None:
        """Release the lock in this process."""
        if self._file is not None:
            self._file.close()
            self._file = None
