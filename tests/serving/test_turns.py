"""The order in which the texts of several requests are encoded."""

import threading

import pytest

from howdah.models.opened.opened import ServedModel
from howdah.models.version import open_version
from howdah.serving.compute.batcher import Batcher, Work
from howdah.serving.compute.generation import open_generation
from howdah.serving.compute.metrics import Metrics
from howdah.serving.prediction.rows import Row
from tests.runs.finished_runs import finished_run


@pytest.fixture(scope="module")
def generation(tmp_path_factory, tiny_model_dir):
    run = str(tmp_path_factory.mktemp("turns") / "run")
    finished_run(run, tiny_model_dir, run_id="run-1")
    return open_generation(open_version(run), threads=1)


def batcher_of(generation) -> Batcher:
    return Batcher(
        generation, budget=1024, most=512, workers=1, wait=0.0, metrics=Metrics(),
        call_soon=lambda function: function(), answered=lambda outcome: None,
        say=lambda line: None,
    )  # fmt: skip


def submitted(batcher: Batcher, texts: list[str]) -> tuple[Work, threading.Event]:
    work, done = Work([Row(str(n), text) for n, text in enumerate(texts)]), threading.Event()
    work.done = done.set
    batcher.submit(work)
    return work, done


@pytest.fixture
def encoded(monkeypatch):
    """Lengths of the texts of each call of the encoder."""
    calls = []
    encode = ServedModel.encode

    def recorded(self, texts):
        calls.append([len(text) for text in texts])
        return encode(self, texts)

    monkeypatch.setattr(ServedModel, "encode", recorded)
    return calls


def test_a_request_of_long_texts_does_not_hold_a_short_one_behind_it(generation, encoded):
    batcher = batcher_of(generation)
    works = [submitted(batcher, ["the cat " * 7_500] * 10) for _ in range(2)]
    works.append(submitted(batcher, ["the cat", "a dog"]))
    batcher.start()
    try:
        for work, done in works:
            assert done.wait(60)
            assert None not in work.predictions
        assert batcher.held == 0 and batcher.stalled_seconds == 0
    finally:
        batcher.stop()
    assert all(len(call) == 1 or sum(call) <= 131_072 for call in encoded)
    order = [length for call in encoded for length in call]
    assert len(order) == 22
    assert order.index(5) < 12  # when more than half of the long ones are still to come
    # All texts of a request are in their places.
    assert [one.id for one in works[0][0].predictions] == [str(n) for n in range(10)]


def test_texts_of_a_request_that_is_dropped_are_not_encoded(generation, encoded, monkeypatch):
    batcher = batcher_of(generation)
    work, done = submitted(batcher, ["the cat " * 7_500] * 10)
    other, other_done = submitted(batcher, ["the cat"])
    encode = ServedModel.encode

    def dropping(self, texts):
        batcher.drop(work)
        return encode(self, texts)

    monkeypatch.setattr(ServedModel, "encode", dropping)
    batcher.start()
    try:
        assert done.wait(60) and other_done.wait(60)
        assert None not in other.predictions and batcher.held == 0
    finally:
        batcher.stop()
    assert sum(map(len, encoded)) <= 4
