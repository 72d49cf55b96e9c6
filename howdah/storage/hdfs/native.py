"""hdfs://: HDFS' own protocol through hdfs-native, without Java.

This module adds what hdfs-native lacks: one attempt per call (it would retry for minutes), a time
limit for calls that never return, typed errors, the settings of HADOOP_CONF_DIR with references
filled in, tokens whose service is an IP address, keys of encryption zones by token (kms.py), and an
error where it would hang (a Kerberos cluster without its settings).
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeVar

from howdah.core.paths import inner, join, name, parent
from howdah.errors import (
    ConfigError,
    NotAuthenticated,
    NotFound,
    StorageError,
    StorageUnavailable,
)
from howdah.faults import Remote, may_have_ticket, not_authenticated, typed
from howdah.hadoop import conf, rpc, tokens, web
from howdah.storage.base import Entry, RenamingBackend, closed_bits
from howdah.storage.calls import TimedCalls, niceness
from howdah.storage.files import RangeReader, Writer
from howdah.storage.hdfs import files as hdfs_files
from howdah.storage.hdfs import kms
from howdah.storage.hdfs.files import DATA_SECONDS, WINDOW_BYTES
from howdah.storage.hdfs.quota import QuotaCounting, Summary

T = TypeVar("T")
CALL_SECONDS = 60.0
"""A NameNode answers in milliseconds; a long garbage collection takes it half a minute."""
_PROBE_SECONDS = 3.0
"""How long one of several NameNodes may take to answer a probe; later ones are tried meanwhile."""

_KEY_ERROR = re.compile(
    r'OperationFailed\("KMS request failed \((?P<status>\d+)[^)]*\): '
    r'(?P<kind>\S*) (?P<message>.*)"\)',
    re.DOTALL,
)
_RPC_ERROR = re.compile(r'^(?:Fatal)?RPCError\("([^"]+)", "(.*)"\)$', re.DOTALL)


class HdfsStorage(QuotaCounting, RenamingBackend):
    """One cluster, for one process: hdfs-native's threads do not survive a fork.

    Args:
        authority: host:port, host, a name service, or "" for that of fs.defaultFS.
    """

    arrives_late = True

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
        self._addresses = self._answering = self._conf.rpc_addresses(self._authority)
        self._calls = TimedCalls()
        self._keys: kms.Relay | None = None
        self._clients: dict[int, Any] = {}
        """A client for each niceness of the callers: its threads inherit that of their creator."""
        self._accepted = False
        """Whether the cluster has accepted a call of this process."""
        self._lock = threading.Lock()
        umask = self._conf.umask | closed_bits()
        self._file_mode, self._dir_mode = 0o666 & ~umask, 0o777 & ~umask

    # ---------------------------------------------------------------------------- the client
    def _client(self) -> Any:
        with self._lock:
            priority = niceness()
            client = self._clients.get(priority)
            if client is None:
                hdfs_files.let_inherited_connections_expire()
                methods, self._answering = self._probe()
                from hdfs_native import Client

                client = self._clients[priority] = Client(self._url(methods), self._settings())
            return client  # a call that timed out may have dropped it meanwhile

    def _probe(self) -> tuple[list[str], list[str]]:
        """The authentication methods of the first NameNode that answers, and all that answer.

        Raises:
            ConnectionError: none answers.
        """
        methods: list[str] = []
        answering, causes = [], []
        limit = {"timeout": _PROBE_SECONDS} if len(self._addresses) > 1 else {}
        for address in self._addresses:
            host, _, port = address.rpartition(":")
            try:
                offered = rpc.auth_methods(host, int(port), **limit)
            except OSError as error:
                causes.append(f"{address}: {error.strerror or error}")
            else:
                methods = methods or offered
                answering.append(address)
        if not answering:
            raise ConnectionError("; ".join(causes))
        return methods, answering

    def _is_lost(self) -> bool:
        """True if a NameNode of several, which the client may be waiting for, no longer answers."""
        if len(self._addresses) == 1:
            return False
        before = self._answering
        try:
            _, self._answering = self._probe()
        except ConnectionError:
            return True
        return not set(before) <= set(self._answering)

    def _settings(self) -> dict[str, str]:
        values = {name: value.strip() for name, value in self._conf.values.items()}
        for key in values:
            if key.startswith("dfs.ha.namenodes."):  # hdfs-native takes "nn1, nn2" for " nn2"
                names = [part.strip() for part in values[key].split(",") if part.strip()]
                if key == f"dfs.ha.namenodes.{self._authority}":
                    # It would wait for ever for one that is stopped, or whose host is off.
                    pairs = zip(names, self._addresses, strict=True)
                    names = [name for name, address in pairs if address in self._answering]
                values[key] = ",".join(names)
        values.pop(kms.PROVIDER, None)  # hdfs-native fails on another kind of key store
        servers = kms.KeyServers.of(self._conf)
        if servers is not None:
            self._keys = self._keys or kms.Relay(servers, self._conf)
            values[kms.PROVIDER] = self._keys.uri
        return {
            **values,
            # At most one more attempt for each NameNode: storage/retry.py decides how long to try.
            "dfs.client.failover.max.attempts": str(len(self._addresses)),
            "dfs.client.failover.sleep.base.millis": "50",
            "dfs.client.failover.sleep.max.millis": "200",
        }

    def _url(self, methods: list[str]) -> str:
        """The URL for hdfs-native; raises where it would hang, or fail without a cause."""
        address = self._authority
        if not self._conf.is_name_service(address):
            address = self._addresses[0]
        secure = "SIMPLE" not in methods
        if secure and not self._conf.kerberos:
            raise NotAuthenticated(
                "the cluster requires Kerberos, and Hadoop's settings here do not say so",
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
        """The address as a token's service spells it: hdfs-native compares them as text."""
        held = [t for t in tokens.load() if t.kind == tokens.HDFS_KIND]
        if self._conf.is_name_service(address):
            forms = {f"ha-hdfs:{address}": address}
        else:
            host, _, port = address.rpartition(":")
            resolved = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
            forms = {address: address} | {
                f"{a[4][0]}:{port}": f"{a[4][0]}:{port}" for a in resolved
            }
        ours = [token for token in held if token.service in forms]
        alive = [token for token in ours if token.expires > time.time() + 60]
        if alive:
            return forms[alive[0].service]
        if may_have_ticket():
            return address
        where, expected = f"hdfs://{address}", " or ".join(forms)
        raise tokens.none_valid(held, ours, where=where, expected=expected)

    def do(self, path: str, doing: str, call: Callable[[Any], T], seconds: float = 0) -> T:
        """One attempt of a call on the client, its errors typed.

        Args:
            seconds: the attempt's limit; 0: CALL_SECONDS.
        """
        try:
            with typed(path, doing, self.free_bytes):
                try:
                    result = _translated(
                        path, doing, lambda: self._call(call, seconds or CALL_SECONDS)
                    )
                except ConnectionError as error:
                    self._check_impersonation(str(error))
                    raise
        except StorageUnavailable:
            if self._answering != self._addresses:  # the others may answer by now
                self._clients.clear()
            raise
        self._accepted = True
        return result

    def _call(self, call: Callable[[Any], T], seconds: float) -> T:
        try:
            return self._calls.run(lambda: call(self._client()), seconds, self._is_lost)
        except TimeoutError:
            # A hanging call may hold a lock that every later call of its client would wait for.
            self._clients.pop(niceness(), None)
            raise

    def _check_impersonation(self, cause: str) -> None:
        """Distinguish denied impersonation (doAs) from an unreachable NameNode.

        hdfs-native reports both as a dropped connection, but only a reachable NameNode answers the
        probe. So where no call was ever accepted, and the probe is answered, it was denied.

        Raises:
            Remote: impersonation was denied.
        """
        user = os.environ.get("HADOOP_PROXY_USER")
        if self._accepted or not user or "listener disconnected" not in cause:
            return
        if "SIMPLE" not in self._probe()[0]:
            raise Remote(
                "AuthorizationException",
                f"the NameNode closes the connection of this user acting as {user}: it is probably"
                f" not allowed to impersonate {user} (see the NameNode's log)",
            )

    # ----------------------------------------------------------------------------- metadata
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
            owner=info.owner,
            mode=info.permission & 0o7777,
        )

    def list_dir(self, path: str) -> Iterator[Entry]:
        plain = inner(path)
        infos = self.do(path, "list", lambda c: list(c.list_status(plain)), DATA_SECONDS)
        if len(infos) == 1 and not infos[0].isdir and infos[0].path == plain:
            raise StorageError("cannot list: it is a file", where=path)
        return iter([self._entry(join(path, name(info.path)), info) for info in infos])

    def summary(self, path: str) -> Summary | None:
        try:
            content = _translated(
                path,
                "count",
                lambda: self._call(lambda c: c.get_content_summary(inner(path)), CALL_SECONDS),
            )
        except (OSError, Remote, StorageError):
            return None
        return Summary(content.length, content.space_quota, content.space_consumed)

    # ------------------------------------------------------------------------------ reading
    def open_read(self, path: str) -> BinaryIO:
        source = hdfs_files.HdfsReader(self.do, path)
        return RangeReader(source.fetch, source.size, path=path, window=WINDOW_BYTES)

    # ------------------------------------------------------------------------------ writing
    def open_write(self, path: str, mode: int | None = None) -> BinaryIO:
        from hdfs_native import WriteOptions

        bits = self._file_mode if mode is None else mode
        options = WriteOptions(permission=bits, overwrite=True, create_parent=True)
        file = self.do(path, "write", lambda c: hdfs_files.raw(c.create(inner(path), options)))
        return Writer(hdfs_files.Sink(self.do, path, file), lambda: typed(path, "write"), path=path)

    def make_dirs(self, path: str, mode: int | None = None) -> None:
        if inner(path) == "/":
            return
        doing = "make the directory"
        if mode is not None and not self._there(path):
            # Parents would get the mode too, so they are made first, with the default mode.
            self.do(path, doing, lambda c: c.mkdirs(inner(parent(path)), self._dir_mode, True))
            self.do(path, doing, lambda c: c.mkdirs(inner(path), mode, False))
            return
        self.do(path, doing, lambda c: c.mkdirs(inner(path), self._dir_mode, True))

    def remove(self, path: str, recursive: bool) -> None:
        limit = DATA_SECONDS if recursive else CALL_SECONDS
        if not self.do(path, "remove", lambda c: c.delete(inner(path), recursive), limit):
            raise NotFound("cannot remove: it does not exist", where=path)

    def set_mode(self, path: str, mode: int) -> None:
        self.do(path, "set the mode", lambda c: c.set_permission(inner(path), mode))

    def rename(self, source: str, target: str, *, replace: bool) -> None:
        doing = "write" if replace else "create"
        # rename2, which unlike HDFS' old rename never moves INTO a directory.
        self.do(target, doing, lambda c: c.rename(inner(source), inner(target), replace))


def _act_as_simply() -> None:
    """Without Kerberos HDFS takes the client's word; hdfs-native sends HADOOP_USER_NAME."""
    user = os.environ.get("HADOOP_PROXY_USER")
    if user:
        os.environ["HADOOP_USER_NAME"] = user


# ------------------------------------------------------------------- hdfs-native's errors
def _translated(path: str, doing: str, call: Callable[[], T]) -> T:
    """The call's result; raises OSError, Remote or a typed error for what hdfs-native raises."""
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
        raise _native_error(path, doing, str(error)) from None


def _native_error(path: str, doing: str, text: str) -> Exception:
    match = _RPC_ERROR.match(text)
    if match is not None:
        java_class, message = match.group(1), match.group(2).replace("\\n", "\n")
        message = message.replace('\\"', '"').replace("\\t", "\t").replace("\\'", "'")
        return Remote(java_class, message)
    if "KMS" in text:
        return _key_error(path, doing, text)
    kind = text.partition("(")[0]
    if kind in ("GSSAPIError", "SASLError", "NoSASLMechanism"):
        quoted = re.search(r'"([^"]+)"\)$', text)  # the last string of Rust's debug notation
        cause = quoted.group(1) if quoted else text
        if "EXPIRED" in text:
            cause = f"the ticket has expired ({cause})"
        return not_authenticated(path, doing, cause)
    if kind in ("DataTransferError", "OperationFailed", "ChecksumError", "InternalError"):
        return ConnectionError(text)
    return StorageError(f"cannot {doing}", where=path, got=text)


def _key_error(path: str, doing: str, text: str) -> Exception:
    """The error for a file of an encryption zone whose key could not be had."""
    if "no KMS provider is configured" in text:
        return StorageError(
            f"cannot {doing}: it is in an encryption zone, and no key server is named here",
            where=path,
            expected=f"{kms.PROVIDER} in core-site.xml, such as kms://https@HOST:9600/kms",
            remedy="set HADOOP_CONF_DIR to a copy of the cluster's own settings",
        )
    answer = _KEY_ERROR.match(text)
    if answer is None or int(answer["status"]) >= 500:
        cause = re.sub(r" for url \([^)]*\)", "", text)  # the relay's, which is secret
        return ConnectionError(f"the key server of the encryption zone: {cause}")
    if answer["kind"] == kms.NOT_TRUSTED:
        return StorageError(
            f"cannot {doing}: the certificate of the encryption zone's key server is not trusted",
            where=path,
            got=answer["message"],
            remedy=web.TRUST_REMEDY,
        )
    return Remote(answer["kind"], f"the key server of the encryption zone: {answer['message']}")
