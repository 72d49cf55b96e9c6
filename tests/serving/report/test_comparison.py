"""`howdah report`: one run again, several side by side."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from howdah import storage
from howdah.errors import AlreadyExists, DataError, UsageError
from howdah.serving.report import runs as listing
from howdah.serving.report.comparison import MOST, compare
from howdah.serving.report.report import write
from tests.serving.report.test_report import edit_run, run_directory, svgs, texts  # noqa: F401
from tests.support.models.finished_run import make_run


@pytest.fixture
def runs(run_directory, tmp_path):  # noqa: F811
    """Two runs of one name: the second has another learning rate, and a higher accuracy."""
    other = str(tmp_path / "other")
    shutil.copytree(run_directory, other)
    metrics = storage.read_json(f"{other}/run.json")["metrics"]
    metrics["test"] |= {"accuracy": 0.999, "loss": 9.0}
    edit_run(other, run_id="zoo-2", metrics=metrics)
    for directory, rate in ((run_directory, "1e-4"), (other, "3e-4")):
        edit_run(directory, dataset_hash="d1")
        text = f"run: {{name: zoo}}\ntraining: {{learning_rate: {rate}, seed: 1}}\n"
        storage.write_whole(f"{directory}/config.yaml", text.encode())
    return [run_directory, other]


def howdah(*words, cwd):
    return subprocess.run(
        [sys.executable, "-m", "howdah.cli", *words], cwd=cwd, capture_output=True, text=True
    )


def test_runs_side_by_side(runs, tmp_path):
    path = str(tmp_path / "page.html")
    comparison = compare(runs, path)
    assert comparison["same_dataset"]
    assert comparison["differing"] == {"training.learning_rate": [0.0001, 0.0003]}
    assert comparison["runs"][1]["metrics"]["test"]["accuracy"] == 0.999
    page = storage.read_text(path)
    assert '<td class="best">0.9990</td>' in page
    # Of a loss the lower one is the best.
    assert "9.0000" in page and '<td class="best">9.0000</td>' not in page
    for part in ("1 zoo", "2 zoo", "zoo-1", "zoo-2", "training.learning_rate", "1,234"):
        assert part in page
    assert "different datasets" not in page and "training.seed" not in page
    titles = {text for svg in svgs(page) for text in texts(svg)}
    assert {"Training loss", "Validation accuracy", "1 zoo", "2 zoo"} <= titles
    assert not re.search(r"(src|href)=.https?:", page.replace("xlink:href", ""))


def test_a_difference_is_real_or_chance_by_the_rows_of_both(tmp_path):
    """The second run errs in other rows, as often; the third is worse; the fourth has no rows."""
    random = np.random.default_rng(5)
    labels = random.integers(0, 3, 600)
    good = random.standard_normal((600, 3))
    good[np.arange(600), labels] += 3.0
    noise = {"first": 0.0, "second": 0.15, "third": 4.0, "fourth": 0.0}
    texts, paths = ["some words"] * 600, []
    for name, size in noise.items():
        logits = good + size * random.standard_normal((600, 3))
        splits = {
            split: (texts, labels.tolist(), logits) for split in ("train", "validation", "test")
        }
        paths.append(make_run(f"{tmp_path}/{name}", ["a", "b", "c"], splits))
        edit_run(paths[-1], dataset_hash="d1", name=name)
    storage.remove(f"{paths[3]}/predictions", recursive=True)
    output = str(tmp_path / "page.html")
    compare(paths[:2], output)
    assert "No real difference" in storage.read_text(output)
    compare([paths[0], paths[2]], output)
    page = storage.read_text(output)
    assert "A real difference" in page and "first is better by" in page
    assert 'href="first/run/report.html"' not in page  # there is no report yet
    write(paths[0])
    compare(paths, output)
    page = storage.read_text(output)
    assert "better than 1 of 3 other runs" in page and 'href="first/run/report.html"' in page
    cells = re.findall(r"(yes, beyond chance|no, within chance|not tested)", page)
    assert sorted(cells) == ["no, within chance", "not tested", "yes, beyond chance"]


def test_the_list_of_runs(runs, tmp_path):
    edit_run(runs[1], status="running", created="2031-01-01T00:00:00+00:00")
    write(runs[0])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text('{"run_id": ')
    (tmp_path / "data").mkdir()
    listed = howdah("runs", str(tmp_path), "--json", cwd=tmp_path)
    rows = {row["run"]: row for row in json.loads(listed.stdout)["runs"]}
    assert list(rows) == ["other", "run", "broken"]  # the newest first, unknown times last
    assert [row["state"].split(":")[0] for row in rows.values()] == [
        "lost",
        "finished",
        "unreadable",
    ]
    assert rows["run"]["verdict"] in ("Good", "Not good", "Inconclusive", "Cannot say")
    assert rows["other"]["verdict"] is None and rows["run"]["metric"] == "macro_f1"
    page = storage.read_text(str(tmp_path / "runs.html"))
    assert 'href="run/report.html"' in page and "unreadable" in page
    table = howdah("runs", str(tmp_path), "--sort", "run", cwd=tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in table] == ["run", "broken", "other", "run", "page:"]
    wrong = howdah("runs", str(tmp_path), "--sort", "colour", cwd=tmp_path)
    assert wrong.returncode == 2 and "minutes" in wrong.stderr


def test_a_directory_without_runs_gets_no_page(tmp_path):
    folder = tmp_path / "somewhere"
    (folder / "data").mkdir(parents=True)
    done = howdah("runs", str(folder), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{folder}: no runs\n")
    listed = json.loads(howdah("runs", str(folder), "--json", cwd=tmp_path).stdout)
    assert listed == {"directory": str(folder), "page": None, "runs": []}
    assert os.listdir(folder) == ["data"]


def test_another_program_s_run_json_is_a_row_like_others(runs, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "run.json").write_text('{"attempts": [{"settings": ["a"]}]}')
    rows = listing.listed(str(tmp_path), lambda directory: "running", say=pytest.fail)
    assert {row.run for row in rows} == {"run", "other", "theirs"}
    assert "theirs" in listing.page(str(tmp_path), rows)


def test_a_list_that_is_cut_says_so(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "_MOST_DIRECTORIES", 2)
    lines = []
    rows = listing.listed(str(tmp_path), lambda directory: "running", say=lines.append)
    assert (
        len(rows) == 1 and len(lines) == 1 and "searched only the first 2 directories" in lines[0]
    )


def test_a_curve_ends_with_the_last_step(runs, tmp_path):
    lines = [{"attempt": 1, "step": step, "loss": 1 / step} for step in range(1, 1_001)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    storage.write_whole(f"{runs[1]}/metrics.jsonl", text.encode())
    compare(runs, str(tmp_path / "page.html"))
    page = storage.read_text(str(tmp_path / "page.html"))
    assert "[1000,0.001]" in html.unescape(page)


def test_runs_on_other_datasets_are_said_to_be(runs, tmp_path):
    edit_run(runs[1], dataset_hash="d2")
    path = str(tmp_path / "page.html")
    assert not compare(runs, path)["same_dataset"]
    assert "different datasets" in storage.read_text(path)


def test_a_run_without_figures_stands_beside_others(runs, tmp_path):
    edit_run(runs[1], metrics={}, status="running", name="<b>")
    storage.write_whole(f"{runs[1]}/metrics.jsonl", b"")
    storage.remove(f"{runs[1]}/config.yaml")
    path = str(tmp_path / "page.html")
    compare(runs, path)
    page = storage.read_text(path)
    assert ">&lt;b&gt;<" in page and "<b>" not in page


def test_what_cannot_be_compared(runs, tmp_path):
    with pytest.raises(DataError, match="not a run directory"):
        compare([runs[0], str(tmp_path)], str(tmp_path / "page.html"))
    with pytest.raises(UsageError, match="more than 12 runs"):
        compare([runs[0]] * (MOST + 1), str(tmp_path / "page.html"))
    for text in ("run: {name: 2026-13-45}", "run: {name: {{ x }}}"):  # PyYAML's own ValueError...
        storage.write_whole(f"{runs[1]}/config.yaml", text.encode())
        with pytest.raises(DataError, match="configuration cannot be read") as caught:
            compare(runs, str(tmp_path / "page.html"))
        assert caught.value.where == f"{runs[1]}/config.yaml, line 1"
    assert not (tmp_path / "page.html").exists()


def test_only_a_page_of_runs_is_replaced(runs, tmp_path):
    page = tmp_path / "page.html"
    compare(runs, str(page))
    first = page.read_bytes()
    edit_run(runs[1], name="again")
    compare(runs, str(page))
    assert page.read_bytes() != first
    report = storage.join(runs[0], "report.html")
    storage.write_whole(report, b"<!DOCTYPE html>\n<html><title>Run zoo</title>")
    kept = tmp_path / "keep.csv"
    kept.write_text("text,label\n")
    for path in (str(kept), report, str(tmp_path)):
        with pytest.raises(AlreadyExists, match="not a page of compared runs") as refused:
            compare(runs, path)
        assert (refused.value.where, bool(refused.value.remedy)) == (path, True)
    assert kept.read_text() == "text,label\n"


def test_the_command(runs, tmp_path):
    again = howdah("report", runs[0], "--json", cwd=tmp_path)
    assert json.loads(again.stdout) == {"path": os.path.join(runs[0], "report.html")}
    both = howdah("report", *runs, cwd=tmp_path)
    assert (both.returncode, both.stdout) == (0, "comparison: comparison.html\n")
    assert (tmp_path / "comparison.html").exists()
    none = howdah("report", str(tmp_path), cwd=tmp_path)
    assert none.returncode == 3 and "not a run directory" in none.stderr
