"""report.html: its contents, self-contained, with escaped labels."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from howdah import cli, storage
from howdah.config.loader import load
from howdah.config.metric_table import metrics_of
from howdah.errors import DataError
from howdah.models.metrics.metrics import classification_metrics
from howdah.models.runs import baseline
from howdah.serving.report.report import renew, write
from tests.support.models.finished_run import make_run

LABELS = ["plain", "<script>alert(1)</script>", "$a_{b$ & co"]


@pytest.fixture
def run_directory(tmp_path) -> str:
    rng = np.random.default_rng(0)
    directory = str(tmp_path / "run")
    os.makedirs(directory)
    metrics = {
        split: classification_metrics(
            rng.integers(0, 3, rows), rng.standard_normal((rows, 3)), LABELS
        )
        for split, rows in (("validation", 60), ("test", 1234))
    }
    run = {
        "run_id": "zoo-1", "name": "zoo", "status": "finished", "framework": "torch",
        "world_size": 2, "created": "2030-01-01T00:00:00+00:00", "steps": 40, "metrics": metrics,
        "train_seconds": 12.5, "examples_per_second": 51.3, "versions": {"torch": "9.9"},
        "git": {"commit": "abc123", "dirty": True}, "attempts": [{"attempt": 1}],
    }  # fmt: skip
    lines = [
        {"attempt": 1, "step": step, "loss": 2.0 / step, "lr": 1e-5 * step, "grad_norm": None,
         "examples_per_second": 50.0}
        for step in range(10, 41, 10)
    ]  # fmt: skip
    lines.insert(2, {"attempt": 1, "step": 20, "split": "validation", "metrics": metrics["test"]})
    storage.write_whole(os.path.join(directory, "run.json"), json.dumps(run).encode())
    text = "".join(json.dumps(line) + "\n" for line in lines)
    storage.write_whole(os.path.join(directory, "metrics.jsonl"), text.encode())
    storage.write_whole(os.path.join(directory, "config.yaml"), b"run:\n  name: <zoo>\n")
    return directory


def edit_run(directory: str, **changes) -> None:
    path = os.path.join(directory, "run.json")
    storage.write_whole(path, json.dumps(storage.read_json(path) | changes).encode())


def svgs(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def texts(svg: ElementTree.Element) -> list[str]:
    return [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]


def test_the_report_shows_the_run_s_figures(run_directory):
    path = write(run_directory)
    assert path == os.path.join(run_directory, "report.html")
    page = storage.read_text(path)
    metrics = storage.read_json(os.path.join(run_directory, "run.json"))["metrics"]
    for split in ("validation", "test"):
        for name in metrics_of("single_label"):
            value = metrics[split][name]
            assert (name in page) is (value is not None)  # of three labels no top 3
            assert value is None or f"{value:.4f}" in page
    for part in ("zoo-1", "abc123 (changed since)", "9.9", "1,234", "2 ranks", "&lt;zoo&gt;"):
        assert part in page
    titles = {text for svg in svgs(page) for text in texts(svg)}
    assert {"Loss", "Learning rate", "Validation", "Examples/s", "Calibration"} <= titles
    assert "Gradient norm" not in titles  # it was not logged
    test = metrics["test"]
    matrix = re.search(r'<table class="matrix">.*?</table>', page, re.DOTALL)[0]
    counts = [int(n.replace(",", "")) for n in re.findall(r"%\">(?:<a[^>]*>)?([\d,]+)", matrix)]
    assert counts == [n for row in test["confusion_matrix"] for n in row]
    assert f"ECE {test['ece']:.3f}" in page


def test_the_report_shows_steps_that_fp16_skipped(run_directory):
    assert "skipped by fp16" not in storage.read_text(write(run_directory))
    path = os.path.join(run_directory, "run.json")
    run = storage.read_json(path) | {"skipped_steps": 1_234}
    storage.write_whole(path, json.dumps(run).encode())
    page = storage.read_text(write(run_directory))
    at = page.index("steps skipped by fp16")
    assert "1,234" in page[at - 80 : at + 100]


def test_labels_are_escaped_and_nothing_is_loaded_from_outside(run_directory):
    page = storage.read_text(write(run_directory))
    assert page.count("<script") == 1  # the page's own
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "$a_{b$ &amp; co" in page
    links = re.findall(r"""(?:src|href)\s*=\s*["']?([^"'\s]{0,40})""", page)
    assert links.pop(0) == "data:,"  # an icon, so that no server is asked for one
    assert links and not [link for link in links if not link.startswith("#")]
    assert "@import" not in page
    assert "url(" not in page


def test_the_same_run_gives_the_same_page(run_directory):
    assert storage.read_bytes(write(run_directory)) == storage.read_bytes(write(run_directory))


def test_a_run_without_steps_has_a_report(run_directory):
    storage.remove(os.path.join(run_directory, "metrics.jsonl"))
    storage.remove(os.path.join(run_directory, "config.yaml"))
    edit_run(run_directory, metrics={}, status="running", git=None, train_seconds=None)
    page = storage.read_text(write(run_directory))
    assert "No step was logged" in page
    assert "no final evaluation" in page


def test_many_classes_and_undefined_metrics_are_shown(run_directory):
    names = [f"class-{n:03d}" for n in range(60)]
    labels = np.zeros(5, int)
    metrics = classification_metrics(labels, np.eye(60)[:5], names)
    assert metrics["roc_auc"] is None
    edit_run(run_directory, metrics={"test": metrics})
    page = storage.read_text(write(run_directory))
    assert "class-059" in page


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(DataError, match="not a run directory"):
        write(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_on_another_storage(run_directory):
    try:
        for name in ("run.json", "metrics.jsonl"):
            data = storage.read_bytes(os.path.join(run_directory, name))
            storage.write_whole(f"memory://report/{name}", data)
        assert storage.read_text(write("memory://report")).startswith("<!DOCTYPE html>")
    finally:
        storage.remove("memory://report", recursive=True)


def recorded_in(run):
    return storage.read_json(f"{run}/run.json")["verdict"]


@pytest.fixture
def judged_run(tmp_path, monkeypatch):
    """A run that was judged in its working directory, to which its configuration's paths are
    relative: it is better than the baseline beside its dataset, and than the published version."""
    monkeypatch.chdir(tmp_path)
    random, splits = np.random.default_rng(3), {}
    for split, count in (("train", 40), ("test", 600)):
        classes = random.integers(0, 2, count)
        logits = np.eye(2)[np.where(random.random(count) < 0.95, classes, 1 - classes)] * 4.0
        splits[split] = (["a b c"] * count, classes.tolist(), logits)
    publish = {"publish": {"directory": "models", "name": "made"}}
    run = make_run(".", ["a", "b"], splits, config=publish)
    info = storage.read_json(f"{run}/export/howdah.json")
    dataset = info["dataset"]
    of_test = np.array(splits["test"][1])
    guessed = np.where(random.random(600) < 0.7, of_test, 1 - of_test).astype(np.int32)
    about = {
        "dataset": dataset["path"], "dataset_hash": dataset["hash"],
        "metrics": {"test": classification_metrics(of_test, np.eye(2)[guessed], ["a", "b"])},
    }  # fmt: skip
    config = load(f"{run}/config.yaml")
    beside = baseline.directory_of(dataset["path"], dataset["hash"], config)
    baseline.write(beside, about, {"test": guessed})
    current = {"version": 1, "run_id": "other", "dataset": dataset}
    current["metrics"] = {"test": {"macro_f1": 0.8}}
    storage.write_whole("models/made/current.json", json.dumps(current).encode())
    write(run)
    return run


def test_a_report_from_another_working_directory_keeps_the_verdict(
    judged_run, tmp_path, monkeypatch, capsys
):
    run = str(tmp_path / "run")
    recorded = recorded_in(run)
    assert recorded["verdict"] == "Good"
    assert "the baseline" in recorded["verdict_reason"] and "published v=1" in str(recorded)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    cli.app(["report", run], standalone_mode=False)
    assert recorded_in(run) == recorded
    warning = capsys.readouterr().err
    for part in ("warning: the verdict is the one in run.json", "the dataset", "the baseline",
                 "the published model", str(tmp_path / "elsewhere/data/v=0")):  # fmt: skip
        assert part in warning
    page = storage.read_text(f"{run}/report.html")
    assert '<meta name="howdah-verdict" content="Good">' in page
    assert "The verdict is the one in run.json" in page
    # A missed bound of the gate needs none of them.
    text = storage.read_text(f"{run}/config.yaml") + "gate: {minimum: {accuracy: 0.99}}\n"
    storage.write_whole(f"{run}/config.yaml", text.encode())
    assert renew(run, lambda line: None).verdict.state == "bad"
    assert recorded_in(run)["verdict_reason"].startswith("It misses the gate: accuracy is 0.9")


@pytest.mark.parametrize(
    ("lost", "what"), [("data/baselines", "the baseline"), ("models", "the published model")]
)
def test_a_verdict_stays_while_what_it_was_based_on_is_away(judged_run, lost, what):
    recorded, lines = recorded_in(judged_run), []
    os.rename(lost, "away")
    assert what in renew(judged_run, lines.append).kept
    assert recorded_in(judged_run) == recorded and len(lines) == 1 and what in lines[0]
    os.rename("away", lost)
    # What can be read and says something else now changes the verdict, as ever.
    current = storage.read_json("models/made/current.json")
    current["metrics"]["test"]["macro_f1"] = 0.999
    storage.write_whole("models/made/current.json", json.dumps(current).encode())
    assert not renew(judged_run, lines.append).kept
    assert recorded_in(judged_run)["verdict"] == "Not good"
