"""torch.distributed's group of ranks on GPUs, as it would be made."""

from __future__ import annotations

import torch

from howdah.training.comm.distributed_torch import _carriers


def test_nccl_is_bound_to_the_rank_s_device_and_connects_at_once():
    assert _carriers(None) == {"backend": "gloo"}
    assert _carriers(1) == {"backend": "cpu:gloo,cuda:nccl", "device_id": torch.device("cuda:1")}
