"""Where a run keeps growing files, locks and process records: always on local disk.

Of a local run directory that is the directory itself. Of a remote one it is a private directory of
this machine, from which training/run/mirror.py publishes growing files.

It lies in the directory for temporary files: on this machine's own disk, where homes may be shared
by several machines. Not in XDG_RUNTIME_DIR: that is memory, too little for logs and event files of
a long run, and it is removed when its user logs out, while a run in the background still needs its
lock and its records.
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
"""How long local copies of a remote run are kept after their last change."""
_NAMES = 20


def local_directory(run_directory: str, mode: str = "0750") -> str:
    """The local directory of a run's logs, process records and growing files; made if missing.

    Copies of remote runs that were not used for 30 days are removed when another one begins.

    Args:
        mode: `run.mode`, for a run directory on this machine that is not there yet.
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
    os.utime(directory)  # in use: no sweep takes it from here on
    if new:
        _sweep(base)
    return directory


def _private_directory() -> str:
    """This user's directory for local copies, the same for all processes of the machine.

    The directory for temporary files is shared by all users, and another one may have taken a name.
    So there are several: the first that is ours already, else the first that can be made.
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
        "the directory for local copies of remote runs is not ours",
        where=f"{paths[0]}, and {_NAMES - 1} more names",
        expected=f"one of them to be a directory of user {user}, or free",
        got=f"{paths[0]} with owner {info.st_uid}, mode {info.st_mode:o}",
        remedy="have them removed (their owner or an administrator can), or set TMPDIR to a"
        " directory of your own",
    )


def _sweep(base: str) -> None:
    """Remove copies that were not used for _KEPT_SECONDS. One that cannot be removed stays."""
    oldest = time.time() - _KEPT_SECONDS
    for entry in os.scandir(base):
        with contextlib.suppress(OSError, HowdahError):
            if entry.is_dir(follow_symlinks=False) and _newest(entry.path) < oldest:
                _remove_unused(entry.path)


def _newest(directory: str) -> float:
    """When anything in there last changed, in seconds since 1970."""
    times = [os.stat(directory).st_mtime]
    for folder, folders, files in os.walk(directory):
        times += [os.lstat(os.path.join(folder, name)).st_mtime for name in (*folders, *files)]
    return max(times)


def _remove_unused(directory: str) -> None:
    if any(record.is_local and record.alive for record in RankRecord.read_all(directory)):
        return
    with contextlib.ExitStack() as held:
        for name in os.listdir(directory):
            if name.endswith(".lock"):
                file = held.enter_context(open(os.path.join(directory, name), "rb"))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: in use
        shutil.rmtree(directory)


# --------------------------------------------------------------------------------- processes
def process_age() -> float:
    """Seconds since this process was started, the interpreter's own start-up included."""
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
    """`ranks/<rank>.json`: the process of a rank, which can be stopped from then on."""

    rank: int
    pid: int
    start: int
    host: str
    ended: bool = False
    """The rank has finished, or has written its failure."""

    @classmethod
    def of_this_process(cls, rank: int) -> RankRecord:
        """The record of the calling process."""
        pid = os.getpid()
        return cls(rank=rank, pid=pid, start=process_start(pid) or 0, host=socket.gethostname())

    def write(self, directory: str) -> None:
        """Put the record into `<directory>/ranks/`."""
        path = os.path.join(directory, "ranks", f"{self.rank}.json")
        storage.write_whole(path, json.dumps(self.__dict__).encode())

    @property
    def is_local(self) -> bool:
        """The process is on this machine."""
        return self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        """The very process is running; meaningful on its own machine only."""
        return process_start(self.pid) == self.start

    @classmethod
    def read_all(cls, directory: str) -> list[RankRecord]:
        """The records in `<directory>/ranks/`, by rank."""
        folder = os.path.join(directory, "ranks")
        if not os.path.isdir(folder):
            return []
        found = [
            cls(**storage.read_object(entry.path))
            for entry in storage.list_dir(folder)
            if entry.name.endswith(".json")
        ]
        return sorted(found, key=lambda record: record.rank)

    @classmethod
    def clear(cls, directory: str) -> None:
        """Remove the records of an earlier attempt."""
        storage.remove(os.path.join(directory, "ranks"), recursive=True)


class RunLock:
    """One process holds a run directory at a time, on one machine.

    An flock on a file in the local directory: the kernel releases it when its holder dies, so that
    it is never stale. Across machines the fence protects the run: the later attempt wins, and the
    earlier one cannot commit any more.

    Args:
        directory: `local_directory(run_directory)`.
        name: file name; rank 0 and `howdah train` have one each.
        run_directory: for the message.
    """

    def __init__(self, directory: str, name: str, run_directory: str) -> None:
        self._path = os.path.join(directory, name)
        self._run_directory = run_directory
        self._file: TextIO | None = None

    def take(self, patience: float = 0.0) -> None:
        """Take the lock.

        Args:
            patience: seconds to wait for a holder that is about to end.
        Raises:
            UsageError: another process has it; it is named.
            StorageError: the file cannot be written: a full disk, a directory of its name.
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
                remedy="wait for it, stop it, or give this run a run.directory of its own",
            )
        try:
            with typed(self._path, "lock", storage.free_bytes):
                file.truncate(0)
                file.write(f"pid {os.getpid()} on {socket.gethostname()}, since {_now()}\n")
                file.flush()
        except StorageError:
            with contextlib.suppress(OSError):  # the line that found no room is still held
                file.close()
            raise
        self._file = file

    def fileno(self) -> int:
        """Of the lock that is held. A child that inherits it holds the lock as long as it lives."""
        if self._file is None:
            raise ValueError("the lock is not held")
        return self._file.fileno()

    def release(self) -> None:
        """Release the lock, in this process."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
