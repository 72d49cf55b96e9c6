"""The planner: every row once an epoch, the same at every world size, resumed at any step."""

import collections
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from howdah.data.splits.permutation import permute
from howdah.data.splits.planner import (
    Planner,
    PlanSpec,
    PlanState,
    micro_batches,
    padded_length,
)
from howdah.errors import CheckpointError, ConfigError, DataError

SPEC = PlanSpec(dataset_hash="d", split="train", seed=7, global_batch_size=64, window_batches=5)


def lengths(*rows: int, seed: int = 0) -> list[np.ndarray]:
    """Log-normal token counts for shards of so many rows."""
    rng = np.random.default_rng(seed)
    return [np.clip(rng.lognormal(3.6, 0.7, n), 3, 128).astype(np.int32) for n in rows]


def keys(rows) -> list[tuple[int, int]]:
    """(shard, row) of the real rows."""
    return [
        (int(s), int(r)) for s, r, real in zip(rows.shard, rows.row, rows.real, strict=True) if real
    ]


@pytest.mark.parametrize("world", range(1, 65))
def test_every_row_once_an_epoch_in_equal_steps_at_every_world_size(world):
    planner = Planner(lengths(301, 300, 300, 299, 7), replace(SPEC, group_shards=2))
    seen = []
    for step in range(planner.steps_per_epoch):
        slices = [planner.rank_rows(3, step, rank, world) for rank in range(world)]
        seen += [key for rows in slices for key in keys(rows)]
        assert sum(len(rows) for rows in slices) == 64
        # At every world size the union of the slices is the global batch.
        assert sorted(k for rows in slices for k in keys(rows)) == sorted(
            keys(planner.batch(3, step))
        )
        assert all(len(rows) >= 1 for rows in slices)
    assert len(seen) == len(set(seen)) == planner.rows == 1207


@pytest.mark.parametrize("old,new", [(1, 64), (2, 3), (64, 1), (7, 5)])
def test_resume_at_any_step_into_any_world_size_loses_and_repeats_nothing(old, new):
    shards = lengths(200, 150, 99)
    before = Planner(shards, SPEC)
    for stop in range(before.steps_per_epoch + 1):
        seen = []
        for step in range(stop):
            for rank in range(old):
                seen += keys(before.rank_rows(1, step, rank, old))
        state = PlanState.from_json(json.loads(json.dumps(before.state(1, stop).to_json())))
        after = Planner(shards, SPEC)
        after.check(state)
        for step in range(state.step, after.steps_per_epoch):
            for rank in range(new):
                seen += keys(after.rank_rows(state.epoch, step, rank, new))
        assert len(seen) == len(set(seen)) == before.rows


def test_the_plan_does_not_depend_on_earlier_calls():
    shards = lengths(400, 400)
    used, fresh = Planner(shards, SPEC), Planner(shards, SPEC)
    for epoch, step in [(0, 0), (5, 9), (0, 11), (2, 3)]:
        used.batch(epoch, step)
    assert keys(used.batch(1, 8)) == keys(fresh.batch(1, 8))


def test_epochs_and_seeds_differ_and_evaluation_does_not():
    shards = lengths(500)
    planner = Planner(shards, SPEC)
    assert keys(planner.batch(0, 0)) != keys(planner.batch(1, 0))
    assert keys(planner.batch(0, 0)) != keys(Planner(shards, replace(SPEC, seed=8)).batch(0, 0))
    still = Planner(shards, replace(SPEC, shuffle=False))
    assert keys(still.batch(0, 2)) == keys(still.batch(1, 2))


def test_a_window_reads_from_at_most_two_groups():
    planner = Planner(lengths(*[100] * 12), replace(SPEC, group_shards=3, global_batch_size=10))
    for step in range(planner.steps_per_epoch):
        window = step // 5
        first = window * 50 // 300
        shards = {s for s, _ in keys(planner.batch(0, step))}
        groups = {
            g
            for g, group in enumerate(planner._make_epoch_groups(0)[0])
            for s in group
            if s in shards
        }
        assert groups <= {first, first + 1}


def test_rows_are_mixed_within_a_group():
    planner = Planner(lengths(*[512] * 4), replace(SPEC, group_shards=4))
    mixed = [len({s for s, _ in keys(planner.batch(0, step))}) for step in range(32)]
    assert min(mixed) >= 3


def test_the_last_batch_is_completed_by_rows_of_weight_0():
    planner = Planner(lengths(70), SPEC)
    assert planner.steps_per_epoch == 2
    real = [planner.batch(0, step).real.sum() for step in range(2)]
    assert sorted(real) == [6, 64]
    short = planner.batch(0, int(np.argmin(real)))
    assert (short.shard[~short.real] == -1).all() and (short.length[~short.real] == 1).all()
    slices = [planner.rank_rows(0, int(np.argmin(real)), rank, 64) for rank in range(64)]
    assert [len(rows) for rows in slices] == [1] * 64  # every rank takes the step


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_padding_is_at_most_five_percent(world):
    planner = Planner(lengths(4000, 4000), replace(SPEC, global_batch_size=32, window_batches=50))
    real = padded = 0
    for step in range(planner.steps_per_epoch):
        for rank in range(world):
            for part in micro_batches(planner.rank_rows(0, step, rank, world), 8192):
                real += int(part.length[part.real].sum())
                padded += int(part.length.max()) * len(part)
    assert padded / real <= 1.05


def spread_of_means(planner: Planner) -> float:
    """How much the mean lengths of an epoch's batches differ, in what those of as many random rows
    would."""
    batches = [planner.batch(0, step).length for step in range(planner.steps_per_epoch)]
    rows = np.concatenate(batches)
    means = [batch.mean() for batch in batches]
    return float(np.std(means) / (rows.std() / np.sqrt(len(batches[0]))))


def test_a_window_of_one_batch_makes_batches_of_random_rows():
    spec = replace(SPEC, global_batch_size=32)
    shards = lengths(3200, 3200)
    assert 0.8 < spread_of_means(Planner(shards, replace(spec, window_batches=1))) < 1.2
    assert spread_of_means(Planner(shards, replace(spec, window_batches=50))) > 4
    batch = Planner(shards, replace(spec, window_batches=1)).batch(0, 0)
    assert (np.diff(batch.length) <= 0).all()  # its micro-batches are of like lengths still


def sentences(rows: int) -> list[np.ndarray]:
    """Token counts like SST-2's: 25 on the average, from 4 to 66."""
    counts = np.round(np.random.default_rng(0).gamma(4.7, 5.3, rows))
    return np.array_split(np.clip(counts, 4, 66).astype(np.int32), 8)


@pytest.mark.parametrize("world", [1, 2, 8])
@pytest.mark.parametrize("steps", [200, 216])
def test_short_sentences_are_padded_by_at_most_five_percent_from_200_steps_an_epoch(steps, world):
    planner = Planner(sentences(32 * steps), replace(SPEC, global_batch_size=32, window_batches=50))
    real = padded = 0
    for step in range(planner.steps_per_epoch):
        for rank in range(world):
            rows = planner.rank_rows(0, step, rank, world)
            real += int(rows.length.sum())
            padded += padded_length(int(rows.length[0]), 2) * len(rows)
    assert padded / real <= 1.05


def peers_kept(planner) -> float:
    """Share of the rows in a row's batch that share its batch in the next epoch, too."""
    peers = []
    for epoch in (0, 1):
        batches = [keys(planner.batch(epoch, step)) for step in range(planner.steps_per_epoch)]
        peers.append({key: set(batch) - {key} for batch in batches for key in batch})
    again = [len(rows & peers[1][key]) / len(rows) for key, rows in peers[0].items()]
    return float(np.mean(again))


@pytest.mark.parametrize("steps", [10, 30, 50])
def test_rows_of_a_short_epoch_share_batches_with_other_rows_in_the_next_one(steps):
    shards = [np.random.default_rng(0).integers(4, 129, 32 * steps).astype(np.int32)]
    spec = replace(SPEC, global_batch_size=32, window_batches=50)
    assert Planner(shards, spec).window_batches == max(1, steps // 4)
    assert peers_kept(Planner(shards, spec)) < 0.3


def rows_of_lengths(*of: int):
    """A slice of rows with these lengths, longest first."""
    planner = Planner([np.sort(np.array(of, np.int32))[::-1]], replace(
        SPEC, global_batch_size=len(of), shuffle=False))  # fmt: skip
    return planner.batch(0, 0)


@pytest.mark.parametrize(
    ("of", "most", "cut"),
    [
        ([10] * 33, 320, [17, 16]),
        ([10] * 32, 320, [32]),
        ([10] * 65, 320, [22, 22, 21]),
        # A part of long rows holds fewer than the mean: the others share the rest evenly.
        ([80] * 4 + [10] * 60, 320, [4, 30, 30]),
    ],
)
def test_micro_batches_are_as_few_and_as_even_as_possible(of, most, cut):
    parts = micro_batches(rows_of_lengths(*of), most)
    assert [len(part) for part in parts] == cut
    assert all(int(part.length.max()) * len(part) <= most for part in parts)


@given(
    of=st.lists(st.integers(1, 100), min_size=1, max_size=200), most=st.integers(100, 2000),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_even_micro_batches_are_as_many_as_full_ones(of, most):
    rows = rows_of_lengths(*of)
    parts = micro_batches(rows, most)
    assert [key for part in parts for key in keys(part)] == keys(rows)
    assert all(int(part.length[0]) * len(part) <= most for part in parts)
    filled, at = 0, 0
    while at < len(of):
        at, filled = at + most // int(rows.length[at]), filled + 1
    assert len(parts) == filled


def test_rows_are_not_padded_beyond_the_model_s_positions():
    rows = rows_of_lengths(*[127] * 4, *[125] * 4)
    assert [len(p) for p in micro_batches(rows, 127 * 4, 8, 127)] == [4, 4]
    assert padded_length(125, 8, 127) == 127
    assert padded_length(120, 8, 127) == 120


def test_micro_batches_cover_the_slice_within_the_bound():
    rows = Planner(lengths(64), SPEC).batch(0, 0)
    parts = micro_batches(rows, 500, 8)
    assert [k for part in parts for k in keys(part)] == keys(rows)
    assert all(-(-int(p.length.max()) // 8) * 8 * len(p) <= 500 for p in parts)
    assert len(micro_batches(rows, 10**9)) == 1
    with pytest.raises(ConfigError, match="longer than a micro-batch"):
        micro_batches(rows, 8)


def test_the_plan_hash_covers_every_setting():
    shards = lengths(10)
    changed = [
        replace(SPEC, **{name: value})
        for name, value in {
            "dataset_hash": "e", "split": "test", "seed": 8, "global_batch_size": 65,
            "shuffle": False, "window_batches": 6, "group_shards": 9,
        }.items()
    ]  # fmt: skip
    hashes = {Planner(shards, spec).plan_hash for spec in [SPEC, *changed]}
    assert len(hashes) == 8
    with pytest.raises(CheckpointError, match="another data plan"):
        Planner(shards, changed[2]).check(Planner(shards, SPEC).start())


def test_state_is_small_and_checked():
    state = Planner(lengths(10), SPEC).state(10**6, 10**9)
    assert len(json.dumps(state.to_json())) < 1024
    assert PlanState.from_json(state.to_json()) == state
    for broken in ({}, {"plan_hash": "x", "epoch": "one", "step": 2}):
        with pytest.raises(CheckpointError, match="incomplete"):
            PlanState.from_json(broken)


def test_refusals():
    with pytest.raises(DataError, match="no rows"):
        Planner([np.zeros(0, np.int32)], SPEC)
    with pytest.raises(ConfigError, match="more ranks than rows"):
        Planner(lengths(100), SPEC).rank_rows(0, 0, 0, 65)


def test_after_and_at_agree():
    planner = Planner(lengths(300), SPEC)
    at = (0, 0)
    for number in range(20):
        assert planner.at(number) == at
        at = planner.after(*at)


@given(n=st.integers(1, 5000), seed=st.integers(0, 2**63), epoch=st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_permutation_is_a_bijection(n, seed, epoch):
    out = permute(np.arange(n), n, seed, epoch)
    assert (np.sort(out) == np.arange(n)).all()
    # A slice can be computed by itself, and is the same.
    assert (permute(np.arange(n // 2, n), n, seed, epoch) == out[n // 2 :]).all()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 255, 256, 257])
def test_permutation_of_small_and_edge_sizes(n):
    assert sorted(permute(np.arange(n), n, 1, 2, 3)) == list(range(n))


def test_permutation_looks_random():
    n = 10_000
    out = permute(np.arange(n), n, 5)
    fixed = int((out == np.arange(n)).sum())
    assert fixed < 10  # a random permutation has 1 on average
    assert abs(np.corrcoef(np.arange(n), out)[0, 1]) < 0.05
    assert abs(np.corrcoef(out[:-1], out[1:])[0, 1]) < 0.05


def spread(permutation, n: int, samples: int) -> collections.Counter:
    """Counts of each order of n items, over the keys 0 to samples - 1."""
    return collections.Counter(tuple(permutation(np.arange(n), n, 5, k)) for k in range(samples))


def test_every_order_of_a_few_items_is_as_likely_as_another():
    counts, expected = spread(permute, 5, 12_000), 12_000 / 120
    chi2 = sum((count - expected) ** 2 / expected for count in counts.values())
    assert len(counts) == 120
    assert chi2 / 119 < 1.5  # 1 on the average, with a deviation of 0.13
    assert len(spread(permute, 8, 20_000)) > 15_500  # of 40,320; 15,770 expected
