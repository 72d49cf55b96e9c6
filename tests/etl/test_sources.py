"""Sources: each format gives the same rows, and each bad one is refused with its reason."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from etl.sources import hive, reading
from etl.sources import source as sources
from howdah.config import loader as config_module
from howdah.errors import ConfigError, DataError

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
    table = reading.read(spark, sources.resolve(settings), settings)
    return sorted(tuple(row) for row in table.collect())


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

    spark.read.parquet(str(tmp_path / "a.parquet")).createOrReplaceTempView("a_view")
    assert read(spark, source="a_view", format="hive") == EXPECTED
    first = state(spark, "a_view")
    assert first["files"][0][0] == str(tmp_path / "a.parquet")
    loose = spark.createDataFrame(ROWS, "key string, text string, label string")
    loose.createOrReplaceTempView("m")
    assert state(spark, "m")["rows"][0] == len(ROWS)


@pytest.mark.spark
def test_ids_without_a_key_do_not_depend_on_order_or_partitions(spark, tmp_path):
    rows = [("same", "b"), ("same", "a"), ("same", "a"), ("other", "a")]
    seen = []
    for name, ordered in (("one", rows), ("two", rows[::-1])):
        (tmp_path / name).mkdir()
        for n, row in enumerate(ordered):
            text = csv_text([("text", "label"), row])
            (tmp_path / name / f"{n}.csv").write_text(text)
        seen.append(read(spark, source=str(tmp_path / name), columns={}))
    assert seen[0] == seen[1]
    assert len({row[0] for row in seen[0]}) == 4


@pytest.mark.spark
def test_broken_rows_and_keys_get_a_reason(spark, tmp_path):
    keyed = [("k", "one", "a"), ("k", "two", "a"), ("", "x", "a")]
    text = csv_text([("key", "text", "label"), *keyed])
    (tmp_path / "a.csv").write_text(text + '"k9","too few"\n')
    rows = read(spark, source=str(tmp_path / "a.csv"))
    reasons = {row[1]: row[3] for row in rows}
    assert sorted(filter(None, reasons.values())) == ["duplicate_id", "malformed", "no_id"]
    assert reasons["too few"] == "malformed" and reasons["x"] == "no_id"
    assert len({row[0] for row in rows}) == 4

    good = json.dumps({"key": "k", "text": "one", "label": "a"})
    (tmp_path / "a.jsonl").write_text(good + '\n{"key": "k2", "te\n')
    rows = read(spark, source=str(tmp_path / "a.jsonl"))
    assert sorted(str(row[3]) for row in rows) == ["None", "malformed"]


@pytest.mark.spark
def test_several_text_columns_and_partition_columns(spark, tmp_path):
    for label in "xy":
        place = tmp_path / "t" / f"label={label}"
        place.mkdir(parents=True)
        pq.write_table(pa.table({"a": ["one", None], "b": ["two", label]}), place / "p.parquet")
    columns = {"text": ["a", "b"], "separator": " / "}
    rows = read(spark, source=str(tmp_path / "t"), columns=columns)
    assert sorted(row[1:3] for row in rows) == [
        ("one / two", "x"), ("one / two", "y"), ("x", "x"), ("y", "y"),
    ]  # fmt: skip


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
    settings = section(source=str(tmp_path / "a.csv"), **data)
    with pytest.raises((DataError, ConfigError), match=what) as caught:
        reading.read(spark, sources.resolve(settings), settings)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.spark
def test_columns_of_another_type(spark, tmp_path):
    table = pa.table({"text": [1, 2], "label": [[1], [2]], "words": ["a", "b"]})
    pq.write_table(table, tmp_path / "a.parquet")
    for columns, got in (({"label": "words"}, "bigint"), ({"text": "words"}, "array<bigint>")):
        settings = section(source=str(tmp_path / "a.parquet"), columns=columns)
        with pytest.raises(DataError, match="another type") as caught:
            reading.read(spark, sources.resolve(settings), settings)
        assert caught.value.got == got


@pytest.mark.spark
def test_a_file_that_is_no_parquet_and_a_table_that_is_not_there(spark, tmp_path):
    (tmp_path / "a.parquet").write_text("no parquet at all")
    settings = section(source=str(tmp_path / "a.parquet"))
    with pytest.raises(DataError, match="no Parquet file"):
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
    with pytest.raises(ConfigError, match="no table name"):
        sources.resolve(section(source="drop table; x", format="hive"))


def test_identity_changes_with_the_files(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label\nx,y\n")
    first = sources.resolve(section(source=str(path))).identity
    assert sources.resolve(section(source=str(path))).identity == first
    path.write_text("text,label\nx,yy\n")
    assert sources.resolve(section(source=str(path))).identity != first


def test_the_demo_s_corpus_is_no_source_any_more():
    with pytest.raises(ConfigError, match="no source any more") as caught:
        sources.resolve(section(source="docstrings:"))
    assert "tools.demo.corpus" in caught.value.remedy
    assert section(docstring_packages=None) == section()  # frozen by an earlier version
    with pytest.raises(ConfigError) as caught:
        section(docstring_packages=["numpy"])
    (problem,) = caught.value.problems
    assert "tools.demo.corpus" in problem.what and problem.where == "data"
