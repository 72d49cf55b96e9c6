"""New rows against a ledger that Spark has written: what becomes of each kind."""

from types import SimpleNamespace

import pytest

from etl.history import judge, ledger
from howdah import storage
from howdah.config.data import DataSection

pytestmark = pytest.mark.spark

WORDS = [[f"t{n}w{k}" for k in range(30)] for n in range(8)]
KEPT = "id string, text string, label string, key string, split string, cluster string"
NEW = "id string, text string, label string, key string"


def text(n: int, *changed: int) -> str:
    """The text number n, with words changed."""
    return " ".join(f"{word}x" if k in changed else word for k, word in enumerate(WORDS[n]))


def row(row_id: str, words: str, label: str) -> tuple[str, str, str, str]:
    return row_id, words, label, f"key of {words}"


def test_each_kind_of_new_row(spark, tmp_path):
    data = DataSection(
        columns={"id": "id"}, split={"validation": 0, "test": 0.99999},
        append={"enabled": True, "frozen": ["test"]},
    )  # fmt: skip
    splits = ["test", "train", "train", "validation"]
    old = [(*row(f"old-{n}", text(n), "a"), split, f"c{n}") for n, split in enumerate(splits)]
    kept = ledger.signed(spark.createDataFrame(old, KEPT), data.dedup)
    files = ledger.write(kept, str(tmp_path), "0badcafe", part="day-0", buckets=2, secrets=None)
    assert sum(file.rows for file in files if file.kind == ledger.ROWS) == 4
    for file in files:
        assert storage.size(storage.join(str(tmp_path), file.name)) == file.bytes

    def paths(kind):
        found = {}
        for file in files:
            if file.kind == kind:
                path = storage.join(str(tmp_path), file.name)
                found.setdefault(file.bucket, []).append((path, file.part))
        return found

    rows = [path for of_bucket in paths(ledger.ROWS).values() for path, _ in of_bucket]
    past = SimpleNamespace(
        parent=True, part="day-1", buckets=2, secrets=None, paths=paths,
        paths_of_rows=lambda own: [] if own else rows,
    )  # fmt: skip
    new = [
        row("old-1", text(7), "a"), row("same", text(0), "a"), row("other", text(0), "b"),
        row("near", text(1, 3), "a"), row("near-test", text(0, 5), "b"),
        row("near-train", text(1, 8), "b"), row("its-group", text(6), "a"),
        row("bridge", text(2, 4), "b"), row("bridge-too", text(3, 4), "b"),
        row("new", text(5), "a"),
    ]  # fmt: skip
    groups = {"its-group": "near-train", "bridge-too": "bridge"}
    separated = judge.separate(spark.createDataFrame(new, NEW), past, data)
    fresh = [
        (*one.asDict().values(), None, None, groups.get(one["id"], one["id"]))
        for one in separated.fresh.collect()
    ]
    judged = spark.createDataFrame(fresh, f"{NEW}, reason string, detail string, group string")
    temporary = []
    placed = judge.place(judged, separated, past, data, temporary)
    found = {one["id"]: one for one in placed.collect()}
    for frame in temporary:
        frame.unpersist()
    assert len(found) == len(new)
    assert {i: one["reason"] for i, one in found.items()} == {
        "old-1": "known_id", "same": "exact_duplicate", "other": "label_conflict",
        "near": "near_duplicate", "near-test": "held_out_copy", "near-train": None,
        "its-group": None, "bridge": "bridges_splits", "bridge-too": "bridges_splits", "new": None,
    }  # fmt: skip
    for row_id in ("near-train", "its-group", "new"):  # test is frozen: nothing new goes there
        assert found[row_id]["split"] == "train"
    assert found["near-train"]["group"] == found["its-group"]["group"] == "c1"
    assert found["same"]["detail"] == "same text as old-0"
    assert found["bridge"]["detail"] == "like rows of train, validation"
