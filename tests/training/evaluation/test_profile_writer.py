"""Which rows of an evaluation and of shards a model's profile is made of."""

import numpy as np
import pytest

from howdah.data.splits.shards import ShardSet
from howdah.training.comm.base import SoloComm
from howdah.training.evaluation import profile_writer as reference
from tests.fixtures.dataset import build_dataset


def test_all_rows_are_kept_while_there_is_room():
    sample = reference.RowSample.of(10, 3, "single_label")
    for start in range(0, 10, 4):
        rows = np.arange(start, min(10, start + 4))
        sample.add(rows, np.repeat(rows[:, None], 3, axis=1).astype(np.float32))
    labels_N, logits_NC = sample.gathered(SoloComm(), 3)
    assert labels_N.tolist() == list(range(10))
    assert logits_NC[:, 1].tolist() == list(range(10))


@pytest.mark.parametrize("batch", [1, 3, 7, 64])
def test_of_many_rows_every_nth_is_kept_whatever_the_batches(batch, monkeypatch):
    monkeypatch.setattr(reference.references, "MOST_ROWS", 100)
    sample = reference.RowSample.of(1000, 2, "single_label")
    for start in range(0, 1000, batch):
        rows = np.arange(start, min(1000, start + batch))
        sample.add(rows, np.zeros((len(rows), 2), np.float32))
    assert sample.gathered(SoloComm(), 2)[0].tolist() == list(range(0, 1000, 10))


def test_scores_of_many_classes_are_bounded_too():
    sample = reference.RowSample.of(10**6, 10**4, "single_label")
    assert sample.every == -(-(10**6) // (2**22 // 10**4))


def test_a_rank_without_rows_has_empty_arrays_of_the_right_shape():
    for task, shape in (("single_label", (0,)), ("multi_label", (0, 4)), ("regression", (0,))):
        labels_N, logits_NC = reference.RowSample.of(5, 4, task).gathered(SoloComm(), 4)
        assert (labels_N.shape, logits_NC.shape) == (shape, (0, 4))


def test_tokens_are_those_of_the_shards_or_of_a_spread_sample(tmp_path, tiny_model_dir):
    dataset = build_dataset(
        str(tmp_path / "v=1"), model_dir=tiny_model_dir, rows={"train": 90, "validation": 9},
        shards=9,
    )  # fmt: skip
    shards = ShardSet(dataset, "train")
    everything = reference.sampled_tokens(shards, 1000)
    assert len(everything.lengths) == 90
    rows = np.split(everything.ids, np.cumsum(everything.lengths)[:-1])
    assert rows[0].tolist() == shards.example(0, 0).input_ids.tolist()
    assert rows[-1].tolist() == shards.example(8, len(shards.lengths[8]) - 1).input_ids.tolist()
    sample = reference.sampled_tokens(shards, 20)
    assert 16 <= len(sample.lengths) <= 20
    firsts = np.concatenate([lengths[:3] for lengths in shards.lengths])
    assert set(sample.lengths.tolist()) <= set(firsts.tolist())
