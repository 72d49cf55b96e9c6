"""Lessons 13 to 15: tuning on a shared database, the loader, checkpoints."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.lessons import run_lesson
from tools.lessons.lesson import FOLDER, figures

POINTS = ("before the write", "in the middle of the write", "after the write", "after the rename")


@pytest.mark.full
def test_a_machine_that_is_killed_in_a_trial_costs_one_trial(tmp_path):
    lesson = run_lesson("13", tmp_path)
    shown = lesson.figures
    assert "the database says: RUNNING" in lesson.output
    assert shown["trials with n_trials=5 on three machines"] == 15
    assert shown["trials FAIL"] == shown["trials that repeat the killed one"] == 1
    assert shown["its values are the same"] == 1 and "trials RUNNING" not in shown
    # Two machines are left when the 24th trial completes; the other one completes its own.
    assert 24 <= shown["trials COMPLETE"] <= 25
    importances = [value for name, value in shown.items() if name.startswith("importance of ")]
    assert len(importances) == 4 and sum(importances) == pytest.approx(1, abs=0.03)
    assert lesson.pictures == ["importance.svg"]


@pytest.mark.full
def test_parts_of_a_batch_and_parts_of_a_step(tmp_path):
    lesson = run_lesson("14", tmp_path)
    shown = lesson.figures
    assert shown["bytes of a batch"] == 64 * 128 * 8 and shown["of these pinned without a GPU"] == 0
    assert shown["bytes on disk a row, a file a row"] >= 1024
    for way in ("mean of means", "sum by rows"):
        assert shown[f"relative difference, {way}, parts of 4 4 4 4"] < 1e-5
    assert shown["relative difference, sum by rows, parts of 8 4 2 2"] < 1e-5
    assert shown["relative difference, mean of means, parts of 8 4 2 2"] > 0.01
    assert 0 < shown["relative difference of the gradient, bfloat16"] < 0.1
    zeros = "share of the gradient that is 0 in fp16, scale"
    assert shown[f"{zeros} 1"] > shown[f"{zeros} 65536"]
    assert shown["steps that the scaler skipped, of 16"] >= 1
    assert shown["norm before unscale_, over the scale and the norm after it"] == pytest.approx(
        1, rel=0.01
    )
    assert shown["largest difference to key_averages()"] < 0.01
    assert lesson.pictures == ["loader.svg", "operators.svg", "scale.svg"]


def test_a_training_killed_at_each_point_of_a_save_is_the_uninterrupted_one(tmp_path):
    """The first command of lesson 15: quick, and without ranks."""
    script = [sys.executable, str(FOLDER / "15-checkpoints" / "crash.py")]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    shown = {name: float(value) for name, (value, _) in figures(done.stdout)}
    for way, steps in (("over the last one", (3, 0, 4)), ("renamed last", (3, 3, 3, 4))):
        for point, step in zip(POINTS, steps, strict=False):
            assert shown[f"resumes after step, {way}, killed {point}"] == step
            assert shown[f"difference, {way}, killed {point}"] == 0
    for part in ("moments", "schedule", "generator", "step"):
        assert shown[f"difference, resumed without the {part}"] > 0


@pytest.mark.full
@pytest.mark.mpi
def test_checkpoints_of_rank_0_of_all_ranks_and_of_what_has_changed(tmp_path):
    lesson = run_lesson("15", tmp_path)
    shown = lesson.figures
    mixed = "share of the weights that a resume loads of step"
    for step in (1, 2):
        assert shown[f"{mixed} {step}, the same directory"] == 0.5
    assert shown[f"{mixed} 1, a directory a step"] == 1
    both = sum(shown[f"bytes written by rank {rank} of 2"] for rank in (0, 1))
    assert both == pytest.approx(shown["bytes written by rank 0 alone"], rel=0.01)
    assert shown["share that differs after loading on 3 ranks"] == 0
    for trained in ("all", "two layers", "the head"):
        assert shown[f"tensors that differ when restored, {trained} trained"] == 0
    later = "bytes of a later checkpoint,"
    whole = "bytes of the whole state,"
    # AdamW changes every tensor that it trains: nothing is saved, and names are added.
    assert shown[f"{later} all trained"] >= shown[f"{whole} all trained"]
    assert shown[f"{later} two layers trained"] < shown[f"{whole} two layers trained"] / 2
    assert shown[f"{later} the head trained"] < 100_000
    assert lesson.pictures == ["incremental.svg"]
