"""When the delegation tokens of a job come to their end, and with them its access to storage.

A container of YARN has tokens and no keytab. They are renewed for it up to a greatest life that
nobody can prolong (7 days by default); after that storage refuses it. Training stops in order
before that, with its state saved; whoever started it can start it again with new tokens.
"""

from __future__ import annotations

import os
import time

from howdah.errors import TokensExpiring
from howdah.hadoop import tokens

__all__ = ["TokenLife"]

_LOOK_SECONDS = 1.0
_DEAD_SECONDS = 60.0
"""Storage takes no token that has less than this left to open a connection with."""
_KEYTAB = "KRB5_CLIENT_KTNAME"


class TokenLife:
    """The end of the tokens that `$HADOOP_TOKEN_FILE_LOCATION` names, looked up now and then.

    A process with a keytab logs in by that and needs no token. New tokens in the same file count
    from when they are there.

    Args:
        margin_seconds: what it takes to save the state and end.
    """

    def __init__(self, margin_seconds: float) -> None:
        self._margin = margin_seconds + _DEAD_SECONDS
        self._looked = float("-inf")
        self._seen: tuple[str, int] | None = None
        self._end: float | None = None

    @property
    def end(self) -> float | None:
        """Seconds since 1970 at which the first of the tokens ends; None where none is needed."""
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
        except OSError:  # being replaced; what was known of the old ones holds
            return
        if mark != self._seen:
            kinds = (tokens.HDFS_KIND, tokens.WEBHDFS_KIND)
            ends = [token.expires for token in tokens.load() if token.kind in kinds]
            self._seen, self._end = mark, min(ends, default=None)

    def ending(self) -> bool:
        """There is just enough time left to save and stop."""
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
