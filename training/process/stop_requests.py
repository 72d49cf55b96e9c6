"""The reasons for a rank to stop: signals, or delegation tokens that are about to expire."""

from __future__ import annotations

from collections.abc import Callable

from howdah.errors import HowdahError
from howdah.training.process.stopping import StopSignals
from howdah.training.process.token_expiry import TokenExpiry


class StopRequests:
    """Stop requests to this rank.

    Args:
        several_ranks: the world has more than one rank.
        grace_seconds: time needed to save and end, for which tokens must stay valid.
        abandon: ends the process; called in another thread if the main thread cannot act.
    """

    def __init__(
        self, *, several_ranks: bool, grace_seconds: float, abandon: Callable[[], None]
    ) -> None:
        self.signals = StopSignals(several_ranks=several_ranks, abandon=abandon)
        self._tokens = TokenExpiry(grace_seconds)

    def requested(self) -> bool:
        """True if a stop is requested. The main thread calls it at a step's end, and then acts."""
        return self.signals.requested() or self._tokens.ending()

    @property
    def alone(self) -> bool:
        """True if the launcher is ending the job: save (rank 0) and stop without a collective."""
        return self.signals.alone

    def error(self, **fields: str | None) -> HowdahError:
        """The error to stop with: Interrupted, Terminated or TokensExpiring."""
        # Every rank gets a signal. Without one, the tokens of some rank were the cause.
        if not self.signals.came and self._tokens.end is not None:
            return self._tokens.error(**fields)
        return self.signals.error(**fields)
