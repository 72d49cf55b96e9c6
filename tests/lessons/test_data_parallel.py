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


@pytest.mark.full
@pytest.mark.mpi
def test_ddp_divides_the_rows_and_hooks_the_bytes(tmp_path):
    """Each row is of one rank, weights stay equal, fp16 sends half, PowerSGD hardly anything."""
    lesson = run_lesson("04", tmp_path)
    figures = lesson.figures
    assert figures["rows that both ranks read"] == 0
    read = [figures[f"rows that rank {rank} read in an epoch"] for rank in (0, 1)]
    assert sum(read) == figures["rows of the training split"]
    assert figures["largest difference between the ranks' weights"] == 0
    assert figures["largest difference of the logits after loading"] == 0
    for name in ("150 layers of 32", "4 layers of 1536"):
        assert figures[f"{name}: largest difference of a gradient"] < 1e-6
    sent = {name: megabytes for name, megabytes in figures.items() if "sent in a step" in name}
    plain, _, buckets, fp16, bf16, low_rank = sent.values()
    if "the link is cut by tc" in lesson.output:  # else other processes' bytes are counted, too
        assert buckets == pytest.approx(plain, rel=0.05)
        assert fp16 == pytest.approx(plain / 2, rel=0.05) == bf16
        assert low_rank < plain / 20
    assert lesson.pictures == ["hooks.svg"]


@pytest.mark.full
@pytest.mark.mpi
def test_horovod_teaches_both_frameworks_the_same(tmp_path):
    """Losses agree, and without fusion each gradient is an all-reduce of its own."""
    lesson = run_lesson("05", tmp_path)
    figures = lesson.figures
    for step in ("first", "last"):
        torch, tensorflow = (
            figures[f"{framework}: loss of the {step} step"]
            for framework in ("PyTorch", "TensorFlow")
        )
        assert torch == pytest.approx(tensorflow, abs=1e-3)
    assert figures["PyTorch: largest difference between the ranks' weights"] == 0
    assert figures["TensorFlow: largest difference between the ranks' weights"] == 0
    assert figures["no fusion: all-reduces in a step"] == 80
    assert figures["no fusion: most gradients in one all-reduce"] == 1
    assert figures["defaults: all-reduces in a step"] < 80
    assert lesson.pictures == ["timeline.svg"]


@pytest.mark.full
def test_mirrored_devices_and_workers_learn_what_one_device_learns(tmp_path):
    """The first and the last loss are those of one device."""
    figures = run_lesson("06", tmp_path).figures
    for step in ("first", "last"):
        one = figures[f"one device: loss of the {step} step"]
        for name in ("MirroredStrategy", "MultiWorkerMirroredStrategy"):
            assert figures[f"{name}: loss of the {step} step"] == pytest.approx(one, abs=1e-3)
    assert figures["MirroredStrategy: copies of each variable"] == 2
    assert figures["MirroredStrategy: largest difference between the copies"] == 0
    assert figures["MultiWorkerMirroredStrategy: replicas"] == 2
