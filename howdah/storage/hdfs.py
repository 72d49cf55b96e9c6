"""hdfs://: HDFS' own protocol through hdfs-native, without Java.

What hdfs-native leaves to its user is done here: one attempt a call (it would sleep for minutes
by itself), a limit for calls that never return, errors typed, the settings of HADOOP_CONF_DIR with
references filled in, tokens whose service names an address, and a clear refusal where it would hang
(a Kerberos cluster without its settings).
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeVar

from howdah.errors import ConfigError, NotAuthenticated, NotFound, StorageError, StorageUnavailable
from howdah.hadoop import conf, rpc, tokens
from howdah.storage import retry
from howdah.storage.base import Entry, RenamingBackend
from howdah.storage.calls import Calls
from howdah.storage.faults import (
    LOGIN_REMEDY,
    Remote,
    may_have_ticket,
    not_authenticated,
    replaced,
    typed,
)
from howdah.storage.files import RangeReader, Writer
from howdah.storage.paths import inner, join, name
from howdah.storage.quota import QuotaCounting, Summary

T = TypeVar("T")
CALL_SECONDS = 60.0
"""A NameNode's answer takes milliseconds; a long collection of its garbage half a minute."""
DATA_SECONDS = 180.0
"""For one window of data, DataNodes' own time-outs and recovery included."""


class HdfsStorage(QuotaCounting, RenamingBackend):
    """One cluster for one process (hdfs-native's threads do not survive a fork).

    Args:
        authority: host:port, host, a name service, or "" for fs.defaultFS'.
    """

    def __init__(self, authority: str) -> None:
        super().__init__()
        self._conf = conf.load()
        self._authority = authority or self._conf.default_authority() or ""
        if not self._authority:
            raise ConfigError(
                "hdfs:/// names no cluster",
                where=self._conf.directory or "HADOOP_CONF_DIR (not set)",
                expected="fs.defaultFS in core-site.xml, or hdfs://host:port/path",
                remedy="set HADOOP_CONF_DIR to the directory of the cluster's core-site.xml",
            )
        self._addresses = self._conf.rpc_addresses(self._authority)
        self._calls = Calls()
        self._made: Any = None
        self._accepted = False
        self._lock = threading.Lock()
        umask = int(self._conf.get("fs.permissions.umask-mode") or "022", 8)
        self._file_mode, self._dir_mode = 0o666 & ~umask, 0o777 & ~umask

    # ---------------------------------------------------------------------------- the client
    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                methods = self._knock()
                from hdfs_native import Client

                self._made = Client(self._url(methods), self._settings())
            return self._made

    def _knock(self) -> list[str]:
        """Ask the NameNodes how they want to be spoken to; ConnectionError if none answers."""
        causes = []
        for address in self._addresses:
            host, _, port = address.rpartition(":")
            try:
                return rpc.auth_methods(host, int(port))
            except OSError as error:
                causes.append(f"{address}: {error.strerror or error}")
        raise ConnectionError("; ".join(causes))

    def _settings(self) -> dict[str, str]:
        return {
            **self._conf.values,
            # Each NameNode is asked once more at most: how long to go on is retry's.
            "dfs.client.failover.max.attempts": str(len(self._addresses)),
            "dfs.client.failover.sleep.base.millis": "50",
            "dfs.client.failover.sleep.max.millis": "200",
        }

    def _url(self, methods: list[str]) -> str:
        """The URL for hdfs-native; refuses what it would hang on or fail at without a reason."""
        address = self._authority
        if not self._conf.is_name_service(address):
            address = self._addresses[0]
        secure = "SIMPLE" not in methods
        if secure and not self._conf.kerberos:
            raise NotAuthenticated(
                "the cluster wants Kerberos, and Hadoop's settings here do not say so",
                where=f"hdfs://{address}",
                expected="core-site.xml and hdfs-site.xml with hadoop.security.authentication ="
                " kerberos and dfs.data.transfer.protection as the cluster has it",
                got=f"HADOOP_CONF_DIR = {self._conf.directory or 'not set'}",
                remedy="set HADOOP_CONF_DIR to a copy of the cluster's own settings",
            )
        if not secure:
            _act_as_simply()
        elif os.environ.get(tokens.ENVIRONMENT):
            address = self._token_address(address)
        return f"hdfs://{address}"

    def _token_address(self, address: str) -> str:
        """The form of the address that a token is for: hdfs-native compares them as text."""
        held = [t for t in tokens.load() if t.kind == tokens.HDFS_KIND]
        if self._conf.is_name_service(address):
            forms = {f"ha-hdfs:{address}": address}
        else:
            host, _, port = address.rpartition(":")
            found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
            forms = {address: address} | {f"{a[4][0]}:{port}": f"{a[4][0]}:{port}" for a in found}
        ours = [token for token in held if token.service in forms]
        alive = [token for token in ours if token.expires > time.time() + 60]
        if alive:
            return forms[alive[0].service]
        if may_have_ticket():
            return address
        services = ", ".join(sorted({token.service for token in held})) or "none"
        raise NotAuthenticated(
            "no delegation token for this cluster",
            where=f"hdfs://{address}",
            expected=" or ".join(forms),
            got="tokens at the end of their life" if ours else f"tokens for: {services}",
            remedy=LOGIN_REMEDY,
        )

    def _do(self, path: str, doing: str, call: Callable[[Any], T], seconds: float = 0) -> T:
        """One attempt of a call on the client, its errors typed."""
        with typed(path, doing, self.free_bytes):
            try:
                result = _translated(
                    path,
                    doing,
                    lambda: self._calls.run(lambda: call(self._client()), seconds or CALL_SECONDS),
                )
            except ConnectionError as error:
                self._refused(str(error))
                raise
        self._accepted = True
        return result

    def _refused(self, cause: str) -> None:
        """Tell a refused doAs from a NameNode that is away: it hangs up on both without a word that
        hdfs-native would hand on. Never accepted, and yet it answers a knock: it is a refusal."""
        user = os.environ.get("HADOOP_PROXY_USER")
        if self._accepted or not user or "listener disconnected" not in cause:
            return
        if "SIMPLE" not in self._knock():
            raise Remote(
                "AuthorizationException",
                f"the NameNode hangs up on us as {user}: this user is not allowed to impersonate"
                f" {user}, by all appearances (the NameNode's log tells)",
            )

    # ------------------------------------------------------------------------------- asking
    def entry(self, path: str) -> Entry:
        return self._entry(path, self._do(path, "look up", lambda c: c.get_file_info(inner(path))))

    @staticmethod
    def _entry(path: str, info: Any) -> Entry:
        return Entry(
            name=name(path),
            path=path,
            size=0 if info.isdir else info.length,
            is_dir=info.isdir,
            modified=info.modification_time / 1000,
        )

    def list_dir(self, path: str) -> Iterator[Entry]:
        place = inner(path)
        infos = self._do(path, "list", lambda c: list(c.list_status(place)), DATA_SECONDS)
        if len(infos) == 1 and not infos[0].isdir and infos[0].path == place:
            raise StorageError("cannot list: it is a file", where=path)
        return iter([self._entry(join(path, name(info.path)), info) for info in infos])

    def summary(self, path: str) -> Summary | None:
        try:
            found = _translated(
                path,
                "count",
                lambda: self._calls.run(
                    lambda: self._client().get_content_summary(inner(path)), CALL_SECONDS
                ),
            )
        except (OSError, Remote, StorageError):
            return None
        return Summary(found.length, found.space_quota, found.space_consumed)

    # ------------------------------------------------------------------------------ reading
    def open_read(self, path: str) -> BinaryIO:
        source = _Source(self, path)
        return RangeReader(source.fetch, source.size, path=path)

    # ------------------------------------------------------------------------------ writing
    def open_write(self, path: str) -> BinaryIO:
        from hdfs_native import WriteOptions

        options = WriteOptions(permission=self._file_mode, overwrite=True, create_parent=True)
        file = self._do(path, "write", lambda c: c.create(inner(path), options))
        return Writer(_Sink(self, path, file), lambda: typed(path, "write"), path=path)

    def make_dirs(self, path: str) -> None:
        if inner(path) != "/":
            self._do(
                path, "make the directory", lambda c: c.mkdirs(inner(path), self._dir_mode, True)
            )

    def remove(self, path: str, recursive: bool) -> None:
        limit = DATA_SECONDS if recursive else CALL_SECONDS
        if not self._do(path, "remove", lambda c: c.delete(inner(path), recursive), limit):
            raise NotFound("cannot remove: it is not there", where=path)

    def rename(self, source: str, target: str, *, replace: bool) -> None:
        doing = "write" if replace else "create"
        # rename2: unlike the old rename it never moves INTO a directory.
        self._do(target, doing, lambda c: c.rename(inner(source), inner(target), replace))


class _Source:
    """Byte ranges of one file. Block locations grow old (a DataNode dies, the NameNode restarts):
    after a failure the file is opened anew, and must still be the same one."""

    def __init__(self, storage: HdfsStorage, path: str) -> None:
        self._storage, self._path = storage, path
        self._file, self._identity = self._open()
        self.size = len(self._file)

    def _open(self) -> tuple[Any, tuple[int, int]]:
        """The file and what tells it from another; both of one moment."""

        def same(client: Any) -> tuple[Any, tuple[int, int]]:
            place = inner(self._path)
            for _ in range(20):
                before = client.get_file_info(place)
                file = client.read(place)
                after = client.get_file_info(place)
                identity = (after.modification_time, after.length)
                if identity == (before.modification_time, before.length):
                    return file, identity
            raise replaced(self._path)

        return self._storage._do(self._path, "read", same)

    def _reopen(self) -> Any:
        try:
            file, identity = self._open()
        except NotFound:
            raise replaced(self._path) from None
        if identity != self._identity:
            raise replaced(self._path)
        return file

    def fetch(self, offset: int, length: int) -> bytes:
        """Exactly these bytes; tries again while storage is away."""

        def attempt() -> bytes:
            file = self._file or self._reopen()
            self._file = file
            try:
                return self._storage._do(
                    self._path, "read", lambda c: file.read_range(offset, length), DATA_SECONDS
                )
            except StorageUnavailable:
                self._file = None
                # At once a second time: where the file was replaced, waiting would be for nothing.
                self._file = self._reopen()
                raise

        data = retry.run(self._path, attempt)
        if len(data) != length:
            raise replaced(self._path)
        return data


class _Sink:
    """A file being written. After an error it is left alone: closing would publish a part, or wait
    for seconds for a block that never comes."""

    def __init__(self, storage: HdfsStorage, path: str, file: Any) -> None:
        self._storage, self._path, self._file = storage, path, file

    def write(self, data: Any) -> None:
        self._storage._do(self._path, "write", lambda c: self._file.write(data), DATA_SECONDS)

    def close(self) -> None:
        self._storage._do(self._path, "write", lambda c: self._file.close(), DATA_SECONDS)

    def give_up(self) -> None:
        self._file = None


# ------------------------------------------------------------------------------------ errors
_RPC = re.compile(r'^(?:Fatal)?RPCError\("([^"]+)", "(.*)"\)$', re.DOTALL)


def _translated(path: str, doing: str, call: Callable[[], T]) -> T:
    """Raise OSError, Remote or a typed error for what hdfs-native raises."""
    try:
        return call()
    except (FileNotFoundError, FileExistsError) as error:
        message = str(error)
        if message.startswith("Path is not a file"):
            raise IsADirectoryError(path) from None
        if message.startswith("Path is not a directory"):
            raise NotADirectoryError(path) from None
        raise
    except (ConnectionError, TimeoutError):
        raise
    except OSError as error:
        # Sockets' errors come as text: "Connection refused (os error 111)", "early eof", ...
        raise ConnectionError(str(error)) from None
    except (RuntimeError, NotImplementedError, ValueError) as error:
        raise _of_native(path, doing, str(error)) from None


def _of_native(path: str, doing: str, text: str) -> Exception:
    found = _RPC.match(text)
    if found is not None:
        java_class, message = found.group(1), found.group(2).replace("\\n", "\n")
        message = message.replace('\\"', '"').replace("\\t", "\t").replace("\\'", "'")
        return Remote(java_class, message)
    kind = text.partition("(")[0]
    if kind in ("GSSAPIError", "SASLError", "NoSASLMechanism"):
        said = re.search(r'"([^"]+)"\)$', text)  # the last of a structure in Rust's notation
        cause = said.group(1) if said else text
        if "EXPIRED" in text:
            cause = f"the ticket has expired ({cause})"
        return not_authenticated(path, doing, cause)
    if kind in ("DataTransferError", "OperationFailed", "ChecksumError", "InternalError"):
        return ConnectionError(text)
    return StorageError(f"cannot {doing}", where=path, got=text)


def _act_as_simply() -> None:
    """Without Kerberos HDFS believes the name it is told; hdfs-native tells HADOOP_USER_NAME's."""
    user = os.environ.get("HADOOP_PROXY_USER")
    if user:
        os.environ["HADOOP_USER_NAME"] = user
