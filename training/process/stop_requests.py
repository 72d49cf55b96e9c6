"""What asks a rank to stop: signals, or delegation tokens that are near their end."""

from __future__ import annotations

from collections.abc import Callable

from howdah.errors import HowdahError
from howdah.training.process.stopping import StopSignals
from howdah.training.process.token_expiry import TokenExpiry


class StopRequests:
    """Stop requests to this rank.

    Args:
        several_ranks: the world has more than one rank.
        grace_seconds: what it takes to save and end: tokens must live for so long.
        abandon: ends the process; called in another thread when the main thread cannot act.
    """

    def __init__(
        self, *, several_ranks: bool, grace_seconds: float, abandon: Callable[[], None]
    ) -> None:
        self.signals = StopSignals(several_ranks=several_ranks, abandon=abandon)
        self._tokens = TokenExpiry(grace_seconds)

    def requested(self) -> bool:
        """A stop is asked for. The main thread asks at a step's end, and then acts on it."""
        return self.signals.requested() or self._tokens.ending()

    @property
    def alone(self) -> bool:
        """The launcher is tearing the job down: save (rank 0) and stop without any collective."""
        return self.signals.alone

    def error(self, **fields: str | None) -> HowdahError:
        """What to stop with: Interrupted, Terminated or TokensExpiring."""
        # Signals come to every rank: where none has come, the tokens of some rank were the cause.
        if not self.signals.came and self._tokens.end is not None:
            return self._tokens.error(**fields)
        return self.signals.error(**fields)
