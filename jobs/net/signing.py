"""Signatures of the messages of jobs/net/wire.py, each of which counts only once.

A signature is HMAC-SHA256 with the job's key over method, path, session, counter, and the body's
length and SHA-256. A header carries the latter two, so that a server knows from a request's head
alone whether it comes from the job, and how long its body is, before it reads a byte of the body,
which it compares with them afterwards.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading

from howdah.jobs.net.http_connection import RequestHead, RequestRefused

SESSION, COUNTER = "X-Howdah-Session", "X-Howdah-Counter"
BODY, SIGNATURE = "X-Howdah-Body", "X-Howdah-Signature"
_SESSION = re.compile(r"[A-Za-z0-9]{1,64}")
_COUNTER = re.compile(r"0|[1-9][0-9]{0,17}")
_DIGEST = re.compile(r"(0|[1-9][0-9]{0,14}):[0-9a-f]{64}")
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_WINDOW = 1024
"""Number of requests of a session that may overtake each other."""


def new_key() -> str:
    """A key for the lifetime of one driver or job: 256 random bits in hexadecimal."""
    return secrets.token_hex(32)


def _digest(body: bytes) -> str:
    return f"{len(body)}:{hashlib.sha256(body).hexdigest()}"


def is_same(one: str, other: str) -> bool:
    """True if two texts are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())  # it only accepts ASCII as str


def request_headers(
    key: str, method: str, path: str, session: str, counter: int, body: bytes
) -> dict[str, str]:
    """The headers that prove that a request comes from the job.

    Args:
        session: letters and digits, unique to this client.
        counter: the request's number in the session, which counts once.
    """
    body_digest = _digest(body)
    return {
        SESSION: session,
        COUNTER: str(counter),
        BODY: body_digest,
        SIGNATURE: _request_signature(key, method, path, session, str(counter), body_digest),
    }


def answer_signature(key: str, request: str, status: int, body: bytes) -> str:
    """An answer's signature; `request` is the signature of the request."""
    return _sign(key, "howdah-answer", request, str(status), _digest(body))


def verified(key: str, request: RequestHead, sessions: Sessions) -> str:
    """A request's signature, if its head proves that the request comes from the job.

    Raises:
        RequestRefused: it does not, or the request was received before.
    """
    names = (SESSION, COUNTER, BODY, SIGNATURE)
    session, counter, body_digest, signature = (request.headers.get(n.lower(), "") for n in names)
    if not (
        _SESSION.fullmatch(session)
        and _COUNTER.fullmatch(counter)
        and _DIGEST.fullmatch(body_digest)
        and _SIGNATURE.fullmatch(signature)
    ):
        raise _refusal("no signature")
    right = _request_signature(key, request.method, request.path, session, counter, body_digest)
    if not is_same(right, signature):
        raise _refusal("wrong signature")
    if not sessions.take(session, int(counter)):
        raise _refusal("repeated request")
    return signature


def body_length(request: RequestHead) -> int:
    """Length of the body that a verified request was signed with."""
    return int(request.headers[BODY.lower()].partition(":")[0])


def check_body(request: RequestHead, body: bytes) -> bool:
    """True if this is the body that a verified request was signed with."""
    return is_same(_digest(body), request.headers[BODY.lower()])


class Sessions:
    """The counters that have been used. Only requests signed with the key reach it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: dict[str, tuple[int, set[int]]] = {}

    def take(self, session: str, counter: int) -> bool:
        """Use a counter; False if it was used, or is too old to tell."""
        with self._lock:
            highest, used = self._used.get(session, (0, set()))
            if counter in used or counter <= highest - _WINDOW:
                return False
            used.add(counter)
            highest = max(highest, counter)
            if len(used) > 2 * _WINDOW:
                used = {one for one in used if one > highest - _WINDOW}
            self._used[session] = (highest, used)
            return True


def _refusal(why: str) -> RequestRefused:
    return RequestRefused(403, "not signed with the job's key", why)


def _request_signature(
    key: str, method: str, path: str, session: str, counter: str, body_digest: str
) -> str:
    return _sign(key, "howdah-request", method, path, session, counter, body_digest)


def _sign(key: str, *parts: str) -> str:
    return hmac.digest(bytes.fromhex(key), "\n".join(parts).encode(), "sha256").hex()
