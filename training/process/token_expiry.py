"""The expiry of a job's delegation tokens, which ends its access to storage.

A YARN container has tokens and no keytab. They are renewed up to their maximum lifetime (7 days by
default), which cannot be extended; then storage refuses them. Training saves its state and stops
before that, and the user can start it again with new tokens.
"""

from __future__ import annotations

import contextlib
import os
import time

from howdah.errors import NotAuthenticated, TokensExpiring
from howdah.hadoop import tokens

_LOOK_SECONDS = 1.0
_DEAD_SECONDS = 60.0
"""Storage does not accept a token with less remaining time than this for a new connection."""
_KEYTAB = "KRB5_CLIENT_KTNAME"


class TokenExpiry:
    """The expiry of the tokens in `$HADOOP_TOKEN_FILE_LOCATION`, read again if the file changes.

    A process with a keytab logs in with that and does not need tokens.

    Args:
        margin_seconds: time needed to save the state and end.
    """

    def __init__(self, margin_seconds: float) -> None:
        self._margin = margin_seconds + _DEAD_SECONDS
        self._looked = float("-inf")
        self._mark: tuple[str, int] | None = None
        """(path, time of change) of the file that was read last."""
        self._end: float | None = None

    @property
    def end(self) -> float | None:
        """Time at which the first of the tokens expires, in seconds since 1970; None if no token is
        needed."""
        path = os.environ.get(tokens.ENVIRONMENT)
        if not path or os.environ.get(_KEYTAB):
            return None
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._look(path)
        return self._end

    def _look(self, path: str) -> None:
        # While the file is being replaced, the old expiry holds.
        with contextlib.suppress(OSError, NotAuthenticated):
            mark = (path, os.stat(path).st_mtime_ns)
            if mark != self._mark:
                kinds = (tokens.HDFS_KIND, tokens.WEBHDFS_KIND, tokens.KMS_KIND)
                ends = [token.expires for token in tokens.load() if token.kind in kinds]
                self._mark, self._end = mark, min(ends, default=None)

    def ending(self) -> bool:
        """True if there is only time left to save and stop."""
        end = self.end
        return end is not None and time.time() >= end - self._margin

    def error(self, **fields: str | None) -> TokensExpiring:
        facts = [fields["got"]] if fields.get("got") else []
        if (end := self.end) is not None:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(end))
            facts.insert(0, f"they expire at {stamp}")
        fields |= {"expected": "tokens that stay valid, or a keytab"}
        return TokensExpiring(
            "the delegation tokens are about to expire, and training stopped in time",
            **fields | {"got": "; ".join(facts) or None},
        )
