"""Comm by Horovod for torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from howdah.errors import ConfigError
from howdah.training.comm.base import Pending
from howdah.training.comm.horovod import HorovodComm


class HorovodTorchComm(HorovodComm):
    """A world of torch processes."""

    hvd = hvd

    def __init__(self, *args: Any, **options: Any) -> None:
        if torch.cuda.is_available() and not hvd.nccl_built():
            raise ConfigError(  # its sums of a GPU's tensors would never end
                "this Horovod was built without NCCL, and this process sees GPUs",
                where="training.comm",
                expected="torch, or a Horovod with NCCL (`make setup-gpu`)",
                got="horovod",
                remedy="set training.comm: torch, or train on CPUs with CUDA_VISIBLE_DEVICES=''",
            )
        super().__init__(*args, **options)

    def sum(self, values: np.ndarray) -> np.ndarray:
        tensor = torch.from_numpy(np.array(values, np.float64))
        with self.watch():
            return hvd.allreduce_(tensor, op=hvd.Sum, name="howdah.sum").numpy()

    def gather(self, array: np.ndarray) -> np.ndarray:
        tensor = torch.from_numpy(np.array(array))
        with self.watch():
            return hvd.allgather(tensor, name=f"howdah.gather.{array.dtype}").numpy()

    def reduce_gradients(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with self.watch():
            sums = [self.begin_sum(number, gradient) for number, gradient in enumerate(gradients)]
            return [one.wait() for one in sums]

    def begin_sum(self, number: int, message: torch.Tensor) -> Pending:
        return _Begun(hvd.allreduce_async_(message, op=hvd.Sum, name=f"howdah.gradient.{number}"))

    def begin_exchange(self, number: int, parts_NB: torch.Tensor) -> Pending:
        return _Begun(hvd.alltoall_async(parts_NB, name=f"howdah.exchange.{number}"))

    def begin_gather(self, number: int, part_B: torch.Tensor) -> Pending:
        return _Begun(hvd.allgather_async(part_B[None], name=f"howdah.sums.{number}"))

    def reduce_rows(
        self, ids_U: torch.Tensor, values_UD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with self.watch():
            ids = hvd.allgather_async(ids_U.contiguous(), name="howdah.rows.ids")
            values = hvd.allgather_async(values_UD.contiguous(), name="howdah.rows.values")
            return hvd.synchronize(ids), hvd.synchronize(values)

    def reduce_to(self, messages: Sequence[torch.Tensor], owners: Sequence[int]) -> None:
        self.reduce_gradients(messages)  # Horovod cannot sum for a single rank

    def broadcast_from(self, messages: Sequence[torch.Tensor], owners: Sequence[int]) -> None:
        with self.watch():
            handles = [
                hvd.broadcast_async_(message, root_rank=owner, name=f"howdah.weights.{number}")
                for number, (message, owner) in enumerate(zip(messages, owners, strict=True))
            ]
            for handle in handles:
                hvd.synchronize(handle)

    def fetch(self, message: torch.Tensor, owner: int) -> None:
        if owner == 0:
            return
        with self.watch():  # every rank gets the message: Horovod cannot send it to a single one
            hvd.broadcast_(message, root_rank=owner, name="howdah.fetch")

    def _broadcast(self, array: np.ndarray, root: int) -> np.ndarray:
        tensor = torch.from_numpy(np.array(array))
        with self.watch():
            return hvd.broadcast_(tensor, root_rank=root, name="howdah.broadcast").numpy()


class _Begun:
    """A collective of Horovod that has begun."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def wait(self) -> torch.Tensor:
        result = hvd.synchronize(self._handle)
        return result[0] if isinstance(result, tuple) else result  # all-to-all: and its splits

    def ended(self) -> bool:
        return hvd.poll(self._handle)
