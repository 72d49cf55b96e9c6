"""Headers and footers: read without a Spark job a file, and files of another kind are named."""

import gzip
import json

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from etl.sources import reading
from etl.sources import source as sources
from howdah.config.data import CsvOptions
from howdah.data.files import footers, lines
from howdah.data.files.listing import below
from howdah.errors import DataError
from tests.etl.sources.test_sources import read, section


def _groups(tmp_path, contents, delimiter=",", **options):
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    files = sources.resolve(section(source=str(tmp_path), format="csv")).files
    first, *others = lines.alike(files, CsvOptions(**options), delimiter)
    return first[0].name, [[entry.name for entry in group] for group in others]


def test_the_same_first_line_needs_no_second_look(tmp_path):
    same = {
        "a.csv": b"text,label\nx,1\n",
        "b.csv": b"text,label\r\ny,2\r\n",
        "c.csv": b"\xef\xbb\xbftext,label\nz,1\n",
        "d.csv.gz": gzip.compress(b"text,label\nz,1\n"),
        "e.csv": b"text,label",
    }
    others = {
        "f.csv": b"label,text\n1,x\n",
        "g.csv": b"\ntext,label\n",
        "h.csv": b'"text\nof it",label\nx,1\n',
        "i.csv.gz": b"no gzip",
        "j.csv": b"text,label\xe2\x80\xa8more\nx,1\n",
        "k.csv": b"x" * 70_000,
    }
    more = {"l.csv": b"label,text\n2,y\n"}  # as f.csv for certain
    found = [[name, "l.csv"] if name == "f.csv" else [name] for name in others]
    assert _groups(tmp_path, same | others | more) == ("a.csv", found)


def test_without_a_header_the_fields_are_counted(tmp_path):
    files = {
        "a.csv": b'"x, y",1\n',
        "b.csv": b"z,2\n",
        "c.csv": b"z,2,3\n",
        "d.csv": b'"z\n",2\n',
    }
    found = _groups(tmp_path, files, header=False, names=["text", "label"])
    assert found == ("a.csv", [["c.csv"], ["d.csv"]])


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
    found = [entry.path.removeprefix(f"{tmp_path}/") for entry in below(str(tmp_path))]
    assert found == ["a/1/2/x.csv", "a/1/3.csv", "a/2.csv", "b.csv"]


def test_an_unsure_first_file_is_alone(tmp_path):
    files = {"a.csv": b"\ntext,label\n", "b.csv": b"text,label\n", "c.csv": b"text,label\n"}
    assert _groups(tmp_path, files) == ("a.csv", [["b.csv", "c.csv"]])


@pytest.mark.spark
def test_many_csv_files_need_one_job_for_their_headers(spark, tmp_path):
    for n in range(12):
        (tmp_path / f"part-{n:02d}.csv").write_text(f"key,text,label\nk{n},text {n},1\n")
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("headers", "headers")
    settings = section(source=str(tmp_path), columns={"id": "key"})
    reading.read(spark, sources.resolve(settings), settings)
    jobs = len(tracker.getJobIdsForGroup("headers"))
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert jobs == 1
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
    with pytest.raises(DataError, match="no Parquet file") as caught:
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
    with pytest.raises(DataError, match="no Avro file") as caught:
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
    with pytest.raises(DataError, match="no ORC file"):
        _check(tmp_path)
