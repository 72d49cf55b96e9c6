"""Evaluations of many rows: sums agree with what all rows give, at any number of ranks."""

import json
import tracemalloc

import numpy as np
import pytest

from howdah.errors import DataError, ModelError
from howdah.models.metrics import tally
from howdah.models.metrics.metrics import classification_metrics
from howdah.models.metrics.tally import Tally
from howdah.serving.report import view
from howdah.serving.report.findings.material import Material
from howdah.training.comm.base import SoloComm
from tests.training.evaluation.test_evaluate import World


def sample(rows, classes, seed=0, skill=1.5):
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, rows)
    logits = 2 * random.standard_normal((rows, classes), np.float32)
    logits[np.arange(rows), labels] += np.float32(skill)
    return labels, logits, [f"c{n}" for n in range(classes)]


def tallied(comm, labels, logits, names, batch=97):
    sums = Tally(names)
    for begin in range(0, len(labels), batch):
        sums.add(labels[begin : begin + batch], logits[begin : begin + batch])
    return sums.metrics(comm)


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize(
    ("rows", "classes", "skill"), [(20_000, 2, 1.5), (6_000, 20, 4), (4_000, 7, 30)]
)
def test_sums_agree_with_the_rows(monkeypatch, world, rows, classes, skill):
    monkeypatch.setattr(tally, "EXACT_VALUES", 1_000)
    labels, logits, names = sample(rows, classes, skill=skill)
    exact = classification_metrics(labels, logits, names)
    results = World(world).run(
        lambda comm, rank: tallied(comm, labels[rank::world], logits[rank::world], names)
    )
    assert results[1:] == [None] * (world - 1)
    metrics = results[0]
    assert metrics["roc_auc"] == pytest.approx(exact["roc_auc"], abs=1e-5)
    for key in ("rows", "confusion_matrix", "confused", "labels"):
        assert metrics[key] == exact[key]
    assert metrics["mean_average_precision"] == pytest.approx(
        exact["mean_average_precision"], abs=1e-4
    )
    assert metrics["coverage_at_95"] == pytest.approx(exact["coverage_at_95"], abs=1e-3)
    assert metrics["top_5_accuracy"] == exact["top_5_accuracy"]
    for key in ("loss", "accuracy", "macro_f1", "weighted_precision", "ece", "mcc"):
        assert metrics[key] == pytest.approx(exact[key], rel=1e-6, abs=1e-9)
    for name in names:
        assert metrics["per_class"][name]["roc_auc"] == pytest.approx(
            exact["per_class"][name]["roc_auc"], abs=1e-4
        )
    assert set(json.loads(json.dumps(metrics))) == set(exact)


def test_few_rows_are_exact_and_one_rank_of_many_rows_decides_for_all(monkeypatch):
    labels, logits, names = sample(300, 3)
    exact = classification_metrics(labels, logits, names)
    parts = [slice(0, 290), slice(290, 300), slice(300, 300)]

    def work(comm, rank):
        return tallied(comm, labels[parts[rank]], logits[parts[rank]], names)

    assert World(3).run(work)[0] == exact
    monkeypatch.setattr(tally, "EXACT_VALUES", 600)  # the first rank's alone are more
    metrics = World(3).run(work)[0]
    assert metrics != exact and metrics["confusion_matrix"] == exact["confusion_matrix"]
    assert metrics["roc_auc"] == pytest.approx(exact["roc_auc"], abs=1e-3)


def test_a_rank_holds_no_more_the_more_rows_it_has(monkeypatch):
    monkeypatch.setattr(tally, "EXACT_VALUES", 2**16)
    labels, logits, names = sample(2_000, 64)
    peaks: dict[int, list[int]] = {5: [], 40: []}
    # The least of three: what other threads of this process allocate meanwhile is traced as well.
    for times in (5, 40) * 3:
        tracemalloc.start()
        sums = Tally(names)
        for _ in range(times):
            sums.add(labels, logits)
        assert sums.metrics(SoloComm())["rows"] == 2_000 * times
        peaks[times].append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert min(peaks[40]) < 1.1 * min(peaks[5])


@pytest.mark.parametrize("limit", [10, 10**6])
def test_rows_without_metrics_are_told_on_rank_0_after_the_collectives(monkeypatch, limit):
    monkeypatch.setattr(tally, "EXACT_VALUES", limit)
    labels, logits, names = sample(50, 3)

    def failed(labels, logits):
        results = World(2).run(
            lambda comm, rank: tallied(comm, labels[rank::2], logits[rank::2], names)
        )
        assert results[1] is None
        return results[0]

    broken = logits.copy()
    broken[[3, 8], 1] = np.nan
    error = failed(labels, broken)
    assert isinstance(error, ModelError) and error.got == "2 of 50 rows"
    wrong = labels.copy()
    wrong[7] = 3
    error = failed(wrong, logits)
    assert isinstance(error, DataError) and error.got == "3"
    assert isinstance(failed(labels[:0], logits[:0]), DataError)


def test_thousands_of_classes_have_no_matrix_but_the_worst_pairs():
    labels, logits, names = sample(3_000, 1_000, skill=9)
    logits[labels == 5, 6] += 30
    metrics = classification_metrics(labels, logits, names)
    assert metrics["confusion_matrix"] is None
    assert metrics["confused"][0] == ["c5", "c6", int((labels == 5).sum())]
    assert len(metrics["confused"]) == 50
    shown = view.context({"metrics": {"test": metrics}}, [], Material(metric="accuracy"))
    assert shown["confusion"] is None and shown["pairs"][0]["label"] == "c5"
