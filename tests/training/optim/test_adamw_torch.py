"""AdamW divided among ranks, which are threads here: the same bits as whole."""

from __future__ import annotations

import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch

from howdah.config.training import TrainingSection
from howdah.errors import StorageFull
from howdah.models.weights.parameters import decays
from howdah.models.weights.stored import Spool
from howdah.training.checkpoint.read import ADAM_M, ADAM_V
from howdah.training.comm.base import Comm, SoloComm
from howdah.training.optim.adamw_torch import AdamW, DividedAdamW, WholeAdamW
from howdah.training.optim.flat_torch import ALIGNED, FlatLayout, Shares, flatten
from howdah.training.optim.gradients_torch import FlatGradients
from howdah.training.optim.loss_scale import clip_factor
from tests.support.training.threads_torch import in_threads

WORDS = "embeddings.weight"
SHAPES = {WORDS: (131, 17), "a.weight": (37, 41), "a.bias": (5,), "b.weight": (1003,)}
"""Of odd sizes: no tensor but the first begins or ends at a cache line."""
STEPS, CLIP = 4, 1.0
SAVED = {
    prefix + name: np.random.default_rng(3).random(shape, np.float32)
    for prefix in (ADAM_M, ADAM_V)
    for name, shape in SHAPES.items()
}


def named() -> dict[str, torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator))
        for name, shape in SHAPES.items()
    }


def rank_of(comm: Comm, *, divided: bool, sparse: bool, directory: str) -> dict:
    """Some steps of a rank as the loop makes them; its weights, norms, and rank 0's checkpoint."""
    parameters = named()
    weights = flatten(parameters, words=WORDS) if divided else None
    gradients = FlatGradients(parameters, words=WORDS)
    shares = Shares.of(gradients.layout, comm.rank, comm.size) if divided else None
    gradients.arrange(None, sparse_embeddings=sparse, shares=shares)
    if divided:
        optimizer = DividedAdamW(
            parameters, weights, gradients, shares, TrainingSection(), directory=directory
        )
    else:
        optimizer = WholeAdamW(parameters, TrainingSection())
    optimizer.load(iter(SAVED.items()), 4)
    norms = []
    for step in range(STEPS):
        # Sums of a rank's numbers and zeros are exact: worlds of all sizes learn the same.
        gradients.zero_()
        generator = torch.Generator().manual_seed(step)
        ids = torch.randperm(131, generator=generator)[:40]
        for name, parameter in parameters.items():
            drawn = torch.randn(parameter.shape, generator=generator)
            if name == WORDS:
                drawn = torch.zeros_like(drawn).index_copy(0, ids, drawn[ids])
            if comm.rank == step % comm.size:
                parameter.grad.copy_(drawn)
        gradients.reduce_(comm, [ids])
        norms.append(gradients.norm(comm))
        gradients.scale_(clip_factor(norms[-1], CLIP))
        optimizer.step(0.01 / (step + 1))
        optimizer.share(comm)
    arrays = [("model/" + name, p.detach().numpy()) for name, p in parameters.items()]
    saved = optimizer.collect(comm, arrays) if divided else dict([*arrays, *optimizer.moments()])
    if saved is not None:
        saved = {name: np.array(array) for name, array in saved.items()}
    return {"weights": [array.tobytes() for _, array in arrays], "norms": norms, "saved": saved}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_all_ranks_have_the_bits_of_one_that_has_everything(world, sparse, tmp_path):
    settings = {"sparse": sparse, "directory": str(tmp_path)}
    whole = in_threads(world, lambda comm: rank_of(comm, divided=False, **settings))
    ranks = in_threads(world, lambda comm: rank_of(comm, divided=True, **settings))
    assert min(whole[0]["norms"]) > CLIP
    for one in ranks:
        assert one["norms"] == whole[0]["norms"]
        assert one["weights"] == whole[0]["weights"]
    assert [one["saved"] is None for one in ranks] == [False, *[True] * (world - 1)]
    expected, saved = whole[0]["saved"], ranks[0]["saved"]
    assert list(saved) == list(expected)
    for name, array in expected.items():
        assert saved[name].shape == array.shape
        assert saved[name].tobytes() == array.tobytes(), name
    assert not any(tmp_path.iterdir())  # rank 0's file has no name


@pytest.mark.parametrize("world", [2, 3, 5])
def test_each_rank_has_as_much_as_the_others(world):
    layout = FlatLayout(named(), words=WORDS)
    bounds = Shares.of(layout, 0, world).bounds
    for share in np.diff(bounds):
        assert abs(share * world / layout.total - 1) < world / 20


@pytest.mark.parametrize("world", [1, 2, 3, 64, 100])
def test_tensors_are_cut_at_cache_lines_of_their_own(world):
    layout = FlatLayout(named(), words=WORDS)
    shares = Shares.of(layout, 0, world)
    bounds = shares.bounds
    assert (bounds[0], bounds[-1]) == (0, layout.total)
    assert list(bounds) == sorted(bounds)
    for bound in bounds[:-1]:
        start = max(start for start in layout.starts.values() if start <= bound)
        assert (bound - start) % ALIGNED == 0
    parts, owners = shares.cut([100, layout.total - 100], 64)
    assert [a for a, _ in parts[1:]] == [b for _, b in parts[:-1]]
    assert parts[-1][1] == layout.total
    for (start, end), owner in zip(parts, owners, strict=True):
        assert bounds[owner] <= start < end <= bounds[owner + 1]


def test_the_norm_is_that_of_all_gradients_in_double_precision():
    gradients = FlatGradients(named(), words=WORDS)
    generator = torch.Generator().manual_seed(2)
    gradients.flat.copy_(torch.randn(gradients.layout.total, generator=generator))
    norm = gradients.flat.double().norm().item()
    assert gradients.norm(SoloComm()) == pytest.approx(norm, rel=1e-7)
    gradients.flat[7] = torch.inf
    assert gradients.norm(SoloComm()) == torch.inf
    gradients.flat[7] = torch.nan
    assert np.isnan(gradients.norm(SoloComm()))


def test_a_disk_without_room_is_said_after_the_collectives(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    spool = Spool(str(file))
    spool.add(np.zeros(10, np.float32))
    with pytest.raises(StorageFull, match="not enough space on the local disk"):
        spool.check()


def test_the_update_is_that_of_torch_bit_by_bit():
    training = TrainingSection(weight_decay=0.3)
    ours, theirs = named(), named()
    assert {decays(name) for name in SHAPES} == {True, False}
    optimizer = AdamW(ours.items(), training)
    for name, tensor in ours.items():
        moments = (torch.from_numpy(SAVED[prefix + name].copy()) for prefix in (ADAM_M, ADAM_V))
        optimizer.set_state(tensor, 4, *moments)
    groups = [
        {"params": [tensor], "weight_decay": 0.3 if decays(name) else 0.0}
        for name, tensor in theirs.items()
    ]
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-8, fused=True)
    for name, tensor in theirs.items():
        reference.state[tensor] = {
            "step": torch.tensor(4.0),
            "exp_avg": torch.from_numpy(SAVED[ADAM_M + name].copy()),
            "exp_avg_sq": torch.from_numpy(SAVED[ADAM_V + name].copy()),
        }
    generator = torch.Generator().manual_seed(4)
    for step, lr in enumerate((0.01, 0.003, 0.0)):
        for name, tensor in ours.items():
            # A tensor without a gradient keeps its value and its count of updates.
            without = step == 1 and name == "a.weight"
            tensor.grad = None if without else torch.randn(tensor.shape, generator=generator)
            theirs[name].grad = None if without else tensor.grad.clone()
        for group in reference.param_groups:
            group["lr"] = lr
        optimizer.step(lr)
        reference.step()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name])
        for key in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(optimizer.moment(tensor, key), reference.state[theirs[name]][key])


def test_training_does_not_load_what_compiles():
    """It is 2.5 s of processor time in each rank; imported by torch.optim's classes."""
    code = """if True:
        import sys, torch
        from howdah.config.training import TrainingSection
        from howdah.training.optim.adamw_torch import WholeAdamW
        import howdah.training.loop_torch
        parameter = torch.nn.Parameter(torch.zeros(3))
        parameter.grad = torch.ones(3)
        optimizer = WholeAdamW({"a.bias": parameter}, TrainingSection())
        optimizer.load([], 0)
        optimizer.step(0.1)
        assert abs(parameter[0].item() + 0.1) < 1e-5
        print(sorted({"torch._dynamo", "sympy", "pandas", "transformers"} & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_moments_are_taken_one_after_the_other():
    """A run that resumes holds one tensor of a checkpoint beside its own state."""
    before = []

    def saved():
        for name, array in SAVED.items():
            assert all(one() is None for one in before), "an earlier one is still held"
            copy = array.copy()
            before.append(weakref.ref(copy))
            yield name, copy
            del copy

    parameters = named()
    optimizer = WholeAdamW(parameters, TrainingSection())
    for _ in range(2):  # an elastic job does so in each of its worlds
        optimizer.load(saved(), 4)
        for name, array in optimizer.moments():
            np.testing.assert_array_equal(array, SAVED[name])
    first = {name: array.ctypes.data for name, array in optimizer.moments()}
    optimizer.load([], 0)
    assert {name: array.ctypes.data for name, array in optimizer.moments()} == first
    assert not any(array.any() for _, array in optimizer.moments())
