"""What the server's paths share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from howdah.config.options.serve import ServeSection
from howdah.serving.compute.batcher import Batcher
from howdah.serving.compute.metrics import Metrics
from howdah.serving.http.reading import Held
from howdah.serving.http.tokens import TokenFile

_HELD_BYTES = 64 * 2**20
_UNREADY, _DEAD = 0.5, 2.0
"""Parts of serve.request_seconds without any progress, while texts wait, after which the server is
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
        seconds = self.settings.request_seconds
        return not self.draining and self.batcher.stalled_seconds < _UNREADY * seconds

    @property
    def alive(self) -> bool:
        """False if computation hangs: no thread can be ended, so the process must exit."""
        return self.batcher.stalled_seconds < _DEAD * self.settings.request_seconds
