"""A worker's computed memory against real peaks."""

from __future__ import annotations

import dataclasses

import pytest

from bench.benches.memory import SHAPES, Case, measure, settings
from howdah.config.loader import from_dict
from howdah.data.family import BERT, DISTILBERT
from howdah.yarn.preflight import worker_memory

TOLERANCE = 0.15


@dataclasses.dataclass
class Manifest:
    """The fields of a dataset that `needed` reads."""

    max_length: int
    labels: tuple[str, ...] = tuple("abcdefgh")
    evaluated: int = 100

    def rows(self, split: str) -> int:
        """The same number of rows for every split."""
        return self.evaluated


def computed(case: Case) -> int:
    """Bytes, as `howdah submit` computes them."""
    config = from_dict(settings(case, "/tmp/x", "base", "set"))
    return worker_memory.peak(
        config, DISTILBERT.complete(SHAPES[case.size]), Manifest(case.length)
    ).total


def test_a_divided_optimizer_s_rank_has_no_snapshot_and_its_part_of_the_moments():
    """With two workers it is less than measured with `python -m bench parallel` (4.1 copies)."""
    values = settings(Case(framework="torch", size="base", tokens=1024), "/tmp/x", "base", "set")
    shape, manifest = DISTILBERT.complete(SHAPES["base"]), Manifest(128)
    copy = 4 * DISTILBERT.parameters(shape, len(manifest.labels))
    saved = {}
    for workers in (2, 4):
        values["job"] = values.get("job", {}) | {"workers": workers}
        needed = []
        for shard in ("none", "optimizer"):
            values["training"]["parallel"] = {"shard": shard}
            config = from_dict(values)
            needed.append(worker_memory.peak(config, shape, manifest).total)
        saved[workers] = needed[0] - needed[1]
    assert saved[2] == pytest.approx(4 * copy)
    assert saved[4] == pytest.approx(4.5 * copy)


def test_a_dropout_of_what_the_attention_gives_is_counted():
    values = settings(Case(framework="torch", size="base", tokens=1024), "/tmp/x", "base", "set")
    shape = BERT.complete({"hidden_size": 768, "num_hidden_layers": 12})
    needed = []
    for rate in (None, 0.0, 0.2):  # None: the base's own, 0.1
        values["model"]["dropout"] = rate
        needed.append(worker_memory.peak(from_dict(values), shape, Manifest(128)).total)
    assert needed[0] == needed[2]
    assert needed[0] - needed[1] == 1024 * 11 * 768 * 4  # tokens, layers that all of them pass


def test_predictions_of_many_classes_are_counted_up_to_what_waits_in_memory():
    values = settings(Case(framework="torch", size="base", tokens=1024), "/tmp/x", "base", "set")
    values["evaluation"] = {"splits": ["test"]}
    shape, labels = DISTILBERT.complete(SHAPES["base"]), tuple(map(str, range(10_000)))

    def total(rows: int) -> int:
        return worker_memory.peak(from_dict(values), shape, Manifest(128, labels, rows)).total

    workers = from_dict(values).job.fewest
    assert total(100 * workers) - total(workers) == 3 * 99 * 10_000 * 4
    assert total(10**6) - total(workers) == 96 * 2**20 - 3 * 10_000 * 4
    assert total(10**6) == total(10**8)


@pytest.mark.full
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
@pytest.mark.parametrize(("size", "tokens"), [("MiniLM", 4096), ("base", 1024)])
def test_a_real_rank_s_peak_is_what_was_computed(tmp_path, framework, size, tokens):
    row = measure(Case(framework=framework, size=size, tokens=tokens), str(tmp_path))
    assert abs(row["computed"] / row["measured"] - 1) <= TOLERANCE, row
