"""Exports of each task give transformers' pipeline the scores that Howdah gives, also for pairs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests import ROOT


@pytest.mark.full
def test_transformers_gives_the_same_scores(tmp_path, tiny_model_dir):
    done = subprocess.run(
        [sys.executable, "-m", "tests.workers.task_exports", str(tmp_path), tiny_model_dir],
        cwd=ROOT,
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "USE_TF": "0", "HF_HUB_OFFLINE": "1"}
        | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    of = json.loads(done.stdout.splitlines()[-1])
    for task, answers in of.items():
        for ours, theirs in zip(answers["ours"], answers["theirs"], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-5, rel=1e-5), task
        assert ("one text" in answers["refused"]) is (task != "multi_label")
        types = {
            "single_label": "single_label_classification",
            "multi_label": "multi_label_classification",
        }
        config = json.loads((tmp_path / task / "config.json").read_text())
        assert config["problem_type"] == types.get(task, "regression")
    assert list(of["regression"]["served"][0]) == ["value"]
    assert list(of["multi_label"]["served"][0]) == ["labels", "scores"]
    assert list(of["single_label"]["served"][0]) == ["label", "score", "scores"]
    chosen = [name for name, score in of["multi_label"]["ours"][0].items() if score > 0.5]
    assert of["multi_label"]["served"][0]["labels"] == chosen
