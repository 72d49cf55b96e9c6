"""Evaluation over ranks: each row once, the same metrics on every rank, predictions whole."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from howdah.config.metric_table import metrics_of
from howdah.data.splits.planner import Rows
from howdah.errors import DataError, ModelError, StorageFull
from howdah.models.decision import softmax
from howdah.models.metrics.metrics import classification_metrics
from howdah.training.comm.base import SoloComm
from howdah.training.evaluation.evaluate import PredictionPart, evaluate

LABELS = ["red", "green", "blue"]


class World:
    """N ranks as threads: gather, sum and broadcast wait for all of them, as collectives do."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=60)
        self.slots: list = [None] * size

    def run(self, work) -> list:
        """`work(comm, rank)` on every rank; results, or the exceptions, by rank."""
        results: list = [None] * self.size

        def rank_main(rank: int) -> None:
            try:
                results[rank] = work(Rank(self, rank), rank)
            except Exception as error:  # noqa: BLE001 - handed to the test
                results[rank] = error

        threads = [threading.Thread(target=rank_main, args=(r,)) for r in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
        return results


class Rank:
    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank, self.size = world, rank, world.size

    def _exchange(self, value) -> list:
        self.world.slots[self.rank] = value
        self.world.barrier.wait()
        everything = list(self.world.slots)
        self.world.barrier.wait()
        return everything

    def gather(self, array):
        return np.concatenate(self._exchange(array))

    def sum(self, array):
        return np.sum(self._exchange(array), axis=0)

    def gather_json(self, obj):
        return self._exchange(obj)

    def broadcast_json(self, obj):
        return json.loads(json.dumps(self._exchange(obj)[0]))


def rows(count: int, seed: int = 0):
    """(ids_NT, labels_N, logits_NC): the forward pass finds a row by its first token."""
    rng = np.random.default_rng(seed)
    ids_NT = np.tile(np.arange(count)[:, None], (1, 5)).astype(np.int32)
    return ids_NT, rng.integers(0, 3, count), rng.standard_normal((count, 3)).astype(np.float32)


def batches(ids_NT, labels_N, chosen: list[int], padding: int = 0, size: int = 4):
    """Batches of the chosen rows, with `padding` filler rows of weight 0, as from readers."""
    everything = [(row, 1.0) for row in chosen] + [(0, 0.0)] * padding
    for start in range(0, len(everything), size):
        part = everything[start : start + size]
        index = [row for row, _ in part]
        yield SimpleNamespace(
            last_of_step=True,
            global_weight=float(len(part)),
            ids_BT=ids_NT[index],
            mask_BT=np.ones_like(ids_NT[index]),
            labels_B=labels_N[index],
            weights_B=np.array([weight for _, weight in part], np.float32),
            row_ids=[f"row-{row}".encode() for row in index],
            rows=Rows(
                shard=np.zeros(len(part), np.int32),
                row=np.array(index, np.int64),
                length=np.full(len(part), ids_NT.shape[1], np.int32),
                real=np.array([weight > 0 for _, weight in part]),
            ),
        )


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_row_counts_once_at_every_world_size(world, tmp_path):
    ids_NT, labels_N, logits_NC = rows(11)
    expected = classification_metrics(labels_N, logits_NC, LABELS)
    directory = str(tmp_path / "predictions")

    def work(comm, rank):
        chosen = list(range(rank, 11, world))
        source = batches(ids_NT, labels_N, chosen, padding=-(-11 // world) - len(chosen))
        forward = lambda ids_BT, mask_BT: logits_NC[ids_BT[:, 0]]  # noqa: E731
        return evaluate(forward, source, comm, LABELS, directory, "run-7")

    results = World(world).run(work)
    for result in results:
        assert result == results[0]
        assert result["confusion_matrix"] == expected["confusion_matrix"]
        for name in metrics_of("single_label"):
            if expected[name] is None:  # too few classes, or none is so often right
                assert result[name] is None
            else:
                assert result[name] == pytest.approx(expected[name], rel=1e-9)

    assert sorted(os.listdir(directory)) == [f"part-{r:05d}.parquet" for r in range(world)]
    table = pq.read_table(directory).to_pylist()
    assert sorted(row["id"] for row in table) == sorted(f"row-{n}" for n in range(11))
    for row in table:
        number = int(row["id"].removeprefix("row-"))
        assert row["label"] == LABELS[labels_N[number]]
        assert row["predicted"] == LABELS[logits_NC[number].argmax()]
        assert row["scores"] == pytest.approx(softmax(logits_NC[number]), rel=1e-5)
        assert row["run_id"] == "run-7"
    metadata = pq.read_schema(os.path.join(directory, "part-00000.parquet")).metadata
    assert metadata[b"labels"].decode().split("\n") == LABELS


def test_a_rank_with_filler_rows_only_takes_part(tmp_path):
    ids_NT, labels_N, logits_NC = rows(2)

    def work(comm, rank):
        chosen = [rank] if rank < 2 else []
        source = batches(ids_NT, labels_N, chosen, padding=1 - len(chosen))
        forward = lambda ids_BT, mask_BT: logits_NC[ids_BT[:, 0]]  # noqa: E731
        return evaluate(forward, source, comm, LABELS, str(tmp_path), "r")

    results = World(3).run(work)
    assert [result["rows"] for result in results] == [2, 2, 2]
    assert pq.read_table(str(tmp_path / "part-00002.parquet")).num_rows == 0


def test_parts_of_an_earlier_larger_world_are_removed(tmp_path):
    ids_NT, labels_N, logits_NC = rows(6)
    forward = lambda ids_BT, mask_BT: logits_NC[ids_BT[:, 0]]  # noqa: E731

    def work(comm, rank):
        source = batches(ids_NT, labels_N, list(range(rank, 6, comm.size)))
        return evaluate(forward, source, comm, LABELS, str(tmp_path), "r")

    World(3).run(work)
    World(1).run(work)
    assert sorted(os.listdir(tmp_path)) == ["part-00000.parquet"]
    assert pq.read_table(str(tmp_path)).num_rows == 6


@pytest.mark.parametrize(
    ("count", "bad", "kind"), [(0, False, DataError), (4, True, ModelError)], ids=["empty", "nan"]
)
def test_a_refusal_reaches_every_rank(count, bad, kind):
    ids_NT, labels_N, logits_NC = rows(4)
    if bad:
        logits_NC[2, 1] = np.nan

    def work(comm, rank):
        source = batches(ids_NT, labels_N, list(range(rank, count, comm.size)))
        return evaluate(lambda ids, mask: logits_NC[ids[:, 0]], source, comm, LABELS)

    results = World(2).run(work)
    assert [type(result) for result in results] == [kind, kind]
    assert str(results[0]) == str(results[1])
    assert results[0].exit_code == kind.exit_code


def test_solo():
    ids_NT, labels_N, logits_NC = rows(9)
    result = evaluate(
        lambda ids, mask: logits_NC[ids[:, 0]],
        batches(ids_NT, labels_N, list(range(9))),
        SoloComm(),
        LABELS,
    )
    assert result == classification_metrics(labels_N, logits_NC, LABELS)


# ------------------------------------------------------------------------- room for predictions
def test_rows_of_many_classes_wait_in_memory_by_their_bytes():
    names = [f"label {number}" for number in range(10_000)]
    with PredictionPart(names, "r") as part:
        for _ in range(60):
            _, labels_N, _ = rows(10)
            logits_NC = np.zeros((10, len(names)), np.float32)
            places = Rows(shard=labels_N, row=labels_N, length=labels_N, real=labels_N > -1)
            part.add([b"id"] * 10, labels_N, logits_NC, places)
            assert sum(batch.nbytes for batch in part.waiting) < 2**25


class FullDisk:
    """A temporary file on a disk without room: the device that always says so."""

    def __call__(self, *args, **kwargs):
        return open("/dev/full", "r+b", buffering=0)


def _evaluated(comm, rank, directory, lines):
    ids_NT, labels_N, logits_NC = rows(9)
    source = batches(ids_NT, labels_N, list(range(rank, 9, comm.size)))
    return evaluate(
        lambda ids_BT, mask_BT: logits_NC[ids_BT[:, 0]], source, comm, LABELS, directory, "r",
        unwritten=lines,
    )  # fmt: skip


@pytest.mark.parametrize("world", [1, 3])
def test_without_room_for_predictions_there_are_none_and_the_metrics_stay(
    world, tmp_path, monkeypatch
):
    monkeypatch.setattr("howdah.training.evaluation.evaluate._IN_MEMORY", 64)
    monkeypatch.setattr(tempfile, "TemporaryFile", FullDisk())
    lines = []
    directory = str(tmp_path / "predictions")
    results = World(world).run(lambda comm, rank: _evaluated(comm, rank, directory, lines.append))
    assert {result["accuracy"] for result in results} == {results[0]["accuracy"]}
    assert not os.path.exists(directory)
    assert len(lines) == world and "No space left on device" in lines[0]


def test_one_rank_without_room_takes_the_others_predictions_along(tmp_path, monkeypatch):
    """Predictions of some rows alone would be taken for all."""
    publish = PredictionPart.publish

    def full(part, path):
        if path.endswith("part-00001.parquet"):
            with part._with_room():
                raise StorageFull("the disk is full", where=path)
        return publish(part, path)

    monkeypatch.setattr(PredictionPart, "publish", full)
    directory, lines = str(tmp_path / "predictions"), []
    World(3).run(lambda comm, rank: _evaluated(comm, rank, directory, lines.append))
    assert os.listdir(directory) == [] and "the disk is full" in lines[0]


def test_who_asks_for_predictions_is_told_that_there_is_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr("howdah.training.evaluation.evaluate._IN_MEMORY", 64)
    monkeypatch.setattr(tempfile, "TemporaryFile", FullDisk())
    with pytest.raises(OSError, match="No space left"):
        _evaluated(SoloComm(), 0, str(tmp_path), None)
