"""A worker's computed memory against real peaks."""

from __future__ import annotations

import dataclasses

import pytest

from bench.benches.memory import SHAPES, Case, measure, settings
from howdah.config.loader import from_dict
from howdah.data.family import DISTILBERT
from yarn.preflight import worker_memory

TOLERANCE = 0.15


@dataclasses.dataclass
class Manifest:
    """The fields of a dataset that `needed` reads."""

    max_length: int
    labels: tuple[str, ...] = tuple("abcdefgh")


def computed(case: Case) -> int:
    """Bytes, as `howdah submit` computes them."""
    config = from_dict(settings(case, "/tmp/x", "base", "set"))
    return worker_memory.needed(
        config, DISTILBERT.complete(SHAPES[case.size]), Manifest(case.length)
    ).total


@pytest.mark.full
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
@pytest.mark.parametrize(("size", "tokens"), [("MiniLM", 4096), ("base", 1024)])
def test_a_real_rank_s_peak_is_what_was_computed(tmp_path, framework, size, tokens):
    row = measure(Case(framework=framework, size=size, tokens=tokens), str(tmp_path))
    assert abs(row["computed"] / row["measured"] - 1) <= TOLERANCE, row
