"""Lessons 02 to 06: what must hold of data parallel training on any machine."""

from __future__ import annotations

import pytest

from tests.support.lessons import run_lesson


@pytest.mark.mpi
def test_a_step_by_hand_is_the_step_of_one_process(tmp_path):
    """All ranks have the average of the worked example, and of a real batch's gradients."""
    lesson = run_lesson("02", tmp_path)
    assert [lesson.figures[f"average of element {n}"] for n in range(3)] == [1.125, 2.125, 3.125]
    assert lesson.figures["different results over the four ranks"] == 1
    assert lesson.figures["largest difference between the ranks' weights"] == 0
    assert lesson.figures["relative difference from the gradient of one process"] < 1e-5
    assert lesson.pictures == ["one_step.svg"]


@pytest.mark.full
@pytest.mark.mpi
def test_a_ring_sends_no_more_than_twice_the_gradient_and_a_server_n_times(tmp_path):
    """Bytes are those of the formulas, sums are right; only asynchronous gradients are stale."""
    figures = run_lesson("03", tmp_path).figures
    megabytes = 4 * 2**20 / 1e6
    for n, levels in ((2, 1), (4, 2), (8, 3)):
        sent = {way: figures[f"{way}, {n} ranks, most bytes sent by one"]
                for way in ("ring", "tree", "server")}  # fmt: skip
        assert sent["ring"] == pytest.approx(2 * (n - 1) / n * megabytes, abs=1e-3)
        assert sent["tree"] == pytest.approx(levels * megabytes, abs=1e-3)
        assert sent["server"] == pytest.approx(n * megabytes, abs=1e-3)
    assert figures["wrong sums"] == 0
    assert figures["synchronous: mean staleness"] == 0
    assert figures["asynchronous: mean staleness"] > 1
