"""What is found in predictions: planted wrong labels, worst rows, slices, intervals, verdicts."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from howdah import storage
from howdah.config.loader import from_dict
from howdah.models.decision import scores_of
from howdah.models.metrics.metrics import classification_metrics, pair_metrics
from howdah.models.metrics.tally import MEASURES
from howdah.models.runs import baseline
from howdah.serving.report.findings import compared, intervals, sums
from howdah.serving.report.findings.look import Findings
from howdah.serving.report.findings.material import Material, gather
from howdah.serving.report.findings.texts import script_of
from howdah.serving.report.findings.verdict import Versus, judge
from howdah.serving.report.report import write
from howdah.serving.report.view import context
from tests.support.models.finished_run import make_run
from tests.support.models.tiny_model import words

LABELS = ["World", "Sports", "Business", "Sci/Tech"]


def rows_of(random, count, classes, skill=4.4):
    labels = random.integers(0, classes, count)
    logits = random.standard_normal((count, classes)) * 1.3
    logits[np.arange(count), labels] += skill
    texts = [" ".join(random.choice(words(), random.integers(3, 30))) for _ in range(count)]
    return texts, labels, logits


@pytest.fixture
def planted(tmp_path):
    """A run whose test and validation rows have five wrong labels each; (directory, their ids)."""
    random, splits, wrong = np.random.default_rng(5), {}, set()
    for split, count in (("train", 40), ("validation", 300), ("test", 700)):
        texts, labels, logits = rows_of(random, count, 4)
        if split != "train":
            sure = np.flatnonzero(logits.argmax(1) == labels)[::37][:5]
            labels[sure] = (labels[sure] + 1) % 4
            wrong |= {f"{split}-{row}" for row in sure}
        splits[split] = (texts, labels.tolist(), logits)
    return make_run(str(tmp_path), LABELS, splits), wrong


def gathered(run, **more):
    values = storage.read_json(f"{run}/run.json")
    return gather(run, values, storage.read_text(f"{run}/config.yaml"), **more)


def test_ten_of_ten_planted_wrong_labels_are_among_the_suspects(planted):
    run, wrong = planted
    findings = gathered(run).findings
    assert len(wrong) == 10 and len(findings.suspects) <= 50
    assert wrong <= {row["id"] for row in findings.suspects}, sum(findings.kind["counts"])
    for row in findings.suspects:
        assert row["likely"] != row["label"] and row["text"]


def test_worst_rows_are_the_most_confident_errors_with_their_texts(planted):
    run, _ = planted
    findings = gathered(run).findings
    scores = [row["score"] for row in findings.worst]
    assert scores == sorted(scores, reverse=True) and len(scores) > 10
    assert all(row["label"] != row["predicted"] for row in findings.worst)
    assert all(row["split"] == "test" and row["text"] for row in findings.worst)
    counted = {(p["label"], p["predicted"]): p["rows"] for p in findings.kind["pairs"]}
    keys, counts = findings.kind["keys"], findings.kind["counts"]
    pairs = zip(keys.tolist(), counts.tolist(), strict=True)
    wrong = {(LABELS[k // 4], LABELS[k % 4]): c for k, c in pairs if k // 4 != k % 4}
    assert counted == wrong
    for pair in findings.kind["pairs"]:
        for row in pair["examples"]:
            assert (row["label"], row["predicted"]) == (pair["label"], pair["predicted"])


@pytest.mark.parametrize("config", ["run: {name: 2026-13-45}", "run: {name: {{ x }}}", "["])
def test_a_configuration_that_cannot_be_read_costs_no_findings(planted, config):
    run, _ = planted
    material = gather(run, storage.read_json(f"{run}/run.json"), config)
    assert material.findings is not None and material.findings.worst


def test_without_texts_ids_are_left(planted):
    run, wrong = planted
    findings = gathered(run, texts="none").findings
    assert wrong <= {row["id"] for row in findings.suspects}
    every = [
        *findings.worst,
        *findings.suspects,
        *(r for p in findings.kind["pairs"] for r in p["examples"]),
    ]
    assert not any("text" in row for row in every)
    assert any(one.group == "script" for one in findings.slices)  # counted, not shown


def test_texts_are_of_the_dataset_that_was_measured(planted):
    run, _ = planted
    values = storage.read_json(f"{run}/run.json") | {"dataset_hash": "another"}
    material = gather(run, values, "")
    assert "texts are missing" in " ".join(material.notes)
    assert not any("text" in row for row in material.findings.worst)
    lost = gather(run, values | {"dataset": f"{run}/none"}, "")
    assert "cannot be read" in " ".join(lost.notes) and lost.findings.worst


@pytest.mark.parametrize("split", ["test", "validation"])
@pytest.mark.parametrize("kind", ["cut", "without rows"])
def test_predictions_that_cannot_be_read_cost_only_what_they_show(planted, split, kind):
    run, _ = planted
    part = f"{run}/predictions/{split}/part-00000.parquet"
    if kind == "cut":
        storage.write_whole(part, storage.read_bytes(part)[:1000])
    else:
        pq.write_table(pq.read_table(part).slice(0, 0), part)
    page = storage.read_text(write(run))
    why = "the predictions cannot be read" if kind == "cut" else "the predictions have no rows"
    assert f"{split}: {why}" in page
    findings = gathered(run).findings
    assert findings.split == ("validation" if split == "test" else "test") and findings.worst
    storage.remove(f"{run}/predictions/{findings.split}", recursive=True)
    assert gathered(run).findings.split == "" and f"{split}: {why}" in storage.read_text(write(run))


@pytest.mark.parametrize(
    "change", [{"labels": ["World"], "per_class": None, "confusion_matrix": None}, None]
)
def test_predictions_of_other_labels_than_the_metrics_are_a_note(planted, change):
    run, _ = planted
    values = storage.read_json(f"{run}/run.json")
    if change is None:  # of another program: a split without figures
        values["metrics"] = {"test": {}}
    else:
        values["metrics"]["test"] |= change
        values["metrics"]["validation"] |= change
    storage.write_whole(f"{run}/run.json", json.dumps(values).encode())
    page = storage.read_text(write(run))
    assert ("cannot be read" if change else "has no predictions") in page


@pytest.mark.parametrize(
    "config",
    [
        "evaluation: {metric: [macro_f1]}",
        "evaluation: {metric: none_such}",
        "gate: {split: [test], minimum: {accuracy: high}, margin: much}",
        "gate: {minimum: [accuracy]}\nreport: {texts: [plain]}\npublish: {directory: [x], name: 3}",
    ],
)
def test_a_key_of_another_type_counts_as_not_set(planted, config):
    run, _ = planted
    material = gather(run, storage.read_json(f"{run}/run.json"), config)
    assert (material.metric, material.split, material.bounds) == ("macro_f1", "test", [])
    assert context(storage.read_json(f"{run}/run.json"), [], material)["main"]["value"] is not None


def test_a_configuration_in_another_encoding_costs_the_configuration_alone(planted):
    run, _ = planted
    storage.write_whole(f"{run}/config.yaml", b"run: {name: caf\xe9}\n")
    page = storage.read_text(write(run))
    assert "Worst rows" in page and "<summary>Configuration" not in page


def test_a_label_that_training_never_had_is_among_the_shares(tmp_path):
    random, splits = np.random.default_rng(6), {}
    for split, count in (("train", 400), ("test", 400)):
        texts, labels, logits = rows_of(random, count, 4)
        splits[split] = (texts, (labels % 3 if split == "train" else labels).tolist(), logits)
    run = make_run(str(tmp_path), LABELS, splits)
    values = storage.read_json(f"{run}/run.json")
    shares = {row["name"]: row for row in context(values, [], gathered(run))["data"]["labels"]}
    assert shares[LABELS[3]]["differs"] and shares[LABELS[3]]["train"] == 0.0


def test_the_slice_that_is_worse_is_marked(tmp_path):
    random, splits = np.random.default_rng(6), {}
    for split, count in (("train", 20), ("test", 900)):
        texts, labels, logits = rows_of(random, count, 4, skill=5.0)
        short = np.array([len(text.split()) < 8 for text in texts])
        logits[short] = random.standard_normal((short.sum(), 4))
        splits[split] = (texts, labels.tolist(), logits)
    findings = gathered(make_run(str(tmp_path), LABELS, splits)).findings
    lengths = [one for one in findings.slices if one.group == "length"]
    assert [one.worse for one in lengths] == [True] + [False] * (len(lengths) - 1)
    assert sum(one.rows for one in lengths) == 900


def test_memory_does_not_grow_with_the_rows():
    kept = sums.Sample(100)
    for n in range(300):
        kept.add(np.arange(n * 1000, (n + 1) * 1000))
    (rows,) = kept.columns()
    assert len(rows) <= 100 and kept.step >= 3000
    assert np.array_equal(np.diff(rows), np.full(len(rows) - 1, kept.step))
    best = sums.Best(3)
    for keys in ([0.1, 0.9, 0.9], [0.5, 0.9, 0.95]):
        best.offer(np.array(keys), lambda n, keys=keys: {"id": f"{keys[n]}-{n}"})
    assert [row["key"] for row in best.rows()] == [0.95, 0.9, 0.9]
    ties = sums.Best(2)
    ids = ["10", "1", "100", "2"]  # "1" is the lowest, though others begin with it
    ties.offer(np.ones(4), lambda n: {"id": ids[n]})
    assert [row["id"] for row in ties.rows()] == ["1", "10"]


def test_intervals_hold_what_they_promise(monkeypatch):
    """The true accuracy and F1 of a known model lie in the intervals of about 95 of 100 samples."""
    monkeypatch.setattr(intervals, "_DRAWS", 120)
    random, cells = np.random.default_rng(7), np.array([0.5, 0.1, 0.05, 0.35])
    keys = np.arange(4)
    true = pair_metrics(keys, cells * 1e6, 2)
    hits = {"accuracy": 0, "macro_f1": 0}
    for _ in range(100):
        counts = random.multinomial(400, cells)
        for name in hits:
            low, high = intervals.of_counts(
                keys, counts, lambda k, c, name=name: pair_metrics(k, c, 2)[name]
            )
            hits[name] += low <= true[name] <= high
    assert all(0.88 <= count / 100 <= 0.99 for count in hits.values()), hits
    low, high = intervals.wilson(right=8, rows=10)
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)


def counted(labels, *predictions):
    """(keys, counts) of label and predictions, of three classes or more."""
    classes = int(max(map(max, (labels, *predictions)))) + 1
    keys = np.asarray(labels)
    for each in predictions:
        keys = keys * classes + each
    return (*np.unique(keys, return_counts=True), classes)


def test_rare_classes_do_not_move_the_interval_away_from_the_figure():
    """Four classes of 50 rows that are right 4 times in 5, five of one row: never and always right.
    Draws without the rare ones are averages of the same nine classes."""
    random = np.random.default_rng(17)
    labels = np.array([*np.repeat(np.arange(4), 50), 4, 5, 6, 7, 8])
    common = np.where(random.random(200) < 0.8, labels[:200], random.integers(0, 4, 200))
    for rare in ([0, 1, 2, 3, 0], [4, 5, 6, 7, 8]):
        keys, counts, classes = counted(labels, np.array([*common, *rare]))
        value = pair_metrics(keys, counts, classes)["macro_f1"]
        low, high = intervals.of_pairs("macro_f1", keys, counts, classes)
        assert low < value < high and high - low < 0.25
        middle = (low + high) / 2
        assert abs(value - middle) < 0.35 * (high - low), (rare, low, value, high)


def test_a_model_is_compared_with_the_baseline_row_by_row():
    """The same rows, 0.78 against 0.91 of them right, and singletons that neither knows: the
    baseline is better, although its figure lies within the interval of the model's."""
    random = np.random.default_rng(3)
    labels = np.array([*np.repeat(np.arange(3), 66), 3, 4, 5, 6])
    wrong = (labels + 1) % 3
    theirs = np.where(random.random(len(labels)) < 0.91, labels % 3, wrong)
    ours = np.where(random.random(len(labels)) < 0.86, theirs, wrong)
    keys, counts, classes = counted(labels, ours, theirs)
    low, high = intervals.of_difference("macro_f1", keys, counts, classes)
    value = pair_metrics(*counted(labels, ours))["macro_f1"]
    other = pair_metrics(*counted(labels, theirs))["macro_f1"]
    assert low < value - other < high < 0
    verdict = judge(
        "macro_f1", value, (value - 0.2, value + 0.2), len(labels), "test",
        [Versus(name="the baseline", value=other, difference=(low, high))],
    )  # fmt: skip
    assert verdict.state == "bad" and "worse than the baseline" in verdict.sentence
    # Both alike in each row: no difference, whatever their figures' own intervals are.
    keys, counts, classes = counted(labels, ours, ours)
    assert intervals.of_difference("macro_f1", keys, counts, classes) == (0.0, 0.0)


def test_the_paired_interval_holds_the_true_difference(monkeypatch):
    monkeypatch.setattr(intervals, "_DRAWS", 120)
    random = np.random.default_rng(11)
    cells = np.array([0.40, 0.06, 0.03, 0.04, 0.30, 0.08, 0.05, 0.04])  # (label, ours, theirs)
    keys = np.arange(8)
    sides = (keys // 4 * 2 + keys // 2 % 2, keys // 4 * 2 + keys % 2)
    ours, theirs = (pair_metrics(side, cells, 2)["macro_f1"] for side in sides)
    true = ours - theirs
    hits = 0
    for _ in range(100):
        low, high = intervals.of_difference("macro_f1", keys, random.multinomial(300, cells), 2)
        hits += low <= true <= high
    assert hits >= 88, hits


@pytest.mark.parametrize("metric", ["macro_f1", "roc_auc", "mean_average_precision"])
def test_averages_over_several_labels_keep_their_labels(metric):
    """A label of one row is absent from a third of the draws."""
    random = np.random.default_rng(5)
    labels = (random.random((150, 4)) < 0.4).astype(int)
    labels[:, 3] = 0
    labels[7, 3] = 1
    logits = np.where(labels > 0, 1.0, -1.0) + random.normal(0, 1.2, labels.shape)
    logits[:, 3] = np.where(labels[:, 3] > 0, 3.0, -3.0)  # always right: 1.0 in the average
    names = ["a", "b", "c", "rare"]
    measured = MEASURES["multi_label"][0](labels, logits, names)
    findings = Findings(split="test", sample=(labels, scores_of("multi_label", logits)))
    material = Material(task="multi_label", metric=metric, split="test", findings=findings)
    low, high = compared.interval(material, measured, {})
    assert low < measured[metric] < high
    assert abs(measured[metric] - (low + high) / 2) < 0.3 * (high - low)


def test_a_run_is_compared_with_the_baseline_that_the_dataset_version_has(tmp_path):
    """The run has no baseline of its own; three labels, of which one has two rows."""
    random, names = np.random.default_rng(23), ["a", "b", "rare"]
    labels = np.array([*random.integers(0, 2, 298), 2, 2])
    theirs = np.where(random.random(300) < 0.88, labels, (labels + 1) % 2)
    ours = np.where(random.random(300) < 0.96, theirs, (labels + 1) % 2)
    texts = [" ".join(random.choice(words(), 8)) for _ in labels]
    rows = (texts, labels.tolist(), np.eye(3)[ours])
    run = make_run(str(tmp_path), names, {"train": rows, "test": rows})
    values = storage.read_json(f"{run}/run.json")
    config = from_dict({"run": {"directory": run}})
    version, number = values["dataset"], "0" * 16
    about = {
        "dataset": version, "dataset_hash": number,
        "metrics": {"test": classification_metrics(labels, np.eye(3)[theirs], names)},
    }  # fmt: skip
    beside = baseline.directory_of(version, number, config)
    baseline.write(beside, about, {"test": theirs.astype(np.int32)})
    main = context(values, [], gathered(run))["main"]
    assert main["verdict"].state == "bad", main["verdict"]
    assert "worse than the baseline" in main["verdict"].sentence
    # Its figure alone, without the rows, says nothing of it: the interval is too wide.
    storage.remove(f"{beside}/baseline.npz")
    assert context(values, [], gathered(run))["main"]["verdict"].state == "unknown"


def test_a_sample_stands_for_more_rows():
    random = np.random.default_rng(8)
    values = random.random(2000)
    whole = intervals.bootstrapped(lambda at: values[at].mean(), 2000, 1, 2000)
    of_more = intervals.bootstrapped(lambda at: values[at].mean(), 2000, 1, 8000)
    assert of_more[1] - of_more[0] == pytest.approx((whole[1] - whole[0]) / 2, rel=1e-6)
    expected = 2 * 1.96 * values.std() / 2000**0.5
    assert whole[1] - whole[0] == pytest.approx(expected, rel=0.2)


TRIVIAL = Versus(name="always the most frequent label", value=0.3, trivial=True)
BASELINE = Versus(name="the baseline", value=0.8)


@pytest.mark.parametrize(
    ("value", "interval", "against", "bounds", "state", "words"),
    [
        (0.9, (0.88, 0.92), [TRIVIAL, BASELINE], [], "good", "better than"),
        (0.9, (0.88, 0.92), [TRIVIAL], [], "unknown", "nothing else to compare"),
        (0.9, (0.78, 0.95), [TRIVIAL, BASELINE], [], "unknown", "within what chance"),
        (0.7, (0.65, 0.75), [TRIVIAL, BASELINE], [], "bad", "worse than the baseline"),
        (0.3, (0.25, 0.36), [TRIVIAL], [], "bad", "nothing shows that"),
        (0.9, (0.88, 0.92), [TRIVIAL], [("accuracy", 0.85, 0.9)], "good", "meets the gate's bound"),
        (0.9, (0.88, 0.92), [BASELINE], [("loss", 0.2, 0.4)], "bad", "at most 0.2"),
        (
            0.9,
            (0.78, 0.95),
            [BASELINE],
            [("accuracy", 0.85, 0.9)],
            "unknown",
            "It meets the gate's bound, but the difference from the baseline (0.8000) is within",
        ),
        (0.9, (0.88, 0.92), [], [("accuracy", 0.85, 0.9)], "good", "meets the gate's bound."),
        (0.9, (0.88, 0.92), [], [], "unknown", "There is nothing else to compare"),
        (None, None, [], [], "unknown", "undefined"),
    ],
)
def test_verdicts(value, interval, against, bounds, state, words):
    minimums = [Versus(name="gate.minimum", metric=m, value=b, got=g) for m, b, g in bounds]
    verdict = judge("macro_f1", value, interval, 500, "test", against, minimums)
    assert verdict.state == state and words in verdict.sentence, verdict


def test_verdicts_where_lower_is_better_and_of_few_rows():
    better = [Versus(name="published v=3", value=0.5)]
    assert judge("loss", 0.3, (0.25, 0.35), 500, "test", better).state == "good"
    assert judge("loss", 0.7, (0.6, 0.8), 500, "test", better).state == "bad"
    assert judge("accuracy", 0.99, (0.9, 1), 29, "test", [BASELINE]).state == "unknown"


@pytest.mark.parametrize(
    ("text", "script"),
    [("こんにちは世界", "Japanese"), ("你好，世界", "Han"), ("שלום", "Hebrew"), ("", "no letters")],
)
def test_scripts(text, script):
    assert script_of(text) == script
