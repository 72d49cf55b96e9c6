"""A look at a source before Spark starts: what tests/contact/test_peek.py does not have."""

import datetime
import json
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from howdah.cli.begin import starter
from howdah.config import loader
from howdah.data.files.opening import open_text
from howdah.errors import ConfigError, DataError
from howdah.etl import peek


@pytest.mark.parametrize(
    ("name", "text"), [("m.csv", "text,label\na,b,c\nd,e,f\n"), ("m.jsonl", "[1]\nnope\n")]
)
def test_a_source_of_malformed_rows_alone_is_not_empty(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    data = {"source": str(tmp_path / name), "columns": {"text": "text", "label": "label"}}
    with pytest.raises(DataError, match="too many rows are rejected") as caught:
        peek.look(loader.from_dict({"data": data}).data)
    assert caught.value.got == "2 rows: 2 malformed" and name in caught.value.where


@pytest.mark.parametrize(("codec", "count"), [("brotli", 1), ("zstd", 0)])
def test_a_codec_that_spark_lacks_is_said_before_spark_starts(tmp_path, codec, count):
    table = pa.table({"text": ["a b", "c d"], "label": ["x", "y"]})
    pq.write_table(table, tmp_path / "rows.parquet", compression=codec)
    data = {"source": str(tmp_path), "columns": {"text": "text", "label": "label"}}
    warnings = peek.look(loader.from_dict({"data": data}).data).warnings
    assert len([line for line in warnings if "jar of that codec" in line]) == count


def look(source, **data):
    settings = {"source": str(source), "columns": {"text": "text", "label": "label"}, **data}
    return peek.look(loader.from_dict({"data": settings}).data)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_arrays_of_labels_pass_as_they_do_later(tmp_path, form):
    """Also with numbers, with none, and refused where one is an object."""
    rows = [{"text": f"text {n}", "label": labels} for n, labels in enumerate([["a", "b"], ["b"]])]
    path = tmp_path / f"rows.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        assert look(path, task="multi_label").reasons == {}
        return
    rows += [{"text": "ones", "label": [1, 2]}, {"text": "none", "label": []}]
    rows += [{"text": "odd", "label": [{"no": "name"}]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    quality = {"max_reject_fraction": 0.5}
    assert look(path, task="multi_label", quality=quality).reasons == {"bad_label": 1}


def far_columns(rows: int) -> dict:
    """Columns of other programs that Python's types lack."""
    late = pa.array([253402318799_000_000 + 10**9] * rows, pa.timestamp("us", tz="UTC"))
    invalid = pa.array([b"caf\xe9"] * rows).cast(pa.binary())
    return {
        "valid_to": late,
        "day": pa.array([10**7] * rows, pa.int32()).cast(pa.date32()),
        "zone": pa.array([0] * rows, pa.timestamp("us", tz="Nowhere/Else")),
        "author": pa.StringArray.from_buffers(rows, *invalid.buffers()[1:]),
        "nested": pa.array([[datetime.date(1, 1, 1)]] * rows),
    }


def test_columns_that_python_cannot_hold_do_no_harm(tmp_path):
    n = 30
    texts, labels = [f"text {i} " * 9 for i in range(n)], ["x", "y"] * (n // 2)
    columns = {"text": texts, "label": labels, **far_columns(n)}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    assert look(tmp_path).labels == {"x": n // 2, "y": n // 2}
    written, _ = starter.from_source(str(tmp_path))
    assert yaml.safe_load(written)["data"]["columns"] == {"text": "text", "label": "label"}


def test_a_text_that_is_not_utf_8_is_one_row(tmp_path):
    good = pa.array(["text"] * 199)
    bad = pa.StringArray.from_buffers(1, *pa.array([b"caf\xe9"]).buffers()[1:])
    table = {"text": pa.chunked_array([good, bad]), "label": ["x", "y"] * 100}
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    assert look(tmp_path).rows == 200


def test_deflated_files_that_were_put_together_are_read_whole(tmp_path):
    """Hadoop's codec reads on after the end of a stream, as it does for gzip."""
    rows = [f"text {n},{'xy'[n % 2]}\n" for n in range(20_000)]
    parts = ["text,label\n" + "".join(rows[:9_000]), "".join(rows[9_000:])]
    path = tmp_path / "rows.csv.deflate"
    path.write_bytes(b"".join(zlib.compress(part.encode()) for part in parts))
    with open_text(str(path), "UTF-8") as file:
        assert sum(1 for _ in file) == 20_001
    path.write_bytes(zlib.compress(b"text,label\n" * 9)[:-3])
    with pytest.raises(DataError, match="incomplete"), open_text(str(path), "UTF-8") as file:
        file.read()


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ("gbk", ("\u5dee\u8bc4", "\u597d\u8bc4")),
        ("cp1251", ("\u0445\u0430\u043c", "\u0441\u043f\u0430\u043c")),
    ],
)
def test_a_character_set_that_nobody_can_know_is_not_guessed(tmp_path, encoding, words):
    path = tmp_path / "rows.csv"
    rows = "".join(f"{words[n % 2] * 9} {n},{words[n % 2]}\n" for n in range(40))
    path.write_bytes(f"text,label\n{rows}".encode(encoding))
    assert "windows" not in starter.from_source(str(path))[0]
    with pytest.raises(DataError, match="rows are rejected") as caught:
        look(path)
    assert "data.csv.encoding" in caught.value.remedy
    assert look(path, csv={"encoding": encoding}).labels == dict.fromkeys(words, 20)


def test_the_source_s_own_directory_is_no_place_for_the_dataset(tmp_path):
    (tmp_path / "rows.csv").write_text("text,label\na,x\nb,y\n")
    with pytest.raises(ConfigError, match="lies in the source's directory"):
        look(tmp_path, dataset=f"{tmp_path}/")


def test_directories_that_name_the_labels_are_seen(tmp_path):
    for topic in ("sports", "science"):
        (tmp_path / f"topic={topic}").mkdir()
        rows = "".join(f"{n},a text about {topic} {n}\n" for n in range(9))
        (tmp_path / f"topic={topic}" / "part-0.csv").write_text("id,text\n" + rows)
    written, _ = starter.from_source(str(tmp_path))
    assert yaml.safe_load(written)["data"]["columns"]["label"] == "topic"
