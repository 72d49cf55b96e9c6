"""The one place that touches files and fsspec.

Paths are `str`: plain, file://, memory://, hdfs://. Readers never see a part of a file:
`write_whole` and `create_exclusive` publish under the final name only what is complete. Directories
are published by one rename (`rename_dir`). Every failure is a typed `StorageError` that names the
path and a remedy.
"""

from __future__ import annotations

import contextlib
import errno
import glob as _glob
import json
import os
import posixpath
import secrets
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from howdah.errors import (
    AlreadyExists,
    DataError,
    NotFound,
    PermissionDenied,
    StorageError,
    StorageFull,
)

TEMP_PREFIX = ".tmp-"
"""Names that start so are unfinished: `list_dir` and `find` leave them out."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A name in a directory: size in bytes (directories: 0), modified in seconds since 1970."""

    name: str
    path: str
    size: int
    is_dir: bool
    modified: float


# -------------------------------------------------------------------------------- path words
def scheme(path: str) -> str:
    """`"hdfs"` of `"hdfs://nn/x"`; `"file"` of a plain path."""
    head, colon, _ = path.partition("://")
    return head.lower() if colon and head.replace("+", "").isalnum() else "file"


def is_local(path: str) -> bool:
    """True for plain paths and file:// ones."""
    return scheme(path) == "file"


def local_path(path: str) -> str:
    """The absolute local path, without scheme."""
    if not is_local(path):
        raise StorageError(
            "a local path is needed here", where=path, remedy="copy it with storage.download first"
        )
    if path.lower().startswith("file://"):
        path = path[len("file://") :]
    return os.path.abspath(os.path.expanduser(path))


def join(base: str, *parts: str) -> str:
    """`join("hdfs://nn/a/", "b", "c")` -> `"hdfs://nn/a/b/c"`; parts stay below base."""
    for part in parts:
        if part.startswith("/") or "://" in part or ".." in part.split("/") or "\0" in part:
            raise StorageError(
                "a path would leave its directory",
                where=base,
                got=repr(part),
                remedy="names must be relative and without '..'",
            )
    return posixpath.join(base.rstrip("/") or "/", *parts)


def parent(path: str) -> str:
    """The directory that holds `path`."""
    head = path.rstrip("/").rpartition("/")[0]
    if not head:
        return "/" if path.startswith("/") else "."
    return head


def name(path: str) -> str:
    """The last part of `path`."""
    return path.rstrip("/").rpartition("/")[2]


# ------------------------------------------------------------------------------------ errors
@contextlib.contextmanager
def _typed(path: str, doing: str) -> Iterator[None]:
    """Turn what a file system raises into a StorageError that names the path."""
    try:
        yield
    except FileNotFoundError:
        raise NotFound(
            f"cannot {doing}: no such file or directory", where=path, remedy="check the path"
        ) from None
    except FileExistsError:
        raise AlreadyExists(f"cannot {doing}: it is there already", where=path) from None
    except PermissionError as error:
        raise PermissionDenied(
            f"cannot {doing}: permission denied",
            where=path,
            got=f"user {_user()}: {error.strerror or error}",
            remedy="ask for read and write access, or give another directory",
        ) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = free_bytes(path)
            raise StorageFull(
                f"cannot {doing}: no space left",
                where=path,
                got=f"{free:,} bytes free" if free is not None else str(error),
                remedy="free space or raise the quota; what was there before is intact",
            ) from None
        raise StorageError(f"cannot {doing}", where=path, got=str(error)) from error


def _user() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.geteuid()).pw_name
    except (KeyError, ImportError):
        return str(os.geteuid())


def free_bytes(path: str) -> int | None:
    """Free bytes on the disk of a local path (or of its nearest existing parent); else None."""
    if not is_local(path):
        return None
    place = local_path(path)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    return shutil.disk_usage(place).free


# ------------------------------------------------------------------------------------- fsspec
_memory_lock = threading.Lock()


def _fs(path: str) -> tuple[Any, str]:
    """(fsspec file system, its own form of the path) of a path that is not local."""
    import fsspec

    try:
        return fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise StorageError(
            f"no storage speaks {scheme(path)}://",
            where=path,
            expected="a plain path, file://, memory:// or hdfs://",
            got=str(error),
        ) from None


def _fs_url(path: str, inner: str) -> str:
    """The URL of an fsspec path of the same file system as `path`."""
    import fsspec

    fs, _ = fsspec.core.url_to_fs(path)
    return fs.unstrip_protocol(inner)


# ------------------------------------------------------------------------------------- asking
def exists(path: str) -> bool:
    """True if a file or directory is there."""
    with _typed(path, "look up"):
        if is_local(path):
            return os.path.exists(local_path(path))
        fs, inner = _fs(path)
        return fs.exists(inner)


def is_dir(path: str) -> bool:
    """True if `path` is a directory."""
    with _typed(path, "look up"):
        if is_local(path):
            return os.path.isdir(local_path(path))
        fs, inner = _fs(path)
        return fs.isdir(inner)


def entry(path: str) -> Entry:
    """Size, kind and time of one path; raises NotFound."""
    with _typed(path, "look up"):
        if is_local(path):
            info = os.stat(local_path(path))
            directory = os.path.isdir(local_path(path))
            return Entry(
                name=name(path),
                path=path,
                size=0 if directory else info.st_size,
                is_dir=directory,
                modified=info.st_mtime,
            )
        fs, inner = _fs(path)
        return _entry_of(path, fs.info(inner))


def size(path: str) -> int:
    """Bytes of a file."""
    return entry(path).size


def modified(path: str) -> float:
    """Seconds since 1970 of the last change."""
    return entry(path).modified


def _entry_of(path: str, info: dict) -> Entry:
    when = info.get("mtime") or info.get("modified") or info.get("created") or 0
    return Entry(
        name=name(path),
        path=path,
        size=int(info.get("size") or 0),
        is_dir=info.get("type") == "directory",
        modified=when.timestamp() if hasattr(when, "timestamp") else float(when),
    )


def list_dir(path: str, *, unfinished: bool = False) -> list[Entry]:
    """What a directory holds, sorted by name.

    Args:
        unfinished: also names that `write_whole` and `create_exclusive` have not published yet.
    Raises:
        NotFound: no such directory.
    """
    with _typed(path, "list"):
        if is_local(path):
            place = local_path(path)
            found = []
            for item in os.scandir(place):
                try:
                    info = item.stat()
                except FileNotFoundError:
                    continue  # gone since: another process published or removed it
                found.append(
                    Entry(
                        name=item.name,
                        path=join(path, item.name),
                        size=0 if item.is_dir() else info.st_size,
                        is_dir=item.is_dir(),
                        modified=info.st_mtime,
                    )
                )
        else:
            fs, inner = _fs(path)
            fs.invalidate_cache(inner)
            if not fs.isdir(inner):
                raise FileNotFoundError(path)
            found = [
                _entry_of(join(path, name(info["name"])), info)
                for info in fs.ls(inner, detail=True)
            ]
    return sorted(
        (e for e in found if unfinished or not e.name.startswith(TEMP_PREFIX)),
        key=lambda e: e.name,
    )


def find(pattern: str) -> list[str]:
    """Files that match a pattern (*, ?, [..], **), sorted; a plain file matches itself."""
    with _typed(pattern, "look up"):
        if is_local(pattern):
            hits = _glob.glob(local_path(pattern), recursive=True)
        else:
            fs, inner = _fs(pattern)
            hits = [_fs_url(pattern, hit) for hit in fs.glob(inner)]
    return sorted(hit for hit in hits if not name(hit).startswith(TEMP_PREFIX))


# ------------------------------------------------------------------------------------ reading
def open_read(path: str) -> BinaryIO:
    """The file, open to read bytes, seekable."""
    with _typed(path, "read"):
        if is_local(path):
            return open(local_path(path), "rb")
        fs, inner = _fs(path)
        return fs.open(inner, "rb")


def read_bytes(path: str) -> bytes:
    """The whole file."""
    with _typed(path, "read"), open_read(path) as file:
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
    with _typed(path, "make the directory"):
        if is_local(path):
            os.makedirs(local_path(path), exist_ok=True)
        else:
            fs, inner = _fs(path)
            fs.makedirs(inner, exist_ok=True)


def open_write(path: str) -> BinaryIO:
    """A new file, open to write bytes: for names that nobody reads yet (attempt names)."""
    with _typed(path, "write"):
        return _open_write(path)


def _open_write(path: str) -> BinaryIO:
    if is_local(path):
        place = local_path(path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        return open(place, "wb")
    fs, inner = _fs(path)
    fs.makedirs(_fs(parent(path))[1], exist_ok=True)
    return fs.open(inner, "wb")


def _temp_beside(path: str) -> str:
    return join(parent(path), f"{TEMP_PREFIX}{name(path)}.{secrets.token_hex(6)}")


def _write_temp(path: str, data: bytes) -> str:
    temp = _temp_beside(path)
    try:
        # Errors name the path that the caller gave, not the temporary one.
        with _typed(path, "write"), _open_write(temp) as file:
            file.write(data)
            if is_local(temp):
                file.flush()
                os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(StorageError):
            remove(temp)
        raise
    return temp


def write_whole(path: str, data: bytes) -> None:
    """Put `data` at `path`, replacing: readers see the old or the new file, never a part."""
    temp = _write_temp(path, data)
    try:
        with _typed(path, "write"):
            if is_local(path):
                os.replace(local_path(temp), local_path(path))
            else:
                fs, inner = _fs(path)
                with _memory_lock:
                    fs.mv(_fs(temp)[1], inner)
    except BaseException:
        with contextlib.suppress(StorageError):
            remove(temp)
        raise


def create_exclusive(path: str, data: bytes) -> None:
    """Put `data` at `path` whole, or raise AlreadyExists: of two writers exactly one succeeds."""
    temp = _write_temp(path, data)
    try:
        with _typed(path, "create"):
            if is_local(path):
                # link, unlike rename, refuses an existing target; unlike O_EXCL it shows the
                # name only once the contents are whole.
                os.link(local_path(temp), local_path(path))
            else:
                _create_exclusive_remote(path, data)
    except AlreadyExists:
        raise AlreadyExists("it is there already and is never overwritten", where=path) from None
    finally:
        with contextlib.suppress(StorageError):
            remove(temp)


def _create_exclusive_remote(path: str, data: bytes) -> None:
    fs, inner = _fs(path)
    with _memory_lock:
        if fs.exists(inner):
            raise FileExistsError(path)
        with fs.open(inner, "xb" if scheme(path) == "memory" else "wb") as file:
            file.write(data)


def rename_dir(source: str, target: str) -> None:
    """Publish a directory by one rename; AlreadyExists if `target` is there."""
    with _typed(target, "publish"):
        if exists(target):
            raise FileExistsError(target)
        if is_local(source):
            make_dirs(parent(target))
            try:
                os.rename(local_path(source), local_path(target))
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise FileExistsError(target) from None
                raise
            _sync_directory(local_path(parent(target)))
        else:
            fs, inner = _fs(source)
            with _memory_lock:
                fs.mv(inner, _fs(target)[1], recursive=True)


def _sync_directory(place: str) -> None:
    """Make a rename survive a power cut."""
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: str, recursive: bool = False) -> None:
    """Remove a file, or a directory with all it holds; missing is not an error."""
    with contextlib.suppress(NotFound), _typed(path, "remove"):
        if is_local(path):
            place = local_path(path)
            if os.path.isdir(place) and not os.path.islink(place):
                if not recursive:
                    os.rmdir(place)
                else:
                    shutil.rmtree(place)
            else:
                os.unlink(place)
        else:
            fs, inner = _fs(path)
            fs.rm(inner, recursive=recursive)


# ------------------------------------------------------------------------------------ copying
def download(path: str, local: str) -> None:
    """Copy a file (any storage) to a local name, whole or not at all."""
    temp = _temp_beside(local)
    try:
        with open_read(path) as source, open_write(temp) as target, _typed(path, "copy"):
            shutil.copyfileobj(source, target, 8 * 2**20)
        with _typed(local, "write"):
            os.replace(local_path(temp), local_path(local))
    except BaseException:
        with contextlib.suppress(StorageError):
            remove(temp)
        raise


def upload(local: str, path: str) -> None:
    """Copy a local file to `path` (any storage), whole or not at all, replacing what is there."""
    if is_local(path):
        download(local, path)
        return
    temp = _temp_beside(path)
    try:
        with open_read(local) as source, open_write(temp) as target, _typed(path, "copy"):
            shutil.copyfileobj(source, target, 8 * 2**20)
        with _typed(path, "write"), _memory_lock:
            fs, inner = _fs(path)
            fs.mv(_fs(temp)[1], inner)
    except BaseException:
        with contextlib.suppress(StorageError):
            remove(temp)
        raise
