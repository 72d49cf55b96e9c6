"""Reads a request's body: bounded in bytes and time, also where it has no Content-Length."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

from howdah.serving.compute.refusals import Gone, QueueFull, TooSlow, WrongMedia
from howdah.serving.deployment.requests import TooLarge, WrongShape

_NUMBER = re.compile(rb"[0-9]{1,12}(?:\.[0-9]{0,12})?(?:[eE][+-]?[0-9]{1,3})?")
_DROPPED_BODIES = 16
"""Of a body that is too long so many times the limit is read and dropped: a client that is still
sending when the connection ends does not see the answer."""


@dataclass(eq=False)
class Held:
    """Bytes of bodies in memory, of all requests; only the event loop changes it."""

    most: int
    bytes: int = 0

    def require_room(self) -> None:
        """Refuse the request that has just been added where there are too many bytes.

        Raises:
            QueueFull: more than `most` are held.
        """
        if self.bytes > self.most:
            raise QueueFull(
                "the server already holds as many bytes of requests as it may", seconds=1,
                expected=f"at most {self.most:,}", got="more",
                remedy="ask again after Retry-After seconds, with fewer bytes",
            )  # fmt: skip


def header(scope: dict[str, Any], name: bytes) -> bytes | None:
    """A request header's first value."""
    return next((value for key, value in scope["headers"] if key == name), None)


def deadline_ms(scope: dict[str, Any]) -> float | None:
    """Milliseconds that the client waits, from X-Timeout-Ms; None: it does not say.

    Raises:
        WrongShape: it is not a number above 0.
    """
    given = header(scope, b"x-timeout-ms")
    if given is None:
        return None
    value = float(given) if _NUMBER.fullmatch(given) else 0.0
    if not 0 < value < 1e9:
        raise WrongShape(
            "X-Timeout-Ms is not a time", where="X-Timeout-Ms", expected="milliseconds above 0",
            got=given[:40].decode("latin-1"),
        )  # fmt: skip
    return value


async def read_body(
    scope: dict[str, Any], receive: Any, *, most: int, seconds: float, held: Held
) -> bytes:
    """The request's body; its bytes are added to `held`, which the caller gives back.

    Raises:
        TooLarge, TooSlow, WrongMedia, QueueFull, Gone: it is not read.
    """
    encoding = header(scope, b"content-encoding")
    if encoding not in (None, b"", b"identity"):
        raise WrongMedia(
            "the body is compressed", where="Content-Encoding", expected="none",
            got=encoding[:40].decode("latin-1"), remedy="send plain JSON",
        )  # fmt: skip
    declared = header(scope, b"content-length")
    if declared is not None and int(declared) > most and header(scope, b"expect"):
        raise _too_large(most, int(declared))  # the client waits for leave to send
    parts: list[bytes] = []
    length = kept = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone("the client has closed the connection")
                part = message.get("body", b"")
                length += len(part)
                if length <= most:
                    parts.append(part)
                    kept += len(part)
                    held.bytes += len(part)
                    held.require_room()
                else:
                    parts.clear()
                    held.bytes -= kept
                    kept = 0
                if length > _DROPPED_BODIES * most or not message.get("more_body", False):
                    break
    except TimeoutError:
        held.bytes -= kept
        raise TooSlow(
            "the request did not arrive in time", expected=f"all of it within {seconds:g} s",
            got=f"{length:,} bytes",
        ) from None  # fmt: skip
    except BaseException:
        held.bytes -= kept
        raise
    if length > most:
        raise _too_large(most, length)
    return b"".join(parts)


def _too_large(most: int, got: int) -> TooLarge:
    return TooLarge(
        "the body is too large", expected=f"at most {most:,} bytes", got=f"{got:,} bytes or more",
        remedy="send fewer texts at a time; `howdah predict` classifies files",
    )  # fmt: skip
