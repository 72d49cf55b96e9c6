"""The nodes that keep failing, and the containers on them that are released.

A cluster cannot be told to avoid a node: the job releases a container on an excluded node and
requests another one, after a pause that grows, a limited number of times in a row.
"""

from __future__ import annotations

from howdah.jobs.driver import faults
from howdah.jobs.driver.members import Loss

_SAME_SECONDS = 10.0
"""A failure this shortly before the cluster ended its container was caused by that end."""
_REFUSALS = 8
"""Number of containers in a row that are released for their node before the job gives up."""
_PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds before another container is requested, after the first refusal in a row, the second..."""


class NodeLedger:
    """Counts failures by node.

    Args:
        limit: failures of a node after which it is excluded.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._failures: dict[str, list[tuple[str, float, str]]] = {}
        """{node: (container, time, reason) of each failure}."""
        self._nodes: set[str] = set()
        self.refused: set[str] = set()
        """Every container that was released because of its node."""
        self._in_a_row = 0
        self.held = 0
        """Number of containers that are not requested again yet."""
        self._ask_at: float | None = None
        self._met: dict[tuple[str, int], str] = {}
        """The node where an error at a step was first met."""

    def seen(self, node: str) -> None:
        """Record a node on which the job has, or was offered, a container."""
        self._nodes.add(node)

    def failed(self, node: str, container: str, why: str, now: float) -> bool:
        """Count a worker's failure; True if it excludes a node that was not excluded before."""
        was = self.excluded(node)
        failures = self._failures.setdefault(node, [])
        if any(one == container and now - when < _SAME_SECONDS for one, when, _ in failures):
            return False  # the end of a process and of its container count as one
        failures.append((container, now, why))
        self.seen(node)
        return self.excluded(node) and not was

    def taken_back(self, node: str, container: str, now: float) -> None:
        """Discount the failure of a container that the cluster has ended for its own reasons."""
        self._failures[node] = [
            one for one in self._failures.get(node, ())
            if one[0] != container or now - one[1] >= _SAME_SECONDS
        ]  # fmt: skip

    def excluded(self, node: str) -> bool:
        """True if workers have failed there too often, and less often on another node of the job:
        where all nodes fail, the cause is not a node, and job.max_restarts decides."""
        return self._count(node) >= self._limit and any(
            self._count(other) < self._limit for other in self._nodes
        )

    def all_excluded(self) -> dict[str, int]:
        """{excluded node: number of its failures}."""
        return {node: self._count(node) for node in sorted(self._failures) if self.excluded(node)}

    def _count(self, node: str) -> int:
        return len(self._failures.get(node, ()))

    def why(self, node: str) -> str:
        """The reason for the node's last failure."""
        failures = self._failures.get(node)
        return failures[-1][2] if failures else "nothing"

    # ------------------------------------------------------------------- released containers
    def refuse(self, container: str, now: float) -> bool:
        """Record the release of a container on an excluded node; False if it was known before."""
        if container in self.refused:
            return False
        self.refused.add(container)
        self._in_a_row += 1
        self.held += 1
        pause = _PAUSES[min(self._in_a_row, len(_PAUSES)) - 1]
        self._ask_at = now + pause
        return True

    @property
    def enough(self) -> bool:
        """True after so many releases in a row that the cluster seems to have no other node."""
        return self._in_a_row >= _REFUSALS

    def accepted(self) -> None:
        """Reset the row: a container on another node has come, or the user has requested more."""
        self._in_a_row = 0

    def ask_again(self, now: float) -> bool:
        """True once, when the pause is over."""
        if self._ask_at is None or now < self._ask_at:
            return False
        self._ask_at, self.held = None, 0
        return True

    # --------------------------------------------------------------------- the same elsewhere
    def met_elsewhere(self, loss: Loss) -> str | None:
        """The other node that has had the same error at the same step; None: no node had.

        Before the first step all nodes are at the same one, where two full disks prove nothing.
        """
        failure = (loss.failure or {}).get("error")
        error = faults.signature(failure)
        if loss.consequence or loss.fault == "passing" or error is None:
            return None
        if faults.of_cluster(failure):
            return None
        if not loss.step and loss.fault == "node" and faults.of_disk(failure):
            return None
        first = self._met.setdefault((error, loss.step or 0), loss.node)
        return first if first != loss.node else None
