"""Metrics of several labels and of numbers: scikit-learn's and scipy's, of rows and of sums."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics as peer

from howdah.config.metric_table import METRICS, metrics_of
from howdah.errors import ConfigError, DataError, ModelError
from howdah.models.decision import scores_of
from howdah.models.metrics import tally
from howdah.models.metrics.multi_label import multi_label_metrics
from howdah.models.metrics.regression import regression_metrics
from howdah.models.metrics.tally import Tally
from howdah.serving.report import report
from tests.training.evaluation.test_evaluate import World

NAMES = list("abcde")


def several(rows=900, seed=0):
    random = np.random.default_rng(seed)
    labels = (random.random((rows, 5)) < 0.3).astype(np.float32)
    logits = random.standard_normal((rows, 5)) * 1.5 + labels - 0.5
    return labels, (np.round(logits * 64) / 64).astype(np.float32)  # with ties


def numbers(rows=900, seed=0, mean=1e4):
    random = np.random.default_rng(seed)
    targets = (random.standard_normal(rows).round(1) + mean).astype(np.float32)
    return targets, (targets + random.standard_normal(rows) / 2)[:, None].astype(np.float32)


def test_several_labels_agree_with_scikit_learn():
    labels, logits = several()
    metrics = multi_label_metrics(labels, logits, NAMES)
    predicted, scores = logits > 0, scores_of("multi_label", logits)
    for average in ("micro", "macro"):
        f1 = peer.f1_score(labels, predicted, average=average)
        assert metrics[f"{average}_f1"] == pytest.approx(f1)
    assert metrics["subset_accuracy"] == pytest.approx(peer.accuracy_score(labels, predicted))
    assert metrics["roc_auc"] == pytest.approx(peer.roc_auc_score(labels, logits))
    average = peer.average_precision_score(labels, logits)
    assert metrics["mean_average_precision"] == pytest.approx(average)
    loss = np.mean([peer.log_loss(labels[:, c], scores[:, c]) for c in range(5)])
    assert metrics["loss"] == pytest.approx(loss)
    assert set(metrics_of("multi_label")) < set(metrics)
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics


def test_numbers_agree_with_scipy():
    targets, outputs = numbers(mean=1.0)
    metrics = regression_metrics(targets, outputs, ["score"])
    assert (
        metrics["mse"]
        == metrics["loss"]
        == pytest.approx(peer.mean_squared_error(targets, outputs[:, 0]), rel=1e-5)
    )
    assert metrics["r2"] == pytest.approx(peer.r2_score(targets, outputs[:, 0]), rel=1e-5)
    assert metrics["mae"] == pytest.approx(np.abs(targets - outputs[:, 0]).mean(), rel=1e-5)
    for name, of in (("pearson", scipy.stats.pearsonr), ("spearman", scipy.stats.spearmanr)):
        assert metrics[name] == pytest.approx(of(targets, outputs[:, 0])[0], rel=1e-6)
    assert set(metrics_of("regression")) < set(metrics)
    flat = regression_metrics(np.ones(4), np.ones((4, 1)), ["score"])
    assert flat["r2"] is flat["pearson"] is flat["spearman"] is None and flat["mse"] == 0
    # The mean of three times 0.1 is not 0.1 in floating point.
    flat = regression_metrics(np.full(3, 0.1), np.array([[0.1], [0.2], [0.3]]), ["score"])
    assert flat["r2"] is flat["pearson"] is None


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize(("task", "rows"), [("multi_label", several), ("regression", numbers)])
def test_sums_agree_with_the_rows(monkeypatch, task, rows, world):
    labels, logits = rows(6_000)
    names = NAMES if task == "multi_label" else ["score"]

    def work(comm, rank):
        sums = Tally(names, task)
        for begin in range(rank * 100, len(labels), world * 100):
            sums.add(labels[begin : begin + 100], logits[begin : begin + 100])
        return sums.metrics(comm)

    exact = World(world).run(work)[0]
    monkeypatch.setattr(tally, "EXACT_VALUES", 1_000)
    summed = World(world).run(work)[0]
    assert set(summed) == set(exact)
    for name in metrics_of(task):
        if name == "spearman":  # ranks are of rows
            assert summed[name] is None and exact[name] > 0.8
        elif name == "mean_average_precision":  # a bin's rows count as mixed; here they are ties
            assert summed[name] == pytest.approx(exact[name], abs=1e-3)
        else:
            assert summed[name] == pytest.approx(exact[name], rel=1e-4)


def test_what_has_no_metrics_is_refused():
    for metrics, labels, logits in (
        (multi_label_metrics, *several(8)), (regression_metrics, *numbers(8)),
    ):  # fmt: skip
        names = NAMES[: logits.shape[1]]
        broken = logits.copy()
        broken[3, 0] = np.inf
        with pytest.raises(ModelError, match="NaN or infinity") as caught:
            metrics(labels, broken, names)
        assert caught.value.got == "1 of 8 rows"
        with pytest.raises(DataError, match="no rows"):
            metrics(labels[:0], logits[:0], names)
        with pytest.raises(ModelError, match="output"):
            metrics(labels, np.zeros((8, 7)), names)


def test_each_task_computes_its_metrics_and_no_other():
    for task in ("multi_label", "regression"):
        for name in METRICS:
            if name in metrics_of(task):
                tally.require(name, task)
            else:
                with pytest.raises(ConfigError, match=name):
                    tally.require(name, task)
    tally.require_rows("mse", 10**9)
    with pytest.raises(ConfigError, match="rank correlation"):
        tally.require_rows("spearman", 10**9)


@pytest.mark.parametrize("task", ["multi_label", "regression"])
def test_the_page_shows_the_tasks_metrics(task):
    metrics = (
        multi_label_metrics(*several(), NAMES)
        if task == "multi_label"
        else regression_metrics(*numbers(), ["score"])
    )
    step = {"step": 1, "loss": 0.5, "lr": 0.1}
    judged = {"step": 1, "split": "validation", "metrics": metrics}
    page = report.render({"name": "x", "metrics": {"test": metrics}}, [step, judged], "")
    for name in metrics_of(task):
        assert f"<td>{name}</td>" in page or f">{name}</abbr></td>" in page
    assert "<td>accuracy</td>" not in page
    assert ("targets: deviation" in page) is (task == "regression")
    assert ("average precision" in page) is (task == "multi_label")


def test_scores_are_probabilities_or_the_number():
    scores = scores_of("multi_label", np.array([[0.0, 800.0, -800.0]]))
    assert scores.tolist() == [[0.5, 1.0, 0.0]]
    assert scores_of("regression", np.array([[3.5]])).tolist() == [[3.5]]
