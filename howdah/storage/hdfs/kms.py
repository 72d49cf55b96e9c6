"""The keys of files in encryption zones: a relay on loopback to the cluster's key server (KMS).

hdfs-native asks a KMS for the key of each file that it opens, by a ticket. A container has only
tokens, who acts for another user needs that user's keys, and a site's KMS has a certificate of the
site's own authority. So hdfs-native is given this relay, which asks the KMS as the rest of Howdah
asks Hadoop's daemons.

Source: Hadoop's "KMS HTTP REST API"; the URIs of org.apache.hadoop.crypto.key.kms.
"""

from __future__ import annotations

import hmac
import http.server
import json
import re
import secrets
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from howdah import redact
from howdah.core import threads
from howdah.hadoop import tokens, web
from howdah.hadoop.conf import HadoopConf

NO_TICKET = HadoopConf(None)
"""Settings for a request that needs no login, or has a token."""
PROVIDER = "hadoop.security.key.provider.path"
_OLD_NAME = "dfs.encryption.key.provider.uri"
NOT_TRUSTED = "CertificateNotTrusted"
"""Kind of the relay's error where no server has a certificate of a trusted authority."""
_URI = re.compile(r"kms://(https?)@([^/:@]+):(\d+)(/\S*)?")
_TIMEOUTS = (4.0, 9.0)  # seconds to connect, and to answer: three servers within hdfs-native's 30
_BODY_BYTES = 2**16  # a request has a name, an initialisation vector and a key, each short


@dataclass(frozen=True)
class KeyServers:
    """The KMS of a cluster: one or more servers, all of the same keys."""

    uri: str
    urls: tuple[str, ...]

    @classmethod
    def of(cls, conf: HadoopConf) -> KeyServers | None:
        """Those that the settings name; None: they name none, or another kind of key store."""
        uri = (conf.get(PROVIDER) or conf.get(_OLD_NAME) or "").strip()
        match = _URI.fullmatch(uri)
        if match is None:
            return None
        scheme, hosts, port, path = match.groups()
        base = (path or "").rstrip("/")
        return cls(uri, tuple(f"{scheme}://{host}:{port}{base}" for host in hosts.split(";")))

    def token(self) -> tokens.Token | None:
        """This process's token for them that lives longest, if it has one that lives."""
        held = [token for token in tokens.load() if token.kind == tokens.KMS_KIND]
        if not held:
            return None
        services = {self.uri}
        for url in self.urls:
            parts = urlsplit(url)
            services.add(f"{parts.hostname}:{parts.port}")
            try:
                addresses = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
            except OSError:
                continue
            services |= {f"{address[4][0]}:{parts.port}" for address in addresses}
        ours = [token for token in held if token.service in services]
        alive = [token for token in ours if token.expires > time.time()]
        return max(alive, key=lambda token: token.expires, default=None)


class Relay(http.server.ThreadingHTTPServer):
    """A server on loopback that passes requests for keys on, for one process and its hdfs-native.

    The other users of the machine do not know its path, which is secret.

    Args:
        servers: where to.
        conf: says whether they want Kerberos.
    """

    def __init__(self, servers: KeyServers, conf: HadoopConf) -> None:
        self._servers, self._conf = servers, conf
        self._answered = servers.urls[0]
        """The server that has answered last: it is asked first."""
        self._path = f"/{secrets.token_urlsafe(24)}"
        super().__init__(("127.0.0.1", 0), _Connection)
        threads.start(self.serve_forever, name="howdah-keys", failed=threads.RESTART)

    @property
    def uri(self) -> str:
        """What hdfs-native is to take for the KMS."""
        return f"kms://http@127.0.0.1:{self.server_port}{self._path}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that hdfs-native has reset: it asks again."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def ask(self, sessions: dict[bool, Any], path: str, body: bytes) -> tuple[int, bytes]:
        """(status, body) of the first server that answers."""
        import requests

        prefix, _, rest = path.partition("/v1/")
        if not hmac.compare_digest(prefix.encode(), self._path.encode()):
            return 404, b""
        resource, _, query = rest.partition("?")
        parameters = [pair for pair in parse_qsl(query) if pair[0] == "eek_op"]
        causes, untrusted = [], 0
        for url in sorted(self._servers.urls, key=lambda url: url != self._answered):
            try:
                status, answer = self._ask_one(sessions, f"{url}/v1/{resource}", parameters, body)
            except (requests.RequestException, OSError) as error:
                causes.append(redact.text(f"{url}: {error}"))  # its URL has the token
                untrusted += web.is_distrust(error)
                continue
            if status < 500:
                self._answered = url
                return status, answer
            causes.append(f"{url} answers {status}: {answer[:300].decode(errors='replace')}")
        if untrusted == len(causes):  # asking again would not help
            return 403, _complaint(NOT_TRUSTED, "; ".join(causes))
        return 503, _complaint("KeyServerUnavailable", "; ".join(causes))

    def _ask_one(
        self, sessions: dict[bool, Any], url: str, parameters: list[tuple[str, str]], body: bytes
    ) -> tuple[int, bytes]:
        token = self._servers.token()
        conf = self._conf if token is None else NO_TICKET
        login = web.identity(conf) if token is None else {"delegation": token.url_string()}
        if conf.kerberos not in sessions:
            sessions[conf.kerberos] = web.session(conf, url)
        answer = sessions[conf.kerberos].post(
            url,
            params=[*parameters, *login.items()],
            data=body,
            headers={"Content-Type": "application/json"},
            timeout=_TIMEOUTS,
        )
        if answer.status_code == 401:  # upon which hdfs-native would ask with a ticket of its own
            held = [token.service for token in tokens.load() if token.kind == tokens.KMS_KIND]
            cause = f"{url} answers 401; tokens here are for: {', '.join(held) or 'none'}"
            return 403, _complaint("AuthenticationException", cause)
        return answer.status_code, answer.content


class _Connection(http.server.BaseHTTPRequestHandler):
    """A connection of hdfs-native to a `Relay`."""

    server: Relay
    protocol_version = "HTTP/1.1"
    timeout = 600.0  # seconds that a connection may stay idle

    def setup(self) -> None:
        super().setup()
        self.sessions: dict[bool, Any] = {}
        """{by ticket: session}, for this connection: one is not safe for several threads."""

    def do_POST(self) -> None:
        """Pass a request on."""
        length = int(self.headers.get("Content-Length") or 0)
        if length > _BODY_BYTES:
            self.close_connection = True
            status, answer = 413, b""
        else:
            try:
                status, answer = self.server.ask(self.sessions, self.path, self.rfile.read(length))
            except Exception as error:  # noqa: BLE001 - the cause belongs into the answer
                status, answer = 403, _complaint(type(error).__name__, str(error))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


def _complaint(kind: str, message: str) -> bytes:
    """An error as the KMS writes it."""
    return json.dumps({"RemoteException": {"exception": kind, "message": message}}).encode()
