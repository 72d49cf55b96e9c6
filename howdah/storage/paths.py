"""Words about storage paths: pure functions of `str`, no storage is asked.

Paths are plain, or URLs whose rest is taken as it is: nothing is percent-decoded, '#', '?' and '%'
are characters like others (HDFS allows them in names).
"""

from __future__ import annotations

import os
import posixpath
import secrets

from howdah.errors import StorageError

TEMP_PREFIX = ".tmp-"
"""Names that start so are unfinished: `list_dir` and `find` leave them out."""


def scheme(path: str) -> str:
    """`"hdfs"` of `"hdfs://nn/x"`; `"file"` of a plain path."""
    head, colon, _ = path.partition("://")
    return head.lower() if colon and head.replace("+", "").isalnum() else "file"


def authority(path: str) -> str:
    """`"nn:8020"` of `"hdfs://nn:8020/x"`; `""` of a plain path and of `"hdfs:///x"`."""
    if "://" not in path or (scheme(path) == "file" and not path.lower().startswith("file://")):
        return ""
    return path.partition("://")[2].partition("/")[0]


def inner(path: str) -> str:
    """`"/x"` of `"hdfs://nn:8020/x"`: the absolute path inside its storage."""
    return "/" + path.partition("://")[2].partition("/")[2].strip("/")


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
    """The directory that holds `path`; of a storage's root, the root itself."""
    bare = path.rstrip("/")
    head = bare.rpartition("/")[0]
    if "://" in path and head.endswith(":/"):  # "hdfs://nn": nothing above it
        return bare + "/"
    if not head:
        return "/" if path.startswith("/") else "."
    return head


def name(path: str) -> str:
    """The last part of `path`."""
    return path.rstrip("/").rpartition("/")[2]


def temp_beside(path: str) -> str:
    """A fresh unfinished name in the same directory: a rename from it to `path` stays inside."""
    return join(parent(path), f"{TEMP_PREFIX}{name(path)}.{secrets.token_hex(6)}")
