"""The backend of a path: one per cluster, identity and process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from howdah.core.paths import HDFS_SCHEMES, authority, scheme
from howdah.errors import StorageError
from howdah.storage.base import UMASK, Backend

_IDENTITY = (
    "HADOOP_CONF_DIR", "HADOOP_HOME", "HADOOP_USER_NAME", "HADOOP_PROXY_USER",
    "HADOOP_TOKEN_FILE_LOCATION", "KRB5_CLIENT_KTNAME", "KRB5CCNAME", "KRB5_CONFIG",
    "AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_DEFAULT_REGION",
    UMASK,
)  # fmt: skip
"""Environment variables that decide the cluster, the user and the modes of new files."""

_open: dict[tuple, Backend] = {}
_lock = threading.Lock()


def backend_of(path: str) -> Backend:
    """The storage that a path is on; one for the process, made anew after a fork."""
    kind = scheme(path)
    key: tuple = (os.getpid(), kind)
    if kind in (*HDFS_SCHEMES, "s3"):
        identity = tuple(os.environ.get(variable) for variable in _IDENTITY)
        key = (*key, authority(path), identity, _token_time())
    with _lock:
        if key not in _open:
            _open[key] = _open_backend(path)
        return _open[key]


def _open_backend(path: str) -> Backend:
    kind = scheme(path)
    if kind not in OPENERS:
        raise StorageError(
            f"unsupported storage scheme {kind}://",
            where=path,
            expected="a plain path, file://, hdfs://, webhdfs://, swebhdfs:// or s3://",
            remedy="give the path with one of these schemes, or none for a file of this machine",
        )
    return OPENERS[kind](path)


def _file(path: str) -> Backend:
    from howdah.storage.local import LocalStorage

    return LocalStorage()


def _hdfs(path: str) -> Backend:
    from howdah.storage.hdfs.native import HdfsStorage

    return HdfsStorage(authority(path))


def _webhdfs(path: str) -> Backend:
    from howdah.storage.hdfs.webhdfs import WebHdfsStorage

    return WebHdfsStorage(path, authority(path))


def _s3(path: str) -> Backend:
    from howdah.storage.fsspec_backends import S3Storage

    return S3Storage()


OPENERS: dict[str, Callable[[str], Backend]] = {
    "file": _file, "hdfs": _hdfs, "webhdfs": _webhdfs, "swebhdfs": _webhdfs, "s3": _s3,
}  # fmt: skip
"""{scheme: opens the backend of a path}; the tests add memory:// (tests/support)."""


def _token_time() -> int:
    """The token file's change time: new tokens need a new client."""
    try:
        return os.stat(os.environ["HADOOP_TOKEN_FILE_LOCATION"]).st_mtime_ns
    except (KeyError, OSError):
        return 0


def _forked() -> None:
    """Renew the lock in a forked child: a thread of the parent may have held it.

    The parent's clients stay in the table: closing them would wait for threads that do not exist.
    """
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)
