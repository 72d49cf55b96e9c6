"""Metrics against scikit-learn, and the cases where it warns or refuses."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import sklearn.metrics as peer

from howdah.config.metric_table import METRICS, SELECTABLE, SHOWN, Metric, metrics_of
from howdah.config.model import EvaluationSection
from howdah.config.options.publish import GateSection
from howdah.config.types import described
from howdah.errors import ConfigError, DataError, ModelError
from howdah.models.decision import log_softmax, softmax
from howdah.models.metrics import tally
from howdah.models.metrics.metrics import classification_metrics
from howdah.training.checkpoint.state import score_of

SINGLE = metrics_of("single_label")


def sample(rows: int, classes: int, seed: int = 0, skill: float = 1.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    logits = rng.standard_normal((rows, classes)).astype(np.float32)
    logits[np.arange(rows), labels] += skill
    return labels, logits, [f"c{i}" for i in range(classes)]


def coverage(confidence, right):
    """Coverage found by trying each confidence as the least one that is kept."""
    kept = [confidence >= least for least in np.unique(confidence)]
    return max([rows.mean() for rows in kept if right[rows].mean() >= 0.95], default=0.0)


@pytest.mark.parametrize("classes", [2, 3, 11])
@pytest.mark.parametrize("rows", [40, 3000])
def test_agrees_with_scikit_learn(rows, classes):
    labels, logits, names = sample(rows, classes, seed=rows + classes)
    ours = classification_metrics(labels, logits, names)
    predicted, scores = logits.argmax(1), softmax(logits)
    everything = list(range(classes))
    assert ours["rows"] == rows
    assert ours["accuracy"] == pytest.approx(peer.accuracy_score(labels, predicted))
    assert ours["loss"] == pytest.approx(peer.log_loss(labels, scores, labels=everything))
    for average in ("macro", "weighted"):
        precision, recall, f1, _ = peer.precision_recall_fscore_support(
            labels, predicted, average=average, zero_division=0
        )
        assert ours[f"{average}_precision"] == pytest.approx(precision)
        assert ours[f"{average}_recall"] == pytest.approx(recall)
        assert ours[f"{average}_f1"] == pytest.approx(f1)
    if classes == 2:
        area = peer.roc_auc_score(labels, scores[:, 1])
    else:
        area = peer.roc_auc_score(labels, scores, multi_class="ovr", average="macro")
    assert ours["roc_auc"] == pytest.approx(area)
    average = np.mean([peer.average_precision_score(labels == c, scores[:, c]) for c in everything])
    assert ours["mean_average_precision"] == pytest.approx(average)
    assert ours["mcc"] == pytest.approx(peer.matthews_corrcoef(labels, predicted))
    for k in (3, 5):
        top = (
            peer.top_k_accuracy_score(labels, logits, k=k, labels=everything)
            if classes > k
            else None
        )
        assert ours[f"top_{k}_accuracy"] == (None if top is None else pytest.approx(top))
    assert ours["coverage_at_95"] == pytest.approx(coverage(scores.max(1), predicted == labels))
    matrix = peer.confusion_matrix(labels, predicted, labels=everything)
    assert ours["confusion_matrix"] == matrix.tolist()
    precision, recall, f1, support = peer.precision_recall_fscore_support(
        labels, predicted, labels=everything, zero_division=0
    )
    for c, name in enumerate(names):
        row = ours["per_class"][name]
        assert row["precision"] == pytest.approx(precision[c])
        assert row["recall"] == pytest.approx(recall[c])
        assert row["f1"] == pytest.approx(f1[c])
        assert row["support"] == support[c]
        assert row["roc_auc"] == pytest.approx(peer.roc_auc_score(labels == c, scores[:, c]))


def test_ties_in_scores_count_half():
    labels = np.array([0, 0, 1, 1, 1, 0])
    logits = np.array([[0, 1], [0, 2], [0, 1], [0, 2], [0, 2], [0, 0]], float)
    expected = peer.roc_auc_score(labels, softmax(logits)[:, 1])
    assert classification_metrics(labels, logits, ["a", "b"])["roc_auc"] == pytest.approx(expected)


def test_equal_scores_rank_as_scikit_learn_ranks_them():
    labels = np.array([0, 1, 2, 3])
    logits = np.array([[1, 1, 1, 1], [2, 1, 1, 1], [0, 0, 0, 0], [3, 2, 1, 1]], float)
    metrics = classification_metrics(labels, logits, list("abcd"))
    assert metrics["top_3_accuracy"] == peer.top_k_accuracy_score(labels, logits, k=3) == 0.5


def test_calibration_agrees_with_a_hand_computed_one():
    # Two rows right at 1.0, two at 0.75 of which one is wrong: |1-1|*2/4 + |0.5-0.75|*2/4.
    sure, unsure = [50.0, 0.0], [np.log(3.0), 0.0]
    labels = np.array([0, 0, 0, 1])
    result = classification_metrics(labels, np.array([sure, sure, unsure, unsure]), ["a", "b"])
    assert result["ece"] == pytest.approx(0.125)
    filled = {round(b["lower"] * 15): b for b in result["reliability"] if b["rows"]}
    assert sorted(filled) == [11, 14]
    assert filled[11]["accuracy"] == pytest.approx(0.5)
    assert filled[11]["confidence"] == pytest.approx(0.75)
    assert sum(b["rows"] for b in result["reliability"]) == 4


def test_perfectly_calibrated_scores_have_a_small_error():
    rng = np.random.default_rng(3)
    chance = rng.uniform(0.5, 1.0, 200_000)
    labels = (rng.uniform(size=len(chance)) > chance).astype(int)
    logits = np.stack([np.log(chance), np.log(1 - chance)], axis=1)
    assert classification_metrics(labels, logits, ["a", "b"])["ece"] < 0.01


def test_absent_class_is_none_without_a_warning():
    labels, logits, names = sample(200, 3)
    keep = labels != 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = classification_metrics(labels[keep], logits[keep], names)
        assert result["per_class"]["c2"]["roc_auc"] is None
        assert result["per_class"]["c2"]["support"] == 0
        both = [result["per_class"][n]["roc_auc"] for n in ("c0", "c1")]
        assert result["roc_auc"] == pytest.approx(np.mean(both))
        single = classification_metrics(np.zeros(5, int), np.ones((5, 2)), ["a", "b"])
        assert single["roc_auc"] is None
        assert single["macro_f1"] == 1.0  # only class a occurs, in labels and in predictions
    json.dumps([result, single], allow_nan=False)


def test_metrics_are_plain_json():
    labels, logits, names = sample(64, 4)
    result = classification_metrics(labels, logits, names)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert set(SINGLE) < set(result)
    assert all(result[name] is None or isinstance(result[name], float) for name in SINGLE)


def test_the_metric_table_decides_selection_and_comparison():
    for name in SELECTABLE:
        assert EvaluationSection(metric=name).metric == name
        for task in METRICS[name].tasks:
            tally.require(name, task)
        rises = score_of({name: 0.3}, name) > score_of({name: 0.2}, name)
        assert rises is (METRICS[name].better == "higher")
    with pytest.raises(ValueError, match="macro_f1"):  # all that can be are named
        EvaluationSection(metric="ece")
    assert [name for name in SHOWN if name in SINGLE] == ["loss", "accuracy", "macro_f1"]
    lower = [name for name, metric in METRICS.items() if metric.lower]
    help_text = described(GateSection).model_fields["minimum"].description
    listed = f"For {', '.join(lower[:-1])} and {lower[-1]} the value is the maximum"
    assert listed in " ".join(help_text.split())


def test_a_metric_that_is_listed_and_not_computed_is_refused_before_training(monkeypatch):
    monkeypatch.setitem(METRICS, "kappa", Metric("higher", selectable=True))
    with pytest.raises(ConfigError, match="kappa") as caught:
        tally.require("kappa")
    assert caught.value.where == "evaluation.metric" and "macro_f1" in caught.value.expected


def test_huge_logits_do_not_overflow():
    logits = np.array([[1e4, -1e4], [-1e4, 1e4]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = classification_metrics(np.array([0, 0]), logits, ["a", "b"])
    assert result["loss"] == pytest.approx(1e4)
    assert log_softmax(logits)[0, 0] == 0.0


def test_row_order_does_not_matter():
    labels, logits, names = sample(500, 5)
    order = np.random.default_rng(1).permutation(500)
    one = classification_metrics(labels, logits, names)
    other = classification_metrics(labels[order], logits[order], names)
    assert one["confusion_matrix"] == other["confusion_matrix"]
    assert one["top_5_accuracy"] is other["top_5_accuracy"] is None
    for name in SINGLE:
        assert one[name] is None or one[name] == pytest.approx(other[name], rel=1e-12)


def test_refusals():
    with pytest.raises(DataError, match="no rows"):
        classification_metrics(np.zeros(0, int), np.zeros((0, 2)), ["a", "b"])
    with pytest.raises(ModelError, match="does not fit"):
        classification_metrics(np.zeros(3, int), np.zeros((3, 3)), ["a", "b"])
    with pytest.raises(DataError, match="not among") as caught:
        classification_metrics(np.array([0, 2]), np.zeros((2, 2)), ["a", "b"])
    assert caught.value.got == "2"
    with pytest.raises(ModelError, match="NaN") as caught:
        classification_metrics(np.array([0, 1]), np.array([[0, np.nan], [0, 1]]), ["a", "b"])
    assert caught.value.got == "1 of 2 rows"
