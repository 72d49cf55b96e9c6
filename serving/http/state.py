"""What the server's paths share."""

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
"""Most bytes of a request's body; more: 413. 32 texts (serve.max_texts) of 64 kB are below it, of
which a model reads the first tokens only."""
REQUEST_SECONDS = limit("request_seconds", 60.0)
"""Longest wait of a request for its answer; then 504. Clients and proxies seldom wait longer; a
request may shorten it by its header X-Timeout-Ms."""
READ_SECONDS = limit("read_seconds", 30.0)
"""Longest time in which a client sends its request; then 408. A slow client holds one of the
connections, so that a thousand of them would keep all others out."""

_HELD_BYTES = 64 * 2**20
_UNREADY, _DEAD = 0.5, 2.0
"""Parts of REQUEST_SECONDS without any progress, while texts wait, after which the server is
not ready, and after which it has to be replaced."""


@dataclass(eq=False)
class State:
    """What the paths share; only the event loop changes it."""

    batcher: Batcher
    metrics: Metrics
    settings: ServeSection
    hosts: list[str] | None
    """What a request may name as its host; None: anything."""
    tokens: TokenFile | None = None
    """The tokens of which a request needs one; None: no request needs one."""
    draining: bool = False
    """Requests are not taken any more."""
    waiting: set[asyncio.Future[None]] = field(default_factory=set)
    """A future for each request whose texts wait or are computed; set before they are computed, it
    refuses the request."""
    say: Callable[[str], None] = lambda line: None
    before_metrics: Callable[[], None] = lambda: None
    """Called before /metrics is written."""
    unpredicted: Callable[[int, int], None] = lambda empty, errors: None
    """Takes how many texts of a request were empty, and how many had another error."""
    running: int = 0
    """Requests that are read, wait or are computed."""
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
