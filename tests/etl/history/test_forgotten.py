"""Rows that were forgotten and come again in the source: left out, counted, nowhere to be found."""

import random

import pytest

from howdah import storage
from howdah.data.lineage import forgotten as forgotten_ids
from howdah.data.lineage import shards
from howdah.data.manifest import load_dataset
from howdah.etl.history import forget
from howdah.etl.rows.forgotten import leave_out
from tests.etl.history.test_append import WORDS, config_for, places_of
from tests.etl.test_pipeline import make_config, run, write_csv

pytestmark = pytest.mark.spark


def new_rows(prefix: str, count: int, seed: int) -> list[tuple[str, str, str]]:
    rng = random.Random(seed)
    return [(f"{prefix}-{n}", " ".join(rng.sample(WORDS, 24)), "ab"[n % 2]) for n in range(count)]


def everywhere(root: str) -> bytes:
    """All bytes of text below a dataset."""
    files = [path for path in storage.find(f"{root}/**") if not storage.is_dir(path)]
    return b"\n".join(storage.read_bytes(path) for path in files)


def forget_rows(root: str, *ids: str) -> None:
    survey = forget.survey(set(ids), datasets=[root])
    forget.apply(set(ids), survey, datasets=[root], progress=lambda line: None)
    forget.refuse_left(forget.survey(set(ids), datasets=[root]))


def test_a_forgotten_row_that_comes_again_with_a_later_day_is_left_out(
    spark, tmp_path, tiny_model_dir, monkeypatch
):
    first, second = new_rows("a", 24, 1), new_rows("b", 6, 2)
    result, _ = run(config_for(tmp_path, tiny_model_dir, first, "day-0"))
    root = storage.parent(result.path)

    # by the indexes of ids, which the ETL has written: no record is read
    matches = shards.find("a-3", [load_dataset(result.path)])
    assert [row["split"] for row in matches[result.path]] == [places_of(result)["a-3"]]
    assert shards.find("b-3", [load_dataset(result.path)]) == {}
    forget_rows(root, "a-3", "never-there")
    marker = "xqzforgottenqzx"
    again = [("a-3", f"{first[3][1]} {marker}", "a"), ("never-there", f"{marker} {marker}", "b")]
    result, lines = run(config_for(tmp_path, tiny_model_dir, [*second, *again], "day-1"))
    places = places_of(result)
    assert set(places) >= {"b-0"} and not {"a-3", "never-there"} & set(places)
    [_, part] = result.manifest.parts
    assert (part.read, part.drops["forgotten"]) == (8, 2)
    assert any("2 forgotten" in line for line in lines)
    assert marker.encode() not in everywhere(root)
    versions = shards.versions(root)
    assert result.path in shards.find("b-0", versions)
    assert shards.find("a-3", versions) == {}


def test_a_row_whose_own_id_ends_in_a_number_is_no_copy(spark, tmp_path):
    forgotten_ids.add(str(tmp_path), {"page", "copied#2"}, [], "test")
    rows = [
        ("page", "text", None), ("page#12", "text", None), ("page#2", "text", "duplicate_id"),
        ("other#1", "text", "duplicate_id"), ("copied#2", "text", None), ("copied", "text", None),
    ]  # fmt: skip
    frame = spark.createDataFrame(rows, "id string, text string, reason string")
    remaining = leave_out(frame, forgotten_ids.load(str(tmp_path))).collect()
    assert sorted((row["id"], row["reason"]) for row in remaining if row["id"] is not None) == [
        ("copied", None), ("other#1", "duplicate_id"), ("page#12", None)
    ]  # fmt: skip
    gone = [row for row in remaining if row["id"] is None]
    assert [(row["text"], row["reason"]) for row in gone] == [(None, "forgotten")] * 3


@pytest.mark.full
def test_the_same_source_makes_another_version_without_them(spark, tmp_path, tiny_model_dir):
    rows = new_rows("a", 24, 1)
    source = write_csv(tmp_path / "a.csv", rows, header=("id", "text", "label"))
    settings = {"source": source, "columns": {"id": "id"}, "max_length": 32}
    before, _ = run(make_config(tmp_path, tiny_model_dir, **settings))
    root = storage.parent(before.path)
    forget_rows(root, "a-3")
    after, _ = run(make_config(tmp_path, tiny_model_dir, **settings))
    assert after.hash != before.hash and not after.unchanged
    assert "a-3" not in places_of(after) and len(places_of(after)) == 23
    assert after.manifest.quality["drops"] == {"forgotten": 1}
    assert run(make_config(tmp_path, tiny_model_dir, **settings))[0].unchanged
