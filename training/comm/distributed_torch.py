"""Comm by torch.distributed: gloo for arrays of the CPU, NCCL for gradients on GPUs.

It needs torch alone. The messages are those of Horovod's Comm, so that the bits of a sum of two
ranks are, too; from three on the order of adding decides.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from howdah.errors import ClusterError
from howdah.process.env import JOIN_SECONDS, RENDEZVOUS, STORE, rank_env
from howdah.training.comm.base import Comm, RankLost, Waits, lost
from howdah.training.comm.connections import Connections
from howdah.training.comm.store_torch import RelayStore

_LONGEST_SECONDS = 366 * 24 * 3600.0
"""For no limit: torch has none, and its default would end a rank that rightly waits."""
_AFTER_OURS_SECONDS = 300.0
"""On GPUs torch's watchdog aborts a process without a save: training/run/collective_limit.py, which
saves, goes before."""


class TorchComm(Comm):
    """A world of torch processes; the constructor joins it.

    Ranks find each other through their job's rendezvous (HOWDAH_RENDEZVOUS), through the file that
    HOWDAH_STORE names (all are on one machine then, and connect over the loopback interface), else
    by MASTER_ADDR and MASTER_PORT.

    Args:
        waits: counts the time in collectives.
        connections: collects those to the other ranks.
        limit: seconds after which a collective fails; None: no limit.
    Raises:
        ClusterError: nothing says where the ranks meet.
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
        on_gpu = torch.cuda.is_available()
        seconds = _LONGEST_SECONDS if limit is None else limit + _AFTER_OURS_SECONDS * on_gpu
        self._timeout = timedelta(seconds=seconds)
        carriers = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        meeting_point = _meeting_point(here.size)
        # A rank of a job may wait for one that never joins: the driver forms another world then.
        join_seconds = os.environ.get(JOIN_SECONDS)
        joining = timedelta(seconds=float(join_seconds)) if join_seconds else self._timeout
        try:
            with self._connections, self._typed():
                dist.init_process_group(
                    carriers,
                    rank=here.rank,
                    world_size=here.size,
                    timeout=joining,
                    **meeting_point,
                )
                if joining != self._timeout:
                    dist.distributed_c10d._set_pg_timeout(self._timeout)
                # Every rank enters: the first collective makes the connections.
                self.local_rank, self.local_size = self._on_this_node()
        except RankLost:
            # The process may form another world. torch names a world by a counter, which ranks must
            # have alike; only a world that has formed sets it back as it ends.
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
            works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
            for work in works:
                work.wait()
            if any(gradient.is_cuda for gradient in gradients):
                # NCCL's `wait` returns at once: a lost rank would hold up whatever comes next,
                # where no limit of collectives counts.
                torch.cuda.current_stream().synchronize()
        return list(gradients)

    def reduce_rows(
        self, ids_U: torch.Tensor, values_UD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, width = self._counts(len(ids_U)), values_UD.shape[1]
        ids = self._gather_flat(ids_U.contiguous(), rows)
        values = self._gather_flat(values_UD.contiguous().view(-1), [n * width for n in rows])
        return torch.cat(ids), torch.cat(values).view(-1, width)

    def reduce_to(self, messages: Sequence[torch.Tensor], owners: Sequence[int]) -> None:
        def begin(message: torch.Tensor, owner: int) -> dist.Work:
            return dist.reduce(message, dst=owner, async_op=True)

        self._each(messages, owners, begin)

    def broadcast_from(self, messages: Sequence[torch.Tensor], owners: Sequence[int]) -> None:
        def begin(message: torch.Tensor, owner: int) -> dist.Work:
            return dist.broadcast(message, src=owner, async_op=True)

        self._each(messages, owners, begin)

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
            if any(message.is_cuda for message in messages):
                torch.cuda.current_stream().synchronize()  # as in reduce_gradients

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
            # gloo's errors have no class of their own; they name the line of gloo's source.
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
                self.barrier()  # torch's own end waits for no rank
        dist.destroy_process_group()

    def give_up(self) -> None:
        self._connections.shut()

    @contextmanager
    def _typed(self) -> Iterator[None]:
        """Turn torch's error of a failed collective into RankLost."""
        try:
            yield
        except RuntimeError as error:  # gloo's errors have no class of their own
            self._failed = True
            raise lost(f"rank {self.rank} of {self.size}", str(error)) from error

    # ----------------------------------------------------------------------- of several lengths
    def _counts(self, mine: int) -> list[int]:
        """A number of each rank, in the order of the ranks. Every rank enters."""
        counts = np.zeros(self.size)
        counts[self.rank] = mine
        return self.sum(counts).astype(np.int64).tolist()

    def _gather_flat(self, mine: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        """The flat tensors of all ranks, which have `sizes` elements. Every rank enters.

        gloo gathers equal lengths only: all are sent as long as the longest.
        """
        longest = max(sizes)
        if longest == 0:
            return [mine[:0] for _ in sizes]
        sent = mine.new_zeros(longest)
        sent[: mine.numel()] = mine
        parts = [mine.new_empty(longest) for _ in sizes]
        with self.watch():
            dist.all_gather(parts, sent)
            if mine.is_cuda:
                torch.cuda.current_stream().synchronize()  # as in reduce_gradients
        return [part[:size] for part, size in zip(parts, sizes, strict=True)]

    def _on_this_node(self) -> tuple[int, int]:
        """(rank, size) among the ranks of this machine. Every rank enters.

        Asked of the ranks: some launchers (TorchDistributor) count each process as a node.
        """
        names = self.gather_json(socket.gethostname())
        mine = names[self.rank]
        return names[: self.rank].count(mine), names.count(mine)


def _bytes(array: np.ndarray) -> torch.Tensor:
    """A copy of its bytes: every dtype can be sent."""
    return torch.from_numpy(np.array(array, order="C").reshape(-1).view(np.uint8))


def _meeting_point(size: int) -> dict:
    """What tells init_process_group where the ranks find each other.

    Raises:
        ClusterError: nothing does.
    """
    relay = os.environ.get(RENDEZVOUS)
    if relay is not None:
        return {"store": RelayStore(relay)}
    path = os.environ.get(STORE)
    if path is not None:
        # All ranks are on this machine: no port but on its loopback interface.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        return {"store": dist.FileStore(path, size)}
    if "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ:
        return {"init_method": "env://"}
    raise ClusterError(
        "nothing says where the ranks of torch.distributed find each other",
        expected="MASTER_ADDR and MASTER_PORT in the environment"
        f" (or, for ranks of one machine, {STORE}: a file)",
        remedy="start the ranks with `howdah train` or torchrun, which set them; or give both to"
        " your launcher (mpirun: -x MASTER_ADDR=<host of rank 0> -x MASTER_PORT=<a free port>)",
    )
