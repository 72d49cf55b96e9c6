"""Whether an ask can ever be met: queue, largest node, the queue's limit; all by what YARN tells.

Pure: it takes what the ResourceManager's REST interface answers. An ask that cannot be met would
wait for ever without a word; here it is refused with what is asked and what there is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from howdah.config_yarn import YarnSection
from howdah.errors import ClusterError

__all__ = ["find_queue", "places_by_host", "problems"]

_GPU = "yarn.io/gpu"
_MIB = 2**20


@dataclass(frozen=True)
class Size:
    """Resources of a container or a node."""

    memory: int
    """MiB."""
    vcores: int
    gpus: int = 0

    def __str__(self) -> str:
        gpus = f", {self.gpus} GPUs" if self.gpus else ""
        return f"{self.memory:,} MiB, {self.vcores} vcores{gpus}"

    def within(self, room: Size) -> bool:
        return self.memory <= room.memory and self.vcores <= room.vcores and self.gpus <= room.gpus


def find_queue(queues: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """The queue of a name ("research") or a path ("root.research").

    Raises:
        ClusterError: there is none, it has queues below it, or it is stopped.
    """
    leaves = [q for q in queues if not _below(q)]
    known = ", ".join(sorted(_path(q) for q in leaves))
    found = [q for q in queues if name in (q.get("queueName"), q.get("queuePath"))]
    if not found:
        raise ClusterError(
            f"there is no queue {name}",
            where="yarn.queue",
            expected=known,
            got=name,
            remedy="give one of them",
        )
    queue = next((q for q in found if not _below(q)), None)
    if queue is None:
        raise ClusterError(
            f"queue {name} takes no applications: it has queues below it",
            where="yarn.queue",
            expected=", ".join(sorted(_path(q) for q in leaves if name in _path(q))) or known,
            got=name,
            remedy="give one of them",
        )
    state = queue.get("state") or "RUNNING"  # the fair scheduler's have none
    if state != "RUNNING":
        raise ClusterError(
            f"queue {name} takes no applications now",
            where="yarn.queue",
            expected="a queue that is RUNNING",
            got=state,
            remedy="give another queue, or ask the cluster's administrator to start it",
        )
    return queue


def problems(
    options: YarnSection,
    queue: Mapping[str, Any],
    nodes: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
) -> list[ClusterError]:
    """What can never be met of the ask, each with both numbers.

    Args:
        options: the ask.
        queue: of `find_queue`.
        nodes: NodeManagers that run.
        labels: the cluster's node labels.
    """
    label = _label(options, queue)
    found = _label_problems(options.node_label, queue, labels)
    if found:
        return found
    rooms = [_node(node) for node in nodes if label in _labels(node)]
    if not rooms:
        return [
            ClusterError(
                "no node is there that could run it",
                where="yarn.node_label" if label else "YARN's nodes",
                expected=f"a running NodeManager{f' with label {label}' if label else ''}",
                got=f"{len(nodes)} nodes, none of them fitting",
                remedy="look at `yarn node -list -all`",
            )
        ]
    worker = _worker(options)
    driver = Size(-(-options.driver.memory // _MIB), options.driver.vcores)
    found += _too_large("worker", worker, rooms, queue)
    found += _too_large("driver", driver, rooms, queue)
    if found:
        return found
    return [
        *_too_many(options, worker, driver, rooms),
        *_over_limit(options, worker, driver, rooms, queue),
    ]


def places_by_host(
    options: YarnSection, queue: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]
) -> dict[str, int]:
    """Hosts that a job may run on, and how many workers fit each were it empty.

    Args:
        options, queue, nodes: as for `problems`.
    """
    label, worker = _label(options, queue), _worker(options)
    found: dict[str, int] = {}
    for number, node in enumerate(nodes):
        if label in _labels(node):
            host = str(node.get("nodeHostName") or number)
            found[host] = found.get(host, 0) + _places(worker, _node(node))
    return found


def _label(options: YarnSection, queue: Mapping[str, Any]) -> str:
    return options.node_label or _text(queue.get("defaultNodeLabelExpression"))


def _worker(options: YarnSection) -> Size:
    asked = options.worker
    return Size(-(-asked.memory // _MIB), asked.vcores, asked.gpus)


def _label_problems(
    label: str | None, queue: Mapping[str, Any], labels: Sequence[str]
) -> list[ClusterError]:
    if label is None:
        return []
    if label not in labels:
        return [
            ClusterError(
                f"there is no node label {label}",
                where="yarn.node_label",
                expected=", ".join(labels) or "none: the cluster has no labels",
                got=label,
                remedy="give one of them, or leave it out",
            )
        ]
    allowed = queue.get("nodeLabels") or []
    if allowed and "*" not in allowed and label not in allowed:
        return [
            ClusterError(
                f"queue {queue.get('queueName')} may not use nodes of label {label}",
                where="yarn.node_label",
                expected=", ".join(allowed),
                got=label,
                remedy="give another queue or label",
            )
        ]
    return []


def _too_large(
    role: str, asked: Size, rooms: Sequence[Size], queue: Mapping[str, Any]
) -> list[ClusterError]:
    largest = max(rooms, key=lambda room: (asked.within(room), room.gpus, room.memory))
    if not asked.within(largest):
        return [
            ClusterError(
                f"a {role} is larger than any node",
                where=f"yarn.{role}",
                expected=f"at most {largest} (the largest node)",
                got=str(asked),
                remedy="ask for less",
            )
        ]
    limit = queue.get("maximumAllocation") or {}
    memory = int(limit.get("memory") or asked.memory)
    vcores = int(limit.get("vCores") or asked.vcores)
    if asked.memory > memory or asked.vcores > vcores:
        return [
            ClusterError(
                f"a {role} is larger than queue {queue.get('queueName')} gives in one container",
                where=f"yarn.{role}",
                expected=f"at most {memory:,} MiB, {vcores} vcores",
                got=str(asked),
                remedy="ask for less, or use another queue",
            )
        ]
    return []


def _too_many(
    options: YarnSection, worker: Size, driver: Size, rooms: Sequence[Size]
) -> list[ClusterError]:
    """All at once on an empty cluster: by memory and GPUs, which every scheduler counts."""
    places = sum(_places(worker, room) for room in rooms)
    # The driver takes its place where it costs the fewest workers.
    lost = min(
        _places(worker, room)
        - _places(worker, Size(room.memory - driver.memory, room.vcores, room.gpus))
        for room in rooms
        if driver.memory <= room.memory
    )
    if options.fewest <= places - lost:
        return []
    return [
        ClusterError(
            "the cluster has no room for so many workers, were it empty",
            where=_count_key(options),
            expected=f"at most {places - lost} beside the driver, each of {worker}, on"
            f" {len(rooms)} nodes",
            got=str(options.fewest),
            remedy="ask for fewer or smaller workers",
        )
    ]


def _places(worker: Size, room: Size) -> int:
    if room.memory < worker.memory:
        return 0
    by_gpu = room.gpus // worker.gpus if worker.gpus else room.memory
    return min(room.memory // worker.memory, by_gpu)


def _over_limit(
    options: YarnSection,
    worker: Size,
    driver: Size,
    rooms: Sequence[Size],
    queue: Mapping[str, Any],
) -> list[ClusterError]:
    """The most memory that the queue ever gives one user."""
    total = sum(room.memory for room in rooms)
    limit, why = _queue_limit(queue, total)
    needed = driver.memory + options.fewest * worker.memory
    found = []
    if limit is not None and needed > limit:
        found.append(
            ClusterError(
                f"queue {queue.get('queueName')} never gives one user so much",
                where=_count_key(options),
                expected=f"at most {limit:,} MiB in all ({why})",
                got=f"{needed:,} MiB: {options.fewest} workers of {worker.memory:,} MiB, and the"
                f" driver's {driver.memory:,} MiB",
                remedy="ask for fewer or smaller workers, or use another queue",
            )
        )
    masters = int((queue.get("AMResourceLimit") or {}).get("memory") or 0)
    if masters and driver.memory > masters:
        found.append(
            ClusterError(
                f"queue {queue.get('queueName')} never gives a driver so much",
                where="yarn.driver.memory",
                expected=f"at most {masters:,} MiB (the queue's share for application masters)",
                got=f"{driver.memory:,} MiB",
                remedy="ask for less, or use another queue",
            )
        )
    return found


def _queue_limit(queue: Mapping[str, Any], total: int) -> tuple[int | None, str]:
    """MiB, and which of the queue's settings says so."""
    fair = queue.get("maxResources") or {}
    if fair.get("memory"):
        return int(fair["memory"]), "its maximum resources"
    share = queue.get("absoluteMaxCapacity")
    if not isinstance(share, int | float):
        return None, ""
    limit = math.floor(total * float(share) / 100)
    why = f"{share:g}% of the cluster's {total:,} MiB"
    factor, own = queue.get("userLimitFactor"), queue.get("absoluteCapacity")
    if isinstance(factor, int | float) and isinstance(own, int | float) and factor > 0 and own > 0:
        user = math.floor(total * float(own) / 100 * float(factor))
        if user < limit:
            return user, f"user-limit-factor {factor:g} times {own:g}% of {total:,} MiB"
    return limit, why


# ------------------------------------------------------------------------------ YARN's answers
def _node(node: Mapping[str, Any]) -> Size:
    total = node.get("totalResource") or {}
    known = (total.get("resourceInformations") or {}).get("resourceInformation") or []
    gpus = sum(int(r.get("value") or 0) for r in known if r.get("name") == _GPU)
    memory = int(total.get("memory") or node.get("usedMemoryMB", 0) + node.get("availMemoryMB", 0))
    vcores = int(
        total.get("vCores")
        or node.get("usedVirtualCores", 0) + node.get("availableVirtualCores", 0)
    )
    return Size(memory, vcores, gpus)


def _labels(node: Mapping[str, Any]) -> Iterable[str]:
    """A node's labels; "" stands for the default partition."""
    held = node.get("nodeLabels") or []
    return [held] if isinstance(held, str) else list(held) or [""]


def _text(value: Any) -> str:
    return (
        value.strip() if isinstance(value, str) and value.strip() != "<DEFAULT_PARTITION>" else ""
    )


def _below(queue: Mapping[str, Any]) -> bool:
    inner = queue.get("queues") or queue.get("childQueues") or {}
    return bool(inner.get("queue") if isinstance(inner, Mapping) else inner)


def _path(queue: Mapping[str, Any]) -> str:
    return str(queue.get("queuePath") or queue.get("queueName"))


def _count_key(options: YarnSection) -> str:
    return "yarn.workers" if options.min_workers is None else "yarn.min_workers"
