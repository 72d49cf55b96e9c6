"""The state that the server's paths share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from howdah.config.options.serve import ServeSection
from howdah.core.processes import limit
from howdah.serving.compute.batcher import Batcher
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
"""Longest time in which a client sends its request; then 408. A slow client holds a connection, so
that a thousand of them would keep all others out."""

_HELD_BYTES = 64 * 2**20
_UNREADY, _DEAD = 0.5, 2.0
"""Multiples of REQUEST_SECONDS without any progress while texts wait: after the first the server is
not ready, after the second it must be replaced."""


@dataclass(eq=False)
class State:
    """The state that the paths share; only the event loop changes it."""

    batcher: Batcher
    metrics: Metrics
    settings: ServeSection
    hosts: list[str] | None
    """Host names that a request may have; None: any."""
    tokens: TokenFile | None = None
    """Tokens of which a request needs one; None: requests need no token."""
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
    held: Held = field(default_factory=lambda: Held(most=_HELD_BYTES))

    @property
    def ready(self) -> bool:
        """True while requests are answered: the server is not ending, and texts progress."""
        seconds = REQUEST_SECONDS
        return not self.draining and self.batcher.stalled_seconds < _UNREADY * seconds

    @property
    def alive(self) -> bool:
        """False if computation hangs: no thread can be ended, so the process must exit."""
        return self.batcher.stalled_seconds < _DEAD * REQUEST_SECONDS
