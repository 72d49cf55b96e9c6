"""A model and its AdamW under FSDP2 in a world of one, against the whole ones.

Several ranks: tests/training/test_equality.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist

from howdah.config.model import ModelSection
from howdah.config.training import TrainingSection
from howdah.data.family import DISTILBERT
from howdah.errors import StorageFull
from howdah.models.forward import forward_torch
from howdah.models.forward.sharded_torch import shard
from howdah.training.checkpoint.read import MODEL
from howdah.training.comm.distributed_torch import TorchComm
from howdah.training.optim.adamw_torch import WholeAdamW
from howdah.training.optim.sharded_adamw_torch import ShardedAdamW, ShardedGradients

STEPS, LR = 4, 0.01
SHAPE = DISTILBERT.complete({"dim": 16, "hidden_dim": 32, "n_heads": 4, "n_layers": 2,
                             "vocab_size": 40, "max_position_embeddings": 12})  # fmt: skip
LABELS = 3
NONE = ModelSection(dropout=0.0)


def weights() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(1)
    shapes = DISTILBERT.encoder_shapes(SHAPE) | DISTILBERT.head_shapes(SHAPE, LABELS)
    return {name: generator.normal(0, 0.3, s).astype(np.float32) for name, s in shapes.items()}


@pytest.fixture
def comm(monkeypatch, tmp_path):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                        "HOWDAH_STORE": str(tmp_path / "ranks")}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    comm = TorchComm()
    yield comm
    comm.shutdown()
    assert not dist.is_initialized()


def build(device: str, *, recompute: bool) -> forward_torch.EncoderClassifier:
    training = TrainingSection(framework="torch", gradient_checkpointing=recompute)
    return forward_torch.build(
        SHAPE, weights(), num_labels=LABELS, training=training, model=NONE, device=device
    )


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids_BT = torch.from_numpy(np.random.default_rng(step).integers(0, 40, (3, 6)))
    return ids_BT, torch.ones_like(ids_BT)


@pytest.mark.parametrize("recompute", [False, True])
def test_steps_evaluations_and_checkpoints_are_those_of_a_whole_model(comm, tmp_path, recompute):
    training = TrainingSection(framework="torch")
    whole, net = build("cpu", recompute=recompute), build("meta", recompute=recompute)
    shard(net, net.parts(), comm.mesh("cpu"), "cpu")
    forward_torch.import_weights(net, weights().items())
    whole_named, named = dict(whole.named_parameters()), dict(net.named_parameters())
    optimizer = ShardedAdamW(net, named, training, directory=str(tmp_path))
    gradients, reference = ShardedGradients(named), WholeAdamW(whole_named, training)
    reference.load((), 0)
    optimizer.load((), 0)
    forward, forward_whole = forward_torch.forward_fn(net), forward_torch.forward_fn(whole)
    for step in range(STEPS):
        gradients.zero_()
        whole.zero_grad()
        for one in (net, whole):
            for micro in (step, step + 10):  # gradients are accumulated
                one(*batch(micro)).square().sum().backward()
        for parameter in whole_named.values():
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        norm = torch.stack([p.grad.norm() for p in whole_named.values()]).norm().item()
        assert gradients.norm(comm) == pytest.approx(norm, rel=1e-5)
        gradients.scale_(0.5)
        for parameter in whole_named.values():
            parameter.grad.mul_(0.5)
        optimizer.step(LR)
        reference.step(LR)
        ids_BT, mask_BT = (tensor.numpy() for tensor in batch(99))
        np.testing.assert_allclose(
            forward(ids_BT, mask_BT), forward_whole(ids_BT, mask_BT), rtol=1e-4, atol=1e-5
        )
    collected = optimizer.collect(comm)
    expected = {MODEL + name: p.detach().numpy() for name, p in whole_named.items()}
    expected |= dict(reference.moments())
    assert list(collected) == list(expected)  # in the order of other checkpoints
    for name, array in expected.items():
        # A key's bias moves no score: its gradient is rounding alone, which AdamW makes steps of.
        most = 2 * LR * STEPS if "k_lin.bias" in name else 1e-5
        np.testing.assert_allclose(collected[name], array, rtol=1e-3, atol=most, err_msg=name)
    exported = optimizer.collect_weights(comm)
    assert list(exported) == list(whole_named)
    again = ShardedAdamW(net, named, training, directory=str(tmp_path))
    again.load(((name, np.asarray(array)) for name, array in collected.items()), STEPS)
    for name, array in again.collect(comm).items():
        assert np.asarray(array).tobytes() == np.asarray(collected[name]).tobytes()


def test_a_disk_without_room_is_said(comm, tmp_path):
    net = build("meta", recompute=False)
    shard(net, net.parts(), comm.mesh("cpu"), "cpu")
    forward_torch.import_weights(net, weights().items())
    (tmp_path / "file").write_text("")
    named = dict(net.named_parameters())
    optimizer = ShardedAdamW(
        net, named, TrainingSection(framework="torch"), directory=str(tmp_path / "file")
    )
    with pytest.raises(StorageFull):
        optimizer.collect(comm)
