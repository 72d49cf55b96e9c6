"""hdfs://: HDFS' own protocol through hdfs-native, without Java.

What hdfs-native leaves to its user is done here: one attempt a call (it would sleep for minutes
by itself), a limit for calls that never return, errors typed, the settings of HADOOP_CONF_DIR with
references filled in, tokens whose service names an address, and a clear refusal where it would hang
(a Kerberos cluster without its settings).
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeVar

from howdah.errors import ConfigError, NotAuthenticated, NotFound, StorageError
from howdah.hadoop import conf, rpc, tokens
from howdah.storage import hdfs_files
from howdah.storage.base import Entry, RenamingBackend
from howdah.storage.calls import Calls, niceness
from howdah.storage.faults import (
    LOGIN_REMEDY,
    Remote,
    may_have_ticket,
    typed,
)
from howdah.storage.files import RangeReader, Writer
from howdah.storage.hdfs_faults import translated
from howdah.storage.hdfs_files import DATA_SECONDS, WINDOW_BYTES
from howdah.storage.paths import inner, join, name
from howdah.storage.quota import QuotaCounting, Summary

T = TypeVar("T")
CALL_SECONDS = 60.0
"""A NameNode's answer takes milliseconds; a long collection of its garbage half a minute."""


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
        self._made: dict[int, Any] = {}
        """A client for each niceness that callers have: its threads have that of its maker."""
        self._accepted = False
        self._lock = threading.Lock()
        umask = int(self._conf.get("fs.permissions.umask-mode") or "022", 8)
        self._file_mode, self._dir_mode = 0o666 & ~umask, 0o777 & ~umask

    # ---------------------------------------------------------------------------- the client
    def _client(self) -> Any:
        with self._lock:
            own = niceness()
            made = self._made.get(own)
            if made is None:
                hdfs_files.let_inherited_connections_end()
                methods = self._knock()
                from hdfs_native import Client

                made = self._made[own] = Client(self._url(methods), self._settings())
            return made  # a call that timed out may have dropped it meanwhile

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
        values = {name: value.strip() for name, value in self._conf.values.items()}
        for key in values:
            if key.startswith("dfs.ha.namenodes."):  # hdfs-native takes "nn1, nn2" for " nn2"
                values[key] = ",".join(part.strip() for part in values[key].split(","))
        return {
            **values,
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

    def do(self, path: str, doing: str, call: Callable[[Any], T], seconds: float = 0) -> T:
        """One attempt of a call on the client, its errors typed."""
        with typed(path, doing, self.free_bytes):
            try:
                result = translated(path, doing, lambda: self._call(call, seconds or CALL_SECONDS))
            except ConnectionError as error:
                self._refused(str(error))
                raise
        self._accepted = True
        return result

    def _call(self, call: Callable[[Any], T], seconds: float) -> T:
        try:
            return self._calls.run(lambda: call(self._client()), seconds)
        except TimeoutError:
            # What hangs may hold what every later call of its client would wait for.
            self._made.pop(niceness(), None)
            raise

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
        return self._entry(path, self.do(path, "look up", lambda c: c.get_file_info(inner(path))))

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
        infos = self.do(path, "list", lambda c: list(c.list_status(place)), DATA_SECONDS)
        if len(infos) == 1 and not infos[0].isdir and infos[0].path == place:
            raise StorageError("cannot list: it is a file", where=path)
        return iter([self._entry(join(path, name(info.path)), info) for info in infos])

    def summary(self, path: str) -> Summary | None:
        try:
            found = translated(
                path,
                "count",
                lambda: self._call(lambda c: c.get_content_summary(inner(path)), CALL_SECONDS),
            )
        except (OSError, Remote, StorageError):
            return None
        return Summary(found.length, found.space_quota, found.space_consumed)

    # ------------------------------------------------------------------------------ reading
    def open_read(self, path: str) -> BinaryIO:
        source = hdfs_files.Source(self, path)
        return RangeReader(source.fetch, source.size, path=path, window=WINDOW_BYTES)

    # ------------------------------------------------------------------------------ writing
    def open_write(self, path: str) -> BinaryIO:
        from hdfs_native import WriteOptions

        options = WriteOptions(permission=self._file_mode, overwrite=True, create_parent=True)
        file = self.do(path, "write", lambda c: hdfs_files.raw(c.create(inner(path), options)))
        return Writer(hdfs_files.Sink(self, path, file), lambda: typed(path, "write"), path=path)

    def make_dirs(self, path: str) -> None:
        if inner(path) != "/":
            self.do(
                path, "make the directory", lambda c: c.mkdirs(inner(path), self._dir_mode, True)
            )

    def remove(self, path: str, recursive: bool) -> None:
        limit = DATA_SECONDS if recursive else CALL_SECONDS
        if not self.do(path, "remove", lambda c: c.delete(inner(path), recursive), limit):
            raise NotFound("cannot remove: it is not there", where=path)

    def rename(self, source: str, target: str, *, replace: bool) -> None:
        doing = "write" if replace else "create"
        # rename2: unlike the old rename it never moves INTO a directory.
        self.do(target, doing, lambda c: c.rename(inner(source), inner(target), replace))


def _act_as_simply() -> None:
    """Without Kerberos HDFS believes the name it is told; hdfs-native tells HADOOP_USER_NAME's."""
    user = os.environ.get("HADOOP_PROXY_USER")
    if user:
        os.environ["HADOOP_USER_NAME"] = user
