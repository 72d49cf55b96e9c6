"""What a worker's memory is computed to be, against real peaks and where it is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bench.bench_memory import SHAPES, Case, measure, settings
from howdah.config import from_dict
from training.distilbert import CONFIG_DEFAULTS, encoder_shapes, head_shapes
from yarn import workermemory

TOLERANCE = 0.15


@dataclasses.dataclass
class Manifest:
    """All of a dataset that counts."""

    max_length: int
    labels: tuple[str, ...] = tuple("abcdefgh")


def computed(case: Case) -> int:
    """Bytes, as `howdah submit` computes them."""
    config = from_dict(settings(case, "/tmp/x", "base", "set"))
    return workermemory.needed(config, SHAPES[case.size], Manifest(case.length)).total


@pytest.mark.parametrize("size", SHAPES)
def test_parameters_are_those_of_the_model(size):
    shape = CONFIG_DEFAULTS | SHAPES[size]
    real = [*encoder_shapes(shape).values(), *head_shapes(shape, 5).values()]
    assert workermemory.parameters(SHAPES[size], 5) == sum(int(np.prod(one)) for one in real)


def test_what_config_json_leaves_out_is_distilbert_base_s():
    kept = {key: CONFIG_DEFAULTS[key] for key in workermemory.BASE_SHAPE}
    assert kept == workermemory.BASE_SHAPE
    assert workermemory.parameters({}, 2) == workermemory.parameters(SHAPES["base"], 2)


@pytest.mark.full
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
@pytest.mark.parametrize(("size", "tokens"), [("MiniLM", 4096), ("base", 1024)])
def test_a_real_rank_s_peak_is_what_was_computed(tmp_path, framework, size, tokens):
    row = measure(Case(framework=framework, size=size, tokens=tokens), str(tmp_path))
    assert abs(row["computed"] / row["measured"] - 1) <= TOLERANCE, row
