"""Appending without Spark: what a ledger's buckets give, and which parts may be appended."""

from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from howdah.config.data import DataSection
from howdah.data.manifest import LedgerEntry, commit, load_dataset
from howdah.errors import ConfigError, DataError, HowdahError
from howdah.etl.history import ledger, past
from howdah.etl.rows import gate
from howdah.etl.rows.minhash import signatures
from howdah.etl.sources.source import Source
from tests.support.rows.appended import build_appended

TEXTS = [f"word{n} " + " ".join(f"w{n}x{k}" for k in range(30)) for n in range(40)]


def signed(texts: list[str]) -> list[bytes]:
    return [row.tobytes() for row in signatures(texts, "auto", 128)]


@pytest.fixture
def rows(tmp_path):
    """Paths of a bucket of old rows, in row groups of four."""
    table = pa.table({
        "node": np.arange(40) * 10, "id": [f"old-{n}" for n in range(40)],
        "key": [f"key-{n}" for n in range(40)], "label": ["a"] * 40,
        "split": ["test" if n < 20 else "train" for n in range(40)],
        "cluster": [f"old-{n}" for n in range(40)], "signature": signed(TEXTS),
    })  # fmt: skip
    path = str(tmp_path / "rows.parquet")
    pq.write_table(table, path, row_group_size=4)
    return {0: [(path, "day-0")]}


def joined(parts: list[dict]) -> pd.DataFrame:
    return pd.concat([pd.DataFrame(part) for part in parts], ignore_index=True)


def test_old_rows_are_compared_by_text_and_by_signature(rows):
    near, far = TEXTS[21] + " more", "something else altogether"
    new = pd.DataFrame({
        "id": ["copy", "near", "far", "collides"], "node": [30, 210, 210, 50],
        "key": ["key-3", "k", "l", "m"], "signature": signed([TEXTS[3], near, far, far]),
        "label": "a", "kind": ledger.PAIR, "bands": [[]] * 4,
    })  # fmt: skip
    pairs = joined(list(ledger._compare(new, 0, rows, 0.7))).set_index("id")
    assert set(pairs.index) == {"copy", "near"}
    assert pairs.loc["copy", "exact"] and pairs.loc["copy", "split"] == "test"
    assert not pairs.loc["near", "exact"] and pairs.loc["near", "past"] == "old-21"
    assert pairs.loc["near", ["split", "cluster", "part"]].tolist() == ["train", "old-21", "day-0"]
    new["signature"] = None  # data.dedup.near: false
    pairs = joined(list(ledger._compare(new, 0, rows, 0.7)))
    assert pairs["id"].tolist() == ["copy"]


def test_only_row_groups_with_a_wanted_value_are_read(rows, monkeypatch):
    read = []
    whole = pq.ParquetFile.read_row_group

    def counted(self, number, columns=None):
        read.append((number, len(columns)))
        return whole(self, number, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    got = list(ledger._groups(rows, 0, "node", np.array([-5, 30, 35, 390, 1000]), ("node", "id")))
    assert [frame["id"].tolist() for frame, _ in got] == [["old-3"], ["old-39"]]
    assert read == [(0, 1), (0, 2), (9, 1), (9, 2)]
    assert list(ledger._groups({}, 0, "node", np.array([30]), ("node",))) == []


def test_of_a_full_bucket_held_out_rows_are_all_compared_and_training_rows_capped(tmp_path):
    files = []
    for n, (nodes, split) in enumerate(
        [([1, 2, 3, 4], "train"), ([5, 6, 7], "test"), ([8], "validation")]
    ):
        path = str(tmp_path / f"{n}.parquet")
        bands = {"band": [7] * len(nodes), "node": nodes, "split": [split] * len(nodes)}
        pq.write_table(pa.table(bands), path)
        files.append((path, f"day-{n}"))
    new = pd.DataFrame({"id": ["a", "b"], "band": [7, 8]})
    meetings = joined(list(ledger._meet(new, 0, {0: files}, most=2)))
    assert set(meetings["id"].dropna()) == {"a"}
    by_kind = {kind: set(rows["node"].dropna()) for kind, rows in meetings.groupby("kind")}
    assert by_kind == {"pair": {1, 2, 5, 6}, "beyond": set(), "asks": set(), "held": {7, 8}}
    bound = meetings[meetings["kind"] != "pair"]
    assert (bound["band"] == 7).all()
    all_of_it = joined(list(ledger._meet(new, 0, {0: files}, most=4)))
    assert set(all_of_it["kind"]) == {"pair"} and len(all_of_it) == 8


def test_rows_that_ask_are_compared_with_the_held_rows_of_their_buckets(rows):
    near, other, far = TEXTS[5] + " more", TEXTS[6] + " more", "something else altogether"
    asks = pd.DataFrame({
        "kind": ledger.ASKS, "id": ["near", "near-too", "other", "far"], "node": 0, "label": "b",
        "key": ["k", "key-5", "l", "m"], "signature": signed([near, TEXTS[5], other, far]),
        "bands": [[1, 2], [2], [3], [1, 2]],
    })  # fmt: skip
    held = pd.DataFrame({
        "kind": ledger.HELD, "node": [50, 50, 70, 60], "bands": [[1], [2], [2], [1]],
    })  # fmt: skip
    requests = pd.concat([asks, held], ignore_index=True)
    pairs = joined(list(ledger._compare(requests, 0, rows, 0.7))).sort_values("id")
    assert pairs[["id", "past", "exact"]].to_numpy().tolist() == [
        ["near", "old-5", False], ["near-too", "old-5", True],
    ]  # fmt: skip
    assert set(pairs["label"]) == {"b"} and set(pairs["past_label"]) == {"a"}


# ---------------------------------------------------------------------------------------- parts
def data(root, **more) -> DataSection:
    append = {"enabled": True, **more.pop("append", {})}
    return DataSection(dataset=root, source="d.csv", append=append, **more)


def source(modified: float = 1.0) -> Source:
    return Source(kind="csv", name="in/day-1", identity={"files": [["/d.csv", 7, modified]]})


def find(section, src=None):
    return past.find(section, src or source(), etl_format=4, tokenizer="t")


@pytest.fixture
def root(tmp_path, tiny_model_dir):
    """Two days whose second is `source()`."""
    root = str(tmp_path / "data")
    made = build_appended(root, model_dir=tiny_model_dir)
    config = past._agreed(DataSection(), 4, "t")
    new = find(data(str(tmp_path / "none")))
    fields = {"identity": new.identity, "source": new.source}
    manifest = made.manifest.model_copy(update={
        "ledger": made.manifest.ledger.model_copy(update={"config": config, "buckets": 3}),
        "parts": [p if p.name == "day-0" else p.model_copy(update=fields)
                  for p in made.manifest.parts],
        "created": "2026-02-01", "dataset_hash": "c" * 16,
    })  # fmt: skip
    commit(f"{root}/v={'c' * 16}", manifest.model_copy(update={"splits": {}}))
    return root


def test_the_same_part_is_unchanged_and_another_state_of_it_takes_its_place(root):
    assert find(DataSection(dataset=root, source="d.csv")) is None  # nothing is appended
    same = find(data(root))
    assert same.part == "day-1" and same.unchanged and same.buckets == 3
    late = find(data(root), source(2.0))
    assert not late.unchanged and late.replaced.name == "day-1"
    assert late.hashed != same.hashed or late.identity != same.identity
    new = find(data(root, append={"part": "day-2"}))
    assert new.replaced is None and len(new.paths_of_rows(same_part=False)) == 2
    assert len(late.paths_of_rows(same_part=True)) == len(late.paths_of_rows(same_part=False)) == 1


def test_a_version_lists_the_parents_files_and_a_replaced_parts_none(root, tmp_path):
    late = find(data(root), source(2.0))
    day = build_appended(str(tmp_path / "late"), model_dir=str(_model(late)), days=1)
    alone = day.manifest.model_copy(update={"parts": [], "ledger": None, "dataset_hash": "d" * 16})
    whole = late.appended(alone, [], {"train": 6})
    assert [p.name for p in whole.parts] == ["day-0", "day-1"]
    assert whole.parts[1].version == f"v={'d' * 16}" and whole.parent == "c" * 16
    assert {f.part for f in whole.ledger.files} == {"day-0"}
    assert all(f.version is not None for f in whole.ledger.files)


def _model(history) -> str:
    return history.parent.manifest.tokenizer.source


def test_parts_that_are_made_otherwise_are_refused_with_both(root):
    with pytest.raises(ConfigError) as caught:
        find(data(root, max_length=64))
    text = str(caught.value)
    assert "max_length: the default" in text and "max_length: 64" in text
    with pytest.raises(ConfigError) as caught:
        past.find(data(root), source(), etl_format=4, tokenizer="another")
    assert "tokenizer" in str(caught.value)
    assert find(data(root, num_shards=7)).parent is not None


def test_bounds_that_decide_no_rows_fate_may_differ_between_parts(root):
    bounds = {"max_reject_fraction": 0.9, "max_leakage": 0.5}
    history = find(data(root, quality=bounds))
    assert history.parent is not None and "quality" not in history.config
    with pytest.raises(ConfigError, match="the settings of the earlier parts"):
        find(data(root, quality={"min_characters": 9, **bounds}))


def test_rows_that_are_there_already_are_no_bad_rows():
    drops = {"known_id": 900, "bridges_splits": 40, "held_out_copy": 30, "near_duplicate": 20}
    gate.refuse_rejects(1_000, Counter(drops), DataSection())
    strict = DataSection(quality={"max_reject_fraction": 0.009})
    with pytest.raises(DataError) as caught:
        gate.refuse_rejects(1_000, Counter({**drops, "label_conflict": 10}), strict)
    assert caught.value.got == "10 rows: 10 label_conflict"


def test_a_dataset_without_a_ledger_and_a_merged_part_are_refused(root):
    made = load_dataset(root)
    for created, entry in (
        ("2026-03-01", None),
        ("2026-04-01", LedgerEntry(buckets=3, config=made.manifest.ledger.config, files=[
            f.model_copy(update={"part": None}) for f in made.manifest.ledger.files])),
    ):  # fmt: skip
        update = {"ledger": entry, "created": created}
        commit(f"{root}/v={created}", made.manifest.model_copy(update=update))
        with pytest.raises(HowdahError) as caught:
            find(data(root), source(2.0))
        kind = ConfigError if entry is None else DataError
        assert isinstance(caught.value, kind)
    assert "compacted" in str(caught.value)


@pytest.mark.parametrize(
    "section",
    [
        {"split": {"group": "user"}}, {"split": {"test": 100}}, {"split": {"fold": "1/5"}},
        {"balance": "upsample"}, {"dedup": {"exact": False}}, {"format": "tfrecord"},
    ],
)  # fmt: skip
def test_what_needs_all_rows_at_once_is_refused(section):
    DataSection(**section)
    with pytest.raises(ValueError, match="append cannot be used with"):
        DataSection(append={"enabled": True}, **section)
