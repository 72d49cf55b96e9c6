"""Whether YARN can ever grant a job's request: queue, largest node, the queue's limits.

Pure: it takes answers of the ResourceManager's REST interface. YARN would let a request that cannot
be granted wait for ever; here it is refused with what is asked for and what there is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from howdah.config.model import Config
from howdah.errors import ClusterError
from howdah.models.runs.hours import GPU

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

    def within(self, node: Size) -> bool:
        return self.memory <= node.memory and self.vcores <= node.vcores and self.gpus <= node.gpus


def find_queue(queues: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """The queue of a name ("research") or a path ("root.research").

    Raises:
        ClusterError: there is none, it is a parent queue, or it is stopped.
    """
    leaves = [q for q in queues if not _is_parent(q)]
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
    queue = next((q for q in found if not _is_parent(q)), None)
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
    config: Config,
    queue: Mapping[str, Any],
    nodes: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
) -> list[ClusterError]:
    """Why the request can never be granted, each with the number asked for and the limit.

    Args:
        config: the request.
        queue: of `find_queue`.
        nodes: the running NodeManagers.
        labels: the cluster's node labels.
    """
    label = _label(config, queue)
    found = _label_problems(config.yarn.node_label, queue, labels)
    if found:
        return found
    sizes = [_node(node) for node in nodes if label in _labels(node)]
    if not sizes:
        return [
            ClusterError(
                "there is no node that could run it",
                where="yarn.node_label" if label else "YARN's nodes",
                expected=f"a running NodeManager{f' with label {label}' if label else ''}",
                got=f"{len(nodes)} nodes, none of them fitting",
                remedy="look at `yarn node -list -all`",
            )
        ]
    worker = _worker(config)
    driver = Size(-(-config.yarn.driver.memory // _MIB), config.yarn.driver.vcores)
    found += _too_large("worker", worker, sizes, queue)
    found += _too_large("driver", driver, sizes, queue)
    if found:
        return found
    return [
        *_too_many(config, worker, driver, sizes),
        *_over_limit(config, worker, driver, sizes, queue),
    ]


def slots_by_host(
    config: Config, queue: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]
) -> dict[str, int]:
    """{host that a job may run on: how many workers it could hold, were it empty}.

    Args:
        config, queue, nodes: as for `problems`.
    """
    label, worker = _label(config, queue), _worker(config)
    found: dict[str, int] = {}
    for number, node in enumerate(nodes):
        if label in _labels(node):
            host = str(node.get("nodeHostName") or number)
            found[host] = found.get(host, 0) + _slots(worker, _node(node))
    return found


def _label(config: Config, queue: Mapping[str, Any]) -> str:
    return config.yarn.node_label or _text(queue.get("defaultNodeLabelExpression"))


def _worker(config: Config) -> Size:
    asked = config.job.worker
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
    role: str, asked: Size, nodes: Sequence[Size], queue: Mapping[str, Any]
) -> list[ClusterError]:
    largest = max(nodes, key=lambda node: (asked.within(node), node.gpus, node.memory))
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
    config: Config, worker: Size, driver: Size, nodes: Sequence[Size]
) -> list[ClusterError]:
    """The empty cluster cannot hold all workers and the driver at once."""
    slots = sum(_slots(worker, node) for node in nodes)
    # The driver runs where it displaces the fewest workers.
    displaced = min(
        _slots(worker, node)
        - _slots(worker, Size(node.memory - driver.memory, node.vcores, node.gpus))
        for node in nodes
        if driver.memory <= node.memory
    )
    if config.job.fewest <= slots - displaced:
        return []
    return [
        ClusterError(
            "the cluster has no room for so many workers, were it empty",
            where=_count_key(config),
            expected=f"at most {slots - displaced} beside the driver, each of {worker}, on"
            f" {len(nodes)} nodes",
            got=str(config.job.fewest),
            remedy="ask for fewer or smaller workers",
        )
    ]


def _slots(worker: Size, node: Size) -> int:
    """How many workers an empty node can hold, by memory and GPUs: all schedulers count those."""
    if node.memory < worker.memory:
        return 0
    by_gpu = node.gpus // worker.gpus if worker.gpus else node.memory
    return min(node.memory // worker.memory, by_gpu)


def _over_limit(
    config: Config,
    worker: Size,
    driver: Size,
    nodes: Sequence[Size],
    queue: Mapping[str, Any],
) -> list[ClusterError]:
    """The job needs more memory than the queue ever gives one user."""
    total = sum(node.memory for node in nodes)
    limit, why = _queue_limit(queue, total)
    needed = driver.memory + config.job.fewest * worker.memory
    found = []
    if limit is not None and needed > limit:
        found.append(
            ClusterError(
                f"queue {queue.get('queueName')} never gives one user so much",
                where=_count_key(config),
                expected=f"at most {limit:,} MiB in all ({why})",
                got=f"{needed:,} MiB: {config.job.fewest} workers of {worker.memory:,} MiB, and the"
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
    """The most MiB that a queue gives one user (None: no limit), and the setting behind it."""
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
    gpus = sum(int(r.get("value") or 0) for r in known if r.get("name") == GPU)
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


def _is_parent(queue: Mapping[str, Any]) -> bool:
    inner = queue.get("queues") or queue.get("childQueues") or {}
    return bool(inner.get("queue") if isinstance(inner, Mapping) else inner)


def _path(queue: Mapping[str, Any]) -> str:
    return str(queue.get("queuePath") or queue.get("queueName"))


def _count_key(config: Config) -> str:
    return "job.workers" if config.job.min_workers is None else "job.min_workers"
