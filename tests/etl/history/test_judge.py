"""New rows against a ledger that Spark has written: what becomes of each kind."""

from types import SimpleNamespace

import pytest

from howdah import storage
from howdah.config.data import DataSection
from howdah.etl.history import judge, ledger
from howdah.etl.rows import dedup, near
from howdah.etl.workspace.scratch import Scratch

pytestmark = pytest.mark.spark

WORDS = [[f"t{n}w{k}" for k in range(30)] for n in range(8)]
KEPT = "id string, text string, label string, key string, split string, cluster string"
NEW = "id string, text string, label string, key string"


def text(n: int, *changed: int) -> str:
    """The text number n, with words changed."""
    return " ".join(f"{word}x" if k in changed else word for k, word in enumerate(WORDS[n]))


def row(row_id: str, words: str, label: str) -> tuple[str, str, str, str]:
    return row_id, words, label, f"key of {words}"


def written(spark, tmp_path, old: list[tuple], data: DataSection) -> SimpleNamespace:
    """The past of a part day-1, with the ledger of `old` rows in it."""
    kept = ledger.signed(spark.createDataFrame(old, KEPT), data.dedup)
    files = ledger.write(kept, str(tmp_path), "0badcafe", part="day-0", buckets=2, secrets=None)
    assert sum(file.rows for file in files if file.kind == ledger.ROWS) == len(old)
    for file in files:
        assert storage.size(storage.join(str(tmp_path), file.name)) == file.bytes

    def paths(kind):
        by_bucket = {}
        for file in files:
            if file.kind == kind:
                path = storage.join(str(tmp_path), file.name)
                by_bucket.setdefault(file.bucket, []).append((path, file.part))
        return by_bucket

    rows = [path for of_bucket in paths(ledger.ROWS).values() for path, _ in of_bucket]
    return SimpleNamespace(
        parent=True, part="day-1", buckets=2, secrets=None, paths=paths,
        paths_of_rows=lambda same_part: [] if same_part else rows,
    )  # fmt: skip


def judged(spark, new: list[tuple], places: dict[str, tuple[str, str]], past, data):
    """({id: row}, judging) of new rows, each in the (group, cluster) that is given, or alone."""
    judging = judge.judging_of(spark.createDataFrame(new, NEW), past, data, [])
    fresh = judging.fresh.collect()
    alone = {one["id"]: (one["id"], one["id"]) for one in fresh}
    rows = [(*one.asDict().values(), None, None, *(alone | places)[one["id"]]) for one in fresh]
    more = "reason string, detail string, group string, cluster string"
    judging.gone(judging.fresh)
    placed = judging.place(spark.createDataFrame(rows, f"{NEW}, {more}"))
    fates = {one["id"]: one for one in placed.collect()}
    for frame in judging.temporary:
        frame.unpersist()
    return fates, judging


def test_each_kind_of_new_row(spark, tmp_path):
    data = DataSection(
        columns={"id": "id"}, split={"validation": 0, "test": 0.99999},
        append={"enabled": True, "frozen": ["test"]},
    )  # fmt: skip
    splits = ["test", "train", "train", "validation"]
    old = [(*row(f"old-{n}", text(n), "a"), split, f"c{n}") for n, split in enumerate(splits)]
    past = written(spark, tmp_path, old, data)
    new = [
        row("old-1", text(7), "a"), row("same", text(0), "a"), row("other", text(0), "b"),
        row("near", text(1, 3), "a"), row("near-test", text(0, 5), "b"),
        row("near-train", text(1, 8), "b"), row("its-group", text(6), "a"),
        row("bridge", text(2, 4), "b"), row("bridge-too", text(3, 4), "b"),
        row("new", text(5), "a"),
    ]  # fmt: skip
    places = {"its-group": ("near-train",) * 2, "bridge-too": ("bridge",) * 2}
    fates, judging = judged(spark, new, places, past, data)
    assert len(fates) == len(new) and judging.full_buckets == 0
    assert {i: one["reason"] for i, one in fates.items()} == {
        "old-1": "known_id", "same": "exact_duplicate", "other": "label_conflict",
        "near": "near_duplicate", "near-test": "held_out_copy", "near-train": None,
        "its-group": None, "bridge": "bridges_splits", "bridge-too": "bridges_splits", "new": None,
    }  # fmt: skip
    for row_id in ("near-train", "its-group", "new"):  # test is frozen: nothing new goes there
        assert fates[row_id]["split"] == "train"
    assert fates["near-train"]["group"] == fates["its-group"]["group"] == "c1"
    assert fates["same"]["detail"] == "same text as old-0"
    assert fates["bridge"]["detail"] == "like rows of train, validation"


TEMPLATE = " ".join(f"template{k}" for k in range(14))


def of_template(name: str) -> str:
    """A text of which no other one is a near duplicate, and that shares buckets with them."""
    return f"{TEMPLATE} " + " ".join(f"{name}w{k}" for k in range(9))


@pytest.mark.parametrize("frozen", [["test"], pytest.param([], marks=pytest.mark.full)])
def test_unlike_rows_of_a_full_bucket_go_to_train_and_held_out_ones_are_all_compared(
    spark, tmp_path, monkeypatch, frozen
):
    monkeypatch.setattr(near, "MAX_BUCKET_SIZE", 2)
    data = DataSection(
        columns={"id": "id"}, split={"validation": 0, "test": 0.99999},
        dedup={"threshold": 0.6},
        append={"enabled": True, "frozen": frozen},
    )  # fmt: skip
    splits = ["train"] * 12 + ["test"] * 12 + ["validation"] * 12
    old = [
        (*row(f"old-{n}", of_template(f"o{n}"), "a"), split, f"c{n}")
        for n, split in enumerate(splits)
    ]
    past = written(spark, tmp_path, old, data)
    new = [row(f"new-{n}", of_template(f"n{n}"), "a") for n in range(6)]
    new += [row(f"like-{n}", of_template(f"o{n}").replace("w1", "x1"), "b") for n in range(12, 36)]
    new += [row(f"copy-{n}", of_template(f"o{n}").replace("w1", "x1"), "a") for n in range(12, 36)]
    fates, judging = judged(spark, new, {}, past, data)
    assert judging.full_buckets > 0 and judging.uncompared > 0
    lines = []
    assert judging.capped(lines.append)["full_past_buckets"] == judging.full_buckets
    assert "more than 2 old rows" in lines[0]
    for n in range(6):  # in buckets that have rows of each split, and like none of them
        assert (fates[f"new-{n}"]["reason"], fates[f"new-{n}"]["split"]) == (None, "train")
    for n in range(12, 36):
        assert fates[f"copy-{n}"]["reason"] == "near_duplicate"
        assert fates[f"copy-{n}"]["detail"] == f"like old-{n}"
        like = fates[f"like-{n}"]
        if like["reason"] is None:  # in no bucket with training rows that were not compared
            assert like["split"] == splits[n] not in frozen
        else:
            assert like["reason"] in ("bridges_splits", "held_out_copy")
            assert like["detail"].startswith(f"like rows of {splits[n]}")


def test_of_a_days_group_that_touches_two_splits_what_is_like_held_out_rows_goes(spark, tmp_path):
    data = DataSection(
        columns={"id": "id"}, split={"validation": 0, "test": 0.99999}, append={"enabled": True}
    )
    splits = ["test", "train", "validation"]
    old = [(*row(f"old-{n}", text(n), "a"), split, f"c{n}") for n, split in enumerate(splits)]
    past = written(spark, tmp_path, old, data)
    new = [
        row("tested", text(0, 5), "b"), row("its-cluster", text(3), "a"),
        row("trained", text(1, 5), "b"), row("validated", text(2, 5), "b"),
        row("unlike", text(4), "a"), row("elsewhere", text(0, 9), "b"),
    ]  # fmt: skip
    places = {name: ("g", name) for name in ("tested", "trained", "validated", "unlike")}
    places["its-cluster"] = ("g", "tested")
    fates, _ = judged(spark, new, places, past, data)
    assert {i: (one["reason"], one["split"]) for i, one in fates.items() if not one["reason"]} == {
        "trained": (None, "train"), "unlike": (None, "train"), "elsewhere": (None, "test"),
    }  # fmt: skip
    for name in ("tested", "its-cluster", "validated"):
        assert fates[name]["reason"] == "bridges_splits"
    assert fates["trained"]["group"] == fates["unlike"]["group"] == "c1"
    assert "too large to compare" in fates["validated"]["detail"]


def test_without_ids_a_text_under_another_label_gets_an_id_of_its_own(spark, tmp_path):
    data = DataSection(dedup={"conflict": "keep"}, append={"enabled": True})
    past = written(spark, tmp_path, [(*row("h-1", text(0), "a"), "train", "c0")], data)
    new = spark.createDataFrame([row("h-1", text(0), "b"), row("h-2", text(1), "b")], NEW)
    rows = judge.with_own_ids(new, past, data).collect()
    id_of = {one["text"]: one["id"] for one in rows}
    assert rows[0].asDict().keys() == set(new.columns) and id_of[text(1)] == "h-2"
    new_id = id_of[text(0)]
    assert new_id != "h-1" and len(new_id) == 3
    # read again when it is there itself, and the other one no more: the same id
    kept = [(*row(new_id, text(0), "b"), "train", "c0"), (*row("h-3", text(3), "a"), "train", "c0")]
    again = written(spark, tmp_path / "again", kept[:1], data)
    other = written(spark, tmp_path / "other", kept[1:], data)
    replaced, others = (one.paths_of_rows(same_part=False) for one in (again, other))
    by_part = {True: replaced, False: others}
    past = SimpleNamespace(part="day-1", paths_of_rows=lambda same_part: by_part[same_part])
    assert {r["text"]: r["id"] for r in judge.with_own_ids(new, past, data).collect()} == id_of
    by_id = DataSection(columns={"id": "id"}, dedup={"conflict": "keep"})
    assert judge.with_own_ids(new, past, by_id) is new


def test_what_is_like_a_row_that_goes_is_kept_or_judged_by_itself(spark, tmp_path):
    """a like b in the day, a like the old row, b not: with b nothing stands for its text."""
    data = DataSection(columns={"id": "id"}, append={"enabled": True})
    past = written(spark, tmp_path, [(*row("old", text(0), "a"), "train", "c0")], data)
    changed = ((), (0, 3), (0, 3, 6, 9), (0, 3, 6, 9, 12))
    names = ("a", "b", "c")
    new = [row(n, text(0, *c), "a") for n, c in zip(names, changed[1:], strict=True)]
    kept, scratch = [], Scratch(str(tmp_path), "0badcafe")
    judging = judge.judging_of(spark.createDataFrame(new, NEW), past, data, kept)
    with scratch:
        result = dedup.deduplicate(judging.fresh, data.dedup, scratch, kept, gone=judging.gone)
        placed = {one["id"]: one for one in judging.place(result.rows).collect()}
    for frame in kept:
        frame.unpersist()
    assert {i: (one["reason"], one["detail"]) for i, one in placed.items()} == {
        "a": ("near_duplicate", "like old"), "b": (None, None), "c": ("near_duplicate", "like b"),
    }  # fmt: skip
