"""Assignment of ranks: a pure function from the agents of a job to the ranks of its next world."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from howdah.config.launchers import LAUNCHERS
from howdah.process.env import JOIN_SECONDS, RENDEZVOUS


@dataclass(frozen=True)
class Candidate:
    """A training process that waits for a world."""

    member: str
    """Name of its agent, which is the container's name."""
    node: str
    """Host name; processes of one host are local to each other."""
    old_rank: int | None = None
    """Rank in the previous world, whose state it still holds; None: a new process."""


@dataclass(frozen=True)
class Slot:
    """A rank's position in a world, in Horovod's terms."""

    member: str
    node: str
    rank: int
    size: int
    local_rank: int
    """Number among the ranks of its node."""
    local_size: int
    cross_rank: int
    """Number of its node among the nodes that have a rank of this local rank."""
    cross_size: int
    keep: bool
    """True if it holds the state from which the world goes on."""

    def response(self) -> str:
        """The answer to Horovod's request for its rank and size."""
        names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
        return ",".join(str(getattr(self, name)) for name in names)


def assign(candidates: Sequence[Candidate], size: int | None = None) -> list[Slot]:
    """The ranks of the next world.

    Ranks of a node are neighbours, so that gradients can be added up on each node before they cross
    the network. Nodes come in the order of their survivors' old ranks, and on each node survivors
    come first: rank 0 is a survivor, if there is one, and holds the state for all.

    Args:
        candidates: processes that wait, in the order of arrival.
        size: number of ranks; None: all candidates. Survivors are taken first.
    Returns:
        One slot per rank, in the order of the ranks.
    """
    survivors = sorted(
        (one for one in candidates if one.old_rank is not None), key=lambda one: one.old_rank or 0
    )
    first_seen: dict[str, int] = {}
    for one in [*survivors, *candidates]:
        first_seen.setdefault(one.node, len(first_seen))
    new = sorted(
        (one for one in candidates if one.old_rank is None), key=lambda one: first_seen[one.node]
    )
    chosen = [*survivors, *new][:size]
    by_node: dict[str, list[Candidate]] = {}
    for one in chosen:
        by_node.setdefault(one.node, []).append(one)
    slots = []
    in_order = [one for members in by_node.values() for one in members]
    for rank, one in enumerate(in_order):
        peers = by_node[one.node]
        local_rank = peers.index(one)
        across = [node for node, members in by_node.items() if len(members) > local_rank]
        slots.append(
            Slot(
                member=one.member,
                node=one.node,
                rank=rank,
                size=len(chosen),
                local_rank=local_rank,
                local_size=len(peers),
                cross_rank=across.index(one.node),
                cross_size=len(across),
                keep=one.old_rank is not None,
            )
        )
    return slots


def variables(
    slot: Slot,
    *,
    relay_port: int,
    interface: str,
    gloo_timeout_seconds: float,
    elastic: bool,
    controller: str = "gloo",
) -> dict[str, str]:
    """A rank's environment variables, for Horovod and for torch.distributed.

    Args:
        relay_port: port of the rendezvous' relay on the rank's loopback interface.
        interface: network interface for the connections between ranks.
        gloo_timeout_seconds: how long a rank waits for the others while the world forms.
        elastic: other worlds may follow in the same process.
        controller: gloo or mpi; mpirun gives ranks the same numbers.
    """
    names = LAUNCHERS["horovodrun"].variables
    env = {
        names.rank: slot.rank,
        names.size: slot.size,
        names.local_rank: slot.local_rank,
        names.local_size: slot.local_size,
        "HOROVOD_CROSS_RANK": slot.cross_rank,
        "HOROVOD_CROSS_SIZE": slot.cross_size,
        # The ranks of a node share this name, which Horovod puts into the rendezvous' paths.
        "HOROVOD_HOSTNAME": re.sub(r"[^A-Za-z0-9._-]", "-", slot.node),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": relay_port,
        "HOROVOD_GLOO_TIMEOUT_SECONDS": max(1, round(gloo_timeout_seconds)),
        "HOROVOD_GLOO_IFACE": interface,
        "HOROVOD_CONTROLLER": controller,
        "HOROVOD_CPU_OPERATIONS": controller,
        "NCCL_SOCKET_IFNAME": interface,
        "GLOO_SOCKET_IFNAME": interface,
        RENDEZVOUS: f"127.0.0.1:{relay_port}",
        JOIN_SECONDS: gloo_timeout_seconds,
        "HOROVOD_ELASTIC": int(elastic),
    }
    return {name: str(value) for name, value in env.items()}
