"""Errors that end a job and that the driver raises rather than a training process."""

from __future__ import annotations

from typing import Any

from howdah.errors import ClusterError, HowdahError, WorkersLost


def no_gpu(node: str, member: str, facts: dict[str, Any]) -> ClusterError:
    """The error for a container without a GPU that no other worker of its node uses."""
    visible = facts.get("gpus") or []
    others = f", {len(visible)} of them used by other workers" if visible else ""
    how = facts.get("gpus_how")
    return ClusterError(
        "a worker requested GPUs and cannot use enough",
        where=f"node {node}, container {member}",
        expected="1 (job.worker.gpus)",
        got=f"{len(visible)} that can be opened{others}{f' ({how})' if how else ''}",
        remedy=f"on {node} check `nvidia-smi -L` and YARN's GPU isolation, or keep the node out"
        " with yarn.node_label; job.worker.gpus: 0 trains on CPUs",
    )


def excluded_node(node: str, member: str, failures: int, why: str, *, allowed: int) -> ClusterError:
    """The error for a container on a node that the job has excluded."""
    return ClusterError(
        "this node is excluded from the job, and its container was returned",
        where=f"node {node}, container {member}",
        expected=f"fewer than {allowed} failures of workers on it",
        got=f"{failures}; the last: {why}",
        remedy=f"repair {node}; the job requests another node by itself",
    )


def no_good_node(excluded: dict[str, int], last: str) -> ClusterError:
    """The error for a job that is only offered containers on excluded nodes."""
    nodes = ", ".join(f"{node} ({count} failures)" for node, count in excluded.items())
    return ClusterError(
        "the cluster only offers nodes on which the job's workers fail",
        where=nodes,
        got=f"the last failure: {last}",
        remedy="repair these nodes, keep them out with yarn.node_label, or request fewer workers;"
        " a resubmission resumes from the newest checkpoint",
    )


def on_two_nodes(error: HowdahError, step: int, other: str) -> HowdahError:
    """The error, with the other node in it, that came at the same step on two nodes and would come
    on any."""
    again = f"the same on node {other}, at the same step ({step})"
    error.where = "; ".join(filter(None, (error.where, again)))
    return error


def failed_before_register(count: int) -> ClusterError:
    """The error for containers that end in a row before their agents have registered."""
    return ClusterError(
        f"{count} containers in a row ended before their agents had registered",
        remedy="`howdah logs` shows what they printed; check that the environment is complete on"
        " the nodes, and that they can reach the driver",
    )


def too_many_losses(restarts: int, allowed: int, last: HowdahError | None) -> WorkersLost:
    """The error for a job that has used up its replacements."""
    return WorkersLost(
        "too many workers have failed",
        where=last.where if last else None,
        expected=f"at most {allowed} (job.max_restarts)",
        got=f"{restarts}; the last: {last.what if last else 'the ranks cannot reach each other'}",
        remedy="read the failed workers' logs (`howdah logs`); a resubmission resumes from the"
        " newest checkpoint",
    )


def no_gang(present: int, target: int, seconds: float, tries: int) -> ClusterError:
    """The error for a cluster that never provided all workers at the same time."""
    return ClusterError(
        "the cluster did not give the job its workers",
        got=f"{present} of {target} workers after {seconds:.0f} s, in {tries} requests",
        remedy="request less (job.workers, job.worker), wait longer (job.gang_seconds), or use"
        " another queue; `howdah ps` shows what others use",
    )
