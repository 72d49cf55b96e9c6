"""Temperature, rejection, thresholds: fitted against brute force, refused where they make none."""

import numpy as np
import pytest
from sklearn.metrics import f1_score, fbeta_score, matthews_corrcoef

from howdah.errors import ModelError
from training.evaluation.decision import (
    Decision,
    best_threshold,
    fit_temperature,
    logits_of,
    reject_threshold,
)
from training.evaluation.metrics import log_softmax, scores_of


def sharpened(classes=4, rows=4000, by=2.5):
    """Labels drawn from probabilities, and logits that are `by` times too sure of them."""
    random = np.random.default_rng(0)
    logits = random.standard_normal((rows, classes)) * 1.5
    chances = np.exp(log_softmax(logits))
    labels = (chances.cumsum(axis=1) > random.random((rows, 1))).argmax(axis=1)
    return labels, logits * by


def test_the_temperature_undoes_what_made_logits_too_sure():
    labels, logits = sharpened()
    found = fit_temperature("single_label", labels, logits)
    assert found == pytest.approx(2.5, rel=0.06)

    def loss(temperature):
        return -log_softmax(logits / temperature)[np.arange(len(labels)), labels].mean()

    assert all(loss(found) <= loss(found * times) for times in (0.98, 1.02))
    # Scores carry the logits, up to a constant of each row.
    scores = scores_of("single_label", logits).astype(np.float32)
    again = fit_temperature("single_label", labels, logits_of("single_label", scores))
    assert again == pytest.approx(found, rel=1e-4)


def test_the_temperature_of_several_labels():
    random = np.random.default_rng(1)
    logits = random.standard_normal((3000, 3)) * 2
    labels = random.random((3000, 3)) < scores_of("multi_label", logits)
    found = fit_temperature("multi_label", labels, logits * 3)
    assert found == pytest.approx(3, rel=0.08)


@pytest.mark.parametrize(
    ("metric", "peer"),
    [("f1", f1_score), ("mcc", matthews_corrcoef),
     ("f2", lambda y, p: fbeta_score(y, p, beta=2)), ("accuracy", lambda y, p: (y == p).mean())],
)  # fmt: skip
def test_no_threshold_is_better(metric, peer):
    random = np.random.default_rng(2)
    having = random.random(400) < 0.25
    scores = np.round(random.beta(2, 4, 400) * 0.7 + 0.3 * having, 2)  # with ties
    found = best_threshold(metric, having, scores)
    tried = [peer(having, scores >= least) for least in np.unique(scores)]
    assert peer(having, scores >= found) == pytest.approx(max(tried))
    assert best_threshold(metric, np.zeros(3, bool), np.ones(3)) is None


def test_rejection_keeps_the_share_or_the_accuracy_asked_for():
    random = np.random.default_rng(3)
    confidence = random.random(1000).astype(np.float32)
    right = random.random(1000) < confidence
    least = reject_threshold(confidence, right, coverage=0.8)
    assert (confidence >= least).mean() == pytest.approx(0.8, abs=1e-3)
    least = reject_threshold(confidence, right, accuracy=0.9)
    kept = confidence >= least
    assert right[kept].mean() >= 0.9
    more = confidence >= np.sort(confidence)[::-1][kept.sum()]  # one row more
    assert right[more].mean() < 0.9
    assert reject_threshold(confidence, np.zeros(1000, bool), accuracy=0.5) is None


def test_what_is_predicted():
    labels, scores = ["a", "b", "c"], np.array([0.5, 0.3, 0.2], np.float32)
    assert Decision().predicted("single_label", labels, scores) == "a"
    assert Decision(reject_below=0.51).predicted("single_label", labels, scores) is None
    assert Decision(reject_below=0.5).predicted("single_label", labels, scores) == "a"
    early = Decision(thresholds={"c": 0.15})
    assert early.predicted("single_label", labels, scores) == "c"
    late = Decision(thresholds={"a": 0.9})  # although it has the highest score
    assert late.predicted("single_label", labels, scores) == "b"
    half = np.array([0.5, 0.50001, 0.9], np.float32)
    assert Decision().predicted("multi_label", labels, half) == ["b", "c"]  # above, not at 0.5
    own = Decision(thresholds={"a": 0.4, "c": 0.95})
    assert own.predicted("multi_label", labels, half) == ["a", "b"]
    assert Decision().predicted("regression", ["x"], np.array([2.5])) == 2.5


def test_a_temperature_changes_scores_and_no_label():
    random = np.random.default_rng(4)
    logits = random.standard_normal((50, 4)).astype(np.float32)
    plain, warm = Decision(), Decision(temperature=3.0)
    assert np.array_equal(plain.scores("single_label", logits), scores_of("single_label", logits))
    scores = warm.scores("single_label", logits)
    assert np.array_equal(scores.argmax(1), logits.argmax(1))
    assert scores.max() < plain.scores("single_label", logits).max()


@pytest.mark.parametrize(
    "given",
    [[], {"temperature": 0}, {"temperature": "1"}, {"reject_below": 2}, {"thresholds": {"z": 0.5}},
     {"thresholds": {"a": -1}}, {"thresholds": {"a": 0.1, "b": 0.2}}, {"temperature": np.nan}],
)  # fmt: skip
def test_a_decision_that_is_none_is_refused(given):
    with pytest.raises(ModelError, match="decision"):
        Decision.of({"decision": given}, ["a", "b"], "single_label", "here")


def test_a_decision_is_read_back():
    kept = Decision(temperature=1.5, thresholds={"a": 0.25})
    info = {"decision": {**kept.as_dict(), "asked": {}, "rows": 3}}
    assert Decision.of(info, ["a", "b"], "single_label", "here") == kept
    assert Decision.of({}, ["a"], "single_label", "here") == Decision()
