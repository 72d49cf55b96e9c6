"""The state that the server's paths share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from howdah.config.options.serve import ServeSection
from howdah.core.processes import limit
from howdah.serving.compute.batcher import Work
from howdah.serving.compute.generation import Generation
from howdah.serving.compute.last_hour import LastHour
from howdah.serving.compute.metrics import Metrics
from howdah.serving.http.reading import Held
from howdah.serving.http.tokens import TokenFile

MAX_BYTES = 2 * 2**20
"""Largest body of a request; beyond it: 413. It fits 32 texts (serve.max_texts) of 64 kB, of which
a model reads only the first tokens."""
REQUEST_SECONDS = limit("request_seconds", 60.0)
"""Longest wait of a request for its answer; then 504. Clients and proxies seldom wait longer; a
request may shorten it by its header X-Timeout-Ms."""
READ_SECONDS = limit("read_seconds", 30.0)
"""Longest time in which a client sends its request; then 408. A slow client holds one of the
connections, so that a thousand of them would keep all others out."""
RELOAD_SECONDS = limit("reload_seconds", 5.0)
"""Seconds between two looks at the published model's current version, and at the file of tokens:
one small read each."""

_HELD_BYTES = 64 * 2**20
_UNREADY_SECONDS = 0.5 * REQUEST_SECONDS
"""Longest time without any progress, while texts wait, in which the server is ready."""
HANGING_SECONDS = 2.0 * REQUEST_SECONDS
"""After this time without any progress, while texts wait, the process has to be replaced."""


class Compute(Protocol):
    """Classifies the texts of requests: a Batcher in threads of this process, or a Dispatcher that
    sends them to Ray's replicas. Only the event loop calls `submit` and `drop`.
    """

    @property
    def generations(self) -> Sequence[Generation]:
        """The models that answer new requests: one, or the two of a split."""

    @property
    def stalled_seconds(self) -> float:
        """Seconds without a classified text while texts wait; 0.0 if none wait."""

    def submit(self, work: Work) -> None:
        """Take a request's texts; `work.done` is called when they have predictions, or none.

        Raises:
            QueueFull: there is no room.
        """

    def drop(self, work: Work) -> None:
        """Leave the texts of this request that were not classified yet."""


@dataclass(eq=False)
class State:
    """The state that the paths share; only the event loop changes it."""

    compute: Compute
    metrics: Metrics
    settings: ServeSection
    hosts: list[str] | None
    """Host names that a request may have; None: any."""
    tokens: TokenFile | None = None
    """Tokens of which a request needs one; None: requests need no token."""
    share: float = 0.0
    """Share of requests that the second of two models answers; 0.0 if there is one model."""
    draining: bool = False
    """True once requests are refused because the server ends."""
    waiting: set[asyncio.Future[None]] = field(default_factory=set)
    """A future for each request whose texts wait or are computed; setting it early refuses the
    request."""
    say: Callable[[str], None] = lambda line: None
    before_metrics: Callable[[], None] = lambda: None
    """Called before /metrics is written."""
    unpredicted: Callable[[int, int], None] = lambda empty, errors: None
    """Takes the number of a request's empty texts, and of its texts with another error."""
    running: int = 0
    """Number of requests that are read, wait or are computed."""
    last_hour: LastHour = field(default_factory=LastHour)
    """Requests of this process for classification, for the page."""
    held: Held = field(default_factory=lambda: Held(most=_HELD_BYTES))

    @property
    def ready(self) -> bool:
        """True while requests are answered: the server is not ending, and texts progress."""
        return not self.draining and self.compute.stalled_seconds < _UNREADY_SECONDS

    @property
    def alive(self) -> bool:
        """False if computation hangs: no thread can be ended, so the process must exit."""
        return self.compute.stalled_seconds < HANGING_SECONDS
