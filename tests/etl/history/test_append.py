"""Versions that append a day: no row moves, leaks into another split, is lost or comes twice."""

import random
from collections.abc import Sequence

import numpy as np
import pyarrow.parquet as pq
import pytest

from howdah import storage
from howdah.config.data import DedupOptions
from howdah.config.options.dedup import NUM_PERMUTATIONS
from howdah.data.manifest import load_dataset
from howdah.data.splits.shards import ShardSet
from howdah.errors import DataError
from howdah.etl.history import rewrite
from howdah.etl.rows import near
from howdah.etl.rows.minhash import equal_entries, signatures
from tests.etl.test_pipeline import make_config, rows_of, run, write_csv
from tests.fixtures.spark import FEW_JOBS

pytestmark = pytest.mark.spark

WORDS = [f"{a}{b}{c}" for a in "bdfgklm" for b in "aeiou" for c in "nprst"]
DAYS = 10


def day_rows(day: int, past: list[tuple[str, str, str]], count: int, rng) -> list[tuple]:
    """(id, text, label): new texts, copies of any day's, texts with one word changed, other
    labels."""
    rows = []
    for n in range(count):
        earlier = past + rows
        kind = rng.choice(["new", "new", "copy", "near", "near", "other"]) if earlier else "new"
        text, label = " ".join(rng.sample(WORDS, 24)), rng.choice("ab")
        if kind != "new":
            _, text, label = rng.choice(earlier)
            if kind == "other":
                label = "b" if label == "a" else "a"
            if kind == "near" or (kind == "other" and rng.random() < 0.7):
                words = text.split()
                words[rng.randrange(len(words))] = rng.choice(WORDS) + "x"
                text = " ".join(words)
        rows.append((f"d{day}-{n:03d}", text, label))
    return rows


def config_for(place, base, rows, part, **data):
    source = write_csv(place / f"{part}.csv", rows, header=("id", "text", "label"))
    settings = {
        "source": source, "columns": {"id": "id"}, "max_length": 32,
        "append": {"enabled": True, "part": part, **data.pop("append", {})},
        "split": {"validation": 0.2, "test": 0.3}, "dedup": {}, **data,
    }  # fmt: skip
    return make_config(place, base, **settings)


def places_of(result) -> dict[str, str]:
    """{id: split}; each id once."""
    rows = [(row.id.decode(), split) for split, rows in rows_of(result).items() for row in rows]
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def rejected(result) -> dict[str, str]:
    names = result.manifest.quality["reject_files"]
    files = [pq.read_table(storage.join(result.path, name)) for name in names]
    return {r["id"]: r["reason"] for f in files for r in f.to_pylist()}


def leaks(places: dict[str, str], texts: dict[str, str]) -> list[tuple[str, str]]:
    """Pairs above the threshold whose splits differ, by comparing every row with every other."""
    options, ids = DedupOptions(), sorted(places)
    made = signatures([texts[i] for i in ids], options.ngram, NUM_PERMUTATIONS)
    need = equal_entries(options.threshold, NUM_PERMUTATIONS)
    crossing = []
    for n, signature in enumerate(made):
        like = np.flatnonzero((made[n + 1 :] == signature).sum(axis=1) >= need) + n + 1
        crossing += [(ids[n], ids[m]) for m in like if places[ids[n]] != places[ids[m]]]
    return crossing


def template_rows(day: int) -> list[tuple[str, str, str]]:
    """Rows that share their beginning: in the same buckets, and like none."""
    shared = [f"template{k}" for k in range(16)]
    texts = [" ".join([*shared, *(f"d{day}t{n}w{k}" for k in range(8))]) for n in range(24)]
    return [(f"t{day}-{n:03d}", text, "a") for n, text in enumerate(texts)]


def pillars(count: int) -> list[tuple[str, str, str]]:
    """Pairs of texts that are no near duplicates, between which a text can be that is like both."""
    words = [[f"p{n}w{k}" for k in range(24)] for n in range(count)]
    other = [[f"{w}x" if 9 <= k < 15 else w for k, w in enumerate(of)] for of in words]
    sides = {"left": words, "right": other}
    return [(f"{s}-{n}", " ".join(of[n]), "a") for n in range(count) for s, of in sides.items()]


def bridges(places: dict[str, str], count: int) -> list[tuple[str, str, str]]:
    """Under another label a text between the two of each pair that are in different splits."""
    texts = {row_id: text.split() for row_id, text, _ in pillars(count)}
    between = {n: [*texts[f"left-{n}"][:12], *texts[f"right-{n}"][12:]] for n in range(count)}
    apart = [n for n in between if len({places.get(f"{s}-{n}") for s in ("left", "right")}) > 1]
    return [(f"bridge-{n}", " ".join(between[n]), "b") for n in apart]


def append_days(place, base, days: Sequence[int], count: int, seed: int, pairs: int = 0, **options):
    """Append them in this order, checking each; (all rows, last result, {id: split}, {id: reason}).

    The rows of a day are like those of all days before it in the order.

    Args:
        pairs: of texts to bridge, on the first day; the bridges come on the second.
        options: of `data`, of each part.
    """
    rng, past, before, frozen = random.Random(seed), [], {}, {}
    texts, gone, labels = {}, {}, []
    for number, day in enumerate(days):
        rows = day_rows(day, past, count, rng)
        if number == 1:  # a label that no earlier day has, and that sorts before one of theirs
            rows.append((f"d{day}-label", " ".join(rng.sample(WORDS, 24)), "aa"))
        if pairs:
            rows += template_rows(day)
            rows += [pillars(pairs), bridges(before, pairs), []][min(number, 2)]
        past += rows
        texts |= {row_id: text for row_id, text, _ in rows}
        result, _ = run(config_for(place, base, rows, f"day-{day:02d}", **options))
        assert result.manifest.labels[: len(labels)] == labels  # numbers stay
        labels = result.manifest.labels
        places = places_of(result)
        assert {i: places.get(i) for i in before} == before  # no old row moves or goes
        tested = {i for i, split in places.items() if split == "test"}
        frozen = frozen or tested
        assert tested == frozen if "append" in options else tested >= frozen
        new = rejected(result)
        if pairs:  # of a bucket that is full nothing is rejected but what is like a row
            assert {row_id for row_id, _, _ in template_rows(day)} <= set(places)
        assert set(places) - set(before) | set(new) == {row_id for row_id, _, _ in rows}
        assert not set(places) & (set(new) | set(gone))
        gone |= new
        assert leaks(places, texts) == []
        part = result.manifest.parts[-1]
        assert (part.name, part.read) == (f"day-{day:02d}", len(rows))
        assert sum(part.rows.values()) == len(set(places) - set(before))
        before = places
    assert labels == ["a", "b", "aa"][: 2 + (len(days) > 1)]
    return past, result, before, gone


@pytest.mark.timeout(900)
def test_two_days_in_turn_leak_nothing_and_lose_nothing(
    spark, tmp_path, tiny_model_dir, monkeypatch
):
    monkeypatch.setattr(near, "MAX_BUCKET_SIZE", 2)
    options = {"append": {"frozen": ["test"]}}
    cached = spark.sparkContext._jsc.getPersistentRDDs
    before = cached().size()
    past, result, places, gone = append_days(
        tmp_path, tiny_model_dir, range(2), 24, seed=3, pairs=8, **options
    )
    assert [part.name for part in result.manifest.parts] == ["day-00", "day-01"]
    assert set(gone.values()) & {"exact_duplicate", "near_duplicate"}
    planted = {reason for row_id, reason in gone.items() if row_id.startswith("bridge-")}
    assert "bridges_splits" in planted
    assert result.manifest.quality["near_duplicates"]["full_past_buckets"] > 0
    assert cached().size() == before
    # a day of copies alone adds a part, and no row
    copies = [(f"c-{n}", text, label) for n, (_, text, label) in enumerate(past[:6])]
    result, lines = run(config_for(tmp_path, tiny_model_dir, copies, "day-02", **options))
    assert places_of(result) == places and any("part day-02: no new row" in line for line in lines)
    assert result.manifest.parts[-1].rows == {}
    assert result.manifest.quality["labels_without_training_rows"] == []


def far_apart(day: int, count: int) -> list[tuple[str, str, str]]:
    """(id, text, label) of rows that are like no other."""
    texts = [" ".join(f"d{day}r{n}w{k}" for k in range(8)) for n in range(count)]
    return [(f"d{day}-{n:03d}", text, "ab"[n % 2]) for n, text in enumerate(texts)]


@pytest.mark.full
@pytest.mark.timeout(1200)  # four ETLs
def test_late_rows_of_a_merged_part_are_appended_as_the_refusal_says(
    spark, tmp_path, tiny_model_dir
):
    days = {f"day-{n}": far_apart(n, 20) for n in range(3)}
    for part, rows in days.items():
        result, _ = run(config_for(tmp_path, tiny_model_dir, rows, part, **FEW_JOBS))
    before = places_of(result)
    rewrite.compact(load_dataset(result.path), lambda line: None)
    late = [*days["day-0"], *far_apart(9, 2)]
    with pytest.raises(DataError, match="cannot be replaced") as caught:
        run(config_for(tmp_path, tiny_model_dir, late, "day-0", **FEW_JOBS))
    assert "under another data.append.part" in caught.value.remedy
    bounds = {"max_reject_fraction": 0.2}  # stricter than that of the parts
    settings = FEW_JOBS | {"quality": bounds}
    result, _ = run(config_for(tmp_path, tiny_model_dir, late, "day-0-late", **settings))
    after = places_of(result)
    assert {i: after[i] for i in before} == before and len(after) == 62
    assert result.manifest.parts[-1].drops == {"known_id": 20}


@pytest.mark.full
@pytest.mark.timeout(1200)  # four ETLs
def test_a_part_that_is_read_again_keeps_the_places_of_its_rows(spark, tmp_path, tiny_model_dir):
    rng, frozen = random.Random(5), {"frozen": ["test"]}
    first = day_rows(0, [], 30, rng)
    second = day_rows(1, first, 20, rng)
    run(config_for(tmp_path, tiny_model_dir, first, "a", append=frozen))
    result, _ = run(config_for(tmp_path, tiny_model_dir, second, "b", append=frozen))
    before = places_of(result)
    again, lines = run(config_for(tmp_path, tiny_model_dir, second, "b", append=frozen))
    assert again.path != result.path  # the file was written again: another state of the part
    assert places_of(again) == before
    gone = next(row for row in first if row[0] in before)
    late = [row for row in first if row != gone] + day_rows(2, first + second, 10, rng)
    result, lines = run(config_for(tmp_path, tiny_model_dir, late, "a", append=frozen))
    assert any("replaces its older state" in line for line in lines)
    places = places_of(result)
    texts = {row_id: text for row_id, text, _ in [*first, *second, *late]}
    assert gone[0] not in places
    assert {i: s for i, s in places.items() if i in before} == {
        i: s for i, s in before.items() if i != gone[0]
    }
    tested = {i for i, split in places.items() if split == "test"}
    assert tested == {i for i, s in before.items() if s == "test"} - {gone[0]}
    assert leaks(places, texts) == []
    assert [part.name for part in result.manifest.parts] == ["a", "b"]


@pytest.mark.full
@pytest.mark.timeout(3600)  # thirty ETLs
def test_thirty_days_in_any_order_leak_nothing_and_lose_nothing(spark, tmp_path, tiny_model_dir):
    days = random.Random(11).sample(range(30), 30)
    past, result, places, gone = append_days(tmp_path, tiny_model_dir, days, 12, seed=7)
    assert [part.name for part in result.manifest.parts] == [f"day-{day:02d}" for day in days]
    assert len(places) + len(gone) == len(past) == 30 * 12 + 1  # one with a label of its own
    assert {"exact_duplicate", "near_duplicate"} <= set(gone.values())


@pytest.mark.full
@pytest.mark.timeout(3600)  # eleven ETLs
def test_ten_days_in_turn_leak_nothing_and_lose_nothing(spark, tmp_path, tiny_model_dir):
    past, result, places, gone = append_days(tmp_path, tiny_model_dir, range(DAYS), 40, seed=3)
    assert len(result.manifest.parts) == DAYS and result.manifest.schema_version == 2
    reasons = set(gone.values())
    assert {"exact_duplicate", "near_duplicate", "label_conflict"} <= reasons
    # all at once: every text that either way keeps is in the other, by a row that is like it
    once, _ = run(config_for(tmp_path, tiny_model_dir, past, "all",
                             dataset=str(tmp_path / "once")))  # fmt: skip
    texts = {row_id: text for row_id, text, _ in past}
    together = places_of(once)
    assert leaks(together, texts) == []
    exact = {texts[i] for i in places}
    # In turn more is kept: of a text under two labels the first one stays, at once neither does.
    assert {texts[i] for i in together} - exact <= {texts[i] for i in gone}
    assert abs(len(together) - len(places)) < 0.25 * len(past)
    shards = ShardSet(load_dataset(result.path), "train")
    assert shards.rows == sum(split == "train" for split in places.values())
