"""Duplicates in Spark: planted ones are found, and the outcome knows no partitions."""

import numpy as np
import pytest

from howdah import storage
from howdah.config.data import DedupOptions
from howdah.config.options.dedup import NUM_PERMUTATIONS
from howdah.etl.rows import components, dedup, minhash, near
from howdah.etl.rows.gate import text_key
from howdah.etl.workspace.scratch import Scratch
from tests.etl.test_pipeline import make_config, rows_of, run, sentences, write_csv

pytestmark = pytest.mark.spark


def _words(seed, count=60):
    random = np.random.default_rng(seed)
    return [f"word{n}" for n in random.integers(0, 100_000, count)]


def _planted():
    """Rows (id, text, label): 30 alone, exact copies, a near pair, a conflict, mixed labels."""
    rows = [(f"alone{n:02d}", " ".join(_words(n)), "ab"[n % 2]) for n in range(30)]
    base = _words(1000)
    near = [*base[:-1], "changed"]
    rows += [("near1", " ".join(base), "a"), ("near2", " ".join(near), "a")]
    rows += [("near3", " ".join(base).upper() + "!", "b")]
    copy = " ".join(_words(2000))
    rows += [("copy1", copy, "a"), ("copy2", copy, "a"), ("copy3", copy, "a")]
    contested = " ".join(_words(3000))
    rows += [("fight1", contested, "a"), ("fight2", contested, "b")]
    return rows


def _frame(spark, rows, partitions):
    table = [(*row, text_key(row[1])) for row in rows]
    frame = spark.createDataFrame(table, "id string, text string, label string, key string")
    return frame.repartition(partitions)


def _fates(spark, rows, options, tmp_path, partitions=3, driver_edges=1_000):
    temporary = []
    patched, scratch = pytest.MonkeyPatch.context(), Scratch(str(tmp_path / "v=0"), "0badcafe")
    with patched as patch, scratch:
        patch.setattr(components, "DRIVER_EDGES", driver_edges)
        result = dedup.deduplicate(_frame(spark, rows, partitions), options, scratch, temporary)
        fates = {r["id"]: (r["reason"], r["detail"], r["group"]) for r in result.rows.collect()}
    assert len(temporary) == 1  # signatures and buckets have gone
    for frame in temporary:
        frame.unpersist()
    return fates, result


def test_planted_duplicates_are_found_whatever_the_partitions(spark, tmp_path):
    rows = _planted()
    fates, result = _fates(spark, rows, DedupOptions(), tmp_path)
    assert len(fates) == len(rows)
    assert fates["near1"] == (None, None, "near1")
    assert fates["near2"] == ("near_duplicate", "like near1", "near1")
    assert fates["near3"] == (None, None, "near1")  # another label: kept, in the same cluster
    assert fates["copy1"] == (None, None, "copy1")
    assert fates["copy3"] == ("exact_duplicate", "same text as copy1", "copy1")
    assert fates["fight1"][:2] == fates["fight2"][:2] == ("label_conflict", "labels: a, b")
    assert all(fates[f"alone{n:02d}"] == (None, None, f"alone{n:02d}") for n in range(30))
    assert (result.near_clusters, result.largest_cluster, result.largest_group) == (1, 3, 3)
    assert (result.capped_buckets, result.capped_entries) == (0, 0)
    again, _ = _fates(spark, rows[::-1], DedupOptions(), tmp_path, partitions=1)
    assert again == fates
    rounds, _ = _fates(spark, rows, DedupOptions(), tmp_path, driver_edges=0)
    assert rounds == fates and list((tmp_path / "v=0").iterdir()) == []


def test_each_removal_can_be_switched_off(spark, tmp_path):
    fates, _ = _fates(spark, _planted(), DedupOptions(exact=False, near=False), tmp_path)
    assert fates["near2"] == (None, None, "near2")
    assert fates["copy2"] == (None, None, "copy1")  # kept, but never in another split than copy1
    assert fates["fight1"][0] == "label_conflict"


# with these about half of all pairs of a family are alike
STRICT = {"ngram": 5, "threshold": 0.8}


def _family(count):
    """Texts that are each one word away from the same 80."""
    base = _words(5, 80)
    random = np.random.default_rng(11)
    texts = []
    for n in range(count):
        words = list(base)
        words[random.integers(0, 80)] = f"other{n}"
        texts.append(" ".join(words))
    return texts


def _alike(texts, options):
    """Pairs that share a bucket and are similar, by comparing all with all."""
    signature = minhash.signatures(texts, options.ngram, NUM_PERMUTATIONS)
    keys = minhash.band_keys(signature, *options.banding)
    met = (keys[:, None] == keys[None]).any(axis=2)
    equal = (signature[:, None] == signature[None]).mean(axis=2) >= options.threshold
    return {(int(a), int(b)) for a, b in np.argwhere(met & equal) if a < b}


def test_what_is_not_compared_in_a_large_bucket_stays_in_one_split(spark, tmp_path, monkeypatch):
    texts = _family(40)
    # a label of its own for each: none is removed, and all groups can be seen
    rows = [(f"r{n:02d}", text, f"label{n:02d}") for n, text in enumerate(texts)]
    rows += [(f"alone{n}", " ".join(_words(100 + n)), "label00") for n in range(5)]
    monkeypatch.setattr(near, "MAX_BUCKET_SIZE", 4)
    options = DedupOptions(**STRICT)
    pairs = _alike(texts, options)
    assert 50 < len(pairs) < 700
    fates, result = _fates(spark, rows, options, tmp_path)
    assert result.capped_buckets > 0 and result.capped_entries > 0
    assert not any(reason for reason, _, _ in fates.values())
    torn = [(a, b) for a, b in pairs if fates[f"r{a:02d}"][2] != fates[f"r{b:02d}"][2]]
    assert not torn
    assert all(fates[f"alone{n}"][2] == f"alone{n}" for n in range(5))


@pytest.mark.full  # in every run: the test above, and any pair by brute force, test_every_pair.py
def test_a_large_bucket_removes_nothing_that_is_not_alike(spark, tmp_path, monkeypatch):
    texts = _family(40)
    rows = [(f"r{n:02d}", text, "a") for n, text in enumerate(texts)]
    pairs = _alike(texts, DedupOptions(**STRICT))
    whole = _plain_components(pairs)  # of all pairs
    monkeypatch.setattr(near, "MAX_BUCKET_SIZE", 4)
    fates, _ = _fates(spark, rows, DedupOptions(**STRICT), tmp_path)
    removed = {i: detail for i, (reason, detail, _) in fates.items() if reason is not None}
    assert {reason for reason, _, _ in fates.values()} == {None, "near_duplicate"}
    for name, detail in removed.items():
        survivor = detail.removeprefix("like ")
        assert fates[survivor][0] is None
        assert whole[int(name[1:])] == whole[int(survivor[1:])]
    # large enough, and the clusters are those of all pairs
    monkeypatch.setattr(near, "MAX_BUCKET_SIZE", 40)
    fates, result = _fates(spark, rows, DedupOptions(**STRICT), tmp_path)
    assert result.capped_buckets == 0
    for n in range(40):
        assert fates[f"r{n:02d}"][2] == f"r{whole.get(n, n):02d}"


def test_of_a_chain_of_edits_those_stay_that_are_like_none_that_stays(spark, tmp_path):
    words = _words(1, 40)
    texts = []
    for n in range(40):  # each is like its neighbours; the first and the last share no word
        texts.append(" ".join([f"new{k}" for k in range(n)] + words[n:]))
    rows = [(f"r{n:02d}", text, "a") for n, text in enumerate(texts)]
    fates, result = _fates(spark, rows, DedupOptions(), tmp_path)
    assert (result.near_clusters, result.largest_cluster) == (1, 40)
    assert {group for _, _, group in fates.values()} == {"r00"}  # one split for all
    kept = [int(name[1:]) for name, (reason, _, _) in fates.items() if reason is None]
    signature = minhash.signatures(texts, "auto", 128)

    def like(a, b):
        return (signature[a] == signature[b]).mean() >= 0.7

    assert 3 < len(kept) < 20
    assert not any(like(a, b) for a in kept for b in kept if a < b)
    for name, (reason, detail, _) in fates.items():
        if reason is not None:
            leader = int(detail.removeprefix("like r"))
            assert reason == "near_duplicate" and leader in kept and like(int(name[1:]), leader)
    again, _ = _fates(spark, rows[::-1], DedupOptions(), tmp_path, partitions=1)
    assert again == fates


def _plain_components(edges):
    """{node: smallest node of its component}, by a union-find in plain Python."""
    parent = {}

    def root(node):
        while parent.setdefault(node, node) != node:
            node = parent[node]
        return node

    for a, b in edges:
        low, high = sorted((root(a), root(b)))
        parent[high] = low
    return {node: root(node) for node in list(parent)}


def _boilerplate(count):
    words = " ".join(_words(1))
    return [f"{words} {'!' * (n % 300)}{'?' * (n // 300)}" for n in range(count)]


@pytest.mark.full
def test_a_hundred_thousand_texts_of_the_same_words_go_to_one_split(spark, tmp_path):
    count = 100_000
    rows = [(f"r{n:06d}", text, f"label{n % 7}") for n, text in enumerate(_boilerplate(count))]
    rows += [(f"s{n:06d}", " ".join(_words(50 + n)), "label0") for n in range(20)]
    fates, result = _fates(spark, rows, DedupOptions(), tmp_path)
    kept = sorted(name for name, (reason, _, _) in fates.items() if reason is None)
    assert kept == [f"r{n:06d}" for n in range(7)] + [f"s{n:06d}" for n in range(20)]
    assert {group for name, (_, _, group) in fates.items() if name[0] == "r"} == {"r000000"}
    assert (result.near_clusters, result.largest_cluster, result.capped_buckets) == (1, count, 0)


def _boilerplate_source(tmp_path):
    """A CSV of 3,000 texts of the same words, and of others."""
    rows = [(f"r{n:04d}", text, "abc"[n % 3]) for n, text in enumerate(_boilerplate(3_000))]
    rows += [(f"s{n:04d}", text, "abc"[n % 3]) for n, text in enumerate(sentences(60))]
    rows += [(f"t{n:02d}", text, f"{n}") for n, text in enumerate(_family(8))]  # near, not removed
    return write_csv(tmp_path / "rows.csv", rows, header=("key", "text", "label"))


def test_boilerplate_never_crosses_a_split(spark, tmp_path, tiny_model_dir):
    source = _boilerplate_source(tmp_path)
    config = make_config(tmp_path, tiny_model_dir, source=source, columns={"id": "key"}, dedup={})
    result, _ = run(config)
    splits = {
        name: {e.id.decode() for e in part if e.id.startswith(b"r")}
        for name, part in rows_of(result).items()
    }
    assert sorted(filter(None, splits.values())) == [{"r0000", "r0001", "r0002"}]
    assert result.manifest.quality["drops"] == {"near_duplicate": 2_997}


@pytest.mark.full
def test_clusters_joined_on_the_executors_make_the_same_version(
    spark, tmp_path, tiny_model_dir, monkeypatch
):
    source = _boilerplate_source(tmp_path)
    config = make_config(tmp_path, tiny_model_dir, source=source, columns={"id": "key"}, dedup={})
    result, _ = run(config)
    other = tmp_path / "rounds"
    monkeypatch.setattr(components, "DRIVER_EDGES", 0)
    config = make_config(other, tiny_model_dir, source=source, columns={"id": "key"}, dedup={})
    again, lines = run(config)
    assert again.hash == result.hash and not again.unchanged
    assert any("joining near duplicates, round 1" in line for line in lines)
    assert [e.crc32c for e in again.manifest.splits["train"]] == [
        e.crc32c for e in result.manifest.splits["train"]
    ]
    assert not [e.name for e in storage.list_dir(again.path) if e.is_dir and e.name != "rejects"]


# ---------------------------------------------------------------------------- labels and splits
@pytest.mark.parametrize("policy", ["majority", pytest.param("keep", marks=pytest.mark.full)])
def test_what_the_same_text_under_several_labels_is(spark, tmp_path, policy):
    often, twice = " ".join(_words(1)), " ".join(_words(2))
    near = " ".join([*_words(1)[:-1], "changed"])
    rows = [(f"o{n}", often, "a") for n in range(9)] + [("o9", often, "b")]
    rows += [("t0", twice, "a"), ("t1", twice, "b"), ("near", near, "c")]
    options = DedupOptions(conflict={"policy": policy})
    fates, result = _fates(spark, rows, options, tmp_path)
    assert fates["o0"] == (None, None, "near") and fates["o8"][0] == "exact_duplicate"
    # near has another label than o0
    assert (result.noisy_clusters, result.noisy_texts, result.largest_cluster) == (1, 2, 2)
    if policy == "majority":
        assert fates["o9"][:2] == ("label_conflict", "labels: a, b")
        assert fates["t0"][0] == fates["t1"][0] == "label_conflict"  # half of them is no majority
        return
    kept = sorted(name for name, (reason, _, _) in fates.items() if reason is None)
    assert kept == ["near", "o0", "o9", "t0", "t1"]
    assert {fates[name][2] for name in ("near", "o0", "o9")} == {"near"}
    assert fates["t0"][2] == fates["t1"][2] == "t0"


@pytest.mark.parametrize("official", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_copy_of_a_held_out_row_leaves_train_and_not_the_other_way(spark, tmp_path, official):
    one, two = _words(1), _words(2)
    rows = [
        ("a-train", one, "a", "train"), ("b-test", one, "b", "test"), ("c-test", one, "a", "test"),
        ("d-test", [*one[:-1], "x"], "a", "test"), ("e-near", [*one[:-1], "y"], "a", None),
        ("f-val", two, "a", "validation"), ("g-near", [*two[:-1], "y"], "a", "train"),
        ("h-alone", _words(3), "a", None),
    ]  # fmt: skip
    table = []
    for name, words, label, fixed_split in rows:
        text = " ".join(words)
        table.append((name, text, label, text_key(text), fixed_split))
    schema = "id string, text string, label string, key string, given string"
    frame = spark.createDataFrame(table, schema).repartition(3)

    options = DedupOptions() if official else DedupOptions(conflict="keep")
    temporary = []
    with Scratch(str(tmp_path / "v=0"), "0badcafe") as scratch:
        result = dedup.deduplicate(frame, options, scratch, temporary, whole=official)
        got = {r["id"]: (r["reason"], r["detail"]) for r in result.rows.collect()}
    for each in temporary:
        each.unpersist()
    assert got["a-train"] == ("held_out_copy", "same text as b-test of test")
    assert got["e-near"] == ("held_out_copy", "like b-test of test")
    assert got["g-near"] == ("held_out_copy", "like f-val of validation")
    for name in ("b-test", "c-test", "f-val", "h-alone"):
        assert got[name] == (None, None), name
    # an official set keeps its copies; by time, test is cleaned like any other rows
    assert got["d-test"] == ((None, None) if official else ("near_duplicate", "like c-test"))
