"""Reads a request's body: bounded in bytes and time, also where it has no Content-Length."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

from howdah.serving.compute.refusals import (
    Gone,
    QueueFull,
    TooLarge,
    TooSlow,
    WrongMedia,
    WrongShape,
)

_NUMBER = re.compile(rb"[0-9]{1,12}(?:\.[0-9]{0,12})?(?:[eE][+-]?[0-9]{1,3})?")
_DROPPED_BODIES = 16
"""A body that is too long is read and dropped up to this multiple of the limit, since a client that
is still sending when the connection ends does not see the answer."""


@dataclass(eq=False)
class Held:
    """The bytes of all requests' bodies in memory; only the event loop changes it."""

    most: int
    bytes: int = 0

    def require_room(self) -> None:
        """Refuse the request that was added last if there are too many bytes.

        Raises:
            QueueFull: more than `most` are held.
        """
        if self.bytes > self.most:
            raise QueueFull(
                "too many bytes of requests are waiting",
                seconds=1,
                expected=f"at most {self.most:,}",
                remedy="ask again after Retry-After seconds, with fewer bytes",
            )


def header(scope: dict[str, Any], name: bytes) -> bytes | None:
    """Return a request header's first value."""
    return next((value for key, value in scope["headers"] if key == name), None)


def deadline_ms(scope: dict[str, Any]) -> float | None:
    """Return the milliseconds that the client waits, from X-Timeout-Ms, or None.

    Raises:
        WrongShape: it is not a number above 0.
    """
    text = header(scope, b"x-timeout-ms")
    if text is None:
        return None
    value = float(text) if _NUMBER.fullmatch(text) else 0.0
    if not 0 < value < 1e9:
        raise WrongShape(
            "X-Timeout-Ms is not a time",
            where="X-Timeout-Ms",
            expected="milliseconds above 0",
            got=text[:40].decode("latin-1"),
        )
    return value


async def read_body(
    scope: dict[str, Any], receive: Any, *, most: int, seconds: float, held: Held
) -> bytes:
    """Read the request's body and add its bytes to `held`, from which the caller removes them.

    Raises:
        TooLarge, TooSlow, WrongMedia, QueueFull, Gone: the body is not read.
    """
    encoding = header(scope, b"content-encoding")
    if encoding not in (None, b"", b"identity"):
        raise WrongMedia(
            "the body is compressed",
            where="Content-Encoding",
            expected="none: plain JSON",
            got=encoding[:40].decode("latin-1"),
        )
    declared = header(scope, b"content-length")
    if declared is not None and int(declared) > most and header(scope, b"expect"):
        raise _too_large(most, int(declared))  # the client waits for permission to send
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
            "the request did not arrive in time",
            expected=f"all of it within {seconds:g} s",
            got=f"{length:,} bytes",
        ) from None
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
