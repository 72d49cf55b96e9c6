"""Verdicts: how often chance alone alarms, and that shifts are found (simulated rows)."""

import re

import numpy as np
import pytest

from howdah.config.options.drift import DriftSection
from howdah.errors import DataError
from howdah.models.profile import reference as references
from howdah.models.profile.bins import Known
from howdah.models.profile.profile import Profile, Reference
from howdah.serving.drift.examples import Examples
from howdah.serving.drift.judge import Column, DriftVerdict, judge
from tests.serving.drift import samples

VOCABULARY = 3000
CLASSES = 4
_random = np.random.default_rng(11)
_ZIPF = 1 / np.arange(1, VOCABULARY - 3) ** 1.1
_TOPICS = [np.roll(_ZIPF, 40 * n) for n in range(CLASSES)]
_CUMULATED = [np.cumsum(0.5 * _ZIPF + 0.5 * topic) for topic in _TOPICS]
_TOKENIZER = references.Tokenizer(vocabulary=VOCABULARY, special=(0, 1, 2), unknown=3)


def source(
    random: np.random.Generator,
    rows: int,
    *,
    classes=(0.4, 0.3, 0.2, 0.1),
    cut: int | None = None,
    other: bool = False,
    unsure: float = 0.0,
):
    """(scores, ids, whether right) of rows: a class, words of its topic, a length, a certainty."""
    label_N = random.choice(CLASSES, rows, p=classes)
    length_N = np.clip(random.lognormal(3.0, 0.6, rows).astype(int), 3, 120)
    if cut is not None:
        length_N = np.minimum(length_N, cut)
    ids_N = []
    for label, length in zip(label_N, length_N, strict=True):
        cumulated = _CUMULATED[label]
        words = 4 + np.searchsorted(cumulated, random.random(length) * cumulated[-1])
        if other:
            words = 4 + random.integers(0, VOCABULARY - 4, length)
        ids_N.append(np.array([1, *words, 2]))
    certainty_N = random.beta(6, 1.2, rows)
    if cut is not None or other:
        certainty_N = random.beta(3, 1.5, rows)
    top_N = 1 / CLASSES + (1 - 1 / CLASSES) * certainty_N * (1 - unsure)
    right_N = random.random(rows) < top_N
    answer_N = np.where(right_N, label_N, (label_N + 1) % CLASSES)
    scores_NC = np.repeat((1 - top_N)[:, None] / (CLASSES - 1), CLASSES, axis=1)
    scores_NC[np.arange(rows), answer_N] = top_N
    return scores_NC.astype(np.float32), ids_N, right_N


@pytest.fixture(scope="module")
def reference() -> Profile:
    random = np.random.default_rng(1)
    scores_NC, held_out, right_N = source(random, 2000)
    train = source(random, 6000)[1]
    return references.make(
        scores_NC,
        right_N,
        task="single_label",
        labels=["a", "b", "c", "d"],
        split="validation",
        train=references.Tokens.of(train),
        held_out=references.Tokens.of(held_out),
        tokenizer=_TOKENIZER,
        expected_empty=0.01,
    )


def partition(reference: Profile, seed: int, rows: int, **shift) -> Profile:
    scores_NC, ids_N, _ = source(np.random.default_rng(seed), rows, **shift)
    profile = Profile.like(reference)
    profile.add(scores_NC, ids_N)
    return profile


def test_partitions_of_the_same_source_alarm_in_less_than_one_percent(reference):
    """1,000 partitions of 200 rows: drawn with their tokens from rows of the same source."""
    random = np.random.default_rng(2)
    scores_NC, ids_N, _ = source(random, 20_000)
    alarms = []
    for _ in range(1000):
        drawn = random.choice(len(ids_N), 200, replace=False)
        profile = Profile.like(reference)
        profile.add(scores_NC[drawn], [ids_N[row] for row in drawn])
        alarms += judge(reference, profile).alarms
    assert len(alarms) < 10, [column.sentence for column in alarms]


SHIFTS = {
    "label": ({"classes": (0.1, 0.3, 0.2, 0.4)}, "label"),
    "cut": ({"cut": 6}, "length"),
    "other texts": ({"other": True}, "tokens"),
    "unsure": ({"unsure": 0.5}, "confidence"),
}


@pytest.mark.parametrize("kind", SHIFTS)
@pytest.mark.parametrize("seed", range(5))
def test_shifts_are_found_at_300_rows(reference, kind, seed):
    shift, column = SHIFTS[kind]
    verdict = judge(reference, partition(reference, 100 + seed, 300, **shift))
    assert column in [alarm.name for alarm in verdict.alarms]
    assert verdict.state == "alarm"
    if kind == "unsure":
        estimate = verdict.column("estimated_accuracy")
        assert estimate.state == "alarm"
        assert estimate.value < estimate.reference - 0.2


def test_the_estimate_follows_the_accuracy_without_a_label(reference):
    for unsure in (0.0, 0.2, 0.4):
        scores_NC, ids_N, right_N = source(np.random.default_rng(9), 8_000, unsure=unsure)
        profile = Profile.like(reference)
        profile.add(scores_NC, ids_N)
        estimate = judge(reference, profile).column("estimated_accuracy").value
        assert estimate == pytest.approx(right_N.mean(), abs=0.04)


def test_few_rows_are_not_judged(reference):
    verdict = judge(reference, partition(reference, 5, 99, other=True))
    assert verdict.state == "too few rows"
    assert "99 rows, fewer than 100 (drift.min_rows)" in verdict.column("label").why
    assert judge(reference, Profile.like(reference)).state == "too few rows"
    limits = DriftSection(min_rows=50)
    assert judge(reference, partition(reference, 5, 99, other=True), limits).state == "alarm"


def test_failed_rows_alarm_even_where_no_row_is_left(reference):
    profile = partition(reference, 5, 200)
    profile.add_failed(empty=5, errors=3)
    assert judge(reference, profile).state == "ok"  # the source had 1 % empty ones
    profile.add_failed(empty=10)
    assert [column.name for column in judge(reference, profile).alarms] == ["empty"]
    broken = Profile.like(reference)
    broken.add_failed(errors=500)
    assert [column.name for column in judge(reference, broken).alarms] == ["errors"]


def test_labels_that_are_joined_give_the_accuracy(reference):
    profile = partition(reference, 5, 400)
    good = judge(reference, profile, labelled=(400, 360))
    assert good.column("accuracy").state == "ok"
    bad = judge(reference, profile, labelled=(400, 240)).column("accuracy")
    assert (bad.state, bad.value) == ("alarm", 0.6)
    assert bad.sentence == (
        "60.0 % of the labelled answers are right; 87.6 % on held-out rows of training"
        " (limit 0.8202)"
    )
    assert judge(reference, profile, labelled=(20, 1)).column("accuracy").state == "too few rows"


def test_a_reference_without_rows_has_too_few_and_is_not_called_a_regression():
    tokens = Known.of(np.arange(50), samples.VOCABULARY)
    empty = Profile(
        samples.bins(), reference=Reference(known_tokens=tokens, split="validation", right=0)
    )
    profile = Profile.like(empty)
    profile.add(*samples.rows(1, 300))
    column = judge(empty, profile, labelled=(200, 100)).column("accuracy")
    assert column.state == "too few rows" and "own profile has 0 rows" in column.why


def test_limits_are_those_of_the_configuration(reference):
    moved = partition(reference, 7, 300, classes=(0.1, 0.3, 0.2, 0.4))
    assert judge(reference, moved).column("label").state == "alarm"
    assert judge(reference, moved, DriftSection(psi=3.0)).column("label").state == "ok"


def test_a_profile_of_another_model_is_refused(reference):
    with pytest.raises(DataError, match="another model"):
        judge(reference, samples.reference())


def test_models_without_tokens_or_labels_are_judged_by_what_they_have():
    random = np.random.default_rng(3)
    scores_NC, _, right_N = source(random, 1000)
    images = references.make(
        scores_NC, right_N, task="single_label", labels=list("abcd"), split="validation"
    )
    current = Profile.like(images)
    current.add(source(random, 300)[0])
    verdict = judge(images, current)
    assert verdict.state == "ok"
    assert verdict.column("length").state == "not measured"
    numbers = references.make(
        random.normal(size=(1000, 1)), None, task="regression", labels=["y"], split="validation"
    )
    shifted = Profile.like(numbers)
    shifted.add(random.normal(loc=1, size=(300, 1)))
    by_confidence = judge(numbers, shifted)
    assert [column.name for column in by_confidence.alarms] == ["confidence"]
    assert by_confidence.column("estimated_accuracy").state == "not measured"


def test_a_model_that_is_always_as_sure_still_has_bins_around_it():
    scores_NC = np.tile(np.float32([0.9, 0.1]), (500, 1))
    right_N = np.arange(500) % 10 > 0
    made = references.make(
        scores_NC, right_N, task="single_label", labels=["a", "b"], split="validation"
    )
    same, moved = Profile.like(made), Profile.like(made)
    same.add(scores_NC[:200])
    moved.add(np.tile(np.float32([0.6, 0.4]), (200, 1)))
    assert judge(made, same).state == "ok"
    assert judge(made, same).column("estimated_accuracy").value == pytest.approx(0.9, abs=0.01)
    assert judge(made, moved).column("confidence").state == "alarm"


def test_calibration_is_finite_without_a_wrong_row_and_flat_where_it_would_fall():
    confidence_N = np.linspace(0.5, 0.99, 200)
    slope, intercept = references.fit_calibration(confidence_N, np.ones(200, bool))
    assert np.isfinite([slope, intercept]).all()
    backwards = np.arange(200) < 100  # the surest are wrong
    slope, intercept = references.fit_calibration(confidence_N, backwards)
    assert (slope, 1 / (1 + np.exp(-intercept))) == (0.0, pytest.approx(0.5))


WORDS = {
    "label": ({"classes": (0.1, 0.3, 0.2, 0.4)}, r"“d” is predicted for 3\d.\d % of the rows, 1\d"),
    "length": ({"cut": 6}, r"texts are \d\d % shorter than in training \(\d tokens on average, 2"),
    "tokens": (
        {"other": True},
        r"words, or their frequencies, differ from those in training: \d\d",
    ),
    "confidence": (
        {"unsure": 0.5},
        r"the model is less sure of its answers: its confidence is",
    ),
    "estimated_accuracy": (
        {"unsure": 0.5},
        r"judging by the model's confidence, 60.2 % of its an",
    ),
}


@pytest.mark.parametrize("name", WORDS)
def test_what_moved_is_said_in_plain_words_with_a_grade(reference, name):
    shift, words = WORDS[name]
    column = judge(reference, partition(reference, 100, 300, **shift)).column(name)
    assert re.match(words, column.change), column.change
    assert column.grade == ("large" if column.excess >= 3 else "moderate")
    same = judge(reference, partition(reference, 5, 300)).column(name)
    assert same.grade == "none" and same.change != column.change
    assert not re.search("less sure|differ from|spread differently", same.change)


def test_the_rows_that_show_best_what_moved_are_kept(reference):
    scores_NC, ids_N, _ = source(np.random.default_rng(4), 900, other=True, classes=(0, 0, 0, 1))
    examples = Examples(reference)
    for begin in range(0, 900, 300):
        part = slice(begin, begin + 300)
        rows = [(f"r{begin + n}", f"text {begin + n}") for n in range(300)]
        examples.add(rows, scores_NC[part], ids_N[part])
    profile = Profile.like(reference)
    profile.add(scores_NC, ids_N)
    shown = examples.shown(judge(reference, profile), "d", True)
    assert {"The least sure predictions", "Predicted as “d”, the surest"} <= set(shown)
    top_N = scores_NC.max(axis=1)
    unsure = [one.confidence for one in shown["The least sure predictions"]]
    assert unsure[0] == pytest.approx(top_N.min()) and unsure == sorted(unsure)
    every = [one for rows in shown.values() for one in rows]
    assert len({one.id for one in every}) == len(every)
    assert all(one.text == f"text {one.id[1:]}" for one in every)
    assert all(one.tokens == len(ids_N[int(one.id[1:])]) for one in every)
    surest = shown["Predicted as “d”, the surest"]
    assert {one.answer for one in surest} == {"d"}


def test_the_furthest_alarm_is_first_and_has_the_larger_grade():
    columns = (
        Column(name="length", state="alarm", value=0.5, reference=0.02, limit=0.2),
        Column(name="label", state="alarm", value=2.1, reference=0.02, limit=0.2),
        Column(name="confidence", state="ok", value=0.1, reference=0.02, limit=0.2),
        Column(name="estimated_accuracy", state="alarm", value=0.6, reference=0.9, limit=0.85),
    )
    verdict = DriftVerdict(rows=300, columns=columns)
    assert [one.name for one in verdict.alarms] == ["label", "estimated_accuracy", "length"]
    assert [one.grade for one in verdict.alarms] == ["large", "large", "moderate"]
    assert [one.name for one in verdict.by_size][3] == "confidence"
    assert verdict.alarms[0].sentence.endswith(" (PSI 2.1000, limit 0.2000)")
    assert verdict.alarms[1].sentence.endswith(" (limit 0.8500)")
