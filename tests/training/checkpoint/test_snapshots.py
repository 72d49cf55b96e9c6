"""Snapshots reuse memory, but never while an array references a part of it."""

import gc
import threading

import numpy as np
import pytest

from howdah.training.checkpoint.snapshots import Snapshots


def model(value):
    return {"weight": np.full((64, 32), value, np.float32), "step": np.full((), value, np.int64)}


def place(array):
    return array.__array_interface__["data"][0]


def test_a_copy_does_not_share_the_model_s_memory():
    weights = model(1)
    taken = Snapshots().take(weights.items())
    weights["weight"] += 1
    assert taken["weight"].dtype == np.float32 and (taken["weight"] == 1).all()
    assert taken["step"].shape == () and taken["step"] == 1


def test_memory_is_reused_once_no_array_references_it():
    snapshots = Snapshots()
    first = snapshots.take(model(1).items())
    where = place(first["weight"])
    other = snapshots.take(model(2).items())
    assert place(other["weight"]) != where
    del first
    gc.collect()
    assert place(snapshots.take(model(3).items())["weight"]) == where
    assert (other["weight"] == 2).all()


@pytest.mark.parametrize("part", [lambda a: a[3:5], lambda a: memoryview(a.view(np.uint8)),
                                  lambda a: a.T[5, ::2]])  # fmt: skip
def test_a_view_of_a_part_keeps_the_memory(part):
    snapshots = Snapshots()
    held = part(snapshots.take(model(1).items())["weight"])
    gc.collect()
    after = snapshots.take(model(2).items())["weight"]
    assert (np.frombuffer(bytes(held), np.float32) == 1).all()
    assert (after == 2).all()


def test_a_transposed_source_is_copied_in_its_own_shape():
    source = np.arange(6, dtype=np.float32).reshape(2, 3).T
    taken = Snapshots().take([("kernel", source)])["kernel"]
    assert taken.flags.c_contiguous and (taken == source).all()


def test_memory_is_warmed_once_by_a_thread_that_reads_no_array(monkeypatch):
    snapshots, threads, may_go = Snapshots(), [], threading.Event()
    touch = snapshots._touch

    def touch_later(sizes):
        may_go.wait(30)
        touch(sizes)

    monkeypatch.setattr(snapshots, "_touch", touch_later)

    def arrays():
        threads.append(threading.current_thread())
        yield from model(1).items()

    snapshots.warm(arrays())
    assert threads == [threading.current_thread()]
    waits = threading.Thread(target=lambda: snapshots.take(model(0).items()))
    waits.start()
    may_go.set()
    waits.join(30)
    ((weights,), (numbers,)) = snapshots._free[64 * 32 * 4], snapshots._free[8]
    taken = snapshots.take(model(2).items())
    assert (taken["weight"] == 2).all()
    assert (place(taken["weight"]), place(taken["step"])) == (place(weights), place(numbers))
    snapshots.warm(arrays())
    assert len(threads) == 1
