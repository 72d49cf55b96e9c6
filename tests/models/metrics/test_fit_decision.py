"""Temperature, rejection, thresholds: fitted against brute force, refused where they make none."""

import numpy as np
import pytest
from sklearn.metrics import f1_score, fbeta_score, matthews_corrcoef

from howdah.errors import ModelError
from howdah.models.decision import Decision, log_softmax, scores_of
from howdah.models.fit_decision import (
    best_threshold,
    fit_temperature,
    logits_of,
    reject_threshold,
)


def sharpened(classes=4, rows=4000, by=2.5):
    """Labels drawn from probabilities, and logits that are `by` times too sure of them."""
    random = np.random.default_rng(0)
    logits = random.standard_normal((rows, classes)) * 1.5
    chances = np.exp(log_softmax(logits))
    labels = (chances.cumsum(axis=1) > random.random((rows, 1))).argmax(axis=1)
    return labels, logits * by


def test_the_temperature_undoes_what_made_logits_too_sure():
    labels, logits = sharpened()
    temperature = fit_temperature("single_label", labels, logits)
    assert temperature == pytest.approx(2.5, rel=0.06)

    def loss(temperature):
        return -log_softmax(logits / temperature)[np.arange(len(labels)), labels].mean()

    assert all(loss(temperature) <= loss(temperature * times) for times in (0.98, 1.02))
    # Scores carry the logits, up to a constant of each row.
    scores = scores_of("single_label", logits).astype(np.float32)
    again = fit_temperature("single_label", labels, logits_of("single_label", scores))
    assert again == pytest.approx(temperature, rel=1e-4)


def test_the_temperature_of_several_labels():
    random = np.random.default_rng(1)
    logits = random.standard_normal((3000, 3)) * 2
    labels = random.random((3000, 3)) < scores_of("multi_label", logits)
    temperature = fit_temperature("multi_label", labels, logits * 3)
    assert temperature == pytest.approx(3, rel=0.08)


@pytest.mark.parametrize(
    ("metric", "peer"),
    [("f1", f1_score), ("mcc", matthews_corrcoef),
     ("f2", lambda y, p: fbeta_score(y, p, beta=2)), ("accuracy", lambda y, p: (y == p).mean())],
)  # fmt: skip
def test_no_threshold_is_better(metric, peer):
    random = np.random.default_rng(2)
    having = random.random(400) < 0.25
    scores = np.round(random.beta(2, 4, 400) * 0.7 + 0.3 * having, 2)  # with ties
    threshold = best_threshold(metric, having, scores)
    tried = [peer(having, scores >= least) for least in np.unique(scores)]
    assert peer(having, scores >= threshold) == pytest.approx(max(tried))
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


def test_a_share_that_is_reached_exactly_is_enough():
    """0.55 * 100 is above 55 in floating point."""
    confidence, right = np.arange(100) / 100, np.arange(100) < 55
    assert (confidence >= reject_threshold(confidence, right, coverage=0.55)).sum() == 55
    assert reject_threshold(np.full(100, 0.5), right, accuracy=0.55) is not None


def answer(decision, task, labels, scores):
    return decision.rule(task, labels).answers(np.asarray(scores)[None])[0]


def test_what_is_predicted():
    labels, scores = ["a", "b", "c"], np.array([0.5, 0.3, 0.2], np.float32)
    assert answer(Decision(), "single_label", labels, scores) == "a"
    assert answer(Decision(reject_below=0.51), "single_label", labels, scores) is None
    assert answer(Decision(reject_below=0.5), "single_label", labels, scores) == "a"
    early = Decision(thresholds={"c": 0.15})
    assert answer(early, "single_label", labels, scores) == "c"
    late = Decision(thresholds={"a": 0.9})  # although it has the highest score
    assert answer(late, "single_label", labels, scores) == "b"
    half = np.array([0.5, 0.50001, 0.9], np.float32)
    assert answer(Decision(), "multi_label", labels, half) == ["b", "c"]  # above, not at 0.5
    both = Decision(thresholds={"a": 0.4, "c": 0.95})
    assert answer(both, "multi_label", labels, half) == ["a", "b"]
    assert answer(Decision(), "regression", ["x"], np.array([2.5])) == 2.5


@pytest.mark.parametrize(
    ("decision", "task", "scores", "margin"),
    [
        ({}, "single_label", [0.125, 0.75, 0.125], 0.625),
        ({}, "multi_label", [0.0, 0.75, 1.0], 0.25),
        # 0.21 at a threshold of 0.2: 0.01 from losing the label.
        ({"thresholds": {"a": 0.2}}, "multi_label", [0.21, 0.9, 0.95], 0.01),
        # Its threshold decides, not the distance to the best of the others.
        ({"thresholds": {"c": 0.15}}, "single_label", [0.5, 0.3, 0.2], 0.05),
        ({"thresholds": {"a": 0.9}}, "single_label", [0.88, 0.1, 0.02], 0.02),
        # A rejection is nearer than the next label, from either side.
        ({"reject_below": 0.5}, "single_label", [0.55, 0.3, 0.15], 0.05),
        ({"reject_below": 0.6}, "single_label", [0.55, 0.3, 0.15], 0.05),
    ],
)
def test_a_margin_is_the_distance_to_another_answer(decision, task, scores, margin):
    rule = Decision(**decision).rule(task, ["a", "b", "c"])
    row = np.array([scores], np.float64)
    assert rule.margins(row) == pytest.approx([margin])


@pytest.mark.parametrize("task", ["single_label", "multi_label"])
def test_within_the_margin_no_score_changes_the_answer(task):
    """Moving one score by less than the margin changes no answer."""
    random = np.random.default_rng(5)
    labels = ["a", "b", "c", "d"]
    decisions = [Decision(), Decision(thresholds={"b": 0.35})]
    if task == "single_label":
        decisions += [Decision(reject_below=0.45)]
    for decision in decisions:
        rule = decision.rule(task, labels)
        scores = random.dirichlet(np.ones(4), 300)
        before, margins = rule.answers(scores), rule.margins(scores)
        for column in range(4):
            for side in (-0.49, 0.49):  # two scores may come nearer by half of it each
                moved = scores.copy()
                moved[:, column] += side * margins
                assert rule.answers(moved) == before


def test_rejected_rows_are_counted_as_such():
    rule = Decision(reject_below=0.6).rule("single_label", ["a", "b"])
    assert rule.counted == ["a", "b", "(rejected)"]
    assert rule.counts(np.array([[0.7, 0.3], [0.45, 0.55], [0.1, 0.9]])).tolist() == [1, 1, 1]
    assert Decision().rule("single_label", ["a", "b"]).counted == ["a", "b"]


def test_two_formats_agree_by_the_decision_and_not_at_one_half():
    ours, theirs = np.array([[0.32, 0.6]]), np.array([[0.28, 0.6]])
    labels, near = ["a", "b"], 0.01
    assert Decision().rule("multi_label", labels).agree(ours, theirs, near=near).all()
    early = Decision(thresholds={"a": 0.3}).rule("multi_label", labels)
    assert not early.agree(ours, theirs, near=near).any()
    rejects = Decision(reject_below=0.65).rule("single_label", labels)
    assert not rejects.agree(np.array([[0.34, 0.66]]), np.array([[0.36, 0.64]]), near=near).any()


def test_thresholds_are_looked_up_once_and_not_for_each_row():
    class Counting(dict):
        looked = 0

        def get(self, *key):
            Counting.looked += 1
            return super().get(*key)

    labels = [f"l{n}" for n in range(1_000)]
    rule = Decision(thresholds=Counting({"l3": 0.25})).rule("multi_label", labels)
    first = Counting.looked
    answers = rule.answers(np.full((500, 1_000), 0.3, np.float32))
    assert answers == [["l3"]] * 500
    assert Counting.looked == first


def test_a_temperature_changes_scores_and_no_label():
    random = np.random.default_rng(4)
    logits = random.standard_normal((50, 4)).astype(np.float32)
    plain, warm = Decision(), Decision(temperature=3.0)
    assert np.array_equal(plain.scores("single_label", logits), scores_of("single_label", logits))
    scores = warm.scores("single_label", logits)
    assert np.array_equal(scores.argmax(1), logits.argmax(1))
    assert scores.max() < plain.scores("single_label", logits).max()


@pytest.mark.parametrize(
    "values",
    [[], {"temperature": 0}, {"temperature": "1"}, {"reject_below": 2}, {"thresholds": {"z": 0.5}},
     {"thresholds": {"a": -1}}, {"thresholds": {"a": 0.1, "b": 0.2}}, {"temperature": np.nan}],
)  # fmt: skip
def test_a_decision_that_is_none_is_refused(values):
    with pytest.raises(ModelError, match="decision"):
        Decision.of({"decision": values}, ["a", "b"], "single_label", "here")


def test_a_decision_is_read_back():
    kept = Decision(temperature=1.5, thresholds={"a": 0.25})
    info = {"decision": {**kept.as_dict(), "asked": {}, "rows": 3}}
    assert Decision.of(info, ["a", "b"], "single_label", "here") == kept
    assert Decision.of({}, ["a"], "single_label", "here") == Decision()
