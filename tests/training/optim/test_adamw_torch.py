"""AdamW divided among ranks: the same bits as whole, in one process that plays all ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from howdah.config.model import TrainingSection
from howdah.errors import StorageFull
from training.checkpoint.read import ADAM_M, ADAM_V
from training.checkpoint.stored import Spool
from training.comm.base import SoloComm
from training.optim.adamw_torch import DividedAdamW, WholeAdamW
from training.optim.flat_torch import ALIGNED, FlatLayout, Shares, flatten
from training.optim.gradients_torch import FlatGradients

WORDS = "embeddings.weight"
SHAPES = {WORDS: (131, 17), "a.weight": (37, 41), "a.bias": (5,), "b.weight": (1003,)}
"""Of odd sizes: no tensor but the first begins or ends at a cache line."""
WORLDS = [1, 2, 3, 5]


def named(seed: int = 1) -> dict[str, torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator))
        for name, shape in SHAPES.items()
    }


class Ranks(SoloComm):
    """Plays one rank's part with what the other ranks' optimizers have."""

    def __init__(self, rank: int, size: int, optimizers: list[DividedAdamW]) -> None:
        super().__init__()
        self.rank, self.size, self.local_size = rank, size, size
        self._optimizers = optimizers

    def broadcast_from(self, messages, owners):
        bounds = self._optimizers[0]._shares.bounds
        at = 0
        for message, owner in zip(messages, owners, strict=True):
            assert bounds[owner] <= at and at + len(message) <= bounds[owner + 1]
            message.copy_(self._optimizers[owner]._weights[at : at + len(message)])
            at += len(message)


def divided(world: int, tmp_path) -> list[tuple[dict, FlatGradients, DividedAdamW]]:
    found = []
    for rank in range(world):
        parameters = named()
        weights = flatten(parameters, words=WORDS)
        gradients = FlatGradients(parameters, words=WORDS)
        shares = Shares.of(gradients.layout, rank, world)
        gradients.arrange(None, sparse_embeddings=False, shares=shares)
        optimizer = DividedAdamW(
            parameters, weights, gradients, shares, TrainingSection(), 0.01, directory=str(tmp_path)
        )
        found.append((parameters, gradients, optimizer))
    return found


@pytest.mark.parametrize("world", WORLDS)
def test_the_update_has_the_bits_of_the_whole_one(world, tmp_path):
    whole = named()
    gradients = FlatGradients(whole, words=WORDS)
    one = WholeAdamW(whole, TrainingSection(), 0.01)
    rng = np.random.default_rng(3)
    saved = {
        prefix + name: rng.random(shape, np.float32)
        for prefix in (ADAM_M, ADAM_V)
        for name, shape in SHAPES.items()
    }
    one.load(saved.items(), 4)
    ranks = divided(world, tmp_path)
    optimizers = [optimizer for _, _, optimizer in ranks]
    for _, _, optimizer in ranks:
        optimizer.load(iter(saved.items()), 4)
    for step in range(3):
        flat = torch.from_numpy(rng.standard_normal(gradients.layout.total).astype(np.float32))
        gradients.flat.copy_(flat)
        one.step(0.01 / (step + 1))
        for _, own, optimizer in ranks:
            own.flat.copy_(flat)
            optimizer.step(0.01 / (step + 1))
        for rank, optimizer in enumerate(optimizers):
            optimizer.share(Ranks(rank, world, optimizers))
    for parameters, _, _ in ranks:
        for name, parameter in parameters.items():
            assert torch.equal(parameter, whole[name]), name
    moments = dict(one.moments())
    for prefix, key in ((ADAM_M, "exp_avg"), (ADAM_V, "exp_avg_sq")):
        flat = torch.cat([optimizer._moments[key] for optimizer in optimizers])
        for name, shape in SHAPES.items():
            own = gradients.layout.view(flat, name, whole[name])
            assert own.numpy().tobytes() == moments[prefix + name].tobytes()
            assert own.shape == shape


@pytest.mark.parametrize("world", WORLDS)
def test_each_rank_has_as_much_as_the_others_and_the_norm_of_all(world, tmp_path):
    whole = FlatGradients(named(), words=WORDS)
    generator = torch.Generator().manual_seed(2)
    whole.flat.copy_(torch.randn(whole.layout.total, generator=generator))
    squares = []

    class Adds(SoloComm):
        def sum(self, values):
            squares.append(values)
            return np.sum(squares, axis=0)

    for _, gradients, optimizer in divided(world, tmp_path):
        gradients.flat.fill_(torch.nan)  # undefined, but in this rank's share
        own = slice(*optimizer._shares.own)
        assert abs((own.stop - own.start) * world / whole.layout.total - 1) < world / 20
        gradients.flat[own] = whole.flat[own]
        norm = gradients.norm(Adds())
    assert norm == whole.norm(SoloComm())  # in every bit, from the last rank's sum
    assert norm == pytest.approx(whole.flat.double().norm().item(), rel=1e-6)


@pytest.mark.parametrize("world", [1, 2, 3, 64, 100])
def test_tensors_are_cut_at_cache_lines_of_their_own(world):
    layout = FlatLayout(named(), words=WORDS)
    bounds = Shares.of(layout, 0, world).bounds
    assert (bounds[0], bounds[-1]) == (0, layout.total)
    assert list(bounds) == sorted(bounds)
    for bound in bounds[:-1]:
        start = max(start for start in layout.starts.values() if start <= bound)
        assert (bound - start) % ALIGNED == 0
    parts, owners = Shares.of(layout, 0, world).cut([100, layout.total - 100], 64)
    assert [a for a, _ in parts[1:]] == [b for _, b in parts[:-1]]
    assert parts[-1][1] == layout.total
    for (start, end), owner in zip(parts, owners, strict=True):
        assert bounds[owner] <= start < end <= bounds[owner + 1]


def test_what_is_collected_is_read_from_the_disk_and_has_a_checkpoint_s_names(tmp_path):
    ((parameters, _, optimizer),) = divided(1, tmp_path)
    moments = {
        prefix + name: np.full(shape, number, np.float32)
        for number, prefix in enumerate((ADAM_M, ADAM_V), 1)
        for name, shape in SHAPES.items()
    }
    optimizer.load(moments.items(), 1)
    weights = [("model/" + name, p.detach().numpy()) for name, p in parameters.items()]
    found = optimizer.collect(SoloComm(), weights)
    with torch.no_grad():
        parameters[WORDS].zero_()  # of the next step
    assert list(found) == [*(name for name, _ in weights), *moments]
    for name, array in moments.items():
        assert np.asarray(found[name]).tobytes() == array.tobytes()
    assert np.asarray(found["model/" + WORDS]).any()
    assert not any(tmp_path.iterdir())  # the file has no name


def test_a_disk_without_room_is_said_after_the_collectives(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    spool = Spool(str(file))
    spool.add(np.zeros(10, np.float32))
    with pytest.raises(StorageFull, match="no room on the local disk"):
        spool.check()
