"""Lessons 01, 10, 11 and 12: what must hold on any machine, never a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lessons import run_lesson
from tools.lessons.lesson import FOLDER

pytestmark = pytest.mark.mpi


def ranks(count: int, script: str, directory: Path, *arguments: str) -> dict[str, float]:
    """The figures of one script of a lesson, by torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count)]
    done = subprocess.run(
        [*command, str(FOLDER / script), *arguments], cwd=directory, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = [line.partition(" = ") for line in done.stdout.splitlines()]
    return {name: float(value.split()[0]) for name, _, value in lines}


def test_three_stages_compute_the_gradients_of_one_process(tmp_path):
    shown = ranks(3, "11-pipeline/stages.py", tmp_path)

    assert shown["largest difference of a gradient, of the largest"] < 1e-5
    assert shown["loss of the pipeline, mean of 4 micro-batches"] == pytest.approx(
        shown["loss in one process"], abs=1e-6
    )
    assert shown["sent from stage 1 to the next in a step"] == 64 * 2048 * 4 / 2**10
    assert shown["sent in a step, both ways"] == 2 * 64 * (2048 + 512) * 4 / 2**20


def test_the_split_linear_layers_compute_what_the_whole_ones_do(tmp_path):
    shown = ranks(2, "10-tensor-parallel/split_linear.py", tmp_path)

    for name in ("course's split", "columns, then rows"):
        assert shown[f"{name}, largest difference of output and gradients"] < 1e-5
    # Half of a gathered tensor, and a whole one for each sum, at two ranks.
    wide, narrow = 64 * 4096 * 4 / 2**10, 64 * 1024 * 4 / 2**10
    course = wide / 2 + narrow / 2 + wide + narrow
    assert shown["course's split, sent by a rank in a step"] == course
    assert shown["columns, then rows, sent by a rank in a step"] == 2 * narrow


@pytest.mark.full
def test_the_bubble_is_at_least_what_one_stage_at_a_time_leaves(tmp_path):
    lesson = run_lesson("11", tmp_path)

    assert lesson.pictures == ["bubble.svg"]
    for count in (1, 2, 4, 8):
        formula = lesson.figures[f"{count} micro-batches, (S - 1) / (M + S - 1)"]
        assert formula == pytest.approx(2 / (count + 2), abs=1e-3)
    assert lesson.figures["1 micro-batches, bubble measured"] > 0.66
    assert lesson.figures["8 micro-batches, held by stage 1, GPipe"] == 8
    assert lesson.figures["8 micro-batches, held by stage 1, 1F1B"] == 3


@pytest.mark.full
def test_an_encoder_over_two_ranks_is_the_encoder_of_one(tmp_path):
    lesson = run_lesson("10", tmp_path)

    assert lesson.pictures == ["layer_bytes.svg"]
    assert lesson.figures["largest difference of the logits"] < 1e-5
    assert lesson.figures["norm of the gradients' differences, of their norm"] < 1e-5
    assert lesson.figures["sums of a layer in a step"] == 6
    for rows in (4, 8, 16, 32):
        sent = lesson.figures[f"sent for a layer, {rows} rows of 32 tokens"]
        assert sent == 6 * rows * 32 * 384 * 4 / 2**10
    half = lesson.figures["weights in one process"] / 2
    assert half < lesson.figures["weights of a rank"] < 1.05 * half


@pytest.mark.full
def test_what_passes_each_limit_of_memory(tmp_path):
    lesson = run_lesson("01", tmp_path)

    assert lesson.pictures == ["memory.svg"]
    shown, limit = lesson.figures, lesson.figures["first limit"]
    refusal = "can't allocate memory"
    for name in ("first limit", "second limit, accumulation and checkpointing"):
        (line,) = [x for x in lesson.output.splitlines() if x.startswith(f"{name}: ")]
        assert refusal in line
    peaks = {name: value for name, value in shown.items() if name.endswith("peak of a process")}
    free = peaks["no limit, 1 process, peak of a process"]
    assert free > limit > shown["weights, gradients and moments, computed"]
    first = [value for name, value in peaks.items() if name.startswith("first")]
    second = [value for name, value in peaks.items() if name.startswith("second")]
    # The kernel keeps the limits; the peak also counts pages of the libraries' files.
    assert len(first) == 5 and max(first) < free
    assert len(second) == 3 and max(second) < min(free, limit)
    losses = [value for name, value in shown.items() if "loss" in name and "bf16" not in name]
    assert losses == pytest.approx([losses[0]] * len(losses), abs=1e-4)


@pytest.mark.full
def test_every_zero_stage_computes_the_same_and_a_checkpoint_goes_on(tmp_path):
    lesson = run_lesson("12", tmp_path)

    shown = lesson.figures
    losses = [value for name, value in shown.items() if name.endswith("loss of step 4")]
    assert len(losses) == 5
    assert losses == pytest.approx([losses[0]] * 5, abs=1e-4)
    after_backward = {
        name.partition(", tensors")[0]: value
        for name, value in shown.items()
        if name.endswith("tensors of a rank after backward")
    }
    assert after_backward["ZeRO-3"] < after_backward["ZeRO-1"] < after_backward["no ZeRO"]
    assert shown["loss of step 5, resumed"] == shown["loss of step 5, uninterrupted"]
    assert shown["largest difference of the weights in the files"] == 0
    assert not list(tmp_path.glob("**/lock"))
