"""What the server answers instead of predictions; what a request's shape alone decides is in
serving/compute/requests.py."""

from __future__ import annotations

from howdah.serving.compute.requests import Refusal


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
