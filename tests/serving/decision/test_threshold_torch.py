"""`howdah model threshold`: from a run to served predictions, and to the next published version."""

import json
import subprocess
import sys

import numpy as np
import pytest

from howdah import storage
from howdah.config.loader import from_dict
from howdah.errors import DataError, ModelError, UsageError
from howdah.models.decision import Decision, scores_of
from howdah.models.export.export import export
from howdah.models.opened.opened import open_model
from howdah.models.profile.profile import PROFILE, Profile, find_reference, read
from howdah.models.profile.reference import make
from howdah.models.version import open_version
from howdah.serving.decision.threshold import DecisionOptions, decide
from howdah.serving.drift.judge import judge
from howdah.serving.prediction.classify import classify
from howdah.serving.prediction.cluster import files_of
from howdah.serving.prediction.rows import Outputs, Row, as_json
from howdah.serving.registry.publish import publish
from tests.support.models.finished_run import make_run
from tests.support.models.tiny_model import words

LABELS = ["ham", "spam"]


def rows_of(count, seed, classes=2):
    random = np.random.default_rng(seed)
    labels = (random.random(count) < 0.2).astype(int)
    logits = np.zeros((count, classes))
    logits[:, 1] = random.normal(-3.2, 1.2, count) + 2.5 * labels
    texts = [" ".join(random.choice(words(), 8)) for _ in range(count)]
    return texts, labels.tolist(), logits


@pytest.fixture
def run(tmp_path):
    """A finished run with predictions, and a real export of the tiny model."""
    made = make_run(
        str(tmp_path), LABELS,
        {"train": rows_of(20, 1), "validation": rows_of(800, 2), "test": rows_of(800, 3)},
    )  # fmt: skip
    base = f"{tmp_path}/base"
    from howdah.models.weights.pretrained import load_base

    pretrained = load_base(base, label_names=LABELS)
    random = np.random.default_rng(0)
    width = pretrained.config["dim"]
    head = {
        "pre_classifier.weight": random.standard_normal((width, width)).astype(np.float32),
        "pre_classifier.bias": np.zeros(width, np.float32),
        "classifier.weight": random.standard_normal((2, width)).astype(np.float32),
        "classifier.bias": np.zeros(2, np.float32),
    }
    info = storage.read_json(f"{made}/export/howdah.json")
    storage.remove(f"{made}/export", recursive=True)
    export(
        f"{made}/export", weights={**pretrained.weights, **head}, base_config=pretrained.config,
        tokenizer_files=pretrained.tokenizer_files, label_names=LABELS,
        run_info={
            "run_id": info["run_id"], "max_length": 64, "clean": {}, "step": 40,
            "framework": "torch",
            "base": {"source": base, "hash": pretrained.hash},
            "dataset": {**info["dataset"], "rows": {}},
            "tokenizer_hash": from_files(pretrained.tokenizer_files),
        },
    )  # fmt: skip
    return made


def from_files(files):
    from howdah.data.encode import Encoder

    return Encoder(files, "base").hash


def info_of(run):
    return storage.read_json(f"{run}/export/howdah.json")


def test_a_threshold_is_fitted_on_validation_and_measured_on_test(run):
    before = info_of(run)
    report = decide(run, DecisionOptions(metric="f1", labels=("spam",)))
    least = report["decision"]["thresholds"]["spam"]
    assert 0.05 < least < 0.5 and report["rows"] == 800
    assert report["after"]["per_class"]["spam"]["f1"] > report["before"]["per_class"]["spam"]["f1"]
    after = info_of(run)
    assert after.pop("decision")["thresholds"] == {"spam": least}
    assert after == before  # the weights' hash too
    assert open_model(run).decision == Decision(thresholds={"spam": least})
    again = decide(run, DecisionOptions(reset=True))
    assert again["replaced"] == {"thresholds": {"spam": least}} and info_of(run) == before
    leftover = [entry.name for entry in storage.list_dir(run) if entry.name.startswith("export.")]
    assert leftover == []


@pytest.mark.parametrize("entry", [5, {"temperature": -1}, {"thresholds": {"unknown": 0.5}}])
@pytest.mark.parametrize("again", [True, False])
def test_an_invalid_decision_is_replaced_or_removed_as_its_error_says(run, entry, again):
    before = info_of(run)
    path = f"{run}/export/howdah.json"
    storage.write_whole(path, json.dumps(before | {"decision": entry}).encode())
    with pytest.raises(ModelError, match="decision is not valid"):
        open_model(run)
    options = DecisionOptions(reset=True)
    if again:
        options = DecisionOptions(metric="f1", labels=("spam",))
    lines = []
    report = decide(run, options, progress=lines.append)
    assert report["replaced"] is None and "decision is not valid" in lines[0]
    assert open_model(run).decision.as_dict() == (report["decision"] or {})
    decide(run, DecisionOptions(reset=True))
    assert info_of(run) == before


def test_rejected_rows_have_scores_no_label_and_no_error(run):
    plain = open_model(run)
    texts = [" ".join(words()[n : n + 5]) for n in range(0, 60, 3)]
    rows = [*(Row(str(n), text) for n, text in enumerate(texts)), Row("e", " ")]
    unchanged = classify(plain, rows)
    middle = float(np.median([one.scores.max() for one in unchanged[:-1]]))
    decide(f"{run}/export", DecisionOptions(reject_below=middle))
    served = open_model(run)
    assert served.reject_below == middle and served.temperature == 1.0
    predictions = classify(served, rows)
    for one, other in zip(predictions[:-1], unchanged[:-1], strict=True):
        assert np.array_equal(one.scores, other.scores)
        assert one.rejected == (other.scores.max() < middle)
        assert one.label == (None if one.rejected else other.label) and one.error is None
    assert 0 < sum(one.rejected for one in predictions) < len(texts)
    assert predictions[-1].error and not predictions[-1].rejected
    outputs = Outputs(task="single_label", labels=LABELS)
    answer = json.loads(as_json(next(one for one in predictions if one.rejected), outputs, "r"))
    assert answer["label"] is None and answer["rejected"] is True and "error" not in answer


def test_a_temperature_is_applied_to_all_scores(run):
    plain = open_model(run)
    text = [" ".join(words()[:7])]
    decide(run, DecisionOptions(calibrate=True, coverage=0.9))
    served = open_model(run)
    assert served.temperature != 1.0
    assert served.reject_below == pytest.approx(info_of(run)["decision"]["reject_below"])
    one, other = plain.scores(text)[0], served.scores(text)[0]
    assert np.log(other[0] / other[1]) == pytest.approx(
        np.log(one[0] / one[1]) / served.temperature, rel=1e-4
    )
    kept = info_of(run)["decision"]["test"]["after"]["coverage"]
    assert kept == pytest.approx(0.9, abs=0.05)


def test_a_changed_decision_is_a_new_version(run, tmp_path):
    config = from_dict(
        {"run": {"name": "made", "directory": run}, "publish": {"directory": f"{tmp_path}/models"}}
    )

    def published():
        return publish(config, lambda *of: pytest.fail("nothing to evaluate"))

    assert published()["version"] == 1 and not published()["changed"]
    decide(run, DecisionOptions(metric="f1", labels=("spam",)))
    second = published()
    assert (second["version"], second["changed"], published()["changed"]) == (2, True, False)
    assert open_model(f"{tmp_path}/models/made").decision.thresholds
    assert not open_model(f"{tmp_path}/models/made/v=1").decision.thresholds
    decide(run, DecisionOptions(reset=True))
    assert published()["version"] == 1  # that version is there already
    with pytest.raises(ModelError, match="never altered"):
        decide(f"{tmp_path}/models/made/v=2", DecisionOptions(calibrate=True))
    with pytest.raises(ModelError, match="never altered"):
        decide(f"{tmp_path}/models/made", DecisionOptions(calibrate=True))


def judged(run, seed):
    """The verdict on new rows of the source that the run's rows are of, as `howdah score` counts
    them: by the model's scores with its decision."""
    reference, why = find_reference(f"{run}/export")
    assert reference is not None, why
    info = info_of(run)
    decision = Decision.of(info, LABELS, "single_label", run)
    _, labels, logits = rows_of(3_000, seed)
    part = Profile.like(reference)
    scores = decision.scores("single_label", logits).astype(np.float32)
    part.add(scores)
    answers = decision.rule("single_label", LABELS).answers(scores)
    joined = [LABELS[of] == answer for of, answer in zip(labels, answers, strict=True) if answer]
    return judge(reference, part, labelled=(len(joined), sum(joined)))


@pytest.mark.parametrize(
    "options",
    [
        {"calibrate": True},
        {"metric": "f1", "labels": ("spam",)},
        {"calibrate": True, "coverage": 0.7},
    ],
)
def test_unchanged_rows_do_not_drift_after_a_decision(run, options):
    _, labels, logits = rows_of(4_000, 2)
    scores = scores_of("single_label", logits).astype(np.float32)
    profile = make(
        scores, scores.argmax(1) == labels, task="single_label", labels=LABELS, split="validation"
    )
    storage.write_whole(f"{run}/export/{PROFILE}", profile.to_bytes())
    decide(run, DecisionOptions(**options))
    verdict = judged(run, 9)
    assert verdict.alarms == (), [column.sentence for column in verdict.alarms]
    assert verdict.column("accuracy").state == "ok"
    decide(run, DecisionOptions(reset=True))
    assert read(f"{run}/export/{PROFILE}").bins.decision == Decision()
    assert judged(run, 10).alarms == ()


def test_a_profile_of_another_decision_is_no_reference(run):
    scores = np.random.default_rng(0).dirichlet(np.ones(2), 300)
    profile = make(
        scores, scores[:, 0] > 0.5, task="single_label", labels=LABELS, split="validation"
    )
    decide(run, DecisionOptions(calibrate=True))
    storage.write_whole(f"{run}/export/{PROFILE}", profile.to_bytes())
    reference, why = find_reference(f"{run}/export")
    assert reference is None and "another decision" in why


def test_a_decision_belongs_to_the_identity_of_scored_partitions(run):
    before = files_of(open_version(run, "models")).identity
    decide(run, DecisionOptions(reject_below=0.75))
    after = files_of(open_version(run, "models")).identity
    assert before["decision"] is None and after["decision"]
    assert {key for key in before if before[key] != after[key]} == {"decision"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (DecisionOptions(), "nothing to decide"),
        (DecisionOptions(metric="auc", labels=("spam",)), "unknown metric"),
        (DecisionOptions(metric="f1"), "only one label can have"),
        (DecisionOptions(metric="f1", labels=("eggs",)), "no such label"),
        (DecisionOptions(metric="f1", labels=("spam",), coverage=0.9), "one export"),
        (DecisionOptions(coverage=0.9, accuracy=0.9), "only one way"),
        (DecisionOptions(accuracy=1.5), "(?s)not a share.*accuracy.*above 0, at most 1"),
        (DecisionOptions(reset=True, calibrate=True), "--reset cannot be combined"),
    ],
)
def test_what_is_refused(run, options, message):
    before = info_of(run)
    with pytest.raises(UsageError, match=message):
        decide(run, options)
    assert info_of(run) == before


def test_an_accuracy_that_no_rows_reach(run, tmp_path):
    texts, labels, logits = rows_of(100, 5)
    wrong = [1 - int(row.argmax()) for row in logits]
    other = make_run(f"{tmp_path}/x", LABELS, {"train": (texts, labels, logits),
                                               "validation": (texts, wrong, logits)})  # fmt: skip
    info = storage.read_json(f"{other}/export/howdah.json")
    info |= {"labels": LABELS, "weights_sha256": "0"}
    storage.write_whole(f"{other}/export/howdah.json", json.dumps(info).encode())
    storage.write_whole(f"{other}/export/config.json", b"{}")
    with pytest.raises(DataError, match="no bound reaches this accuracy") as caught:
        decide(other, DecisionOptions(accuracy=0.9))
    assert "at best" in caught.value.got


def test_the_command(run):
    def howdah(*options):
        return subprocess.run(
            [sys.executable, "-m", "howdah.cli", "model", "threshold", "--model", run, *options],
            capture_output=True, text=True,
        )  # fmt: skip

    done = howdah("--accuracy", "0.97", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["after"]["accuracy"] > report["before"]["accuracy"]
    assert report["after"]["coverage"] < 1.0
