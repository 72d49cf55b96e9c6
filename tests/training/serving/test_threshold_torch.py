"""`howdah threshold`: from a run to served predictions, and to the next published version."""

import json
import subprocess
import sys

import numpy as np
import pytest

from howdah import storage
from howdah.config.loader import from_dict
from howdah.errors import DataError, ModelError, UsageError
from howdah.models.publish import publish
from tests.support.models.finished_run import make_run
from tests.support.models.tiny_model import words
from training.evaluation.decision import Decision
from training.prediction.classify import classify
from training.prediction.rows import Outputs, Row, as_json
from training.serving.export import export
from training.serving.serve import open_model
from training.serving.threshold import Asked, decide

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
    from training.model.pretrained import load_base

    found = load_base(base, label_names=LABELS)
    random = np.random.default_rng(0)
    width = found.config["dim"]
    head = {
        "pre_classifier.weight": random.standard_normal((width, width)).astype(np.float32),
        "pre_classifier.bias": np.zeros(width, np.float32),
        "classifier.weight": random.standard_normal((2, width)).astype(np.float32),
        "classifier.bias": np.zeros(2, np.float32),
    }
    info = storage.read_json(f"{made}/export/howdah.json")
    storage.remove(f"{made}/export", recursive=True)
    export(
        f"{made}/export", weights={**found.weights, **head}, base_config=found.config,
        tokenizer_files=found.tokenizer_files, label_names=LABELS,
        run_info={
            "run_id": info["run_id"], "max_length": 64, "clean": {}, "step": 40,
            "framework": "torch",
            "base": {"source": base, "hash": found.hash},
            "dataset": {**info["dataset"], "rows": {}},
            "tokenizer_hash": from_files(found.tokenizer_files),
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
    found = decide(run, Asked(metric="f1", labels=("spam",)))
    least = found["decision"]["thresholds"]["spam"]
    assert 0.05 < least < 0.5 and found["rows"] == 800
    assert found["after"]["per_class"]["spam"]["f1"] > found["before"]["per_class"]["spam"]["f1"]
    after = info_of(run)
    assert after.pop("decision")["thresholds"] == {"spam": least}
    assert after == before  # the weights' hash too
    assert open_model(run).decision == Decision(thresholds={"spam": least})
    again = decide(run, Asked(reset=True))
    assert again["replaced"] == {"thresholds": {"spam": least}} and info_of(run) == before
    leftover = [entry.name for entry in storage.list_dir(run) if entry.name.startswith("export.")]
    assert leftover == []


def test_rejected_rows_have_scores_no_label_and_no_error(run):
    plain = open_model(run)
    texts = [" ".join(words()[n : n + 5]) for n in range(0, 60, 3)]
    rows = [*(Row(str(n), text) for n, text in enumerate(texts)), Row("e", " ")]
    unchanged = classify(plain, rows)
    middle = float(np.median([one.scores.max() for one in unchanged[:-1]]))
    decide(f"{run}/export", Asked(reject_below=middle))
    served = open_model(run)
    assert served.reject_below == middle and served.temperature == 1.0
    found = classify(served, rows)
    for one, other in zip(found[:-1], unchanged[:-1], strict=True):
        assert np.array_equal(one.scores, other.scores)
        assert one.rejected == (other.scores.max() < middle)
        assert one.label == (None if one.rejected else other.label) and one.error is None
    assert 0 < sum(one.rejected for one in found) < len(texts)
    assert found[-1].error and not found[-1].rejected
    outputs = Outputs(task="single_label", labels=LABELS)
    said = json.loads(as_json(next(one for one in found if one.rejected), outputs, "r"))
    assert said["label"] is None and said["rejected"] is True and "error" not in said


def test_a_temperature_is_applied_to_all_scores(run):
    plain = open_model(run)
    text = [" ".join(words()[:7])]
    decide(run, Asked(calibrate=True, coverage=0.9))
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
    decide(run, Asked(metric="f1", labels=("spam",)))
    second = published()
    assert (second["version"], second["changed"], published()["changed"]) == (2, True, False)
    assert open_model(f"{tmp_path}/models/made").decision.thresholds
    assert not open_model(f"{tmp_path}/models/made/v=1").decision.thresholds
    decide(run, Asked(reset=True))
    assert published()["version"] == 1  # that version is there already
    with pytest.raises(ModelError, match="never altered"):
        decide(f"{tmp_path}/models/made/v=2", Asked(calibrate=True))
    with pytest.raises(ModelError, match="never altered"):
        decide(f"{tmp_path}/models/made", Asked(calibrate=True))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Asked(calibrate=True, split="test"), "not fitted on test"),
        (Asked(calibrate=True, split="train"), "has not learnt"),
        (Asked(), "say what"),
        (Asked(metric="auc", labels=("spam",)), "unknown metric"),
        (Asked(metric="f1"), "one label can have"),
        (Asked(metric="f1", labels=("eggs",)), "no such label"),
        (Asked(metric="f1", labels=("spam",), coverage=0.9), "one export"),
        (Asked(coverage=0.9, accuracy=0.9), "one way"),
        (Asked(accuracy=1.5), "(?s)no share.*for example --accuracy 0.9"),
        (Asked(reset=True, calibrate=True), "nothing else"),
    ],
)
def test_what_is_refused(run, asked, said):
    before = info_of(run)
    with pytest.raises(UsageError, match=said):
        decide(run, asked)
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
    with pytest.raises(DataError, match="so often") as caught:
        decide(other, Asked(accuracy=0.9))
    assert "at best" in caught.value.got


def test_the_command(run):
    def howdah(*options):
        return subprocess.run(
            [sys.executable, "-m", "howdah.cli", "threshold", "--model", run, *options],
            capture_output=True, text=True,
        )  # fmt: skip

    refused = howdah("--accuracy", "0.9", "--split", "test")
    assert refused.returncode == 2 and "not fitted on test" in refused.stderr
    done = howdah("--accuracy", "0.97", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["after"]["accuracy"] > found["before"]["accuracy"]
    assert found["after"]["coverage"] < 1.0
