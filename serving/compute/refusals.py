"""Requests that are not answered with predictions.

A refusal is one JSON object: error (one sentence, which clients of other servers show),
error_type, what, where, expected, got, remedy.
"""

from __future__ import annotations

from typing import Any

from howdah.errors import HowdahError

_FIELDS = ("what", "where", "expected", "got", "remedy")
_MOST_SHOWN = 1000
"""Longest field of a refusal, so that a client's input is never sent back whole."""


class Refusal(HowdahError):
    """A request that is not answered with predictions."""

    status = 500


class BadRequest(Refusal):
    """The body is not JSON."""

    status = 400


class WrongShape(Refusal):
    """The body is JSON of another shape; `where` names the field."""

    status = 422


class WrongHost(Refusal):
    """The Host header names another server."""

    status = 403


class UnknownRoute(Refusal):
    """There is no such path."""

    status = 404


class WrongMethod(Refusal):
    """The path takes another method."""

    status = 405


class TooLarge(Refusal):
    """The body is too long, or has too many texts."""

    status = 413


class BadHead(Refusal):
    """The request's head is HTTP, but its end is not certain; the connection ends."""

    status = 400


class HeadTooLarge(Refusal):
    """The request's head has too many headers or bytes."""

    status = 431


class CrossSite(Refusal):
    """A page of another site sent the request, and the server requires no token."""

    status = 403


class NoToken(Refusal):
    """The request has none of the server's bearer tokens."""

    status = 401


class UnknownModel(Refusal):
    """There is no such model, or the version is not loaded."""

    status = 404


class TooSlow(Refusal):
    """The request did not arrive in time."""

    status = 408


class WrongMedia(Refusal):
    """The body is compressed."""

    status = 415


class QueueFull(Refusal):
    """The queue is full.

    Args:
        seconds: time after which there may be room.
    """

    status = 429

    def __init__(self, what: str, *, seconds: int, **fields: str) -> None:
        super().__init__(what, **fields)
        self.seconds = seconds


class Gone(Refusal):
    """The client has closed the connection, so that nothing reads this. (nginx's number.)"""

    status = 499


class Broken(Refusal):
    """The model failed on the request, which is a defect of the server or of the model."""

    status = 500


class Draining(Refusal):
    """The server is ending, or has no model yet."""

    status = 503


class ReplicaLost(Refusal):
    """The process that held the model has ended: another one takes its place, and the same request
    may succeed then."""

    status = 503


class DeadlinePassed(Refusal):
    """The answer was not computed in time."""

    status = 504


def refusal_body(error: HowdahError) -> dict[str, Any]:
    """Return a refusal as JSON. `error` is a sentence, as clients of other servers show only it."""
    described = {
        name: shortened(value, _MOST_SHOWN) if isinstance(value, str) else value
        for name, value in error.as_dict().items()
    }
    sentence = described["what"]
    parts = [f"{name} {described[name]}" for name in ("expected", "got") if described.get(name)]
    if parts:
        sentence += f" ({'; '.join(parts)})"
    fields = {name: described.get(name) for name in _FIELDS if described.get(name) is not None}
    return {"error": sentence, "error_type": described["error"], **fields}


def shortened(name: str, most: int = 40) -> str:
    """Return the beginning of a client's input that is too long to be sent back whole."""
    return name if len(name) <= most else name[: most - 3] + "..."
