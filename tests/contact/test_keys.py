"""Keys of rows as other tools write them: doubles of pandas, times of databases, lists of ids."""

import datetime
import random

import pandas as pd
import pyarrow as pa
import pytest

from howdah.config import loader as config
from howdah.config.data import CleanOptions, DataSection, QualityOptions
from howdah.data.lineage.forgotten import NONE
from howdah.etl import build
from howdah.etl.rows import gate, labels, numbering
from howdah.etl.sources import given, reading
from howdah.serving.prediction import frames

TIME = pd.to_datetime(["2026-11-01 10:00:00", "2026-11-01 10:00:00.5", None], format="ISO8601")
KEYS = {
    "double": [5.0, 1e7, None],
    "time": TIME.astype("datetime64[us]"),
    "zoned": TIME.tz_localize("Europe/Berlin").astype("datetime64[us, Europe/Berlin]"),
    "date": [datetime.date(2026, 11, 1), datetime.date(2026, 11, 2), None],
}


@pytest.mark.spark
@pytest.mark.parametrize("key", KEYS)
def test_a_scored_row_has_the_id_that_the_dataset_has(spark, tmp_path, key):
    path = str(tmp_path / "rows.parquet")
    table = {"k": KEYS[key], "text": ["one", "two", "three"], "label": ["a", "b", "a"]}
    pd.DataFrame(table).to_parquet(path)
    data = DataSection(source=path, columns={"id": "k"}, dataset=str(tmp_path))
    made = reading.read(spark, given.resolve(data), data)
    in_dataset = {row["text"]: row["key"] for row in made.collect()}
    scored = frames.id_and_text(
        spark.read.parquet(path), {"columns": {"id": "k"}}, source=path, text_columns=None,
        id_column=None,
    )  # fmt: skip
    assert {row["text"]: row["id"] for row in scored.collect()} == in_dataset


# ------------------------------------------------------------------------ which row has the key
def _gated(spark, place, lines: list[str], parts: int, columns: dict, **quality):
    """{text: id} of the rows that pass the gate, {id: reason} of the others."""
    place.mkdir()
    for n in range(parts):
        body = "".join(line + "\n" for line in lines[n::parts])
        (place / f"{n}.csv").write_text("k,text,label\n" + body)
    settings = {"source": str(place), "columns": columns, "dataset": "d", "quality": quality}
    data = config.from_dict({"data": settings}).data
    rows = build._gate(spark, given.resolve(data), data, NONE, None).collect()
    ids = [row["id"] for row in rows]
    assert len(set(ids)) == len(ids) == len(lines)
    passed = {row["text"]: row["id"] for row in rows if row["reason"] is None}
    return passed, {row["id"]: row["reason"] for row in rows if row["reason"] is not None}


@pytest.mark.spark
def test_a_key_belongs_to_the_first_row_that_passes_in_any_order_of_lines(spark, tmp_path):
    lines = []
    for n in range(12):
        lines += [f"m{n},good text {n},x", f"m{n},other text {n},x,extra"]  # malformed
        lines += [f"s{n},same text {n},x,extra", f"s{n},same text {n},x"]
        lines += [f"e{n},,x", f"e{n},text of {n},y"]
        lines += [f"b{n},,x", f"b{n},,x"]  # none passes
        lines += [f"t{n},a twin of {n},x", f"t{n},twin of {n},x"]  # both pass
    results = []
    for number in range(3):
        random.Random(number).shuffle(lines)
        results.append(_gated(spark, tmp_path / str(number), lines, number + 1, {"id": "k"}))
    passed, rejected = results[0]
    assert results[1:] == [results[0]] * 2
    for n in range(12):
        assert [passed[f"{what} text {n}"] for what in ("good", "same")] == [f"m{n}", f"s{n}"]
        assert (passed[f"text of {n}"], rejected[f"e{n}#2"]) == (f"e{n}", "empty")
        assert {rejected[f"b{n}"], rejected[f"b{n}#2"]} == {"empty"}
        assert (f"t{n}" in passed.values(), rejected[f"t{n}#2"]) == (True, "duplicate_id")
        assert {rejected[f"{key}{n}#2"] for key in "ms"} == {"malformed"}


@pytest.mark.spark
def test_without_keys_the_id_of_a_good_row_does_not_depend_on_a_bad_line(spark, tmp_path):
    lines = [f"0,text number {n},x" for n in range(8)]
    alone, _ = _gated(spark, tmp_path / "alone", lines, 1, {})
    bad = [f"0,text number {n},x,extra" for n in range(8)]
    before, rejected = _gated(spark, tmp_path / "before", [*bad, *lines], 1, {})
    after, _ = _gated(spark, tmp_path / "after", [*lines, *bad], 3, {})
    assert before == after == alone and set(rejected.values()) == {"malformed"}


def test_rows_of_one_key_may_lie_in_many_batches():
    def batches(passes: list[bool], size: int):
        names = numbering.Names()
        for at in range(0, len(passes), size):
            ids = [names.of("k", "k", passes=one) for one in passes[at : at + size]]
            yield pa.RecordBatch.from_pydict({"row": list(range(at, at + len(ids)))}), ids
        yield pa.RecordBatch.from_pydict({"row": [99]}), [names.of("z", "z", passes=False)]
        names.end()

    for size in (1, 2, 3, 7):
        for good in (None, 0, 1, 4, 6):
            passes = [good is not None and n >= good for n in range(7)]
            made = numbering.with_ids(batches(passes, size), numbering.Names())
            ids = {row["row"]: row["id"] for batch in made for row in batch.to_pylist()}
            assert ids[99] == "z" and len(ids) == 8
            assert ids[good or 0] == "k" and sorted(ids.values())[1:7] == [
                f"k#{n}" for n in range(2, 8)
            ]


def test_a_long_text_is_rejected_before_it_is_cleaned(monkeypatch):
    monkeypatch.setattr(gate, "clean_text", lambda *_: pytest.fail("cleaned"))
    long = "e\u0301" * 4_000_000
    verdict = gate.judge(long, "a", CleanOptions(), QualityOptions(), gate.RowRules())
    assert (verdict.reason, verdict.detail) == ("too_long", "8000000 characters before cleaning")
    assert len(verdict.text) == gate.REJECTED_CHARACTERS
    pairs = gate.RowRules(pairs=True)
    both = gate.judge("a\x1e" + long, "a", CleanOptions(), QualityOptions(), pairs)
    assert both.detail.startswith("text_pair: 8000000 ")


@pytest.mark.parametrize(
    "value",
    ["up", " up", "up\u00a0", "up\u200b", "\ufeffup", "u\u00adp", "\u200eup\u200f", "up\x00"],
)
def test_a_label_has_no_invisible_characters(value):
    rules = gate.RowRules()
    assert gate.judge("a text", value, CleanOptions(), QualityOptions(), rules).label == "up"
    several = gate.RowRules(task="multi_label", separator=",")
    verdict = gate.judge("a text", f"{value},down", CleanOptions(), QualityOptions(), several)
    assert verdict.label == '["down","up"]'
    assert labels.similar(["up", "u\u200dp", "Up"]) == [["up", "u\u200dp", "Up"]]
