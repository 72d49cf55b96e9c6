"""Errors that end a job and that no training process has raised."""

from __future__ import annotations

from typing import Any

from howdah.errors import ClusterError, HowdahError, WorkersLost


def old_glibc(node: str, member: str, facts: dict[str, Any]) -> ClusterError | None:
    """The node's C library is older than the shipped environment needs; None: it is not."""
    needed, has = facts.get("glibc_needed"), facts.get("glibc")
    if not needed or not has or _version(has) >= _version(needed):
        return None
    return ClusterError(
        "a node's C library is too old for the shipped Python environment",
        where=f"{node} ({member})",
        expected=f"glibc {needed} or newer",
        got=f"glibc {has}",
        remedy="build the environment on a system as old as the oldest node (`howdah package`), or"
        " keep such nodes out with yarn.node_label",
    )


def no_gpus(
    node: str, member: str, facts: dict[str, Any], asked: int, free: list[str]
) -> ClusterError:
    """A container on GPUs has none that it may use.

    Args:
        asked: GPUs of a worker.
        free: of those that the container can open, the ones that no other worker of the node has.
    """
    there = facts.get("gpus") or []
    taken = f", of which {len(there) - len(free)} are other workers'" if there else ""
    how = facts.get("gpus_how")
    return ClusterError(
        "a worker has asked for a GPU and finds none that it may use",
        where=f"node {node}, container {member}",
        expected=f"{asked} (job.worker.gpus)",
        got=f"{len(there)} that can be opened{taken}{f' ({how})' if how else ''}",
        remedy=f"on {node} check `nvidia-smi -L` and YARN's GPU isolation, or keep the node out"
        " with yarn.node_label; job.worker.gpus: 0 trains on CPUs",
    )


def excluded_node(node: str, member: str, failures: int, why: str) -> ClusterError:
    """A container is on a node that the job has excluded."""
    return ClusterError(
        "this node is excluded from the job, and its container given back",
        where=f"node {node}, container {member}",
        expected="fewer failures of workers on it than job.node_failures",
        got=f"{failures}; the last: {why}",
        remedy=f"repair {node}; the job asks for another node by itself",
    )


def no_good_node(excluded: dict[str, int], last: str) -> ClusterError:
    """The cluster gives containers on excluded nodes only."""
    nodes = ", ".join(f"{node} ({count} failures)" for node, count in excluded.items())
    return ClusterError(
        "the cluster has no other node for the job than those on which its workers fail",
        where=nodes,
        expected="containers on other nodes",
        got=f"the last failure: {last}",
        remedy="repair these nodes or take them out of the cluster, keep them out with"
        " yarn.node_label, or ask for less; submitted again, the run goes on from its newest"
        " checkpoint",
    )


def on_two_nodes(error: HowdahError, step: int, other: str) -> HowdahError:
    """An error that came at the same step on two nodes, and would come on any: the error itself,
    with the other node in it."""
    again = f"the same on node {other}, at the same step ({step})"
    error.where = "; ".join(filter(None, (error.where, again)))
    return error


def failed_before_register(count: int) -> ClusterError:
    """Containers end, one after the other, before their agent has registered."""
    return ClusterError(
        "workers' containers end before their agents have registered",
        got=f"{count} of them in a row",
        remedy="`howdah logs` shows what they printed; is the environment whole on the nodes, and"
        " can they reach the driver?",
    )


def too_many_losses(restarts: int, allowed: int, last: HowdahError | None) -> WorkersLost:
    """An elastic job has used up its replacements."""
    return WorkersLost(
        "too many workers have failed",
        where=last.where if last else None,
        expected=f"at most {allowed} (job.max_restarts)",
        got=f"{restarts}; the last: {last.what if last else 'the ranks do not reach each other'}",
        remedy="look at the failed workers' logs (`howdah logs`); submitted again, the run goes on"
        " from its newest checkpoint",
    )


def no_gang(there: int, wanted: int, seconds: float, tries: int) -> ClusterError:
    """The cluster never had all workers at the same time."""
    return ClusterError(
        "the cluster did not give the job its workers",
        expected=f"{wanted} at the same time, {tries} times asked",
        got=f"{there} of {wanted} workers after {seconds:.0f} s",
        remedy="ask for less (job.workers, job.worker), wait longer (job.gang_seconds), or use"
        " another queue; `howdah ps` shows who has what",
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
