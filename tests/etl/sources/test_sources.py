"""Sources: each format gives the same rows, and each bad one is refused with its reason."""

import datetime
import gzip
import json
import os
from decimal import Decimal

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from howdah.config import loader as config_module
from howdah.config.options.split import moment
from howdah.data.lineage.forgotten import NONE
from howdah.errors import ConfigError, DataError
from howdah.etl import build
from howdah.etl.sources import given, hive, reading
from howdah.etl.sources import source as sources

ROWS = [
    ("k1", "plain text", "1"),
    ("k2", 'with "quotes", commas\nand two lines', "2"),
    ("k3", "back\\slash and caf\u00e9", "1"),
    ("k4", "", "2"),
]


def section(**data):
    return config_module.from_dict({"data": data}).data


def quoted(value):
    return '"' + value.replace('"', '""') + '"'


def csv_text(rows, delimiter=","):
    return "".join(delimiter.join(map(quoted, row)) + "\n" for row in rows)


def read(spark, **data):
    data.setdefault("columns", {"id": "key"})
    settings = section(**data)
    table = reading.read(spark, given.resolve(settings), settings)
    return sorted((tuple(row) for row in table.collect()), key=str)


def state(spark, table):
    settings = section(source=table, format="hive")
    return hive.resolved(spark, sources.resolve(settings), settings).identity


EXPECTED = [(*row, None, None) for row in ROWS]


# ------------------------------------------------------------------------------------- formats
@pytest.mark.spark
def test_every_format_gives_the_same_rows(spark, tmp_path):
    header = csv_text([("key", "text", "label")])
    body = csv_text(ROWS)
    (tmp_path / "a.csv").write_text(header + body, "utf-8")
    assert read(spark, source=str(tmp_path / "a.csv")) == EXPECTED

    (tmp_path / "bare.csv").write_text(body, "utf-8")
    names = {"header": False, "names": ["key", "text", "label"]}
    assert read(spark, source=str(tmp_path / "bare.csv"), csv=names) == EXPECTED

    (tmp_path / "latin.csv").write_bytes((header + body).encode("latin-1"))
    got = read(spark, source=str(tmp_path / "latin.csv"), csv={"encoding": "ISO-8859-1"})
    assert got == EXPECTED

    tabs = csv_text([("key", "text", "label"), *ROWS], "\t")
    (tmp_path / "t.tsv").write_text(tabs, "utf-8")
    assert read(spark, source=str(tmp_path / "t.tsv")) == EXPECTED

    parts = tmp_path / "parts [1]"
    parts.mkdir()
    lines = [json.dumps({"key": k, "text": t, "label": int(n)}) for k, t, n in ROWS]
    (parts / "a.jsonl").write_text("\n".join(lines[:2]) + "\n")
    with gzip.open(parts / "b.jsonl.gz", "wt") as file:
        file.write("\n".join(lines[2:]))
    (parts / "_SUCCESS").write_text("")
    assert read(spark, source=str(parts)) == EXPECTED

    columns = {"key": [r[0] for r in ROWS], "text": [r[1] for r in ROWS]}
    table = pa.table({**columns, "label": [int(r[2]) for r in ROWS]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read(spark, source=str(tmp_path / "*.parquet")) == EXPECTED
    orc.write_table(table, tmp_path / "a.orc")
    assert read(spark, source=str(tmp_path / "*.orc")) == EXPECTED

    spark.read.parquet(str(tmp_path / "a.parquet")).createOrReplaceTempView("a_view")
    assert read(spark, source="a_view", format="hive") == EXPECTED
    first = state(spark, "a_view")
    assert first["files"][0][0] == str(tmp_path / "a.parquet")
    loose = spark.createDataFrame(ROWS, "key string, text string, label string")
    loose.createOrReplaceTempView("m")
    assert state(spark, "m")["rows"][0] == len(ROWS)


def judged(spark, **data):
    """(id, text, label, reason) of the rows as the gate names them."""
    data = {"columns": {"id": "key"}, "quality": {"min_characters": 1}, **data}
    settings = section(**data)
    rows = build._gate(spark, given.resolve(settings), settings, NONE, None)
    return sorted(map(tuple, rows.select("id", "text", "label", "reason").collect()))


@pytest.mark.spark
def test_ids_without_a_key_do_not_depend_on_order_or_partitions(spark, tmp_path):
    rows = [("same", "b"), ("same", "a"), ("same", "a"), ("other", "a")]
    seen = []
    for name, ordered in (("one", rows), ("two", rows[::-1])):
        (tmp_path / name).mkdir()
        for n, row in enumerate(ordered):
            text = csv_text([("text", "label"), row])
            (tmp_path / name / f"{n}.csv").write_text(text)
        seen.append(judged(spark, source=str(tmp_path / name), columns={}))
    assert seen[0] == seen[1]
    assert len({row[0] for row in seen[0]}) == 4


@pytest.mark.spark
def test_broken_rows_and_keys_get_a_reason(spark, tmp_path):
    keyed = [("k", "one", "a"), ("k", "two", "a"), ("", "x", "a")]
    text = csv_text([("key", "text", "label"), *keyed])
    (tmp_path / "a.csv").write_text(text + '"k9","too few"\n')
    rows = judged(spark, source=str(tmp_path / "a.csv"))
    reasons = {row[1]: row[3] for row in rows}
    assert sorted(filter(None, reasons.values())) == ["duplicate_id", "malformed", "no_id"]
    assert reasons["too few"] == "malformed" and reasons["x"] == "no_id"
    assert len({row[0] for row in rows}) == 4

    good = json.dumps({"key": "k", "text": "one", "label": "a"})
    (tmp_path / "a.jsonl").write_text(good + '\n{"key": "k2", "te\n')
    rows = read(spark, source=str(tmp_path / "a.jsonl"))
    assert sorted(str(row[3]) for row in rows) == ["None", "malformed"]


@pytest.mark.spark
def test_numbers_of_json_are_read_as_they_are_written_and_odd_lines_get_a_reason(spark, tmp_path):
    """The number 1.10 is the text 1.10, as for predictions: tests/serving/prediction."""
    written = ["1.10", "5", "1E5", "-0", "true", "NaN", "12345678901234567890.0", '"text"']
    lines = [f'{{"key": {n}, "text": {text}, "label": 1}}' for n, text in enumerate(written)]
    odd = ['{"key": "o", "text": {"of": 1.10, "it": [null, "\u00e9"]}, "label": "1"}', "[1]", "{no",
           '{"text": null, "more": {"a": 1}, "key": 1.50}', "", '{"more": [1], "key": "m"}',
           '{"key": "u", "text": "bad \udcff", "label": "1"}',
           '{"key": "h", "text": "half \\ud83d", "label": "1"}',
           '{"key": "i\udcff", "text": "bad id", "label": "1"}']  # fmt: skip
    (tmp_path / "a.jsonl").write_text(
        '{"key": "first", "label": null}\n{"text": "a", "key": "2nd"}'
    )
    text = "\n".join(lines + odd)
    (tmp_path / "b.jsonl").write_text(text, "utf-8", errors="surrogateescape")
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("json", "json")
    settings = section(source=str(tmp_path), columns={"id": "key"})
    table = reading.read(spark, sources.resolve(settings), settings)
    jobs = len(tracker.getJobIdsForGroup("json"))
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    rows = table.collect()
    by_key = {row["key"]: row for row in rows}
    # a blank line is not a row
    assert jobs == 0 and len(rows) == 2 + len(lines) + len(odd) - 1
    assert [by_key[str(n)]["text"] for n in range(len(written))] == [*written[:-1], "text"]
    assert by_key["o"]["reason"] == "malformed" and by_key["o"]["detail"] == (
        "line 9: column text is an object, not a text"
    )
    broken = sorted(row["detail"] for row in rows if row["reason"] == "malformed")
    assert broken[0] == "line 10: list instead of an object: [1]"
    assert broken[1].startswith("line 11: not JSON (") and broken[1].endswith(": {no")
    assert [by_key[key]["text"] for key in ("u", "h")] == ["bad \ufffd", "half \ufffd"]
    assert by_key["i\\xff"]["reason"] == "wrong_encoding"
    assert by_key["1.50"]["text"] == by_key["m"]["text"] == ""


@pytest.mark.spark
def test_objects_and_missing_keys_of_json_are_refused_by_name(spark, tmp_path):
    """Also where the first records do not say so."""
    path = tmp_path / "a.jsonl"
    settings = section(source=str(path))
    for text, what in (
        ('{"text": {"a": 1}, "label": "1"}\n', "of another type"),
        ('{"text": null, "label": "1"}\n{"text": ["a"], "label": "1"}\n', "of another type"),
        ('{"texts": "a", "label": "1"}\n', "no column 'text'"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=what) as caught:
            reading.read(spark, sources.resolve(settings), settings)
        assert caught.value.where.startswith("data.columns.text: text")
    path.write_text('{"label": "1"}\n' * 1_001 + '{"text": "late", "label": "1"}\n')
    assert [row[1] for row in read(spark, source=str(path), columns={})].count("late") == 1


@pytest.mark.spark
def test_several_text_columns_and_partition_columns(spark, tmp_path):
    for label in ("01", "7"):  # a directory's name is a text
        place = tmp_path / "t" / f"label={label}"
        place.mkdir(parents=True)
        pq.write_table(pa.table({"a": ["one", None], "b": ["two", label]}), place / "p.parquet")
    columns = {"text": ["a", "b"], "separator": " / "}
    rows = read(spark, source=str(tmp_path / "t"), columns=columns)
    assert sorted(row[1:3] for row in rows) == [
        ("01", "01"), ("7", "7"), ("one / two", "01"), ("one / two", "7"),
    ]  # fmt: skip


@pytest.mark.spark
def test_keys_of_any_type_are_texts(spark, tmp_path):
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 600_000)
    columns = {
        "big": pa.array([2**64 - 1, 7, 8], pa.uint64()),
        "decimal": pa.array([Decimal(10**29), Decimal(1), Decimal("-3")], pa.decimal128(38, 0)),
        "price": pa.array([Decimal("1.00"), Decimal("2.50"), None], pa.decimal128(10, 2)),
        "day": pa.array([datetime.date(2026, 1, 2)] * 3),
        "utc": pa.array([at.replace(tzinfo=datetime.UTC)] * 3, pa.timestamp("us", "UTC")),
        "local": pa.array([at.replace(microsecond=0)] * 3, pa.timestamp("us")),
        "label": pa.array([1.0, float("nan"), 0.5]),
        "text": ["one", "two", "three"],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")

    def keys(name):
        rows = read(spark, source=str(tmp_path / "a.parquet"), columns={"id": name})
        return {row[1]: row[0] for row in rows}, {row[1]: row[2] for row in rows}

    ids, labels = keys("big")
    assert ids == {"one": "18446744073709551615", "two": "7", "three": "8"}
    assert labels == {"one": "1", "two": None, "three": "0.5"}  # NaN is no label
    assert keys("decimal")[0] == {"one": str(10**29), "two": "1", "three": "-3"}
    prices = keys("price")[0]
    assert prices["one"] == "1" and prices["two"] == "2.50"
    first = {name: min(keys(name)[0].values()) for name in ("day", "utc", "local")}
    assert first == {
        "day": "2026-01-02", "utc": "2026-01-02T03:04:05.6Z", "local": "2026-01-02T03:04:05",
    }  # fmt: skip
    with pytest.raises(DataError, match="another type"):
        read(spark, source=str(tmp_path / "a.parquet"), columns={"id": "big", "label": "day"})

    numbers = ("1", "1.0", '"2.0"', "1.5")
    lines = [f'{{"key": {n}, "text": "x", "label": {label}}}' for n, label in enumerate(numbers)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    rows = read(spark, source=str(tmp_path / "a.jsonl"))
    assert [row[2] for row in rows] == ["1", "1", "2", "1.5"]
    rows = read(spark, source=str(tmp_path / "a.jsonl"), labels=["1", "2.0"])
    assert [row[2] for row in rows] == ["1", "1", "2.0", "1.5"]


@pytest.mark.spark
def test_what_a_source_says_of_splits_groups_and_times(spark, tmp_path):
    header = ("key", "text", "label", "kind", "user", "at")
    rows = [
        ("a", "one", "x", "Train", "u1", "2026-01-02"), ("b", "two", "x", " dev", "", "12.5"),
        ("c", "three", "x", "later", "u2", "2026-01-02T00:00:01Z"),
        ("d", "four", "x", "", "u1", "no"),
    ]  # fmt: skip
    (tmp_path / "a.csv").write_text(csv_text([header, *rows]))
    (tmp_path / "t.csv").write_text(csv_text([header, rows[0]]))
    source = str(tmp_path / "a.csv")
    got = read(spark, source=source, split={"column": "kind", "group": ["user", "label"]})
    assert [row[3:6] for row in got] == [
        (None, None, "train"), (None, None, "validation"),
        ("bad_split", "later", None), ("bad_split", "no split", None),
    ]  # fmt: skip
    assert [row[6] for row in got[:2]] == [["user=u1", "label=x"], ["label=x"]]
    got = read(spark, source=source, split={"time": {"column": "at"}})
    day = moment("2026-01-02")
    assert [row[5] for row in got] == [None] * 4  # by its cut, which is found later
    assert [row[6] for row in got] == [day, 12.5, day + 1e6, None]
    assert got[3][3:5] == ("bad_time", "no")
    got = read(spark, source=source, split={"sources": {"test": str(tmp_path / "t.csv")}})
    assert [(row[0], row[5]) for row in got] == [
        ("a", None), ("b", None), ("c", None), ("d", None), ("test:a", "test"),
    ]  # fmt: skip
    (tmp_path / "t.jsonl").write_text("{}")
    with pytest.raises(ConfigError, match="must have the format of the source"):
        read(spark, source=source, split={"sources": {"test": str(tmp_path / "t.jsonl")}})


# ----------------------------------------------------------------------------------- bad input
@pytest.mark.spark
@pytest.mark.parametrize(
    ("data", "what", "words"),
    [
        ({"columns": {"text": "txt"}}, "no column 'txt'", ["mean text?", "key, text, label"]),
        ({"columns": {"label": "klass"}}, "no column 'klass'", ["data.columns.label"]),
        ({"columns": {"id": "id"}}, "no column 'id'", ["data.columns.id"]),
        ({"csv": {"header": False, "names": ["a", "b"]}}, "names does not fit", ["3 columns"]),
        ({"csv": {"encoding": "UTF-99"}}, "no such character set", ["UTF-99"]),
    ],
)
def test_columns_that_are_not_there(spark, tmp_path, data, what, words):
    (tmp_path / "a.csv").write_text(csv_text([("key", "text", "label"), *ROWS]))
    with pytest.raises((DataError, ConfigError), match=what) as caught:
        settings = section(source=str(tmp_path / "a.csv"), **data)
        reading.read(spark, sources.resolve(settings), settings)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.spark
def test_columns_of_another_type(spark, tmp_path):
    table = pa.table({"text": [1, 2], "label": [[1], [2]], "words": ["a", "b"]})
    pq.write_table(table, tmp_path / "a.parquet")
    for columns, got in (({"label": "words"}, "int64"), ({"text": "words"}, "array<bigint>")):
        settings = section(source=str(tmp_path / "a.parquet"), columns=columns)
        with pytest.raises(DataError, match="another type") as caught:
            reading.read(spark, sources.resolve(settings), settings)
        assert caught.value.got == got


@pytest.mark.spark
def test_a_file_that_is_no_parquet_and_a_table_that_is_not_there(spark, tmp_path):
    (tmp_path / "a.parquet").write_text("no parquet at all")
    settings = section(source=str(tmp_path / "a.parquet"))
    with pytest.raises(DataError, match="not a Parquet file"):
        reading.read(spark, sources.resolve(settings), settings)
    settings = section(source="no_such_table", format="hive")
    with pytest.raises(DataError, match="no such table"):
        reading.read(spark, sources.resolve(settings), settings)


def test_sources_that_are_not_there_or_empty(tmp_path):
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "_SUCCESS").write_text("x")
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "a.csv").write_text("x")
    (tmp_path / "mixed" / "b.parquet").write_text("x")
    (tmp_path / "noise.dat").write_text("x")
    for source, kind, what in (
        (None, ConfigError, "names no source"),
        (str(tmp_path / "nothing.csv"), DataError, "does not exist"),
        (str(tmp_path / "*.nothing"), DataError, "no file matches"),
        (str(tmp_path / "empty.csv"), DataError, "is empty"),
        (str(tmp_path / "dir"), DataError, "is empty"),
        (str(tmp_path / "mixed"), ConfigError, "format does not follow"),
        (str(tmp_path / "noise.dat"), ConfigError, "format does not follow"),
        ("memory://x/a.csv", DataError, "memory://"),
    ):
        with pytest.raises(kind, match=what):
            sources.resolve(section(source=source))
    with pytest.raises(ConfigError, match="not a table name"):
        sources.resolve(section(source="drop table; x", format="hive"))


def test_a_dataset_in_the_source_s_directory_is_refused(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("text,label\nx,y\n")
    monkeypatch.chdir(tmp_path)
    for dataset in (str(tmp_path / "out"), "out", f"file://{tmp_path}/of/out"):
        for source in (str(tmp_path), "."):
            with pytest.raises(ConfigError, match="lies in the source's directory"):
                sources.resolve(section(source=source, dataset=dataset))
    for dataset in (f"{tmp_path}-2", str(tmp_path / "_out")):
        sources.resolve(section(source=str(tmp_path), dataset=dataset))
    sources.resolve(section(source=str(tmp_path / "*.csv"), dataset=str(tmp_path / "out")))


def test_a_file_whose_name_is_not_utf_8_is_named(tmp_path):
    text = tmp_path / os.fsdecode(b"caf\xe9.csv")
    text.write_text("text,label\nx,y\n")
    assert sources.resolve(section(source=str(tmp_path))).kind == "csv"  # not read by Spark
    text.unlink()
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "a.parquet")
    (tmp_path / "a.parquet").rename(tmp_path / os.fsdecode(b"caf\xe9.parquet"))
    with pytest.raises(DataError, match="name is not UTF-8") as caught:
        sources.resolve(section(source=str(tmp_path)))
    assert caught.value.where == f"{tmp_path}/caf\\xe9.parquet"


def test_identity_changes_with_the_files(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label\nx,y\n")
    first = sources.resolve(section(source=str(path))).identity
    assert sources.resolve(section(source=str(path))).identity == first
    path.write_text("text,label\nx,yy\n")
    assert sources.resolve(section(source=str(path))).identity != first


def test_the_size_of_a_source_is_known_by_its_files_or_its_table_s(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n")
    assert sources.resolve(section(source=str(tmp_path))).size == len("text,label\n")

    def table(identity, **parts):
        return sources.Source(kind="hive", name="db.t", identity=identity, parts=parts)

    files, rows = {"files": [["/t/a", 10, 1.0], ["/t/b", 5, 2.0]]}, {"rows": [3, "1", "2"]}
    assert (table(files).size, table(rows).size) == (15, None)
    assert table(files, test=table(files)).size == 30
    assert table(files, test=table(rows)).size is None
