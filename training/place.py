"""Where a run keeps what grows or lives only as long as its processes: always on local disk.

Of a local run directory that is the directory itself. Of a remote one it is a private directory of
this machine, from which training/mirror.py publishes growing files.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import stat
import tempfile
import time
from dataclasses import dataclass
from typing import TextIO

from howdah import storage
from howdah.errors import PermissionDenied, UsageError
from howdah.processes import stat_fields

__all__ = ["RankRecord", "RunLock", "local_directory", "process_age", "process_start"]


def local_directory(run_directory: str) -> str:
    """The local directory of a run's logs, process records and growing files; made if missing.

    Raises:
        PermissionDenied: the private directory for remote runs belongs to somebody else.
    """
    if storage.is_local(run_directory):
        place = storage.local_path(run_directory)
        storage.make_dirs(place)
        return place
    base = os.path.join(tempfile.gettempdir(), f"howdah-{os.getuid()}")
    os.makedirs(base, mode=0o700, exist_ok=True)
    info = os.lstat(base)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise PermissionDenied(
            "the directory for local copies of remote runs is not ours",
            where=base,
            expected=f"a directory of user {os.getuid()}",
            got=f"owner {info.st_uid}, mode {info.st_mode:o}",
            remedy="remove it, or set TMPDIR",
        )
    key = hashlib.sha256(run_directory.rstrip("/").encode()).hexdigest()[:16]
    place = os.path.join(base, f"{storage.name(run_directory) or 'run'}-{key}")
    os.makedirs(place, mode=0o700, exist_ok=True)
    return place


# --------------------------------------------------------------------------------- processes
def process_start(pid: int) -> int | None:
    """Start of a process in clock ticks since boot (with the pid: its identity); None: no process.

    Field 22 of proc(5)'s /proc/<pid>/stat. A zombie has ended: None.
    """
    fields = stat_fields(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def process_age() -> float:
    """Seconds since this process was started, the interpreter's own start-up included."""
    with open("/proc/uptime", encoding="ascii") as file:
        uptime = float(file.read().split()[0])
    start = process_start(os.getpid()) or 0
    return max(0.0, uptime - start / os.sysconf("SC_CLK_TCK"))


@dataclass(frozen=True)
class RankRecord:
    """`ranks/<rank>.json`: the process of a rank, so that it can be asked to stop, or be missed."""

    rank: int
    pid: int
    start: int
    host: str
    ended: bool = False
    """The rank has said how it ended (finished, or wrote its failure)."""

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
            cls(**storage.read_json(entry.path))
            for entry in storage.list_dir(folder)
            if entry.name.endswith(".json")
        ]
        return sorted(found, key=lambda record: record.rank)

    @classmethod
    def clear(cls, directory: str) -> None:
        """Forget the ranks of an earlier attempt."""
        storage.remove(os.path.join(directory, "ranks"), recursive=True)


class RunLock:
    """One process holds a run directory at a time, on one machine.

    An flock on a file in the local directory: the kernel lets go of it when the holder dies, so
    that it never goes stale. Across machines the fence does the work: the later attempt wins, and
    the earlier one cannot commit any more.

    Args:
        directory: `local_directory(run_directory)`.
        name: file name; rank 0 and the launcher have one each.
        run_directory: for the message.
    """

    def __init__(self, directory: str, name: str, run_directory: str) -> None:
        self._path = os.path.join(directory, name)
        self._run_directory = run_directory
        self._file: TextIO | None = None

    def take(self, patience: float = 0.0) -> None:
        """Take the lock; raises UsageError, naming the holder, if another process has it.

        Args:
            patience: seconds that a holder who is about to end is given.
        """
        file = open(self._path, "a+", encoding="utf-8")  # noqa: SIM115 - the lock lives with it
        deadline = time.monotonic() + patience
        while not self._locked(file):
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
        file.truncate(0)
        file.write(f"pid {os.getpid()} on {socket.gethostname()}, since {_now()}\n")
        file.flush()
        self._file = file

    @staticmethod
    def _locked(file: TextIO) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Let go."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
