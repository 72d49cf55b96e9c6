"""Files that are not what their names say, and files that only look so."""

import json

import pytest

from howdah.config.data import CsvOptions
from howdah.data.files import encodings, everyday, footers, peek, records
from howdah.errors import DataError


@pytest.mark.parametrize("header", ["ORCID,text", "PAR1,text", "ARROW1;text", "ORC"])
def test_a_header_that_begins_like_a_format_is_text(tmp_path, header):
    path = tmp_path / "people.csv"
    path.write_text(f"{header}\n1,a\n")
    everyday.refuse_content(str(path))


def test_tables_that_are_named_as_text_are_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.orc
    import pyarrow.parquet as pq

    table = pa.table({"text": pa.array([], pa.string())})
    pq.write_table(table, tmp_path / "a.csv")
    pyarrow.orc.write_table(table, str(tmp_path / "b.csv"))
    pyarrow.feather.write_feather(table, str(tmp_path / "c.csv"))
    for name, kind in (("a.csv", "a Parquet"), ("b.csv", "an ORC"), ("c.csv", "an Arrow")):
        with pytest.raises(DataError, match=kind):
            everyday.refuse_content(str(tmp_path / name))


def test_an_avro_file_of_no_records_is_refused(tmp_path):
    """Its schema may be any of Avro's: here "string"."""
    schema, key = json.dumps("string").encode(), b"avro.schema"
    sized = b"".join(bytes([2 * len(part)]) + part for part in (key, schema))
    (tmp_path / "a.avro").write_bytes(b"Obj\x01\x02" + sized + bytes(17))
    with pytest.raises(DataError, match="not an Avro file"):
        footers.schema(str(tmp_path / "a.avro"), "avro")


def test_a_character_that_is_cut_off_is_not_of_another_character_set(tmp_path, monkeypatch):
    monkeypatch.setattr(encodings, "_MOST_BYTES", 2**20)
    path = tmp_path / "a.csv"
    path.write_bytes(b"a" * (2**20 - 1) + "é\n".encode() + b"caf\xe9\n")
    assert encodings.explained([str(path)], "UTF-8") is None
    path.write_bytes(b"a\ncaf\xe9")
    assert encodings.explained([str(path)], "UTF-8") == "windows-1252"


@pytest.mark.parametrize("encoding", ["UTF-16", "utf16", "UTF-32"])
def test_a_character_set_with_a_byte_order_mark_demands_it(tmp_path, encoding):
    """Programs that write UTF-16LE often leave it out; Python's decoder ends in a UnicodeError."""
    path = tmp_path / "a.csv"
    options = CsvOptions(encoding=encoding)
    for content in ("text,label\n".encode("utf-16-le"), b"text,label\n"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="byte order mark"):
            records.csv_names(str(path), options)
        with pytest.raises(DataError, match="byte order mark") as caught:
            peek.sample(str(path), "csv", options)
        assert caught.value.where == str(path) and "LE" in caught.value.remedy
    path.write_bytes("text,label\n".encode(encoding))
    assert records.csv_names(str(path), options) == ["text", "label"]
    path.write_bytes(b"")
    assert records.csv_names(str(path), options) == []


def test_a_second_byte_order_mark_is_a_character_wherever_records_are_counted(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbf\xef\xbb\xbf\n\ntext\nx\n")
    part = records.Part(path=str(path), form="csv")
    options = CsvOptions(header=False, names=["text"])
    rows = [values for _, values, _, _ in records.read(part, ["text"], options)]
    assert rows == [["\ufeff"], ["text"], ["x"]]
