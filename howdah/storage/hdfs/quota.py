"""Free bytes under an HDFS space quota."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from howdah.core.paths import inner, parent

_CACHE_SECONDS = 300.0


@dataclass(frozen=True)
class Summary:
    """A directory's content summary: bytes of its files, its space quota and the space consumed.

    The last two count replicas. Without a quota `space_quota` is -1, signed or as uint64.
    """

    length: int
    space_quota: int
    space_consumed: int

    @property
    def limited(self) -> bool:
        """True if there is a space quota."""
        return 0 < self.space_quota < 1 << 63


class QuotaCounting:
    """`free_bytes` by space quotas, for backends that implement `summary`."""

    _conf: Any

    def __init__(self) -> None:
        self._holders: dict[str, tuple[float, str | None]] = {}

    def summary(self, path: str) -> Summary | None:
        """A directory's summary; None if it does not exist or may not be read."""
        raise NotImplementedError

    def free_bytes(self, path: str) -> int | None:
        """Bytes (of one replica) that the nearest space quota leaves; None without a quota."""
        directory = parent(path)
        now = time.monotonic()
        when, holder = self._holders.get(directory, (now - 2 * _CACHE_SECONDS, None))
        if now - when > _CACHE_SECONDS:
            holder = self._holder(path)
            self._holders[directory] = (now, holder)
        summary = self.summary(holder) if holder is not None else None
        if summary is None or not summary.limited:
            return None
        replicas = round(summary.space_consumed / summary.length) if summary.length else 0
        if not replicas:
            replicas = int(self._conf.get("dfs.replication") or 3)
        return max(0, summary.space_quota - summary.space_consumed) // replicas

    def _holder(self, path: str) -> str | None:
        """The nearest directory upwards with a space quota. The root is left out: a content summary
        of the whole cluster is too expensive for its NameNode."""
        while inner(path) != "/":
            summary = self.summary(path)
            if summary is not None and summary.limited:
                return path
            path = parent(path)
        return None
