"""Comm by torch.distributed: gloo for CPU arrays, NCCL for gradients on GPUs.

It needs only torch. The messages are those of Horovod's Comm, so a sum over two ranks has the same
bits; with three or more ranks the order of addition may differ.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from howdah.core.processes import limit
from howdah.errors import ClusterError
from howdah.process.env import JOIN_SECONDS, RENDEZVOUS, STORE, rank_env
from howdah.training.comm.base import Comm, Pending, RankLost, Waits, lost
from howdah.training.comm.connections import Connections
from howdah.training.comm.store_torch import RelayStore

_LONGEST_SECONDS = 366 * 24 * 3600.0
"""Timeout if there is no limit: torch needs one, and its default would end a rank that rightly
waits."""
_AFTER_OURS_SECONDS = 300.0
"""Extra time on GPUs: torch's watchdog, where a user has it switched on, aborts a process without a
save, so the limit of training/run/collective_limit.py, which saves, has to come first."""

_PIECE_BYTES = 2**18
"""gloo's receiver tells the sender when it may send, behind what it sends itself: with megabytes at
a time the two directions of a link take turns. 4 MiB at 200 Mbit/s: 313 ms, in pieces 175 (the link
takes 168). Its all-reduce cuts its messages by itself."""


class TorchComm(Comm):
    """A world of torch processes; the constructor joins it.

    Ranks find each other through their job's rendezvous (HOWDAH_RENDEZVOUS), through the file that
    HOWDAH_STORE names (then all are on one machine, and connect over the loopback interface), or by
    MASTER_ADDR and MASTER_PORT.

    Args:
        limit: seconds after which a collective fails; None: no limit.
    Raises:
        ClusterError: none of these variables is set.
        RankLost: a rank was lost while the world formed.
    """

    def __init__(
        self,
        waits: Waits | None = None,
        connections: Connections | None = None,
        limit: float | None = None,
    ) -> None:
        super().__init__(waits)
        self._connections = connections or Connections()
        self._failed = False
        here = rank_env()
        self.rank, self.size = here.rank, here.size
        self.local_rank, self.local_size = here.rank, here.size  # until the hosts are known
        self._levels: tuple[_Exchange | None, _Exchange] | None = None
        on_gpu = torch.cuda.is_available()
        seconds = _LONGEST_SECONDS if limit is None else limit + _AFTER_OURS_SECONDS * on_gpu
        self._timeout = timedelta(seconds=seconds)
        # torch holds the C++ half of a store of ours alone: without the other one no further group.
        self._meeting_point = _meeting_point(here.size)
        # A rank of a job may wait for one that never joins; the driver then forms another world.
        join_seconds = os.environ.get(JOIN_SECONDS)
        joining = timedelta(seconds=float(join_seconds)) if join_seconds else self._timeout
        # NCCL's watchdog would end this process when a peer is lost, while it saves its last step.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        try:
            with self._connections, self._typed():
                dist.init_process_group(
                    **_carriers(torch.cuda.current_device() if on_gpu else None),
                    rank=here.rank,
                    world_size=here.size,
                    timeout=joining,
                    **self._meeting_point,
                )
                if joining != self._timeout:
                    dist.distributed_c10d._set_pg_timeout(self._timeout)
                # Every rank enters: the first collective opens the connections. Hosts are compared
                # here, since some launchers (TorchDistributor) count each process as a node.
                hosts = self.gather_json(socket.gethostname())
                mine = hosts[self.rank]
                self.local_rank, self.local_size = hosts[: self.rank].count(mine), hosts.count(mine)
                self._hosts = hosts
                self._all = _Exchange(here.rank, here.size, whole=self.within_node)
        except RankLost:
            # The process may form another world. torch names a world by a counter, which must be
            # equal on all ranks, and only resets it when a world that has formed ends.
            self.shutdown()
            dist.distributed_c10d._world.group_count = 0
            raise
        self.backend = f"torch.distributed ({'gloo, nccl' if on_gpu else 'gloo'})"

    def sum(self, values: np.ndarray) -> np.ndarray:
        tensor = torch.from_numpy(np.array(values, np.float64))
        with self.watch():
            dist.all_reduce(tensor)
        return tensor.numpy()

    def gather(self, array: np.ndarray) -> np.ndarray:
        row_bytes = int(np.prod(array.shape[1:], dtype=np.int64)) * array.itemsize
        rows = self._counts(len(array))
        parts = self._gather_flat(_bytes(array), [n * row_bytes for n in rows])
        flat = np.concatenate([part.numpy().view(array.dtype) for part in parts])
        return flat.reshape(sum(rows), *array.shape[1:])

    def reduce_gradients(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with self.watch():
            sums = [self.begin_sum(*one) for one in enumerate(gradients)]
            for one in sums:
                one.wait()
            for gradient in gradients[:1]:
                self.synchronise(gradient)
        return list(gradients)

    def begin_sum(self, number: int, message: torch.Tensor) -> Pending:
        return _Begun([dist.all_reduce(message, async_op=True)], [message])

    def begin_exchange(self, number: int, parts_NB: torch.Tensor) -> Pending:
        return self._all.begin_exchange(number, parts_NB)

    def begin_gather(self, number: int, part_B: torch.Tensor) -> Pending:
        return self._all.begin_gather(number, part_B)

    def levels(self) -> tuple[_Exchange | None, _Exchange]:
        if self._levels is None:
            with self.watch(), self._connections:
                self._levels = self._formed()
        return self._levels

    def has_levels(self) -> bool:
        each, hosts = self.local_size, self._hosts
        alike = all(hosts.count(host) == each for host in hosts) and all(
            hosts[start : start + each] == [hosts[start]] * each
            for start in range(0, self.size, each)
        )
        return limit("levels", 1 < each < self.size and alike)

    def _formed(self) -> tuple[_Exchange | None, _Exchange]:
        each = self.local_size
        nodes = [list(range(start, start + each)) for start in range(0, self.size, each)]
        if not self.has_levels():
            everyone = [list(range(self.size))]
            gathering, whole = self._group(everyone), self.within_node
            return None, _Exchange(self.rank, self.size, None, gathering, whole=whole)
        node, places = self._group(nodes), [list(range(n, self.size, each)) for n in range(each)]
        across = [self._group(places) for _ in ("exchanges", "gathers")]
        return (
            _Exchange(self.local_rank, each, node, node, whole=True),
            _Exchange(self.rank // each, len(nodes), *across),
        )

    def _group(self, groups: list[list[int]]) -> dist.ProcessGroup:
        """torch's group of those ranks that this one is listed with. Every rank enters."""
        return dist.new_subgroups_by_enumeration(groups, timeout=self._timeout)[0]

    def synchronise(self, message: torch.Tensor) -> None:
        if message.is_cuda:  # NCCL's `wait` returns at once
            torch.cuda.current_stream().synchronize()

    def reduce_rows(
        self, ids_U: torch.Tensor, values_UD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, width = self._counts(len(ids_U)), values_UD.shape[1]
        ids = self._gather_flat(ids_U.contiguous(), rows)
        values = self._gather_flat(values_UD.contiguous().view(-1), [n * width for n in rows])
        return torch.cat(ids), torch.cat(values).view(-1, width)

    def reduce_to(self, messages: Sequence[torch.Tensor], owners: Sequence[int]) -> None:
        self._each(messages, owners, partial(dist.reduce, async_op=True))

    def broadcast_from(self, messages: Sequence[torch.Tensor], owners: Sequence[int]) -> None:
        self._each(messages, owners, partial(dist.broadcast, async_op=True))

    def _each(
        self,
        messages: Sequence[torch.Tensor],
        owners: Sequence[int],
        begin: Callable[[torch.Tensor, int], dist.Work],
    ) -> None:
        with self.watch():
            works = [begin(*one) for one in zip(messages, owners, strict=True)]
            for work in works:
                work.wait()
            for message in messages[:1]:
                self.synchronise(message)

    def fetch(self, message: torch.Tensor, owner: int) -> None:
        if owner == 0:
            return
        with self.watch():
            if self.rank == owner:
                dist.send(message, dst=0)
            elif self.rank == 0:
                dist.recv(message, src=owner)

    def mesh(self, device: str) -> DeviceMesh:
        return init_device_mesh(device, (self.size,))

    @contextmanager
    def guarded(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            # gloo's errors do not have a class; their text names a line of gloo's source.
            if not (isinstance(error, dist.DistBackendError) or "gloo/" in str(error)):
                raise
            self._failed = True
            raise lost(f"rank {self.rank} of {self.size}", str(error)) from error

    def _broadcast(self, array: np.ndarray, root: int) -> np.ndarray:
        data = _bytes(array)
        if data.numel():
            with self.watch():
                dist.broadcast(data, src=root)
        return data.numpy().view(array.dtype).reshape(array.shape)

    def shutdown(self) -> None:
        if not dist.is_initialized():
            return
        if not self._failed:
            with contextlib.suppress(RankLost):
                self.barrier()  # destroy_process_group does not wait for other ranks
        dist.destroy_process_group()

    def give_up(self) -> None:
        self._connections.shut()

    @contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except (torch.AcceleratorError, torch.OutOfMemoryError):  # of this device, not a peer's
            self._failed = True
            raise
        except RuntimeError as error:  # gloo's errors do not have a class
            self._failed = True
            raise lost(f"rank {self.rank} of {self.size}", str(error)) from error

    # ----------------------------------------------------------------------- of several lengths
    def _counts(self, mine: int) -> list[int]:
        """The numbers of all ranks, in the order of the ranks. Every rank enters."""
        counts = np.zeros(self.size)
        counts[self.rank] = mine
        return self.sum(counts).astype(np.int64).tolist()

    def _gather_flat(self, mine: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        """The flat tensors of all ranks, which have `sizes` elements. Every rank enters.

        gloo only gathers equal lengths, so all are padded to the longest.
        """
        longest = max(sizes)
        if longest == 0:
            return [mine[:0] for _ in sizes]
        sent = mine.new_zeros(longest)
        sent[: mine.numel()] = mine
        parts = [mine.new_empty(longest) for _ in sizes]
        with self.watch():
            for work in _gather_pieces(parts, sent, _piece(sent, self.within_node)):
                work.wait()
            self.synchronise(mine)
        return [part[:size] for part, size in zip(parts, sizes, strict=True)]


class _Exchange:
    """The ranks of a group of torch, None for all; `rank` is this one's place in it.

    Args:
        group: carries the exchanges.
        gathering: the same ranks; carries the gathers. A group's collectives have one order.
        whole: they are on one node, where pieces only cost: 16 MiB take 12 ms whole, 26 in pieces.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        group: dist.ProcessGroup | None = None,
        gathering: dist.ProcessGroup | None = None,
        *,
        whole: bool = False,
    ) -> None:
        self.rank, self.size, self._whole = rank, size, whole
        self._group, self._gathering = group, gathering

    def begin_exchange(self, number: int, parts_NB: torch.Tensor) -> Pending:
        piece = _piece(parts_NB, self._whole)
        sent = [one.contiguous() for one in parts_NB.split(piece, 1)]
        received = [torch.empty_like(piece) for piece in sent]
        works = [
            dist.all_to_all_single(*one, group=self._group, async_op=True)
            for one in zip(received, sent, strict=True)
        ]
        return _Begun(works, received, sent)

    def begin_gather(self, number: int, part_B: torch.Tensor) -> Pending:
        parts = part_B.new_empty(self.size, part_B.numel())
        piece = _piece(part_B, self._whole)
        works = _gather_pieces(parts.unbind(), part_B, piece, self._gathering)
        return _Begun(works, [parts], [part_B])


class _Begun:
    """A collective of torch that has begun, in one or several pieces; it keeps what is sent alive.

    Args:
        results: joined along the last dimension, they are the result.
    """

    def __init__(
        self, works: list[dist.Work], results: list[torch.Tensor], sent: Sequence[torch.Tensor] = ()
    ) -> None:
        self._works, self._results, self._sent = works, results, sent

    def wait(self) -> torch.Tensor:
        for work in self._works:
            work.wait()
        return self._results[0] if len(self._results) == 1 else torch.cat(self._results, -1)

    def ended(self) -> bool:
        return all(work.is_completed() for work in self._works)


def _gather_pieces(
    parts: Sequence[torch.Tensor],
    mine: torch.Tensor,
    piece: int,
    group: dist.ProcessGroup | None = None,
) -> list[dist.Work]:
    """Begin an all-gather of flat tensors of one length into `parts`, in pieces of `piece`
    elements."""
    rows = zip(*(one.split(piece) for one in (*parts, mine)), strict=True)
    return [dist.all_gather(list(row), sent, group=group, async_op=True) for *row, sent in rows]


def _piece(sent: torch.Tensor, whole: bool) -> int:
    """Elements for a rank that are sent as one collective."""
    return sent.shape[-1] if whole or sent.is_cuda else _PIECE_BYTES // sent.element_size()


def _bytes(array: np.ndarray) -> torch.Tensor:
    """A copy of an array's bytes, so that every dtype can be sent."""
    return torch.from_numpy(np.array(array, order="C").reshape(-1).view(np.uint8))


def _carriers(gpu: int | None) -> dict:
    """Arguments of init_process_group that choose the libraries.

    With a device NCCL connects here, where its connections are collected and joining has its
    limit, and not in the first backward pass.

    Args:
        gpu: this rank's device; None: it has none.
    """
    if gpu is None:
        return {"backend": "gloo"}
    return {"backend": "cpu:gloo,cuda:nccl", "device_id": torch.device("cuda", gpu)}


def _meeting_point(size: int) -> dict:
    """Arguments of init_process_group through which the ranks find each other.

    Raises:
        ClusterError: the environment does not name a meeting point.
    """
    relay = os.environ.get(RENDEZVOUS)
    if relay is not None:
        return {"store": RelayStore(relay)}
    path = os.environ.get(STORE)
    if path is not None:
        # All ranks are on this machine, so ports are only opened on its loopback interface.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        return {"store": dist.FileStore(path, size)}
    if "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ:
        return {"init_method": "env://"}
    raise ClusterError(
        "the environment does not say where the ranks of torch.distributed find each other",
        expected="MASTER_ADDR and MASTER_PORT in the environment"
        f" (or, for ranks of one machine, {STORE}: a file)",
        remedy="start the ranks with `howdah train` or torchrun, which set them; or pass both to"
        " your launcher (mpirun: -x MASTER_ADDR=<host of rank 0> -x MASTER_PORT=<a free port>)",
    )
