"""Rows that are taken from many shards: samples of evaluations, replayed rows."""

from __future__ import annotations

import numpy as np
import pytest

from howdah.config.training import TrainingSection
from howdah.data.manifest import (
    Dataset,
    DatasetManifest,
    PartEntry,
    RecordEntry,
    ShardEntry,
    TokenizerEntry,
)
from howdah.data.splits.planner import Planner, PlanSpec
from howdah.data.splits.shards import ShardSet, first_rows
from howdah.errors import ConfigError
from howdah.models.export.formats import sample_rows
from howdah.models.replay import replayed
from tests.fixtures.dataset import build_dataset


@pytest.mark.parametrize("most", [1, 7, 100, 999, 1_000, 5_000])
@pytest.mark.parametrize("shards", [1, 5, 100, 1_000, 3_000])
def test_a_sample_has_so_many_rows_of_few_shards(most, shards):
    rng = np.random.default_rng(shards)
    lengths = [np.ones(rows, np.int32) for rows in rng.integers(0, 9, shards)]
    total = sum(map(len, lengths))
    sampled = first_rows(lengths, most)
    assert len(sampled) == shards and sum(map(len, sampled)) == min(most, total)
    assert all(len(part) <= len(whole) for part, whole in zip(sampled, lengths, strict=True))
    touched = sum(len(part) > 0 for part in sampled)
    assert touched <= max(16, 2 * -(-most // 3))  # shards of 4 rows on average
    if total:
        spec = PlanSpec(dataset_hash="d", split="s", seed=0, global_batch_size=4, shuffle=False)
        planner = Planner(sampled, spec)
        got = [planner.rank_rows(0, step, 0, 1) for step in range(planner.steps_per_epoch)]
        assert sum(int(rows.real.sum()) for rows in got) == min(most, total)


def test_shards_of_one_size_give_as_many_rows_each():
    sampled = first_rows([np.ones(50)] * 64, 160)
    assert sorted(map(len, sampled))[-17:] == [0, *[10] * 16]
    assert first_rows([np.ones(50)] * 2, None)[1].size == 50


def test_rows_to_compare_formats_on_are_spread_over_the_split(tmp_path, tiny_model_dir):
    rows = {"train": 9, "validation": 1_000}
    dataset = build_dataset(str(tmp_path / "v=1"), model_dir=tiny_model_dir, rows=rows)
    shards = ShardSet(dataset, "validation")
    places = [(n, row) for n, lengths in enumerate(shards.lengths) for row in range(len(lengths))]
    sampled = sample_rows(dataset, ["onnx-w8"])
    assert 100 <= len(sampled) <= 1_000
    step = max(1, 1_000 // len(sampled))
    for ids, place in zip(sampled, places[::step], strict=False):
        np.testing.assert_array_equal(ids, shards.example(*place).input_ids)
    assert sample_rows(dataset, ["hf"]) == []


# -------------------------------------------------------------------------------- replayed rows
def of_parts(parts: int, shards: int) -> Dataset:
    """A dataset of so many parts, each of so many shards of one row."""
    entries = [
        ShardEntry(
            name=f"day-{part}-{number}", index_name="i", rows=1, bytes=1, crc32c=0,
            index_crc32c=0, tokens=1, class_counts={}, length_histogram={}, part=f"day-{part}",
        )
        for part in range(parts)
        for number in range(shards)
    ]  # fmt: skip
    manifest = DatasetManifest(
        schema_version=2, dataset_hash="9", created="2030-01-01T00:00:00+00:00", etl_version="1",
        labels=["a", "b"], max_length=8, source={}, seed=1, split_rule={}, cleaning={},
        tokenizer=TokenizerEntry(hash="t", vocab_size=9, pad_id=0, source="tiny"),
        record=RecordEntry(ids_dtype="uint16", columns={}), splits={"train": entries},
        parts=[
            PartEntry(
                name=f"day-{part}", identity=f"id-{part}", read=1, rows={}, drops={},
                version="v=9" if part == parts - 1 else f"v={part}",
            )
            for part in range(parts)
        ],
    )  # fmt: skip
    return Dataset(path="/data/v=9", manifest=manifest, manifest_hash="m")


def chosen(dataset: Dataset, replay, learnt=None) -> list[str]:
    dataset_parts = replayed(dataset, TrainingSection(replay=replay), learnt)
    return sorted({entry.part for entry in dataset_parts.manifest.splits["train"]})


def test_new_is_what_the_model_before_was_not_trained_on():
    dataset = of_parts(5, 1)
    assert chosen(dataset, 0) == ["day-4"]
    assert chosen(dataset, 0, ["id-0", "id-1"]) == ["day-2", "day-3", "day-4"]
    assert chosen(dataset, 0, []) == [f"day-{n}" for n in range(5)]
    # The model before has seen all of them: some are replayed, none is new.
    all_of = [f"id-{n}" for n in range(5)]
    assert len(chosen(dataset, 2, all_of)) == 2
    with pytest.raises(ConfigError, match="no older rows"):
        chosen(dataset, 0, all_of)


def test_shards_are_not_compared_one_by_one(monkeypatch):
    """Each comparison of two entries looks at all of their fields."""
    compared = []
    dataset = of_parts(4, 2_500)
    monkeypatch.setattr(ShardEntry, "__eq__", lambda self, other: compared.append(1) or False)
    assert len(replayed(dataset, TrainingSection(replay=0.5)).manifest.splits["train"]) == 6_250
    assert not compared


@pytest.mark.parametrize("value", [1.0, 2.0, 1.5, True, "all", -1, -0.1])
def test_a_fraction_of_1_is_not_one_row(value):
    with pytest.raises(ValueError, match="replay"):
        TrainingSection(replay=value)


@pytest.mark.parametrize("value", [0, 1, 500, 0.0, 0.2, 0.999, None])
def test_a_fraction_or_rows(value):
    kept = TrainingSection(replay=value).replay
    assert kept == value and type(kept) is type(value)
