"""The state of a rank as `howdah plan` shows it."""

from __future__ import annotations

import pytest

from howdah.config.loader import from_dict
from howdah.config.model import ModelSection
from howdah.config.training import LoraSection, ParallelSection
from howdah.data.family import DISTILBERT
from howdah.errors import ConfigError
from howdah.training.planning.preview import preview, scaling_preview
from howdah.training.planning.rank_state import rank_state

BASE = DISTILBERT.complete({})
WEIGHTS = DISTILBERT.parameters(BASE, 4)
LAYER = 12 * 768**2 + 13 * 768  # elements of one
EMBEDDINGS = (30522 + 512 + 2) * 768


def state(ranks: int, model: ModelSection | None = None, **parallel) -> dict[str, int]:
    return rank_state(BASE, 4, model or ModelSection(), ParallelSection(**parallel), ranks)


def test_each_division_keeps_its_part():
    whole = state(4)
    assert whole == {"weights": 4 * WEIGHTS, "gradients": 4 * WEIGHTS, "moments": 8 * WEIGHTS,
                     "gathered": 0, "trained": 4 * WEIGHTS,
                     "checkpoint": 12 * WEIGHTS}  # fmt: skip
    assert state(4, shard="optimizer") == whole | {"moments": 2 * WEIGHTS}
    full = state(4, shard="full")
    assert full == whole | {"weights": WEIGHTS, "gradients": WEIGHTS, "moments": 2 * WEIGHTS,
                    "gathered": 8 * EMBEDDINGS}  # fmt: skip
    assert state(1, shard="full") == state(1)


def test_what_is_frozen_has_no_gradient():
    frozen = state(2, ModelSection(freeze_embeddings=True), shard="full")
    assert frozen["weights"] == 2 * WEIGHTS
    assert frozen["gradients"] == 2 * (WEIGHTS - EMBEDDINGS)
    assert frozen["gathered"] == max(4 * EMBEDDINGS, 8 * (LAYER))


def test_with_adapters_a_hundredth_of_the_gradient_is_sent():
    shown = rank_state(BASE, 4, ModelSection(), ParallelSection(), 2, lora=LoraSection(rank=8))
    adapters = 6 * 2 * (8 * 768 + 768 * 8)  # query and value of six layers, A and B of each
    head = 768 * 768 + 768 + 4 * 768 + 4
    assert shown["trained"] == shown["gradients"] == 4 * (adapters + head) < 3_000_000
    assert shown["checkpoint"] == 3 * shown["trained"]
    assert shown["weights"] == 4 * (WEIGHTS + adapters)


def test_the_plan_shows_it_and_what_it_cannot_predict_is_refused(tiny_dataset, tiny_model_dir):
    parallel = {"shard": "full"}
    config = from_dict({
        "data": {"dataset": tiny_dataset.path, "max_length": 64}, "model": {"base": tiny_model_dir},
        "training": {"framework": "torch", "global_batch_size": 24, "parallel": parallel},
    })  # fmt: skip
    shown = preview(config, 4)
    assert shown["rows_per_rank"] == 6
    assert shown["state_bytes_per_rank"]["moments"] > 0
    with pytest.raises(ConfigError) as caught:
        scaling_preview(config, "8", "10G", progress=print)
    assert caught.value.where == "training.parallel.shard"
