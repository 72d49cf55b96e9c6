"""Files on every storage: local, HDFS, WebHDFS, S3, memory. All other modules go through here.

Paths are `str`: plain, file://, hdfs://, webhdfs://, s3://. Readers never see a partial
file: `write_whole` and `create_exclusive` publish a file under its name once it is complete, and
`rename_dir` publishes a directory by one rename. Every failure is a typed `StorageError` that names
the path and a remedy. While a storage does not answer (a NameNode restarts, fails over or is in
safe mode), calls retry for up to `run.storage_retry_seconds`, then raise `StorageUnavailable`. The
default is 120 s, and 1,800 s in processes that called `be_patient`.

Each storage is a `base.Backend`; only this package imports the backends.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import fnmatch
import glob as _glob
import json
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from howdah.core import activity
from howdah.core.paths import (
    HDFS_SCHEMES,
    TEMP_PREFIX,
    absolute,
    is_local,
    join,
    local_path,
    name,
    on_hdfs,
    parent,
    scheme,
    temp_beside,
)
from howdah.errors import AlreadyExists, DataError, HowdahError, NotFound, StorageError
from howdah.faults import Replaced, typed
from howdah.storage import retry
from howdah.storage.backends import backend_of
from howdah.storage.base import UMASK, Entry
from howdah.storage.files import Writer
from howdah.storage.shapes import ANY_OBJECT, Shape, fault

__all__ = [
    "HDFS_SCHEMES", "TEMP_PREFIX", "Entry", "scheme", "on_hdfs", "is_local", "local_path",
    "absolute", "join", "parent", "name",
    "configure", "be_patient", "patient_environment", "waiting_at_most", "retry_seconds",
    "exists", "is_dir", "entry", "size", "modified", "free_bytes", "list_dir", "find",
    "open_read", "read_bytes", "read_text", "read_json", "read_object", "checked_object",
    "read_fields", "make_dirs", "open_write", "write_whole", "write_stream", "create_exclusive",
    "rename_dir", "remove", "download", "upload", "set_mode", "UMASK",
]  # fmt: skip

_COPY_BYTES = 8 * 2**20
_READ_AGAIN = 20
_PARALLEL_BYTES, _PARALLEL_READS = 32 * 2**20, 4
_DAMAGED = "restore the file from a copy, or let the command that wrote it write it again"

_umask: list[int] = []
"""The umask that this process was started with, once `configure` has changed it."""
_set_by_us: dict[str, str] = {}
"""Environment variables as this module has set them."""


def configure(
    *,
    retry_seconds: float | None = None,
    user: str | None = None,
    mode: int | None = None,
    say: Callable[[str], None] | None = None,
) -> None:
    """Apply the section `run` to this process and, by environment variables, to its children.

    Args:
        retry_seconds: how long to wait for a storage that does not answer
            (`run.storage_retry_seconds`); a $HOWDAH_STORAGE_RETRY_SECONDS that is set already wins.
            None: the default.
        user: the user to impersonate on the cluster (`run.user`); None: $HADOOP_PROXY_USER.
        mode: the most that new files and directories are open to, of this process and those it
            starts, wherever they write and whatever writes (a library, Spark): their texts are
            people's. A stricter umask holds besides. None: the umask stays.
        say: called, in this process, with a line when a wait begins and when it ends; None: they go
            to stderr.
    """
    if say is not None:
        retry.say = say
    methods = {
        retry.ENVIRONMENT: None if retry_seconds is None else str(retry_seconds),
        "HADOOP_PROXY_USER": user,
    }
    if mode is not None:
        closed = 0o777 & ~mode
        if not _umask:
            _umask.append(os.umask(closed))
        os.umask(_umask[0] | closed)
        # HDFS has a umask of its own, which the Hadoop client's configuration names.
        os.environ[UMASK] = f"{closed:03o}"
    for variable, value in methods.items():
        ours = os.environ.get(variable) == _set_by_us.get(variable)
        if ours and variable in os.environ:
            del os.environ[variable]  # set by an earlier configuration
        if value is not None and (variable == "HADOOP_PROXY_USER" or variable not in os.environ):
            os.environ[variable] = _set_by_us[variable] = value


def be_patient() -> None:
    """From now on this process and its children retry for 1,800 s by default instead of 120 s,
    since giving up would lose a run. `run.storage_retry_seconds` and
    $HOWDAH_STORAGE_RETRY_SECONDS still win."""
    for variable, value in patient_environment().items():
        if os.environ.get(variable) != value:
            os.environ[variable] = _set_by_us[variable] = value


def patient_environment() -> dict[str, str]:
    """Environment variables that have the effect of `be_patient` in another container's process."""
    return {retry.ENVIRONMENT: os.environ.get(retry.ENVIRONMENT) or str(retry.PATIENT_SECONDS)}


waiting_at_most = retry.at_most
retry_seconds = retry.limit_seconds


# ----------------------------------------------------------------------------------- metadata
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
    quota's on HDFS (of one replica); None where neither is known."""
    return backend_of(path).free_bytes(path)


def list_dir(path: str, *, unfinished: bool = False) -> list[Entry]:
    """What a directory holds, sorted by name.

    Args:
        unfinished: also names that `write_whole` and `create_exclusive` have not published yet.
    Raises:
        NotFound: no such directory.
    """
    entries = retry.run(path, lambda: list(backend_of(path).list_dir(path)))
    return sorted(
        (e for e in entries if unfinished or not e.name.startswith(TEMP_PREFIX)),
        key=lambda e: e.name,
    )


def find(pattern: str) -> list[str]:
    """Files that match a pattern (*, ?, [..], **), sorted; a plain file matches itself. A name
    with such characters that exists is that file or directory."""
    if is_local(pattern):
        with typed(pattern, "look up"):
            hits = _glob.glob(_existing_escaped(local_path(pattern)), recursive=True)
    else:
        head, _, rest = pattern.partition("://")
        root, _, rest = rest.partition("/")
        parts = [part for part in rest.split("/") if part]
        hits = list(_matches(f"{head}://{root}", parts))
    return sorted({hit for hit in hits if not name(hit).startswith(TEMP_PREFIX)})


def _existing_escaped(path: str) -> str:
    """A local pattern in which the characters of names that exist stand for themselves."""
    begin, parts = "/", path.strip("/").split("/")
    done: list[str] = []
    for part in parts:
        begin = os.path.join(begin, part)
        if not os.path.lexists(begin):
            break
        done.append(_glob.escape(part))
    return "/" + "/".join([*done, *parts[len(done) :]])


def _matches(directory: str, parts: list[str]) -> Iterator[str]:
    """Paths below a remote directory whose names match the parts, as glob does for local files."""
    while parts and (not _glob.has_magic(parts[0]) or exists(f"{directory}/{parts[0]}")):
        directory, parts = f"{directory}/{parts[0]}", parts[1:]
    if not parts:
        if exists(directory):
            yield directory
        return
    part, rest = parts[0], parts[1:]
    if not is_dir(directory):
        return
    entries = list_dir(directory)
    if not part.startswith("."):
        entries = [item for item in entries if not item.name.startswith(".")]
    if part == "**":
        if rest:
            yield from _matches(directory, rest)
        for item in entries:
            if not rest:
                yield item.path
            if item.is_dir:
                yield from _matches(item.path, parts)
        return
    for item in entries:
        if not fnmatch.fnmatchcase(item.name, part):
            continue
        if not rest:
            yield item.path
        elif item.is_dir:
            yield from _matches(item.path, rest)


# ------------------------------------------------------------------------------------ reading
def open_read(path: str) -> BinaryIO:
    """The file, open to read bytes, seekable."""
    return retry.run(path, lambda: backend_of(path).open_read(path))


def read_bytes(path: str) -> bytes:
    """The whole file. If it is replaced while it is read, reading begins anew."""
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
            "the file is not UTF-8",
            where=f"{path}, byte {error.start}",
            remedy="check the path; a text in another encoding: iconv -f LATIN1 -t UTF-8",
        ) from None


def read_json(path: str) -> Any:
    """The file's JSON value; DataError if it is not JSON. An object: `read_object`."""
    require_file(path)
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        where, got = f"{path}, line {error.lineno}", error.msg
    except (ValueError, RecursionError) as error:  # a number or a nesting beyond Python's limits
        where, got = path, str(error)
    raise DataError("the file is not JSON", where=where, got=got, remedy=_DAMAGED)


def require_file(path: str) -> None:
    """Refuse a named pipe or a device: a thread that reads it might wait for ever."""
    local = local_path(path) if is_local(path) else None
    if local and os.path.exists(local) and not (os.path.isfile(local) or os.path.isdir(local)):
        raise DataError(
            "the path is not a file",
            where=path,
            expected="a file",
            got="a pipe or a device",
            remedy="write it to a file first",
        )


def read_object(
    path: str,
    shape: Shape = ANY_OBJECT,
    *,
    kind: type[HowdahError] = DataError,
    remedy: str = _DAMAGED,
) -> dict[str, Any]:
    """The file's JSON object.

    Args:
        shape: that it must have (howdah/storage/shapes.py).
        kind: of the error for a file that is not JSON, not an object, or of another shape.
        remedy: of that error.
    """
    try:
        value = read_json(path)
    except DataError as error:
        raise kind(
            error.what, where=error.where, expected=error.expected, got=error.got, remedy=remedy
        ) from None
    return checked_object(value, path, shape, kind=kind, remedy=remedy)


def checked_object(
    value: Any,
    path: str,
    shape: Shape = ANY_OBJECT,
    *,
    kind: type[HowdahError] = DataError,
    remedy: str = _DAMAGED,
) -> dict[str, Any]:
    """The JSON value of the file at `path`, if it has the shape; arguments as of `read_object`."""
    problem = fault(value, shape)
    if problem is None:
        return value
    raise kind(
        f"{name(path)} is malformed" if problem.key else "the file holds no JSON object",
        where=f"{path}: {problem.key}" if problem.key else path,
        expected=problem.expected if problem.key else "a JSON object, {...}",
        got=problem.got,
        remedy=remedy,
    )


def read_fields(path: str) -> dict[str, Any]:
    """The file's JSON object; {} where there is none that can be read, so that nothing is known."""
    try:
        return read_object(path)
    except HowdahError:
        return {}


# ------------------------------------------------------------------------------------ writing
def make_dirs(path: str, *, mode: int | None = None) -> None:
    """Make the directory and its parents; no error if it exists.

    Args:
        mode: permission bits of the directory itself if it is made here, regardless of the umask.
            Ignored where the storage has none (s3, memory).
    """
    retry.run(path, lambda: backend_of(path).make_dirs(path, mode))


def open_write(path: str) -> BinaryIO:
    """A new file, open to write bytes: for names that no reader opens yet (attempt names).

    If the storage stops answering in between, StorageUnavailable is raised: what was written is
    lost, and only the caller can write it again.
    """
    file = retry.run(path, lambda: backend_of(path).open_new(path))
    if isinstance(file, Writer):
        file.alone = True
    return file


def write_whole(path: str, data: bytes, *, mode: int | None = None) -> None:
    """Write or replace the file at `path`: readers see the old or the new file, never a part.

    Args:
        mode: permission bits, from the first byte on, regardless of the umask; None: by the umask.
            Ignored where the storage has none (s3, memory).
    """
    backend_of(path).put(
        path, lambda file: file.write(data), replace=True, size=len(data), mode=mode
    )


def write_stream(path: str, fill: Callable[[BinaryIO], None], *, size: int | None = None) -> None:
    """Write or replace the file at `path`, whole or not at all, without holding it in memory.

    Args:
        fill: writes the whole file to the handle that it is given; called again with a new handle
            when an attempt fails because the storage stopped answering.
        size: bytes that it will write, where known, for the message of StorageFull.
    """
    backend_of(path).put(path, fill, replace=True, size=size)


def create_exclusive(path: str, data: bytes) -> None:
    """Create the file, whole, or raise AlreadyExists: of two writers exactly one succeeds."""
    try:
        backend_of(path).put(path, lambda file: file.write(data), replace=False, size=len(data))
    except AlreadyExists:
        remedy = "give another name, or remove it first"
        raise AlreadyExists(
            "the file already exists and is never overwritten", where=path, remedy=remedy
        ) from None


def rename_dir(source: str, target: str) -> None:
    """Publish a directory by one rename; AlreadyExists if `target` is there."""
    backend_of(source).rename_dir(source, target)


def remove(path: str, recursive: bool = False) -> None:
    """Remove a file, or a directory with all it holds; no error if it is missing."""
    with contextlib.suppress(NotFound):
        retry.run(path, lambda: backend_of(path).remove(path, recursive))


def set_mode(path: str, mode: int) -> None:
    """Set the permission bits of a file or directory; ignored where the storage has none (S3)."""
    retry.run(path, lambda: backend_of(path).set_mode(path, mode))


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
    """Copy a large remote file, several blocks at once: they lie on different DataNodes."""
    caller = activity.current()

    def block(offset: int) -> None:
        with caller.followed():
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


def upload(local: str, path: str, *, mode: int | None = None) -> None:
    """Copy a local file to `path` (any storage), whole or not at all, replacing what is there.

    Args:
        mode: as of `write_whole`.
    """
    if is_local(path) and mode is None:
        download(local, path)
        return

    def fill(file: BinaryIO) -> None:
        with open_read(local) as source:
            _copy(source, file, path)

    backend_of(path).put(path, fill, replace=True, size=size(local), mode=mode)
