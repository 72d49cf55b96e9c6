"""A wrapper of the server's application: it admits requests, counts them and reports defects."""

from __future__ import annotations

import asyncio
import re
import time
import traceback
from typing import Any

from howdah.serving.compute.refusals import (
    BadHead,
    Broken,
    CrossSite,
    Draining,
    Gone,
    HeadTooLarge,
    NoToken,
    Refusal,
    WrongHost,
)
from howdah.serving.http.answers import refused
from howdah.serving.http.reading import header
from howdah.serving.http.state import State
from howdah.serving.http.tokens import RefusedAddresses

MOST_HEAD_BYTES = 64 * 2**10
_MOST_HEADERS = 100
_VERSIONS = ("1.0", "1.1")
_OPEN = ("/v2/health/live", "/v2/health/ready", "/health")
"""Paths that need no token, for load balancers and kubelets."""
_CLASSIFYING = ("classify", "predict", "oip")
_FACES = (
    ("/v1/classify", "classify"), ("/predict", "predict"), ("/v2/health", "health"),
    ("/v2", "oip"), ("/health", "health"), ("/metrics", "metrics"),
    ("/openapi.json", "page"),
)  # fmt: skip
_WHOLE_URL = re.compile(r"https?://[^/]*", re.IGNORECASE)
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:]*))(?::([0-9]{1,5}))?")


class Front:
    """Checks a request's host and token, counts requests, and reports unexpected errors.

    Args:
        app: the application.
        state: the state that the paths share.
    """

    def __init__(self, app: Any, state: State) -> None:
        self._app, self._state = app, state
        self._refused_addresses = RefusedAddresses(state.say)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer a request (ASGI 3)."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _in_origin_form(scope)
        state, began, code = self._state, time.monotonic(), 0
        scope["howdah.began"] = began
        below = scope["path"] + "/"  # /healthz is not below /health
        face = next((name for at, name in _FACES if below.startswith(at + "/")), "other")
        if scope["path"] == "/":
            face = "predict" if scope["method"] == "POST" else "page"

        async def counted(message: dict[str, Any]) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        state.running += 1
        try:
            self._admit(scope)
            await self._app(scope, receive, counted)
        except Refusal as error:
            await refused(error)(scope, receive, counted)
        except asyncio.CancelledError:
            if not state.draining:  # Ray Serve cancels the request of a client that is gone
                code = code or Gone.status
                raise
            if not code:
                error = Draining(
                    "the server is ending", remedy="send the request to another server"
                )
                await refused(error)(scope, receive, counted)
        except Exception as error:  # noqa: BLE001 - a defect: reported without what the user sent
            frame = traceback.extract_tb(error.__traceback__)[-1]
            state.say(
                f"a request failed: {type(error).__name__} in {frame.filename}:{frame.lineno}"
            )
            if not code:
                broken = Broken("the server failed on this request", got=type(error).__name__)
                await refused(broken)(scope, receive, counted)
        finally:
            state.running -= 1
            state.metrics.requests.labels(face, str(code)).inc()
            if face in _CLASSIFYING:
                seconds = time.monotonic() - began
                state.metrics.latency.labels(face).observe(seconds)
                if scope["method"] == "POST":
                    state.last_hour.add(seconds, answered=code == 200)

    def _admit(self, scope: dict[str, Any]) -> None:
        """Check the request's head, host, token and origin.

        Raises:
            BadHead, HeadTooLarge, WrongHost, CrossSite, NoToken: the request is refused.
        """
        _check_head(scope)
        self._check_host(scope)
        if self._state.tokens is not None:
            if scope["path"] not in _OPEN and not asks_for_login(scope):
                self._check_token(scope)
        elif scope["method"] == "POST":
            _check_origin(scope)

    def _check_host(self, scope: dict[str, Any]) -> None:
        hosts = self._state.hosts
        if hosts is None:
            return
        value = header(scope, b"host")
        # HTTP/1.0 may leave it out, as HAProxy's checks do; a browser, which a page could turn
        # against this machine, never does.
        if value is not None and _host(value) not in hosts:
            raise WrongHost(
                "the request names another host",
                expected=", ".join(hosts),
                got=value[:80].decode("latin-1"),
            )

    def _check_token(self, scope: dict[str, Any]) -> None:
        kind, _, token = (header(scope, b"authorization") or b"").partition(b" ")
        permitted = self._state.tokens.permits(token.strip(), scope["path"])
        if kind.lower() == b"bearer" and permitted:
            return
        address = (scope.get("client") or ("unknown", 0))[0]
        self._refused_addresses.add(address, "another" if kind else "no")
        raise NoToken(
            "the request has no token of this server",
            where="Authorization",
            expected="Bearer and a token of serve.token_file",
            got="another one" if kind else "none",
        )


def asks_for_login(scope: dict[str, Any]) -> bool:
    """Return whether this is a request for the page without a token.

    A browser sends none when it opens an address, so the page then has nothing but a field for it.
    """
    is_page = scope["path"] == "/" and scope["method"] in ("GET", "HEAD")
    return is_page and header(scope, b"authorization") is None


def _in_origin_form(scope: dict[str, Any]) -> dict[str, Any]:
    """Return the scope of a request whose target is a whole URL, as if it named the path alone.

    A server has to accept it, and its host counts, not the header's (RFC 9112, 3.2.2).
    """
    match = _WHOLE_URL.match(scope["path"])
    if match is None:
        return scope
    _, _, authority, *below = scope["raw_path"].split(b"/", 3)
    headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
    return scope | {
        "path": scope["path"][match.end() :] or "/",
        "raw_path": b"/" + b"".join(below),
        "headers": [*headers, (b"host", authority)],
    }


def _check_head(scope: dict[str, Any]) -> None:
    if scope["http_version"] not in _VERSIONS:
        raise BadHead(
            "this version of HTTP is not supported",
            expected="HTTP/1.1, HTTP/1.0",
            got=f"HTTP/{scope['http_version']}",
        )
    headers = scope["headers"]
    size = len(scope["raw_path"]) + sum(len(name) + len(value) + 4 for name, value in headers)
    if len(headers) > _MOST_HEADERS or size > MOST_HEAD_BYTES:
        raise HeadTooLarge(
            "the request's head is too large",
            expected=f"at most {_MOST_HEADERS} headers and {MOST_HEAD_BYTES:,} bytes",
            got=f"{len(headers):,} headers, {size:,} bytes",
        )
    # RFC 9112, 6.1: a proxy in front may have read another end of this body.
    if header(scope, b"content-length") is not None and header(scope, b"transfer-encoding"):
        raise BadHead(
            "the body has two lengths",
            where="Content-Length, Transfer-Encoding",
            expected="one of them",
        )


def _check_origin(scope: dict[str, Any]) -> None:
    """Refuse what a page of another site sends, since browsers send a plain POST unchecked."""
    origin = header(scope, b"origin")
    if origin is None:
        return
    _, _, sender = origin.lower().rpartition(b"://")
    if not sender or sender != (header(scope, b"host") or b"").lower():
        raise CrossSite(
            "a page of another site sent this request",
            where="Origin",
            expected="none, or this server's",
            got=origin[:80].decode("latin-1"),
            remedy="serve.token_file: with a token any origin is accepted",
        )


def _host(value: bytes) -> str | None:
    """Return a Host header without its port, or None if it is malformed.

    >>> _host(b"localhost:8000"), _host(b"[::1]:80"), _host(b"evil.example")
    ('localhost', '::1', 'evil.example')
    >>> _host(b"[::1]evil"), _host(b"localhost:99999")
    (None, None)
    """
    match = _HOST.fullmatch(value.decode("latin-1").strip().lower())
    if match is None or int(match[3] or 0) > 65535:
        return None
    return match[1] or match[2]
