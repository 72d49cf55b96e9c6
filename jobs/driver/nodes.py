"""Which nodes keep failing, and which containers on them are given back.

A cluster cannot be asked to keep a node out: a container on an excluded node is given back and
another one asked for, after a pause that grows, some times in a row.
"""

from __future__ import annotations

from howdah.jobs.driver import faults
from howdah.jobs.driver.members import Loss

_SAME_SECONDS = 10.0
"""A failure so shortly before the cluster ended its container was caused by that."""
_REFUSALS = 8
"""Containers in a row that are given back for their node before the job does without."""
_PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds before another container is asked for, after the first refusal in a row, the second..."""


class NodeLedger:
    """Counts failures by node.

    Args:
        limit: failures of a node after which it is excluded (job.node_failures).
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._failures: dict[str, list[tuple[str, float, str]]] = {}
        """By node: container, when, why."""
        self._seen: set[str] = set()
        self._refused: set[str] = set()
        self._in_a_row = 0
        self.held = 0
        """Containers that are not asked for again yet."""
        self._ask_at: float | None = None
        self._met: dict[tuple[str, int], str] = {}
        """The node that an error at a step was first met on."""

    def seen(self, node: str) -> None:
        """The job has, or was offered, a container on this node."""
        self._seen.add(node)

    def failed(self, node: str, container: str, why: str, now: float) -> bool:
        """Count a worker's failure; whether it excludes the node, which was not excluded before."""
        was = self.excluded(node)
        failures = self._failures.setdefault(node, [])
        if any(one == container and now - when < _SAME_SECONDS for one, when, _ in failures):
            return False  # a process, and its container with it
        failures.append((container, now, why))
        self.seen(node)
        return self.excluded(node) and not was

    def taken_back(self, node: str, container: str, now: float) -> None:
        """The cluster has ended a container for its own reasons: do not count the failure that this
        has caused."""
        self._failures[node] = [
            one for one in self._failures.get(node, ())
            if one[0] != container or now - one[1] >= _SAME_SECONDS
        ]  # fmt: skip

    def excluded(self, node: str) -> bool:
        """Workers have failed there too often, and less often on another node of the job: where all
        nodes fail, the cause is not a node, and job.max_restarts or job.attempts decides."""
        return self._count(node) >= self._limit and any(
            self._count(other) < self._limit for other in self._seen
        )

    def all_excluded(self) -> dict[str, int]:
        """Failures of every excluded node."""
        return {node: self._count(node) for node in sorted(self._failures) if self.excluded(node)}

    def _count(self, node: str) -> int:
        return len(self._failures.get(node, ()))

    def why(self, node: str) -> str:
        """The last failure there."""
        failures = self._failures.get(node)
        return failures[-1][2] if failures else "nothing"

    # ------------------------------------------------------------------- containers given back
    def refuse(self, container: str, now: float) -> bool:
        """A container on an excluded node is given back; False if it was already."""
        if container in self._refused:
            return False
        self._refused.add(container)
        self._in_a_row += 1
        self.held += 1
        pause = _PAUSES[min(self._in_a_row, len(_PAUSES)) - 1]
        self._ask_at = now + pause
        return True

    @property
    def refused(self) -> set[str]:
        """Every container that was given back for its node."""
        return self._refused

    @property
    def enough(self) -> bool:
        """So many in a row were given back that the cluster seems to have no other node."""
        return self._in_a_row >= _REFUSALS

    def accepted(self) -> None:
        """A container on another node has come, or the user has asked for more."""
        self._in_a_row = 0

    def ask_again(self, now: float) -> bool:
        """The pause is over at this moment; True once."""
        if self._ask_at is None or now < self._ask_at:
            return False
        self._ask_at, self.held = None, 0
        return True

    # --------------------------------------------------------------------- the same elsewhere
    def met_elsewhere(self, loss: Loss) -> str | None:
        """The other node that has had the same error at the same step; None: none had.

        Before the first step all nodes are at the same one: two full disks are no proof there.
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
