"""How much an HDFS quota leaves."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from howdah.storage.paths import inner, parent

_KEPT_SECONDS = 300.0


@dataclass(frozen=True)
class Summary:
    """Of a directory: bytes of its files, and its space quota and use, which count replicas.

    Without a quota `space_quota` is -1, or what -1 is without a sign.
    """

    length: int
    space_quota: int
    space_consumed: int

    @property
    def limited(self) -> bool:
        """True if there is a space quota."""
        return 0 < self.space_quota < 1 << 63


class QuotaCounting:
    """`free_bytes` by quotas; for backends that can tell a directory's summary."""

    _conf: Any

    def __init__(self) -> None:
        self._holders: dict[str, tuple[float, str | None]] = {}
        self._holders_lock = threading.Lock()

    def summary(self, path: str) -> Summary | None:
        """A directory's summary; None where it is not there or not ours to count."""
        raise NotImplementedError

    def free_bytes(self, path: str) -> int | None:
        """Bytes of files that the nearest space quota leaves at `path`; None without a quota."""
        directory = parent(path)
        now = time.monotonic()
        with self._holders_lock:
            when, holder = self._holders.get(directory, (now - 2 * _KEPT_SECONDS, None))
        if now - when > _KEPT_SECONDS:
            holder = self._holder(path)
            with self._holders_lock:
                self._holders[directory] = (now, holder)
        summary = self.summary(holder) if holder is not None else None
        if summary is None or not summary.limited:
            return None
        replicas = round(summary.space_consumed / summary.length) if summary.length else 0
        if not replicas:
            replicas = int(self._conf.get("dfs.replication") or 3)
        return max(0, summary.space_quota - summary.space_consumed) // replicas

    def _holder(self, path: str) -> str | None:
        """The nearest directory upwards with a space quota. The root is not asked: counting
        a whole cluster is no question to put to its NameNode."""
        while inner(path) != "/":
            summary = self.summary(path)
            if summary is not None and summary.limited:
                return path
            path = parent(path)
        return None
