"""Sends the texts of requests to Ray's replicas: what stands in the place of the server's Batcher.

Nothing here imports Ray at module level. Ray pickles what its processes send each other: rows and
predictions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from howdah.serving.compute.refusals import Broken, QueueFull, Refusal, ReplicaLost
from howdah.serving.deployment.split import choose

if TYPE_CHECKING:
    from howdah.serving.compute.batcher import Work
    from howdah.serving.compute.generation import Generation
    from howdah.serving.compute.metrics import Metrics

_SAID_SECONDS = 60.0
"""A model that fails on every request is reported once in this time."""


class Dispatcher:
    """Sends texts to the replicas of one model, or of two that share the requests.

    It lives in one event loop, which it never blocks. How many requests wait for a model is bounded
    by Ray Serve (max_queued_requests).

    Args:
        generations: the models.
        share: of requests that the second one answers; 0.0: there is one model.
        handles: Ray Serve's handles of their Classifiers, in the same order.
        metrics: where waiting texts are counted.
        say: takes a line.
    """

    def __init__(
        self,
        generations: Sequence[Generation],
        share: float,
        handles: Sequence[Any],
        metrics: Metrics,
        say: Callable[[str], None],
    ) -> None:
        self._generations, self._share, self._handles = tuple(generations), share, tuple(handles)
        self._metrics, self._say = metrics, say
        self._salt = "|".join(sorted({one.name for one in generations}))
        self._calls: dict[Work, asyncio.Task[None]] = {}
        self._held = 0
        self._progress = time.monotonic()
        """When a model last answered, or texts came while none waited."""
        self._said_broken: float | None = None
        metrics.serving(*self._generations)

    @property
    def generations(self) -> tuple[Generation, ...]:
        """The models that answer."""
        return self._generations

    @property
    def stalled_seconds(self) -> float:
        """How long no model has answered though texts wait; 0.0: none wait."""
        return time.monotonic() - self._progress if self._held else 0.0

    def submit(self, work: Work) -> None:
        """Send a request's texts to a replica; `work.failure` says why there are no predictions."""
        if not self._held:
            self._progress = time.monotonic()
        self._hold(len(work.rows))
        number = self._choose(work)
        call = asyncio.get_running_loop().create_task(self._call(work, number))
        self._calls[work] = call
        # Not at the call's own end: one that is dropped before it begins never comes there.
        call.add_done_callback(lambda _: self._release(work))

    def drop(self, work: Work) -> None:
        """Cancel the call; a replica that computes already goes on to its end."""
        work.dropped = True
        if work in self._calls:
            self._calls[work].cancel()

    def _choose(self, work: Work) -> int:
        """The number of the model that answers."""
        numbers = [
            number
            for number, generation in enumerate(self._generations)
            if not work.candidates or any(generation is one for one in work.candidates)
        ]
        return numbers[choose(work.key, self._share, self._salt) if len(numbers) > 1 else 0]

    async def _call(self, work: Work, number: int) -> None:
        try:
            response = self._handles[number].classify.remote(work.rows)
            work.predictions[:] = await response
            work.generation = self._generations[number]
        except asyncio.CancelledError:
            response.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - the request fails, the server goes on
            work.failure = self._failure(error)

    def _release(self, work: Work) -> None:
        self._hold(-len(work.rows))
        self._progress = time.monotonic()
        self._calls.pop(work, None)
        work.done()

    def _hold(self, texts: int) -> None:
        self._held += texts
        self._metrics.waiting.set(self._held)

    def _failure(self, error: Exception) -> Refusal:
        """The refusal that an error of Ray's becomes. It has nothing of the replica's log."""
        from ray.exceptions import RayError, RayTaskError
        from ray.serve.exceptions import BackPressureError, RayServeException

        if isinstance(error, BackPressureError):
            return QueueFull(
                "too many requests wait for the model", seconds=1,
                remedy="ask again after Retry-After seconds; or give the server a longer --queue,"
                " or more --replicas",
            )  # fmt: skip
        if isinstance(error, RayError | RayServeException) and not isinstance(error, RayTaskError):
            return ReplicaLost(
                "the process that held the model has ended", got=type(error).__name__,
                remedy="ask again: another process takes its place",
            )  # fmt: skip
        kind = type(getattr(error, "cause", None) or error).__name__
        now = time.monotonic()
        if self._said_broken is None or now - self._said_broken > _SAID_SECONDS:
            self._said_broken = now
            self._say(f"the model failed on a request: {kind}")
        self._metrics.errors.labels("failed").inc()
        return Broken(
            "the model failed on this request", got=kind,
            remedy="try one text at a time; see the server's log",
        )  # fmt: skip
