"""Headers and footers: read without a Spark job a file, and files of another kind are named."""

import gzip
import json

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from howdah.data.files import footers
from howdah.data.files.listing import below
from howdah.errors import DataError
from howdah.etl.sources import reading
from howdah.etl.sources import source as sources
from tests.etl.sources.test_sources import read, section


@pytest.mark.spark
def test_each_csv_file_is_read_by_the_names_in_its_own_header(spark, tmp_path):
    files = {
        "a.csv": b"text,label,key\nx,1,a\n",
        "b.csv": b"label,key,text\r\n2,b,y\r\n",
        "c.csv": b"\xef\xbb\xbftext, label ,key,more\nz,1,c,\n",
        "d.csv.gz": gzip.compress(b'\n"text","label","key"\nz,1,d\n'),
        "e.csv": b"text,label,key",
        "f.csv": b'"of\ntext",key,text,label\nx,f,z,1\n',
        "g.csv": b"Text,TEXT,text,label,key\nx,y,z,1,g\n",
        "h.csv": b"",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    rows = read(spark, source=str(tmp_path), format="csv")
    assert [row[:4] for row in rows] == [
        ("a", "x", "1", None), ("b", "y", "2", None), ("c", "z", "1", None), ("d", "z", "1", None),
        ("f", "z", "1", None), ("g", "z", "1", None),
    ]  # fmt: skip
    for content, what in (
        (b"text,key\nx,1\n", "no column 'label'"),
        (b"text,label,text,key\nx,1,y,z\n", "names the column 'text' 2 times"),
        (b"no gzip", "the file is not gzip"),
    ):
        (tmp_path / "i.csv.gz").write_bytes(content if b"no" in content else gzip.compress(content))
        with pytest.raises(DataError, match=what) as caught:
            read(spark, source=str(tmp_path), format="csv")
        assert f"{tmp_path}/i.csv.gz" in caught.value.where


@pytest.mark.spark
def test_a_separator_that_is_another_one_is_named(spark, tmp_path):
    (tmp_path / "a.csv").write_text("text;label\nx;1\n")
    with pytest.raises(DataError, match="no column 'text'") as caught:
        read(spark, source=str(tmp_path), columns={})
    assert 'data: {csv: {delimiter: ";"}}' in caught.value.remedy
    assert [row[1] for row in read(spark, source=str(tmp_path), columns={}, csv={"delimiter": ";"})]


def test_files_below_a_directory_are_in_the_order_of_names(tmp_path):
    names = [
        "a/2.csv",
        "a/1/3.csv",
        "b.csv",
        "a/1/2/x.csv",
        "_tmp/1.csv",
        "c/.hidden",
        "a/_SUCCESS",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    paths = [entry.path.removeprefix(f"{tmp_path}/") for entry in below(str(tmp_path))]
    assert paths == ["a/1/2/x.csv", "a/1/3.csv", "a/2.csv", "b.csv"]


@pytest.mark.spark
def test_many_csv_files_need_no_job_for_their_headers(spark, tmp_path):
    for n in range(12):
        (tmp_path / f"part-{n:02d}.csv").write_text(f"key,text,label\nk{n},text {n},1\n")
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("headers", "headers")
    settings = section(source=str(tmp_path), columns={"id": "key"})
    reading.read(spark, sources.resolve(settings), settings)
    jobs = len(tracker.getJobIdsForGroup("headers"))
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert jobs == 0
    assert len(read(spark, source=str(tmp_path))) == 12


def _parquet(path, **columns):
    pq.write_table(pa.table(columns), path)


@pytest.mark.spark
def test_parquet_files_of_another_kind_are_named(spark, tmp_path):
    _parquet(tmp_path / "a.parquet", key=["1"], text=["one text"], label=["x"], more=[1])
    encoded = pa.array(["another text"]).dictionary_encode()
    _parquet(tmp_path / "b.parquet", label=["y"], text=encoded, key=["2"])
    assert len(read(spark, source=str(tmp_path))) == 2
    _parquet(tmp_path / "c.parquet", key=["3"], body=["a third text"], label=["x"])
    with pytest.raises(DataError, match="do not have the same columns") as caught:
        read(spark, source=str(tmp_path))
    assert "data.columns.text: text" in caught.value.where and "c.parquet" in caught.value.where
    assert caught.value.expected == f"string, as in {tmp_path}/a.parquet"
    assert caught.value.got == "columns key, body, label"
    _parquet(tmp_path / "c.parquet", key=[3], text=["a third text"], label=["x"])
    with pytest.raises(DataError) as caught:
        read(spark, source=str(tmp_path))
    assert "data.columns.id: key" in caught.value.where and caught.value.got == "int64"
    (tmp_path / "c.parquet").write_text("no parquet")
    with pytest.raises(DataError, match="not a Parquet file") as caught:
        read(spark, source=str(tmp_path))
    assert caught.value.where == f"{tmp_path}/c.parquet"


@pytest.mark.spark
@pytest.mark.parametrize(
    ("key", "split"),
    [
        ("split.group: user", {"group": ["thread", "user"]}),
        ("split.column: user", {"column": "user"}),
        ("split.time.column: user", {"time": {"column": "user"}}),
    ],
)
def test_files_without_a_column_of_the_split_are_named(spark, tmp_path, key, split):
    """Their rows would be of no group: one user in train and in test."""
    rows = {"text": ["one text"], "label": ["x"], "thread": [7]}
    _parquet(tmp_path / "a.parquet", **rows, user=["1"])
    _parquet(tmp_path / "b.parquet", **rows)
    with pytest.raises(DataError, match="Parquet files do not have the same columns") as caught:
        read(spark, source=str(tmp_path), columns={}, split=split)
    assert caught.value.where == f"data.{key}, in {tmp_path}/b.parquet"
    _parquet(tmp_path / "b.parquet", **rows, user=[1])  # "user=1" in both, but of another type
    with pytest.raises(DataError, match="Parquet files do not have the same columns") as caught:
        read(spark, source=str(tmp_path), columns={}, split=split)
    assert caught.value.got == "int64"


# -------------------------------------------------------------------------------- ORC and Avro
def _avro_file(path, fields):
    """The header of an Avro file, by the specification: enough to know its columns."""

    def long(value):
        value = (value << 1) ^ (value >> 63)
        out = b""
        while value & ~0x7F:
            out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
        return out + bytes([value])

    def sized(data):
        return long(len(data)) + data

    schema = json.dumps({"type": "record", "name": "row", "fields": fields}).encode()
    pairs = sized(b"avro.schema") + sized(schema) + sized(b"avro.codec") + sized(b"null")
    path.write_bytes(b"Obj\x01" + long(2) + pairs + long(0) + b"s" * 16)


def _check(tmp_path, **columns):
    settings = section(source=str(tmp_path), columns=columns)
    source = sources.resolve(settings)
    footers.check_alike(source.files, source.kind, reading.wanted(settings))


def test_avro_files_of_another_kind_are_named(tmp_path):
    text = {"name": "text", "type": ["null", "string"]}
    _avro_file(tmp_path / "a.avro", [text, {"name": "label", "type": "int"}])
    plain = {"name": "text", "type": {"type": "string", "avro.java.string": "String"}}
    _avro_file(tmp_path / "b.avro", [{"name": "x" * 300, "type": "long"}, plain,
                                     {"name": "label", "type": ["int", "null"]}])  # fmt: skip
    _check(tmp_path)
    _avro_file(tmp_path / "c.avro", [{"name": "body", "type": "string"},
                                     {"name": "label", "type": "int"}])  # fmt: skip
    with pytest.raises(DataError, match="Avro files do not have the same columns") as caught:
        _check(tmp_path)
    assert "c.avro" in caught.value.where and "body" in caught.value.got


@pytest.mark.parametrize("data", [b"", b"PAR1", b"Obj\x01", b"Obj\x01\xff\xff\xff\xff\xff\xff\xff"])
def test_a_file_that_is_no_avro_is_named(tmp_path, data):
    _avro_file(tmp_path / "a.avro", [{"name": "text", "type": "string"}])
    (tmp_path / "b.avro").write_bytes(data + b"\x80" * 20 if data else b"x")
    with pytest.raises(DataError, match="not an Avro file") as caught:
        _check(tmp_path)
    assert caught.value.where.endswith("b.avro")


def test_orc_files_of_another_kind_are_named(tmp_path):
    rows = {"text": ["a"], "label": [1]}
    orc.write_table(pa.table(rows), tmp_path / "a.orc")
    orc.write_table(pa.table({**rows, "more": [2.0]}), tmp_path / "b.orc")
    _check(tmp_path)
    orc.write_table(pa.table({**rows, "label": ["1"]}), tmp_path / "c.orc")
    with pytest.raises(DataError, match="ORC files do not have the same columns") as caught:
        _check(tmp_path)
    assert "data.columns.label" in caught.value.where
    (tmp_path / "c.orc").write_bytes(b"ORC and nothing else")
    with pytest.raises(DataError, match="not an ORC file"):
        _check(tmp_path)
