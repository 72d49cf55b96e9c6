"""Checks whether YARN can ever grant a job's request: queue, largest node, the queue's limits.

These are pure functions of answers from the ResourceManager's REST interface. YARN would let a
request wait for ever that it cannot grant; here it is refused with the request and the limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from howdah.config.model import Config
from howdah.errors import ClusterError
from howdah.models.runs.hours import GPU
from howdah.yarn.spec import mib


@dataclass(frozen=True)
class Size:
    """Resources of a container or a node."""

    memory: int
    """Memory in MiB."""
    vcores: int
    gpus: int = 0

    def __str__(self) -> str:
        gpus = f", {self.gpus} GPUs" if self.gpus else ""
        return f"{self.memory:,} MiB, {self.vcores} vcores{gpus}"

    def within(self, node: Size) -> bool:
        return self.memory <= node.memory and self.vcores <= node.vcores and self.gpus <= node.gpus


def find_queue(queues: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """The queue with a name ("research") or a path ("root.research").

    Raises:
        ClusterError: the queue does not exist, is a parent queue, or is stopped.
    """
    leaves = [q for q in queues if not _is_parent(q)]
    names = ", ".join(sorted(_path(q) for q in leaves))
    matches = [q for q in queues if name in (q.get("queueName"), q.get("queuePath"))]
    if not matches:
        raise ClusterError(
            f"the cluster has no queue {name}", where="yarn.queue", expected=f"one of {names}"
        )
    queue = next((q for q in matches if not _is_parent(q)), None)
    if queue is None:
        below = ", ".join(sorted(_path(q) for q in leaves if name in _path(q))) or names
        raise ClusterError(
            f"queue {name} does not take applications, only the queues below it do",
            where="yarn.queue",
            expected=f"one of {below}",
        )
    state = queue.get("state") or "RUNNING"  # the fair scheduler's queues have no state
    if state != "RUNNING":
        raise ClusterError(
            f"queue {name} does not take applications: its state is {state}",
            where="yarn.queue",
            remedy="use another queue, or ask the cluster's administrator to start it",
        )
    return queue


def problems(
    config: Config,
    queue: Mapping[str, Any],
    nodes: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
) -> list[ClusterError]:
    """The reasons why the request can never be granted, each with the request and the limit.

    Args:
        config: the request.
        queue: the result of `find_queue`.
        nodes: the running NodeManagers.
        labels: the cluster's node labels.
    """
    label = _label(config, queue)
    if errors := list(_label_problems(config.yarn.node_label, queue, labels)):
        return errors
    sizes = [_node(node) for node in nodes if label in _labels(node)]
    if not sizes:
        no_node = ClusterError(
            "no node can run the job",
            where="yarn.node_label" if label else "YARN's nodes",
            expected=f"a running NodeManager{f' with label {label}' if label else ''}",
            got=f"{len(nodes)} nodes (`yarn node -list -all` shows them)",
        )
        return [no_node]
    worker = _worker(config)
    driver = Size(mib(config.yarn.driver.memory), 1)
    errors = [
        *_too_large("worker", worker, sizes, queue),
        *_too_large("driver", driver, sizes, queue),
    ]
    return errors or [
        *_too_many(config, worker, driver, sizes),
        *_over_limit(config, worker, driver, sizes, queue),
    ]


def slots_by_host(
    config: Config, queue: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]
) -> dict[str, int]:
    """{host that a job may run on: number of workers that fit if it is empty}.

    Args:
        config, queue, nodes: the arguments of `problems`.
    """
    label, worker = _label(config, queue), _worker(config)
    slots: dict[str, int] = {}
    for number, node in enumerate(nodes):
        if label in _labels(node):
            host = str(node.get("nodeHostName") or number)
            slots[host] = slots.get(host, 0) + _slots(worker, _node(node))
    return slots


def _label(config: Config, queue: Mapping[str, Any]) -> str:
    """The label of the nodes that the job runs on; "" for the default partition."""
    if config.yarn.node_label:
        return config.yarn.node_label
    label = str(queue.get("defaultNodeLabelExpression") or "").strip()
    return "" if label == "<DEFAULT_PARTITION>" else label


def _worker(config: Config) -> Size:
    worker = config.job.worker
    return Size(mib(worker.memory), worker.vcores, worker.gpus)


def _label_problems(
    label: str | None, queue: Mapping[str, Any], labels: Sequence[str]
) -> Iterator[ClusterError]:
    if label is None:
        return
    allowed = queue.get("nodeLabels") or []
    if label not in labels:
        yield ClusterError(
            "this node label does not exist",
            where="yarn.node_label",
            expected=f"one of {', '.join(labels)}" if labels else "no labels on this cluster",
            got=label,
        )
    elif allowed and "*" not in allowed and label not in allowed:
        yield ClusterError(
            f"queue {queue.get('queueName')} may not use nodes with this label",
            where="yarn.node_label",
            expected=f"one of {', '.join(allowed)}, or another queue",
            got=label,
        )


def _too_large(
    role: str, request: Size, nodes: Sequence[Size], queue: Mapping[str, Any]
) -> Iterator[ClusterError]:
    where = "yarn.driver" if role == "driver" else "job.worker"
    largest = max(nodes, key=lambda node: (request.within(node), node.gpus, node.memory))
    limit = queue.get("maximumAllocation") or {}
    memory = int(limit.get("memory") or request.memory)
    vcores = int(limit.get("vCores") or request.vcores)
    if not request.within(largest):
        yield ClusterError(
            f"a {role} is larger than any node",
            where=where,
            expected=f"at most {largest} (the largest node)",
            got=str(request),
        )
    elif request.memory > memory or request.vcores > vcores:
        yield ClusterError(
            f"a {role} is larger than queue {queue.get('queueName')} gives in one container",
            where=where,
            expected=f"at most {memory:,} MiB, {vcores} vcores",
            got=str(request),
        )


def _too_many(
    config: Config, worker: Size, driver: Size, nodes: Sequence[Size]
) -> Iterator[ClusterError]:
    """The error if even the empty cluster cannot hold all workers and the driver at once."""
    slots = sum(_slots(worker, node) for node in nodes)
    # The driver runs where it displaces the fewest workers.
    displaced = min(
        _slots(worker, node)
        - _slots(worker, Size(node.memory - driver.memory, node.vcores, node.gpus))
        for node in nodes
        if driver.memory <= node.memory
    )
    if config.job.fewest > slots - displaced:
        yield ClusterError(
            "the workers do not fit on the cluster even when it is empty",
            where=_count_key(config),
            expected=f"at most {slots - displaced} beside the driver, each of {worker}, on"
            f" {len(nodes)} nodes",
            got=str(config.job.fewest),
        )


def _slots(worker: Size, node: Size) -> int:
    """Number of workers that fit on an empty node by the memory and GPUs that schedulers count."""
    if node.memory < worker.memory:
        return 0
    by_gpu = node.gpus // worker.gpus if worker.gpus else node.memory
    return min(node.memory // worker.memory, by_gpu)


def _over_limit(
    config: Config, worker: Size, driver: Size, nodes: Sequence[Size], queue: Mapping[str, Any]
) -> Iterator[ClusterError]:
    """Errors if the job needs more memory than the queue ever gives one user."""
    limit, why = _queue_limit(queue, sum(node.memory for node in nodes))
    request = driver.memory + config.job.fewest * worker.memory
    if limit is not None and request > limit:
        yield ClusterError(
            f"queue {queue.get('queueName')} never gives one user this much memory",
            where=_count_key(config),
            expected=f"at most {limit:,} MiB in all ({why})",
            got=f"{request:,} MiB: {config.job.fewest} workers of {worker.memory:,} MiB, and"
            f" the driver's {driver.memory:,} MiB",
        )
    masters = int((queue.get("AMResourceLimit") or {}).get("memory") or 0)
    if masters and driver.memory > masters:
        yield ClusterError(
            f"queue {queue.get('queueName')} never gives a driver this much memory",
            where="yarn.driver.memory",
            expected=f"at most {masters:,} MiB (the queue's share for application masters)",
            got=f"{driver.memory:,} MiB",
        )


def _queue_limit(queue: Mapping[str, Any], total: int) -> tuple[int | None, str]:
    """The most MiB that a queue gives one user (None: no limit), and the reason for it."""
    fair = queue.get("maxResources") or {}
    if fair.get("memory"):
        return int(fair["memory"]), "its maximum resources"
    share = queue.get("absoluteMaxCapacity")
    if not isinstance(share, int | float):
        return None, ""
    limit = math.floor(total * float(share) / 100)
    why = f"{share:g}% of the cluster's {total:,} MiB"
    factor, part = queue.get("userLimitFactor"), queue.get("absoluteCapacity")
    numbers = isinstance(factor, int | float) and isinstance(part, int | float)
    if numbers and factor > 0 and part > 0:
        user = math.floor(total * float(part) / 100 * float(factor))
        if user < limit:
            return user, f"user-limit-factor {factor:g} times {part:g}% of {total:,} MiB"
    return limit, why


# ------------------------------------------------------------------------------ YARN's answers
def _node(node: Mapping[str, Any]) -> Size:
    total = node.get("totalResource") or {}
    resources = (total.get("resourceInformations") or {}).get("resourceInformation") or []
    gpus = sum(int(r.get("value") or 0) for r in resources if r.get("name") == GPU)
    memory = int(total.get("memory") or node.get("usedMemoryMB", 0) + node.get("availMemoryMB", 0))
    vcores = int(
        total.get("vCores")
        or node.get("usedVirtualCores", 0) + node.get("availableVirtualCores", 0)
    )
    return Size(memory, vcores, gpus)


def _labels(node: Mapping[str, Any]) -> Iterable[str]:
    """A node's labels; "" stands for the default partition."""
    labels = node.get("nodeLabels") or []
    return [labels] if isinstance(labels, str) else list(labels) or [""]


def _is_parent(queue: Mapping[str, Any]) -> bool:
    inner = queue.get("queues") or queue.get("childQueues") or {}
    return bool(inner.get("queue") if isinstance(inner, Mapping) else inner)


def _path(queue: Mapping[str, Any]) -> str:
    return str(queue.get("queuePath") or queue.get("queueName"))


def _count_key(config: Config) -> str:
    return "job.workers" if config.job.min_workers is None else "job.min_workers"
