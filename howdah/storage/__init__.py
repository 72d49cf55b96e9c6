"""The one place that touches files: local, HDFS, WebHDFS, S3, memory.

Paths are `str`: plain, file://, hdfs://, webhdfs://, s3://, memory://. Readers never see a part of
a file: `write_whole` and `create_exclusive` publish under the final name only what is complete.
Directories are published by one rename (`rename_dir`). Every failure is a typed `StorageError` that
names the path and a remedy. While a NameNode is away (restart, failover, safe mode) calls wait and
try again, up to `run.storage_retry_seconds`; then they raise `StorageUnavailable`.

The backends are behind `base.Backend`; nobody else imports them.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import glob as _glob
import json
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from howdah import activity
from howdah.errors import AlreadyExists, DataError, NotFound, StorageError
from howdah.storage import matching, retry
from howdah.storage.backends import backend_of
from howdah.storage.base import Entry
from howdah.storage.faults import Replaced, typed
from howdah.storage.files import Writer
from howdah.storage.paths import (
    TEMP_PREFIX,
    is_local,
    join,
    local_path,
    name,
    parent,
    scheme,
    temp_beside,
)

__all__ = [
    "TEMP_PREFIX", "Entry", "scheme", "is_local", "local_path", "join", "parent", "name",
    "configure", "exists", "is_dir", "entry", "size", "modified", "free_bytes", "list_dir", "find",
    "open_read", "read_bytes", "read_text", "read_json", "make_dirs", "open_write", "write_whole",
    "write_stream", "create_exclusive", "rename_dir", "remove", "download", "upload",
]  # fmt: skip

_COPY_BYTES = 8 * 2**20
_READ_AGAIN = 20
_PARALLEL_BYTES, _PARALLEL_READS = 32 * 2**20, 4

_set_by_us: dict[str, str] = {}


def configure(
    *,
    retry_seconds: float | None = None,
    user: str | None = None,
    say: Callable[[str], None] | None = None,
) -> None:
    """Take over what `run` says of storage, for this process and those that it starts.

    Args:
        retry_seconds: how long to wait for storage that is away (`run.storage_retry_seconds`);
            what $HOWDAH_STORAGE_RETRY_SECONDS said before stays.
        user: whom to act as on the cluster (`run.user`); None: whoever $HADOOP_PROXY_USER names.
        say: told, in this process, when waiting begins and when it is over; stderr by default.
    """
    if say is not None:
        retry.say = say
    wanted = {
        retry.ENVIRONMENT: None if retry_seconds is None else str(retry_seconds),
        "HADOOP_PROXY_USER": user,
    }
    for variable, value in wanted.items():
        ours = os.environ.get(variable) == _set_by_us.get(variable)
        if ours and variable in os.environ:
            del os.environ[variable]  # an earlier configuration's
        if value is not None and (variable == "HADOOP_PROXY_USER" or variable not in os.environ):
            os.environ[variable] = _set_by_us[variable] = value


# ------------------------------------------------------------------------------------- asking
def exists(path: str) -> bool:
    """True if a file or directory is there."""
    try:
        entry(path)
    except NotFound:
        return False
    return True


def is_dir(path: str) -> bool:
    """True if `path` is a directory."""
    try:
        return entry(path).is_dir
    except NotFound:
        return False


def entry(path: str) -> Entry:
    """Size, kind and time of one path; raises NotFound."""
    return retry.run(path, lambda: backend_of(path).entry(path))


def size(path: str) -> int:
    """Bytes of a file."""
    return entry(path).size


def modified(path: str) -> float:
    """Seconds since 1970 of the last change."""
    return entry(path).modified


def free_bytes(path: str) -> int | None:
    """Bytes that can still be written at `path`: the disk's of a local path, the nearest space
    quota's on HDFS (one replica's count); None where nothing tells."""
    return backend_of(path).free_bytes(path)


def list_dir(path: str, *, unfinished: bool = False) -> list[Entry]:
    """What a directory holds, sorted by name.

    Args:
        unfinished: also names that `write_whole` and `create_exclusive` have not published yet.
    Raises:
        NotFound: no such directory.
    """
    found = retry.run(path, lambda: list(backend_of(path).list_dir(path)))
    return sorted(
        (e for e in found if unfinished or not e.name.startswith(TEMP_PREFIX)),
        key=lambda e: e.name,
    )


def find(pattern: str) -> list[str]:
    """Files that match a pattern (*, ?, [..], **), sorted; a plain file matches itself."""
    if is_local(pattern):
        with typed(pattern, "look up"):
            hits = _glob.glob(local_path(pattern), recursive=True)
    else:
        head, _, rest = pattern.partition("://")
        root, _, rest = rest.partition("/")
        parts = [part for part in rest.split("/") if part]
        hits = list(matching.matches(f"{head}://{root}", parts, sys.modules[__name__]))
    return sorted({hit for hit in hits if not name(hit).startswith(TEMP_PREFIX)})


# ------------------------------------------------------------------------------------ reading
def open_read(path: str) -> BinaryIO:
    """The file, open to read bytes, seekable."""
    return retry.run(path, lambda: backend_of(path).open_read(path))


def read_bytes(path: str) -> bytes:
    """The whole file, of one moment: replaced while it is read, it is read again."""
    for _ in range(_READ_AGAIN):
        with contextlib.suppress(Replaced), open_read(path) as file, typed(path, "read"):
            return file.read()
    with open_read(path) as file, typed(path, "read"):
        return file.read()


def read_text(path: str) -> str:
    """The whole file, which must be UTF-8."""
    raw = read_bytes(path)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            "the file is not UTF-8", where=f"{path}, byte {error.start}", expected="UTF-8 text"
        ) from None


def read_json(path: str) -> Any:
    """The file's JSON value; DataError if it is none."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise DataError(
            "the file is not JSON", where=f"{path}, line {error.lineno}", got=error.msg
        ) from None


# ------------------------------------------------------------------------------------ writing
def make_dirs(path: str) -> None:
    """Make the directory and its parents; being there already is fine."""
    retry.run(path, lambda: backend_of(path).make_dirs(path))


def open_write(path: str) -> BinaryIO:
    """A new file, open to write bytes: for names that nobody reads yet (attempt names).

    Storage that goes away in the middle ends it with StorageUnavailable: what was written is lost,
    and only the caller can begin again.
    """
    file = retry.run(path, lambda: backend_of(path).open_write(path))
    if isinstance(file, Writer):
        file.alone = True
    return file


def write_whole(path: str, data: bytes) -> None:
    """Put `data` at `path`, replacing: readers see the old or the new file, never a part."""
    backend_of(path).put(path, lambda file: _all(file, data), replace=True, size=len(data))


def write_stream(path: str, fill: Callable[[BinaryIO], None], *, size: int | None = None) -> None:
    """What `fill` writes, at `path`, whole or not at all, replacing; nothing is held in memory.

    Args:
        fill: writes the whole file to the handle that it is given; called again, with a new one,
            when storage went away in the middle.
        size: bytes that it will write, where known: told when there is no room.
    """
    backend_of(path).put(path, fill, replace=True, size=size)


def create_exclusive(path: str, data: bytes) -> None:
    """Put `data` at `path` whole, or raise AlreadyExists: of two writers exactly one succeeds."""
    try:
        backend_of(path).put(path, lambda file: _all(file, data), replace=False, size=len(data))
    except AlreadyExists:
        raise AlreadyExists("it is there already and is never overwritten", where=path) from None


def _all(file: BinaryIO, data: bytes) -> None:
    file.write(data)


def rename_dir(source: str, target: str) -> None:
    """Publish a directory by one rename; AlreadyExists if `target` is there."""
    backend_of(source).rename_dir(source, target)


def remove(path: str, recursive: bool = False) -> None:
    """Remove a file, or a directory with all it holds; missing is not an error."""
    with contextlib.suppress(NotFound):
        retry.run(path, lambda: backend_of(path).remove(path, recursive))


# ------------------------------------------------------------------------------------ copying
def download(path: str, local: str) -> None:
    """Copy a file (any storage) to a local name, whole or not at all."""
    temp = temp_beside(local)
    try:
        with open_read(path) as source, open_write(temp) as target:
            if getattr(source, "size", 0) > 2 * _PARALLEL_BYTES:
                _read_in_parallel(source, target, local)
            else:
                _copy(source, target, path)
        with typed(local, "write"):
            os.replace(local_path(temp), local_path(local))
    except BaseException:
        with contextlib.suppress(StorageError):
            remove(temp)
        raise


def _copy(source: BinaryIO, target: BinaryIO, path: str) -> None:
    with typed(path, "copy"):
        shutil.copyfileobj(source, target, _COPY_BYTES)


def _read_in_parallel(source: Any, target: Any, local: str) -> None:
    """A large remote file, several of its blocks at once: they lie on different DataNodes."""
    own = activity.current() or activity.Activity()

    def block(offset: int) -> None:
        with own.followed():
            data = source.fetch(offset, min(_PARALLEL_BYTES, source.size - offset))
        with typed(local, "write", free_bytes):
            view = memoryview(data)
            while view:
                written = os.pwrite(target.fileno(), view, offset)
                view, offset = view[written:], offset + written

    with concurrent.futures.ThreadPoolExecutor(_PARALLEL_READS) as pool:
        jobs = [pool.submit(block, at) for at in range(0, source.size, _PARALLEL_BYTES)]
        try:
            for job in concurrent.futures.as_completed(jobs):
                job.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def upload(local: str, path: str) -> None:
    """Copy a local file to `path` (any storage), whole or not at all, replacing what is there."""
    if is_local(path):
        download(local, path)
        return

    def fill(file: BinaryIO) -> None:
        with open_read(local) as source:
            _copy(source, file, path)

    backend_of(path).put(path, fill, replace=True, size=size(local))
