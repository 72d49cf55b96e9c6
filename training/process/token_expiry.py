"""When the delegation tokens of a job expire, and with them its access to storage.

A container of YARN has tokens and no keytab. They are renewed up to their maximum lifetime, which
cannot be extended (7 days by default); after that storage refuses them. Training saves its state
and stops before that; the user can start it again with new tokens.
"""

from __future__ import annotations

import os
import time

from howdah.errors import TokensExpiring
from howdah.hadoop import tokens

_LOOK_SECONDS = 1.0
_DEAD_SECONDS = 60.0
"""Storage accepts no token with less time left than this to open a connection."""
_KEYTAB = "KRB5_CLIENT_KTNAME"


class TokenExpiry:
    """The expiry of the tokens in `$HADOOP_TOKEN_FILE_LOCATION`, read again as the file changes.

    A process with a keytab logs in with it and needs no token.

    Args:
        margin_seconds: time needed to save the state and end.
    """

    def __init__(self, margin_seconds: float) -> None:
        self._margin = margin_seconds + _DEAD_SECONDS
        self._looked = float("-inf")
        self._seen: tuple[str, int] | None = None
        self._end: float | None = None

    @property
    def end(self) -> float | None:
        """When the first of the tokens expires, in seconds since 1970; None: no token is needed."""
        path = os.environ.get(tokens.ENVIRONMENT)
        if not path or os.environ.get(_KEYTAB):
            return None
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._look(path)
        return self._end

    def _look(self, path: str) -> None:
        try:
            mark = (path, os.stat(path).st_mtime_ns)
        except OSError:  # being replaced: the old tokens' expiry holds
            return
        if mark != self._seen:
            kinds = (tokens.HDFS_KIND, tokens.WEBHDFS_KIND)
            ends = [token.expires for token in tokens.load() if token.kind in kinds]
            self._seen, self._end = mark, min(ends, default=None)

    def ending(self) -> bool:
        """Only the time to save and stop is left."""
        end = self.end
        return end is not None and time.time() >= end - self._margin

    def error(self, **fields: str | None) -> TokensExpiring:
        """What to stop with."""
        end = self.end
        fields["expected"] = "tokens that live on, or a keytab"
        return TokensExpiring(
            "the delegation tokens come to the end of their life, and training stopped in time",
            **fields | {"got": _joined(_when(end), fields.get("got"))},
        )


def _when(end: float | None) -> str | None:
    if end is None:
        return None
    return f"they end at {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime(end))}"


def _joined(*parts: str | None) -> str | None:
    return "; ".join(part for part in parts if part) or None
