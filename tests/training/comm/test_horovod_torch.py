"""Horovod's Comm for PyTorch where Horovod was built without NCCL, as in `make setup`."""

from __future__ import annotations

import pytest
import torch

from howdah.errors import ConfigError
from howdah.training.comm import horovod_torch


def test_a_horovod_without_nccl_is_not_given_a_gpu_s_gradients(monkeypatch):
    """Its sums would never end."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    if horovod_torch.hvd.nccl_built():
        pytest.skip("the installed Horovod was built with NCCL")
    monkeypatch.setattr(horovod_torch.hvd, "init", lambda: pytest.fail("it has joined a world"))
    with pytest.raises(ConfigError, match="built without NCCL") as caught:
        horovod_torch.HorovodTorchComm()
    assert (
        caught.value.where == "training.comm" and "CUDA_VISIBLE_DEVICES=''" in caught.value.remedy
    )


@pytest.mark.parametrize(("gpu", "nccl"), [(False, False), (True, True)])
def test_other_worlds_are_joined(monkeypatch, gpu, nccl):
    class Joined(Exception):
        """Raised where the world would form."""

    def join() -> None:
        raise Joined

    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(horovod_torch.hvd, "nccl_built", lambda: nccl)
    monkeypatch.setattr(horovod_torch.hvd, "init", join)
    with pytest.raises(Joined):
        horovod_torch.HorovodTorchComm()
