"""torch.distributed's group of ranks on GPUs, as it would be made, and errors of a device."""

from __future__ import annotations

import os

import pytest
import torch

from howdah.models.forward.forward_torch import out_of_memory
from howdah.training.comm.base import RankLost
from howdah.training.comm.distributed_torch import TorchComm, _carriers

_WATCHDOG = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


def test_nccl_is_bound_to_the_rank_s_device_and_connects_at_once():
    assert _carriers(None) == {"backend": "gloo"}
    assert _carriers(1) == {"backend": "cpu:gloo,cuda:nccl", "device_id": torch.device("cuda:1")}


@pytest.mark.parametrize(("set_", "used"), [(None, "0"), ("3", "3")])
def test_nccl_s_watchdog_does_not_end_a_rank_that_saves(tmp_path, monkeypatch, set_, used):
    values = {"RANK": "0", "WORLD_SIZE": "1", "HOWDAH_STORE": str(tmp_path / "store")}
    for name, value in {**values, _WATCHDOG: set_ or "", "GLOO_SOCKET_IFNAME": "lo",
                        "NCCL_SOCKET_IFNAME": "lo"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    if set_ is None:
        monkeypatch.delenv(_WATCHDOG)
    comm = TorchComm()
    try:
        assert os.environ[_WATCHDOG] == used
    finally:
        comm.shutdown()


@pytest.fixture
def comm():
    """A Comm that translates errors, without a world."""
    made = object.__new__(TorchComm)
    made.rank, made.size, made._failed = 0, 2, False
    return made


@pytest.mark.parametrize("kind", [torch.AcceleratorError, torch.OutOfMemoryError])
def test_an_error_of_this_device_is_not_a_lost_rank(comm, kind):
    with pytest.raises(kind, match="an illegal memory access"), comm._typed():
        raise kind("CUDA error: an illegal memory access was encountered")
    assert comm._failed  # the others may wait in this collective: no barrier at the end


def test_a_connection_that_broke_is_a_lost_rank(comm):
    with pytest.raises(RankLost), comm._typed():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer")


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (torch.AcceleratorError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"), False),
        (ValueError("CUDA error: out of memory"), False),
    ],
)
def test_which_errors_of_torch_mean_that_memory_does_not_suffice(error, is_memory):
    assert out_of_memory(error) == is_memory
