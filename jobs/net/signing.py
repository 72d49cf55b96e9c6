"""How messages of jobs/net/wire.py are signed, and why each counts only once.

HMAC-SHA256 with the job's key over method, path, session, counter, and the body's length and
SHA-256. These two travel in a header of their own, so that a server knows from a request's head
alone whether it comes from the job, and how long its body is, before it reads a byte of that; the
body is compared with them afterwards.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading

from howdah.jobs.net.http_connection import Request, RequestRefused

SESSION, COUNTER = "X-Howdah-Session", "X-Howdah-Counter"
BODY, SIGNATURE = "X-Howdah-Body", "X-Howdah-Signature"
_SESSION = re.compile(r"[A-Za-z0-9]{1,64}")
_COUNTER = re.compile(r"0|[1-9][0-9]{0,17}")
_DIGEST = re.compile(r"(0|[1-9][0-9]{0,14}):[0-9a-f]{64}")
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_WINDOW = 1024
"""Requests of a session that may overtake each other."""


def new_key() -> str:
    """A key for the lifetime of one driver: 256 random bits, hexadecimal."""
    return secrets.token_hex(32)


def _digest(body: bytes) -> str:
    return f"{len(body)}:{hashlib.sha256(body).hexdigest()}"


def is_same(one: str, other: str) -> bool:
    """Whether two texts are the same, in a time that does not depend on where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())  # of str it takes ASCII alone


def request_headers(
    key: str, method: str, path: str, session: str, counter: int, body: bytes
) -> dict[str, str]:
    """The headers that make a request one of the job's own.

    Args:
        session: letters and digits, of this client alone.
        counter: of the session; each number counts once.
    """
    body_digest = _digest(body)
    return {
        SESSION: session,
        COUNTER: str(counter),
        BODY: body_digest,
        SIGNATURE: _request_signature(key, method, path, session, str(counter), body_digest),
    }


def answer_signature(key: str, request: str, status: int, body: bytes) -> str:
    """An answer's signature; `request` is the signature of what it answers."""
    return _sign(key, "howdah-answer", request, str(status), _digest(body))


def verified(key: str, request: Request, sessions: Sessions) -> str:
    """A request's signature, once its head has proved that it comes from the job.

    Raises:
        RequestRefused: it does not, or was received before.
    """
    given = [request.headers.get(name.lower(), "") for name in (SESSION, COUNTER, BODY, SIGNATURE)]
    session, counter, body_digest, signature = given
    if not (
        _SESSION.fullmatch(session)
        and _COUNTER.fullmatch(counter)
        and _DIGEST.fullmatch(body_digest)
        and _SIGNATURE.fullmatch(signature)
    ):
        raise _refusal("no signature")
    right = _request_signature(key, request.method, request.path, session, counter, body_digest)
    if not is_same(right, signature):
        raise _refusal("a wrong signature")
    if not sessions.take(session, int(counter)):
        raise _refusal("a request sent again")
    return signature


def body_length(request: Request) -> int:
    """Bytes of the body that a verified request was signed with."""
    return int(request.headers[BODY.lower()].partition(":")[0])


def check_body(request: Request, body: bytes) -> bool:
    """Whether a verified request has come with the body that it was signed with."""
    return is_same(_digest(body), request.headers[BODY.lower()])


class Sessions:
    """Which counters have been used. Only requests signed with the key get as far as this."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int, set[int]]] = {}

    def take(self, session: str, counter: int) -> bool:
        """Use a counter; False if it was used, or is too old to know."""
        with self._lock:
            highest, seen = self._seen.get(session, (0, set()))
            if counter in seen or counter <= highest - _WINDOW:
                return False
            seen.add(counter)
            highest = max(highest, counter)
            if len(seen) > 2 * _WINDOW:
                seen = {one for one in seen if one > highest - _WINDOW}
            self._seen[session] = (highest, seen)
            return True


def _refusal(why: str) -> RequestRefused:
    return RequestRefused(403, "not signed with the job's key", why)


def _request_signature(
    key: str, method: str, path: str, session: str, counter: str, body_digest: str
) -> str:
    return _sign(key, "howdah-request", method, path, session, counter, body_digest)


def _sign(key: str, *parts: str) -> str:
    return hmac.digest(bytes.fromhex(key), "\n".join(parts).encode(), "sha256").hex()
