"""webhdfs:// and swebhdfs://: HDFS over HTTP, for networks that allow nothing else.

The `hdfs` package's clients, and what they lack: renames that never move INTO a directory
(`renameoptions`), streamed writes, and names with '#' as they are.

HttpFS, the gateway of firewalled clusters, implements most of WebHDFS but ignores `renameoptions`:
it can be read from, and writes are refused before anything is written or moved.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from howdah.core import activity
from howdah.core.paths import inner, join, name, parent, scheme
from howdah.errors import (
    ConfigError,
    NotFound,
    StorageError,
    StorageUnavailable,
)
from howdah.faults import (
    Remote,
    may_have_ticket,
    not_authenticated,
    replaced,
    typed,
)
from howdah.hadoop import conf, tokens, web
from howdah.storage import retry
from howdah.storage.base import Entry, RenamingBackend, closed_bits
from howdah.storage.files import RangeReader, Writer
from howdah.storage.hdfs.quota import QuotaCounting, Summary

CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 60.0
_PAIR_SECONDS = 20.0
"""Limit of an answer where there is another NameNode to ask: this one may be stopped."""

_IDENTITY = ("type", "length", "modificationTime", "owner")
"""Fields of a status that differ once a file was replaced or changed."""


class WebHdfsStorage(QuotaCounting, RenamingBackend):
    """One cluster over HTTP, for one process.

    Args:
        authority: host:port of a NameNode's HTTP server, host, or a name service.
    """

    arrives_late = True

    def __init__(self, path: str, authority: str) -> None:
        super().__init__()
        self._conf = conf.load()
        authority = authority or self._conf.default_authority() or ""
        if not authority:
            raise ConfigError(
                f"{scheme(path)}:// names no cluster",
                where=self._conf.directory or "HADOOP_CONF_DIR (not set)",
                expected="webhdfs://host:port/path, or an hdfs:// fs.defaultFS in core-site.xml",
                remedy="give the NameNode's HTTP address",
            )
        secure = scheme(path) == "swebhdfs"
        self._authority = authority
        self._urls = self._conf.web_urls(authority, secure=secure)
        self._cached_client: Any = None
        self._lock = threading.Lock()
        self._takes_options: bool | None = None
        umask = self._conf.umask | closed_bits()
        self._file_mode, self._dir_mode = f"{0o666 & ~umask:o}", f"{0o777 & ~umask:o}"

    # ---------------------------------------------------------------------------- the client
    def _client(self) -> Any:
        with self._lock:
            if self._cached_client is None:
                self._cached_client = self._make()
            return self._cached_client

    def _make(self) -> Any:
        import hdfs
        import requests

        # It logs what it raises, with tracebacks; the typed error is shown instead.
        logging.getLogger("hdfs.client").addHandler(logging.NullHandler())
        session = requests.Session()
        adapter = requests.adapters.HTTPAdapter(pool_maxsize=32)
        session.mount("http://", adapter)
        session.mount("https://", adapter)
        proxy = os.environ.get("HADOOP_PROXY_USER") or None
        options: dict[str, Any] = {
            "session": session,
            "timeout": (CONNECT_SECONDS, _PAIR_SECONDS if self._urls[1:] else ANSWER_SECONDS),
        }
        token = self._token()
        if token is not None:
            return _verbatim(hdfs.TokenClient)(";".join(self._urls), token.url_string(), **options)
        options["proxy"] = proxy
        if not self._conf.kerberos:
            user = web.current_user()
            if user == proxy:
                options["proxy"] = None
            return _verbatim(hdfs.InsecureClient)(";".join(self._urls), user=user, **options)
        web.require_kerberos(self._urls[0])
        from hdfs.ext.kerberos import KerberosClient

        return _verbatim(KerberosClient)(";".join(self._urls), mutual_auth="OPTIONAL", **options)

    def _token(self) -> tokens.Token | None:
        """This cluster's token from HADOOP_TOKEN_FILE_LOCATION, if that is set."""
        if not os.environ.get(tokens.ENVIRONMENT) or not self._conf.kerberos:
            return None
        hosts = {f"ha-hdfs:{self._authority}"}
        for url in self._urls:
            host = urlsplit(url).hostname or ""
            hosts.add(host)
            with contextlib.suppress(OSError):
                hosts |= {str(address[4][0]) for address in socket.getaddrinfo(host, None)}
        held = tokens.load()
        ours = [
            token
            for token in held
            if token.kind in (tokens.HDFS_KIND, tokens.WEBHDFS_KIND)
            and (token.service in hosts or token.service.rpartition(":")[0] in hosts)
        ]
        alive = [token for token in ours if token.expires > time.time()]
        if alive:
            return alive[0]
        if may_have_ticket():
            return None
        expected = " or ".join(sorted(hosts))
        raise tokens.none_valid(held, ours, where=self._urls[0], expected=expected)

    @contextlib.contextmanager
    def _typed(self, path: str, doing: str) -> Iterator[None]:
        import requests
        import urllib3
        from hdfs.util import HdfsError

        limit = activity.current().at_most(CONNECT_SECONDS + ANSWER_SECONDS)
        with typed(path, doing, self.free_bytes), limit:
            try:
                yield
            except HdfsError as error:
                if error.exception is None and "Authentication failure" in str(error):
                    raise not_authenticated(path, doing, "HTTP 401, Unauthorized") from None
                raise Remote(error.exception or "HTTP", str(error)) from None
            except requests.exceptions.SSLError as error:
                if not web.is_distrust(error):
                    raise ConnectionError(str(error)) from None
                raise StorageError(
                    f"cannot {doing}: the server's certificate is not trusted",
                    where=path,
                    got=str(error),
                    remedy=web.TRUST_REMEDY,
                ) from None
            except (
                requests.RequestException,
                urllib3.exceptions.HTTPError,
                http.client.HTTPException,
            ) as error:
                # By name: requests-kerberos is an extra. The KDC and the NameNode accept a ticket
                # for minutes after its end (clock skew); the library here does not.
                if type(error).__name__ == "MutualAuthenticationError":
                    cause = "the answer cannot be verified: our ticket has expired or is not valid"
                    raise not_authenticated(path, doing, cause) from None
                raise ConnectionError(str(error) or type(error).__name__) from None
            except (KeyError, TypeError, json.JSONDecodeError):
                raise StorageError(
                    f"cannot {doing}: the answer is not WebHDFS'",
                    where=path,
                    remedy="give the NameNode's HTTP port (9870), not its RPC port",
                ) from None

    # ----------------------------------------------------------------------------- metadata
    def entry(self, path: str) -> Entry:
        with self._typed(path, "look up"):
            return self._entry(path, self._client().status(inner(path)))

    @staticmethod
    def _entry(path: str, info: dict) -> Entry:
        directory = info["type"] == "DIRECTORY"
        return Entry(
            name=name(path),
            path=path,
            size=0 if directory else info["length"],
            is_dir=directory,
            modified=info["modificationTime"] / 1000,
            owner=info.get("owner"),
            mode=int(info["permission"], 8) if "permission" in info else None,
        )

    def list_dir(self, path: str) -> Iterator[Entry]:
        with self._typed(path, "list"):
            infos = self._client()._list_status(inner(path)).json()["FileStatuses"]["FileStatus"]
        if len(infos) == 1 and not infos[0]["pathSuffix"]:
            raise StorageError("cannot list: it is a file", where=path)
        return iter([self._entry(join(path, info["pathSuffix"]), info) for info in infos])

    def summary(self, path: str) -> Summary | None:
        try:
            with self._typed(path, "count"):
                content = self._client().content(inner(path))
        except StorageError:
            return None
        return Summary(content["length"], content["spaceQuota"], content["spaceConsumed"])

    # ------------------------------------------------------------------------------ reading
    def open_read(self, path: str) -> BinaryIO:
        with self._typed(path, "read"):
            info = self._client().status(inner(path))
        if info["type"] == "DIRECTORY":
            raise StorageError("cannot read: it is a directory", where=path)
        # Read by inode: each window is a request of its own, and the name may be another file's by
        # then. Where the server sends no inode, the file's status is compared after each window.
        inode = info.get("fileId")
        source = inner(path) if inode is None else f"/.reserved/.inodes/{inode}"

        def attempt(offset: int, length: int) -> bytes:
            try:
                with self._typed(path, "read"):
                    with self._client()._open(source, offset=offset, length=length) as answer:
                        data = answer.raw.read(length)  # .content reads 10 kB at a time
                    now = info if inode is not None else self._client().status(source)
            except NotFound:
                raise replaced(path) from None
            if any(now.get(key) != info.get(key) for key in _IDENTITY):
                raise replaced(path)
            if len(data) < length:
                raise ConnectionError(f"the answer ended after {len(data):,} bytes")
            return data

        def fetch(offset: int, length: int) -> bytes:
            return retry.run(path, lambda: attempt(offset, length))

        return RangeReader(fetch, info["length"], path=path)

    # ------------------------------------------------------------------------------ writing
    def _refuse_gateway(self, path: str) -> None:
        """Test once, by renaming a path that does not exist, whether `renameoptions` is supported.

        A NameNode answers that the source is missing; HttpFS does HDFS' old rename, and answers
        with a boolean.

        Raises:
            StorageError: the server ignores `renameoptions`.
        """
        if self._takes_options is None:
            nothing = f"{inner(path)}.{secrets.token_hex(6)}"
            try:
                with self._typed(path, "write"):
                    answer = self._client()._rename(
                        f"{nothing}.none", destination=f"{nothing}.new", renameoptions="NONE"
                    )
                self._takes_options = not answer.content.strip()
            except NotFound:
                self._takes_options = True
            except StorageUnavailable:
                raise
            except StorageError:
                return  # no permission, an invalid name: the write itself raises it too
        if not self._takes_options:
            raise StorageError(
                "this server ignores renameoptions, so nothing can be published safely",
                where=path,
                remedy="give the NameNode's own WebHDFS address; HttpFS can only be read from",
            )

    def open_write(self, path: str, mode: int | None = None) -> BinaryIO:
        self._refuse_gateway(path)
        bits = self._file_mode if mode is None else f"{mode:o}"
        with self._typed(path, "write"):
            answer = self._client()._create(inner(path), overwrite="true", permission=bits)
            sink = _Put(answer.headers["location"])
        return Writer(sink, lambda: self._typed(path, "write"), path=path)

    def make_dirs(self, path: str, mode: int | None = None) -> None:
        fresh = mode is not None and not self._there(path)
        with self._typed(path, "make the directory"):
            if fresh:  # parents would get the mode too, so they are made first
                self._client()._mkdirs(inner(parent(path)), permission=self._dir_mode)
            bits = f"{mode:o}" if fresh else self._dir_mode
            self._client()._mkdirs(inner(path), permission=bits)

    def remove(self, path: str, recursive: bool) -> None:
        with self._typed(path, "remove"):
            answer = self._client()._delete(inner(path), recursive="true" if recursive else "false")
            done = answer.json()["boolean"]
        if not done:
            raise NotFound("cannot remove: it does not exist", where=path)

    def set_mode(self, path: str, mode: int) -> None:
        with self._typed(path, "set the mode"):
            self._client()._set_permission(inner(path), permission=f"{mode:o}")

    def rename(self, source: str, target: str, *, replace: bool) -> None:
        self._refuse_gateway(target)
        with self._typed(target, "write" if replace else "create"):
            self._client()._rename(
                inner(source),
                destination=inner(target),
                # Without options it is HDFS' old rename, which moves INTO a directory.
                renameoptions="OVERWRITE" if replace else "NONE",
            )


class _Put:
    """The streamed body of one PUT to a DataNode: no file is held in memory."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        kind: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
        if parts.scheme == "https":
            kind = partial(http.client.HTTPSConnection, context=web.tls())
        self._connection = kind(parts.hostname, parts.port, timeout=ANSWER_SECONDS)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        self._connection.putrequest("PUT", target, skip_accept_encoding=True)
        self._connection.putheader("Content-Type", "application/octet-stream")
        self._connection.putheader("Transfer-Encoding", "chunked")
        self._connection.endheaders()

    def write(self, data: Any) -> None:
        if len(data):
            self._send(b"%x\r\n" % len(data))
            self._send(data)
            self._send(b"\r\n")

    def _send(self, data: Any) -> None:
        try:
            self._connection.send(data)
        except (BrokenPipeError, ConnectionResetError):
            # Its answer from before it closed the connection has the cause (quota, permission).
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._read_answer()
            raise

    def close(self) -> None:
        self._send(b"0\r\n\r\n")
        self._read_answer()
        self._connection.close()

    def _read_answer(self) -> None:
        from hdfs.util import HdfsError

        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status // 100 == 2:
            return
        try:
            fault = json.loads(body)["RemoteException"]
        except (ValueError, KeyError, TypeError):
            raise ConnectionError(f"HTTP {answer.status}: {body[:200]!r}") from None
        raise HdfsError(fault["message"], exception=fault.get("exception"))

    def give_up(self) -> None:
        """Close the connection: the chunked body has no end, so the DataNode drops the file."""
        self._connection.close()


def _verbatim(kind: type) -> type:
    """The client class without its path syntax: no '#LATEST', no normalising."""
    return type(f"Verbatim{kind.__name__}", (kind,), {"resolve": lambda self, path: path})
