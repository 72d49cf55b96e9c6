"""Readers: the same ids in the same order for both frameworks; damage refused before a batch."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from howdah import storage
from howdah.data.splits.planner import Planner, PlanSpec
from howdah.data.splits.shard_cache import ShardCache
from howdah.data.splits.shards import ShardSet, class_counts
from howdah.errors import DataError
from howdah.training.data.readers import BatchSource
from tests.fixtures.dataset import build_dataset


def planner_of(shards: ShardSet, batch: int = 16, shuffle: bool = True) -> Planner:
    spec = PlanSpec(
        dataset_hash=shards.dataset.manifest_hash, split=shards.split, seed=5,
        global_batch_size=batch, shuffle=shuffle,
    )  # fmt: skip
    return Planner(shards.lengths, spec)


def source_of(dataset, *, rank=0, world=1, batch=16, max_tokens=8192, **more) -> BatchSource:
    shards = ShardSet(dataset, "train", cache=more.pop("cache", None))
    return BatchSource(
        shards, planner_of(shards, batch), rank=rank, world=world, max_tokens=max_tokens, **more
    )


def contents(source: BatchSource) -> dict[bytes, tuple]:
    """{row id: (ids, label)} of the real rows."""
    out = {}
    for batch in source:
        for n, row_id in enumerate(batch.row_ids):
            if row_id:
                assert row_id not in out
                ids = batch.ids_BT[n, : batch.mask_BT[n].sum()]
                out[row_id] = (ids.tolist(), int(batch.labels_B[n]))
    return out


@pytest.fixture(scope="module")
def truth(tiny_dataset) -> dict[bytes, tuple]:
    shards = ShardSet(tiny_dataset, "train")
    rows = {}
    for number, entry in enumerate(shards.entries):
        for row in range(entry.rows):
            example = shards.example(number, row)
            rows[example.id] = (example.input_ids.tolist(), example.label)
    assert len(rows) == 96
    return rows


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_together_read_every_row_once(tiny_dataset, truth, world):
    seen: dict = {}
    for rank in range(world):
        part = contents(source_of(tiny_dataset, rank=rank, world=world))
        assert not seen.keys() & part.keys()
        seen.update(part)
    assert seen == truth


@pytest.mark.parametrize(
    ("ids_dtype", "compression"),
    [("uint32", "none"), ("int64_list", "none"), ("uint16", "gzip"), ("int64_list", "gzip")],
)
def test_every_layout_gives_the_same_rows(tmp_path, tiny_model_dir, truth, ids_dtype, compression):
    dataset = build_dataset(
        str(tmp_path / "v=1"), model_dir=tiny_model_dir, ids_dtype=ids_dtype,
        compression=compression,
    )  # fmt: skip
    source = source_of(dataset, cache=ShardCache(str(tmp_path / "cache")))
    source.shards.verify()
    assert contents(source) == truth


def test_micro_batches_and_weights(tiny_dataset):
    weights = np.array([1.0, 2.0, 0.5, 4.0])
    steps: dict[tuple, list] = {}
    for rank in range(2):
        for batch in source_of(
            tiny_dataset, rank=rank, world=2, batch=32, max_tokens=100, class_weights=weights
        ):
            assert batch.padded_tokens == batch.ids_BT.size <= 100
            assert batch.real_tokens == batch.mask_BT[batch.weights_B > 0].sum()
            assert (batch.weights_B == weights[batch.labels_B]).all()
            steps.setdefault((batch.epoch, batch.step), []).append(batch)
    assert len(steps) == 3
    for batches in steps.values():
        assert len(batches) > 2  # accumulated
        total = sum(float(b.weights_B.sum()) for b in batches)
        assert all(abs(b.global_weight - total) < 1e-4 for b in batches)
        assert sum(b.last_of_step for b in batches) == 2
    balanced = class_counts(ShardSet(tiny_dataset, "train"), 4)
    assert balanced.sum() == 96


def test_filler_rows_have_weight_0_and_one_token_in_the_mask(tiny_dataset):
    batches = list(source_of(tiny_dataset, batch=40))  # 96 rows: 40, 40, 16
    filling = [b for b in batches if (b.weights_B == 0).any()]
    assert sum(int((b.weights_B > 0).sum()) for b in batches) == 96
    [last] = filling
    assert last.global_weight == 16 and len(last.weights_B) == 40
    assert (last.mask_BT.sum(1) >= 1).all()
    assert [i for i, w in zip(last.row_ids, last.weights_B, strict=True) if w == 0] == [b""] * 24


def test_a_rank_with_filler_rows_only_takes_the_step(tmp_path, tiny_model_dir):
    dataset = build_dataset(
        str(tmp_path / "v=1"), model_dir=tiny_model_dir, rows={"train": 9}, shards=1
    )
    parts = [list(source_of(dataset, rank=rank, world=4, batch=8)) for rank in range(4)]
    assert [len(part) for part in parts] == [2, 2, 2, 2]
    assert sum(float(b.weights_B.sum()) for part in parts for b in part) == 9


def test_a_source_starts_at_the_given_step(tiny_dataset):
    whole = [b.ids_BT for b in source_of(tiny_dataset, stop_step=10)]
    shards = ShardSet(tiny_dataset, "train")
    planner = planner_of(shards)
    rest = BatchSource(
        shards, planner, rank=0, world=1, max_tokens=8192, start=planner.state(*planner.at(4)),
        stop_step=10,
    )  # fmt: skip
    ids = [b.ids_BT for b in rest]
    assert len(ids) == 6
    assert all((a == b).all() for a, b in zip(whole[4:], ids, strict=True))


def test_pad_multiple(tiny_dataset):
    for batch in source_of(tiny_dataset, pad_multiple=8, pad_id=0):
        assert batch.ids_BT.shape[1] % 8 == 0
        assert (batch.ids_BT[batch.mask_BT == 0] == 0).all()


def test_the_thread_ends_when_the_consumer_stops(tiny_dataset):
    batches = iter(source_of(tiny_dataset, batch=4, prefetch=1))
    next(batches)
    batches.close()
    assert not [t for t in threading.enumerate() if t.name == "batches"]


def test_an_error_in_the_thread_reaches_the_consumer(tiny_dataset, monkeypatch):
    source = source_of(tiny_dataset)

    def broken(*args):
        raise DataError("planted")

    monkeypatch.setattr(source.shards, "gather", broken)
    with pytest.raises(DataError, match="planted"):
        list(source)


# ------------------------------------------------------------------------------------ damage
@pytest.fixture
def small(tmp_path, tiny_model_dir):
    """A dataset that a test may damage."""
    return build_dataset(str(tmp_path / "v=1"), model_dir=tiny_model_dir)


def shard_file(dataset, n: int = 1) -> str:
    return dataset.shard_path(dataset.manifest.splits["train"][n])


def test_a_truncated_shard_is_refused_with_name_and_offset(small):
    path = shard_file(small)
    offset = ShardSet(small, "train")._indexes[1].offsets[20]
    os.truncate(path, int(offset) + 7)
    with pytest.raises(DataError, match="truncated") as caught:
        ShardSet(small, "train")
    assert caught.value.where == f"{path}, offset {offset}"


def test_an_altered_shard_is_refused_with_name_and_offset(small):
    path = shard_file(small)
    offset = int(ShardSet(small, "train")._indexes[1].offsets[20])
    with open(path, "r+b") as file:
        file.seek(offset + 30)
        byte = file.read(1)
        file.seek(offset + 30)
        file.write(bytes([byte[0] ^ 1]))
    errors = []
    for rank in range(3):  # exactly the rank whose share it is finds it
        try:
            ShardSet(small, "train").verify(rank, 3)
        except DataError as error:
            errors.append((rank, error))
    [(rank, error)] = errors
    assert rank == 1 and "altered" in error.what
    assert error.where == f"{path}, offset {offset}"


def test_a_shard_with_whole_records_but_not_the_committed_ones_is_refused(small):
    first, second = shard_file(small, 0), shard_file(small, 1)
    with open(first, "rb") as source, open(second, "wb") as target:
        target.write(source.read())
    with pytest.raises(DataError, match="not the one that was committed"):
        ShardSet(small, "train").verify()


def test_a_truncated_gzip_shard_is_refused(tmp_path, tiny_model_dir):
    dataset = build_dataset(str(tmp_path / "v=1"), model_dir=tiny_model_dir, compression="gzip")
    path = shard_file(dataset)
    os.truncate(path, storage.size(path) // 2)
    with pytest.raises(DataError, match="truncated"):
        ShardSet(dataset, "train", cache=ShardCache(str(tmp_path / "c")))


@pytest.mark.parametrize("what", ["shard", "index"])
def test_a_missing_file_is_named(small, what):
    entry = small.manifest.splits["train"][2]
    path = small.shard_path(entry) if what == "shard" else small.index_path(entry)
    os.unlink(path)
    with pytest.raises(DataError, match="missing") as caught:
        ShardSet(small, "train")
    assert caught.value.where == path and caught.value.remedy


def test_an_altered_or_foreign_index_is_refused(small):
    entries = small.manifest.splits["train"]
    path = small.index_path(entries[0])
    data = storage.read_bytes(path)
    storage.write_whole(path, data[:50] + b"!" + data[51:])
    with pytest.raises(DataError, match="index is not valid"):
        ShardSet(small, "train")
    other = small.index_path(small.manifest.splits["test"][0])
    storage.write_whole(path, storage.read_bytes(other))
    with pytest.raises(DataError, match="index is of another shard"):
        ShardSet(small, "train")


def test_an_unlisted_shard_is_reported_and_never_read(small, truth):
    storage.write_whole(storage.join(small.path, "train-00009-of-00003.tfrecord"), b"junk")
    shards = ShardSet(small, "train")
    assert shards.unlisted() == ["train-00009-of-00003.tfrecord"]
    assert contents(source_of(small)) == truth


def test_an_unknown_split_is_named(small):
    with pytest.raises(DataError) as caught:
        ShardSet(small, "dev")
    assert "train, validation, test" in caught.value.expected


# -------------------------------------------------------------------------------- frameworks
_READ = """
import sys
import numpy as np
framework, path, out = sys.argv[1:]
from howdah.data.manifest import load_dataset
from howdah.data.splits.planner import Planner, PlanSpec
from howdah.training.data.readers import BatchSource
from howdah.data.splits.shards import ShardSet
shards = ShardSet(load_dataset(path), "train")
spec = PlanSpec(dataset_hash="x", split="train", seed=5, global_batch_size=16)
planner = Planner(shards.lengths, spec)
source = BatchSource(shards, planner, rank=1, world=2, max_tokens=256, stop_step=15)
if framework == "tensorflow":
    from bench.readers_tf import tf_batches, tf_dataset
    batches = list(tf_dataset(source).as_numpy_iterator())
    for eager, batch in zip(tf_batches(source), batches, strict=True):
        assert eager.keys() == batch.keys()
        assert all((eager[key].numpy() == batch[key]).all() for key in batch)
else:
    from torch.utils.data import DataLoader
    from bench.readers_torch import TorchDataset
    batches = [{k: v.numpy() for k, v in b.items()}
               for b in DataLoader(TorchDataset(source), batch_size=None)]
np.savez(out, **{f"{n}-{key}": value for n, b in enumerate(batches) for key, value in b.items()})
"""


def test_tensorflow_and_torch_read_the_same_in_the_same_order(tiny_dataset, tmp_path):
    arrays = {}
    for framework in ("tensorflow", "torch"):
        out = str(tmp_path / f"{framework}.npz")
        done = subprocess.run(
            [sys.executable, "-c", _READ, framework, tiny_dataset.path, out],
            capture_output=True, text=True, timeout=240,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        arrays[framework] = np.load(out)
    ours, theirs = arrays["tensorflow"], arrays["torch"]
    assert ours.files == theirs.files and len(ours.files) >= 15 * 5
    for name in ours.files:
        assert ours[name].dtype == theirs[name].dtype
        assert (ours[name] == theirs[name]).all(), name
