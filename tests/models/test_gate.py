"""The gate: bounds kept and missed, the published model as the bar, what cannot be judged."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from types import SimpleNamespace

import numpy as np
import pytest

from howdah import cli, storage
from howdah.cli import main
from howdah.cli.common import typed
from howdah.cli.models import reviewer
from howdah.cli.training.judgement import conclude
from howdah.config.loader import from_dict
from howdah.errors import CheckFailed, ConfigError, ModelError
from howdah.models.export.export import with_decision
from howdah.models.metrics.metrics import classification_metrics
from howdah.models.runs import baseline
from howdah.serving.registry.gate import Check, GateVerdict, judge
from howdah.serving.registry.publish import publish
from tests.runs.finished_runs import config_of, finished_run, never
from tests.support.models.finished_run import make_run
from tests.support.models.tiny_model import words


@pytest.fixture
def run(tmp_path, tiny_model_dir) -> str:
    return finished_run(str(tmp_path / "run"), tiny_model_dir, run_id="run-1", accuracy=0.9)


@pytest.fixture
def models(tmp_path) -> str:
    return str(tmp_path / "models")


def test_every_missed_bound_is_reported(run, models):
    gate = {"minimum": {"accuracy": 0.95, "loss": 0.05, "macro_f1": 0.9, "ece": 0.2}}
    verdict = judge(config_of(run, models, gate=gate), never)
    assert not verdict.passed
    assert {c.metric: c.passed for c in verdict.checks} == {
        "accuracy": False, "loss": False, "macro_f1": True, "ece": True,
    }  # fmt: skip
    with pytest.raises(CheckFailed) as caught:
        verdict.require("gate")
    assert caught.value.exit_code == 1
    problems = {p.what: (p.expected, p.got) for p in caught.value.problems}
    assert problems == {"accuracy": ("at least 0.95", "0.9"), "loss": ("at most 0.05", "0.1")}


def test_bounds_are_inclusive_and_no_bounds_are_kept(run, models):
    assert judge(config_of(run, models, gate={"minimum": {"accuracy": 0.9}}), never).passed
    assert judge(config_of(run, models), never).passed


def test_the_baseline_is_a_bar_on_the_same_dataset(run, models):
    def put(accuracy, dataset="d1", split="test"):
        value = {"dataset": f"data/v={dataset}", "dataset_hash": dataset}
        value["metrics"] = {split: {"accuracy": accuracy, "roc_auc": None}}
        storage.write_whole(storage.join(run, "baseline.json"), json.dumps(value).encode())

    def gate(**sections):
        return judge(config_of(run, models, gate={"min_over_baseline": 0.02}, **sections), never)

    with pytest.raises(ModelError, match="there is no baseline") as caught:
        gate()
    assert "howdah evaluate --baseline" in caught.value.remedy
    put(0.87)
    (check,) = gate().checks
    assert check.passed and check.bound == pytest.approx(0.89) and "0.87" in check.against
    put(0.885)  # measured anew: the stored verdict is not taken
    assert not gate().passed
    put(0.87, dataset="d2")
    with pytest.raises(ModelError, match="different datasets"):
        gate()
    put(0.87, split="validation")
    with pytest.raises(ModelError, match="no accuracy on test"):
        gate()
    put(0.87)
    with pytest.raises(ModelError, match="no roc_auc on test"):
        gate(evaluation={"metric": "roc_auc"})


def test_the_split_asked_for_is_judged(run, models):
    minimum = {"accuracy": 0.905}
    for split, passed in (("test", False), ("validation", True)):
        gate = {"split": split, "minimum": minimum}
        assert judge(config_of(run, models, gate=gate), never).passed is passed


def test_an_undefined_metric_misses(tmp_path, models, tiny_model_dir):
    metrics = {"test": {"roc_auc": None, "accuracy": 1.0}}
    run = finished_run(
        str(tmp_path / "x"), tiny_model_dir, run_id="x", changes={"metrics": metrics}
    )
    with pytest.raises(CheckFailed) as caught:
        judge(config_of(run, models, gate={"minimum": {"roc_auc": 0.1}}), never).require("gate")
    assert caught.value.problems[0].got == "undefined"


@pytest.mark.parametrize(
    ("sections", "part"),
    [
        ({"gate": {"minimum": {"acuracy": 0.9}}}, "did you mean accuracy"),
        ({"gate": {"minimum": {"acuracy": 0.9}}}, "weighted_f1"),  # all are named
        ({"gate": {"minimum": {"accuracy": float("nan")}}}, "finite"),
        (
            {"gate": {"minimum": {"loss": 1}}, "evaluation": {"splits": ["validation"]}},
            "evaluation.splits",
        ),
        ({"publish": {"name": "../elsewhere"}}, "pattern"),
    ],
)
def test_an_impossible_gate_is_refused_before_training(sections, part):
    with pytest.raises(ConfigError) as caught:
        from_dict(sections)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"status": "running"}, "not finished"),
        ({"best_step": 19}, "metrics were not measured on its export"),
        ({"run_id": "another"}, "metrics were not measured on its export"),
        ({"metrics": {"validation": {}}}, "not measured on test"),
    ],
)
def test_a_run_that_cannot_be_judged_is_refused(tmp_path, models, tiny_model_dir, changes, part):
    run = finished_run(str(tmp_path / "x"), tiny_model_dir, run_id="x", changes=changes)
    with pytest.raises(ModelError) as caught:
        judge(config_of(run, models, gate={"minimum": {"loss": 1}}), never)
    assert part in caught.value.what
    assert caught.value.exit_code == 4


def test_no_run_and_no_export(tmp_path, models, run):
    with pytest.raises(ModelError, match="there is no run"):
        judge(config_of(str(tmp_path / "nowhere"), models), never)
    storage.remove(f"{run}/export", recursive=True)
    with pytest.raises(ModelError, match="no export"):
        judge(config_of(run, models), never)


# ----------------------------------------------------------------------- against the published
@pytest.mark.parametrize(
    ("accuracy", "margin", "passed"),
    [(0.9, 0.0, True), (0.89, 0.0, False), (0.89, -0.02, True), (0.91, 0.02, False)],
)
def test_the_published_model_is_the_bound(
    tmp_path, run, models, tiny_model_dir, accuracy, margin, passed
):
    publish(config_of(run, models), never)
    other = finished_run(str(tmp_path / "b"), tiny_model_dir, run_id="b", accuracy=accuracy)
    gate = {"better_than_published": True, "margin": margin}
    verdict = judge(config_of(other, models, gate=gate), never)
    assert verdict.passed is passed
    assert verdict.published == 1
    assert "published v=1 (0.9)" in verdict.checks[0].against


def test_loss_must_be_lower_than_the_published_one(tmp_path, run, models, tiny_model_dir):
    publish(config_of(run, models), never)
    gate, metric = {"better_than_published": True, "margin": 0.02}, {"metric": "loss"}
    for accuracy, passed in ((0.93, True), (0.91, False)):
        directory = str(tmp_path / str(accuracy))
        other = finished_run(directory, tiny_model_dir, run_id=directory, accuracy=accuracy)
        config = config_of(other, models, gate=gate, evaluation=metric)
        assert judge(config, never).passed is passed


def test_neither_an_empty_directory_nor_the_run_s_own_model_is_a_bound(run, models):
    config = config_of(run, models, gate={"better_than_published": True, "margin": 0.05})
    assert judge(config, never).published is None
    publish(config, never)
    assert judge(config, never).passed


def test_on_other_data_the_published_model_is_measured_again(tmp_path, run, models, tiny_model_dir):
    publish(config_of(run, models), never)
    new = finished_run(
        str(tmp_path / "b"), tiny_model_dir, run_id="b", accuracy=0.8, dataset="d2"
    )  # fmt: skip
    evaluations = []

    def evaluate(model, dataset, split):
        evaluations.append((model, dataset, split))
        return {"accuracy": 0.7}

    config = config_of(new, models, gate={"better_than_published": True})
    assert judge(config, evaluate).passed
    assert evaluations == [(f"{models}/zoo/v=1", "data/v=d2", "test")]
    # The verdict is kept: publishing does not measure again. Another bound does.
    assert judge(config, never).checks[0].bound == 0.7
    stricter = config_of(new, models, gate={"better_than_published": True, "margin": 0.2})
    assert not judge(stricter, evaluate).passed
    assert len(evaluations) == 2


# ----------------------------------------------------------------------------- the command line
def test_the_command(run, models, tmp_path, capsys, monkeypatch):
    def call(*arguments) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["howdah", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    config = str(tmp_path / "c.yaml")
    sections = {"run": {"name": "zoo", "directory": run}, "publish": {"directory": models}}
    with open(config, "w", encoding="utf-8") as file:
        json.dump(sections, file)
    code, out, _ = call("gate", "-c", config, "--set", "gate.minimum={accuracy: 0.9}", "--json")
    assert code == 0
    assert json.loads(out)["checks"][0]["wanted"] == "at least 0.9"
    code, out, err = call("gate", "-c", config, "--set", "gate.minimum={loss: 0.01}", "--json")
    assert code == 1
    assert json.loads(out)["problems"][0]["what"] == "loss"
    assert "at most 0.01" in err
    assert "Traceback" not in err
    code, out, err = call("gate", "-c", config, "--set", "gate.minimum={los: 0.01}")
    assert code == 2
    assert "did you mean loss" in err
    code, out, _ = call("publish", "-c", config, "--json", "--note", "by hand")
    assert code == 0
    assert json.loads(out) | {"metrics": 0, "gate": 0} == {
        "name": "zoo", "version": 1, "path": f"{models}/zoo/v=1", "changed": True, "current": 1,
        "pointer": f"{models}/zoo/current.json", "previous": None, "run_id": "run-1",
        "run_directory": run, "framework": "torch", "step": 12, "metrics": 0, "gate": 0,
    }  # fmt: skip
    assert storage.read_json(f"{models}/zoo/current.json")["note"] == "by hand"
    assert call("publish", "-c", config, "--rollback")[0] == 2
    code, out, err = call("publish", "-c", config, "--version", "7", "--json")
    assert code == 4
    refused = json.loads(out)
    assert "the model has no version 7" in refused["what"] and refused["expected"] == "one of 1"


def test_a_gate_that_asks_for_nothing_says_so(run, models, tmp_path, capsys, monkeypatch):
    path = str(tmp_path / "c.yaml")
    sections = {"run": {"name": "zoo", "directory": run}, "publish": {"directory": models}}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(sections, file)
    monkeypatch.setattr("sys.argv", ["howdah", "gate", "-c", path])
    with pytest.raises(SystemExit) as ended:
        main()
    out, _ = capsys.readouterr()
    assert ended.value.code == 0
    assert "nothing to check: gate.* is empty" in out and "passed" not in out


def test_an_undefined_metric_of_the_published_model_is_no_bound(
    tmp_path, run, models, tiny_model_dir
):
    """A bound of 0 would refuse every loss, and every correlation below 0."""
    old = finished_run(str(tmp_path / "old"), tiny_model_dir, run_id="run-0", dataset="d0")
    publish(config_of(old, models), never)
    gate = {"better_than_published": True}
    verdict = judge(
        config_of(run, models, gate=gate, evaluation={"metric": "loss"}),
        lambda *of: {"loss": None},
    )
    assert verdict.passed and not verdict.asks
    assert "undefined" in verdict.notes[0] and "not compared" in verdict.notes[0]
    # The stored verdict has it too.
    again = config_of(run, models, gate=gate, evaluation={"metric": "loss"})
    assert judge(again, never).notes == verdict.notes


def test_a_model_without_the_published_ones_decision_is_pointed_out(
    tmp_path, run, models, tiny_model_dir
):
    old = finished_run(str(tmp_path / "old"), tiny_model_dir, run_id="run-0")
    with_decision(f"{old}/export", {"reject_below": 0.7})
    publish(config_of(old, models), never)
    verdict = judge(config_of(run, models), never)
    assert verdict.passed and "rejection" in verdict.notes[0]
    with_decision(f"{run}/export", {"reject_below": 0.6})
    assert judge(config_of(run, models), never).notes == ()


@pytest.fixture
def worse(tmp_path) -> str:
    """A finished run whose model is worse than its baseline, beyond chance."""
    labels = ["a", "b"]
    random = np.random.default_rng(1)
    of_rows = random.integers(0, 2, 400)
    texts = [" ".join(random.choice(words(), 6)) for _ in of_rows]
    ours = np.where(random.random(400) < 0.75, of_rows, 1 - of_rows)
    rows = (texts, of_rows.tolist(), np.eye(2)[ours])
    made = make_run(str(tmp_path), labels, {"train": rows, "test": rows})
    better = np.where(random.random(400) < 0.97, of_rows, 1 - of_rows)
    info = storage.read_json(f"{made}/export/howdah.json")
    about = {
        "dataset": info["dataset"]["path"], "dataset_hash": info["dataset"]["hash"],
        "metrics": {"test": classification_metrics(of_rows, np.eye(2)[better], labels)},
    }  # fmt: skip
    baseline.write(made, about, {"test": better.astype(np.int32)})
    return made


def test_a_model_that_is_worse_than_its_baseline_is_not_published_unasked(worse, capsys):
    run = SimpleNamespace(directory=worse)
    nothing = GateVerdict("test", (), "made-1", 40, None)
    with pytest.raises(CheckFailed, match="Not good") as caught:
        reviewer(False)(run, nothing)
    assert "worse than the baseline" in caught.value.got and "--anyway" in caught.value.remedy
    message = capsys.readouterr().err
    assert "Not good: It is worse than the baseline" in message and "report renewed: " in message
    recorded = storage.read_json(f"{worse}/run.json")["verdict"]
    assert (recorded["verdict"], recorded["verdict_reason"]) == ("Not good", caught.value.got)
    page = storage.read_text(f"{worse}/report.html")
    assert '<meta name="howdah-verdict" content="Not good">' in page
    assert re.search(r"test macro_f1 0\.\d{4} \(95 %: .*\); the baseline 0\.9\d{3}", message)
    reviewer(True)(run, nothing)
    # A gate that asks for something is the user's own judgement.
    kept = GateVerdict("test", (Check("accuracy", 0.5, 0.75, "gate.minimum"),), "made-1", 40, None)
    reviewer(False)(run, kept)


@pytest.mark.parametrize("gate", [{}, {"min_over_baseline": 0}])
def test_the_next_command_after_a_missed_gate_publishes(worse, models, tmp_path, gate):
    weights = b"weights"  # publish copies and compares them
    storage.write_whole(f"{worse}/export/model.safetensors", weights)
    info = storage.read_json(f"{worse}/export/howdah.json")
    info["weights_sha256"] = hashlib.sha256(weights).hexdigest()
    storage.write_whole(f"{worse}/export/howdah.json", json.dumps(info).encode())
    sections = {
        "run": {"name": "zoo", "directory": worse}, "publish": {"directory": models}, "gate": gate,
    }  # fmt: skip
    path = tmp_path / "a run.yaml"
    path.write_text(json.dumps(sections))
    result, lines = conclude(from_dict(sections), typed("publish", str(path)))
    assert lines[0].startswith("Not good") and lines[-1] == f"next: {result['next']}"

    def code_of(command: str) -> int:
        return cli.run(lambda: cli.app(shlex.split(command)[1:], standalone_mode=False) or 0)

    assert code_of(typed("publish", str(path))) == 1
    [command] = re.findall("`(howdah .*)`", result["next"])
    assert code_of(command) == 0
    assert storage.is_dir(f"{models}/zoo/v=1")


@pytest.mark.parametrize(
    ("gate", "keys"),
    [
        ({"minimum": {"accuracy": 0.99}}, "gate.minimum"),
        (
            {"minimum": {"accuracy": 0.99}, "better_than_published": True, "min_over_baseline": 0},
            "gate.minimum and gate.better_than_published and gate.min_over_baseline",
        ),
    ],
)
def test_no_way_around_other_bounds_is_offered(worse, models, gate, keys):
    publishing = "howdah publish --config run.yaml"
    result, _ = conclude(config_of(worse, models, gate=gate), publishing)
    assert f"`{publishing}` publishes it only if it meets the bounds of {keys}" in result["next"]
    assert "--anyway" not in result["next"]


def test_the_next_command_of_an_unclear_verdict_ends_where_it_says(run, models):
    publishing = "howdah publish --config run.yaml --set training.max_steps=6"
    result, _ = conclude(config_of(run, models), publishing)
    assert f"`{publishing}` if that is good enough" in result["next"]
