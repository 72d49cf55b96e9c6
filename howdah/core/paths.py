"""Pure functions of storage paths, without access to a storage.

Paths are plain, or URLs that are not percent-decoded: '#', '?' and '%' are ordinary characters
(HDFS allows them in names).
"""

from __future__ import annotations

import os
import posixpath
import re
import secrets

from howdah.errors import StorageError, UsageError

TEMP_PREFIX = ".tmp-"
"""Prefix of unfinished files, which `list_dir` and `find` skip."""


HDFS_SCHEMES = ("hdfs", "webhdfs", "swebhdfs")
"""RPC, and HTTP without and with TLS."""


def scheme(path: str) -> str:
    """`"hdfs"` of `"hdfs://nn/x"`; `"file"` of a plain path."""
    head, colon, _ = path.partition("://")
    return head.lower() if colon and head.replace("+", "").isalnum() else "file"


def on_hdfs(path: str) -> bool:
    """Whether a path is on HDFS, by whichever protocol."""
    return scheme(path) in HDFS_SCHEMES


def authority(path: str) -> str:
    """`"nn:8020"` of `"hdfs://nn:8020/x"`; `""` of a plain path and of `"hdfs:///x"`."""
    if "://" not in path or (scheme(path) == "file" and not path.lower().startswith("file://")):
        return ""
    return path.partition("://")[2].partition("/")[0]


def inner(path: str) -> str:
    """`"/x"` of `"hdfs://nn:8020/x"`: the absolute path inside its storage."""
    return "/" + path.partition("://")[2].partition("/")[2].strip("/")


def is_local(path: str) -> bool:
    """Whether a path is plain or file://."""
    return scheme(path) == "file"


def local_path(path: str) -> str:
    """The absolute local path, without scheme."""
    if not is_local(path):
        raise StorageError(
            "a local path is needed here", where=path, remedy="copy it with storage.download first"
        )
    return os.path.abspath(os.path.expanduser(without_scheme(path)))


def without_scheme(path: str) -> str:
    """A local path without `file://`, or `file:` as Java writes it (file:/data)."""
    url = re.match(r"file:(//|(?=/))", path, re.IGNORECASE)
    return path if url is None else path[url.end() :]


def absolute(path: str) -> str:
    """A path for messages: a local one is absolute, whatever the working directory."""
    return local_path(path) if is_local(path) else path


def join(base: str, *parts: str) -> str:
    """`join("hdfs://nn/a/", "b", "c")` -> `"hdfs://nn/a/b/c"`; parts stay below base.

    Raises:
        UsageError: base is empty: "" does not name a directory, and must not name the root.
        StorageError: a part leads out of base.
    """
    if not base:
        raise UsageError(
            "an empty path names no directory",
            expected="a path, for example . or hdfs:///data",
            got=f"'', for {'/'.join(parts)} in it",
        )
    for part in parts:
        if part.startswith("/") or "://" in part or ".." in part.split("/") or "\0" in part:
            raise StorageError(
                "a path would leave its directory",
                where=base,
                got=repr(part),
                remedy="names must be relative and without '..'",
            )
    return posixpath.join(_bare(base) or "/", *parts)


def parent(path: str) -> str:
    """The directory of `path`; for a storage's root, the root itself."""
    bare = _bare(path)
    head = bare.rpartition("/")[0]
    if "://" in path and head.endswith((":/", "://")):  # "hdfs://nn" has no parent
        return bare + "/" if head.endswith(":/") else head + "/"
    if not head:
        return "/" if path.startswith("/") else "."
    return head


def _bare(path: str) -> str:
    """A path without slashes at its end, except those of a URL's root without an authority, which
    `rstrip` would make a plain path: "hdfs:///"."""
    bare = path.rstrip("/")
    return bare + "///" if "://" in path and bare.endswith(":") else bare


def name(path: str) -> str:
    """The last part of `path`."""
    return path.rstrip("/").rpartition("/")[2]


def temp_beside(path: str) -> str:
    """A fresh temporary name in the same directory, to rename to `path`."""
    return join(parent(path), f"{TEMP_PREFIX}{name(path)}.{secrets.token_hex(6)}")
