"""The ETL and predictions read a file alike, whichever program wrote it."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from howdah.config import loader
from howdah.config.data import Columns, CsvOptions
from howdah.data.files.records import Part
from howdah.data.spark import text_rows
from howdah.errors import DataError, HowdahError
from howdah.etl.sources import given, reading
from howdah.serving.prediction.reading import read_rows, source_files
from tests.contact import generated
from tests.contact.generated import Made


def by_predict(made: Made) -> list[tuple[str, str | None, str | None]]:
    columns = Columns(**made.columns)
    rows = read_rows(source_files(made.path), columns, csv_options=CsvOptions(**made.csv))
    return [(row.id, row.text, row.error) for row in rows]


def by_etl_worker(made: Made) -> list[tuple[str | None, str | None, str | None]]:
    """The rows of what each of the ETL's tasks in Spark runs."""
    names = [made.columns["id"], made.columns["text"]]
    form = "csv" if ".csv" in made.path else "jsonl"
    part = Part(path=made.path, form=form)
    work = text_rows.PartReader(
        tasks=text_rows.Tasks(parts=[[(0, part)]]), options=CsvOptions(**made.csv), root=None,
        columns=text_rows.Columns(names=names, texts=frozenset(names[1:])),
    )  # fmt: skip
    rows = []
    for batch in work([pa.record_batch([[0]], names=["id"])]):
        cells = [batch.column(n).to_pylist() for n in range(3)]
        rows += zip(*cells, strict=True)
    return rows


def check(made: Made) -> None:
    rows = by_predict(made)
    assert len(rows) == len(made.rows), made
    for number, ((key, text), (row_id, cell, error)) in enumerate(
        zip(made.rows, rows, strict=True)
    ):
        if number in made.broken:
            assert error and cell is None, (made.path, number)
            continue
        assert row_id == (f"row {number}" if key is None else key), (made.path, number)
        assert (cell, error) == (text, None if text else "the text is empty"), (made.path, number)


def check_text_file(made: Made) -> None:
    check(made)
    rows = by_etl_worker(made)
    assert len(rows) == len(made.rows), made
    for number, ((key, text), (row_id, cell, reason)) in enumerate(
        zip(made.rows, rows, strict=True)
    ):
        if number in made.broken:
            assert reason == "malformed" or "\ufffd" in (cell or ""), (made.path, number)
            continue
        assert (row_id, cell, reason) == (key, text, None), (made.path, number)


SEEDS = {"few": range(60), "many": range(60, 860)}


@pytest.mark.parametrize("block", [0, pytest.param(1, marks=pytest.mark.full)])
def test_generated_csv_files_are_read_whole(block, tmp_path):
    for seed in SEEDS["many"] if block else SEEDS["few"]:
        check_text_file(generated.csv_file(seed, tmp_path))


@pytest.mark.parametrize("block", [0, pytest.param(1, marks=pytest.mark.full)])
def test_generated_json_files_are_read_whole(block, tmp_path):
    for seed in SEEDS["many"] if block else SEEDS["few"]:
        check_text_file(generated.json_file(seed, tmp_path))


@pytest.mark.parametrize("block", [0, pytest.param(1, marks=pytest.mark.full)])
def test_generated_parquet_files_are_read_whole(block, tmp_path):
    for seed in SEEDS["many"] if block else SEEDS["few"]:
        check(generated.parquet_file(seed, tmp_path))


# ------------------------------------------------------------------------------------- by hand
def write(path: Path, data: bytes | str) -> Made:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return Made(path=str(path))


def rows_of(numbers: range, end: str) -> str:
    return "".join(f"r{n},text {n},a{end}" for n in numbers)


MIXED = {
    "CRLF, LF, CR CR LF": "id,text,label\r\n" + rows_of(range(40), "\r\n")
    + rows_of(range(40, 80), "\n") + rows_of(range(80, 120), "\r\r\n"),
    "LF first": "id,text,label\n" + rows_of(range(60), "\n") + rows_of(range(60, 120), "\r\n"),
    "CR first": "id,text,label\r" + rows_of(range(40), "\r") + rows_of(range(40, 80), "\n")
    + rows_of(range(80, 120), "\r\n"),
    "one LF among CRLF": "id,text,label\r\n" + rows_of(range(60), "\r\n")
    + rows_of(range(60, 61), "\n") + rows_of(range(61, 120), "\r\n"),
    "CR among LF": "id,text,label\n" + rows_of(range(60), "\n") + rows_of(range(60, 70), "\r")
    + rows_of(range(70, 120), "\n"),
    "CR alone": "id,text,label\r" + rows_of(range(120), "\r"),
}  # fmt: skip


@pytest.mark.parametrize("multiline", [True, False])
@pytest.mark.parametrize("name", MIXED)
def test_no_row_is_lost_where_line_ends_are_mixed(name, multiline, tmp_path):
    made = write(tmp_path / "a.csv", MIXED[name])
    made.csv = {"multiline": multiline}
    made.rows = [(f"r{n}", f"text {n}") for n in range(120)]
    check_text_file(made)


def test_a_carriage_return_that_pandas_leaves_unquoted_is_part_of_its_text(tmp_path):
    """pandas 2.3 quotes a text for a line feed, and not for a carriage return."""
    texts = ["one", "two\rlines", "three\r", "\rfour", "five"]
    table = pd.DataFrame({"id": [f"r{n}" for n in range(5)], "text": texts, "label": "a"})
    made = Made(path=str(tmp_path / "a.csv"))
    table.to_csv(made.path, index=False)
    made.rows = list(zip(table["id"], texts, strict=True))
    for multiline in (True, False):
        made.csv = {"multiline": multiline}
        check_text_file(made)


def test_stray_quotes_stay_in_the_text_for_every_reader(tmp_path):
    made = write(
        tmp_path / "a.csv",
        'id,text,label\n1,"he said "hello" to them",a\n2,say "so",a\n3,""a"",b\n4,"x" ,b\n',
    )
    made.rows = [("1", '"he said "hello" to them"'), ("2", 'say "so"'), ("3", '""a""'), ("4", "x")]
    check_text_file(made)
    assert by_etl_worker(made)[0][1] == '"he said "hello" to them"'


def test_an_escape_character_counts_inside_of_quotes_alone(tmp_path):
    made = write(
        tmp_path / "a.csv",
        'id,text,label\n1,"say \\"so\\",\nand \\\\",a\n2,C:\\temp,b\n3,"\\n",b\n',
    )
    made.csv = {"escape": "\\"}
    made.rows = [("1", 'say "so",\nand \\'), ("2", "C:\\temp"), ("3", "\\n")]
    check_text_file(made)


def test_records_that_are_not_all_read_are_an_error_with_its_line(tmp_path, monkeypatch):
    """A parser that loses a record, as by another line end, is an error and no silent loss."""
    from howdah.data.files import csv_rows

    made = write(tmp_path / "a.csv", "id,text,label\n" + rows_of(range(50), "\n"))
    whole = csv_rows._groups

    def losing(lines, options, delimiter):
        return (one for number, one in enumerate(whole(lines, options, delimiter)) if number != 30)

    monkeypatch.setattr(csv_rows, "_groups", losing)
    with pytest.raises(DataError, match="not all records") as caught:
        by_predict(made)
    assert "line" in caught.value.where and caught.value.expected.startswith("51 records")


@pytest.mark.parametrize(
    ("name", "codec", "text"),
    [
        ("windows-1252", "cp1252", "\u201ccaf\u00e9\u201d \u20ac5"),
        ("cp1252", "cp1252", "\u201ccaf\u00e9\u201d \u20ac5"),
        ("latin-1", "latin-1", "caf\u00e9"),
        ("utf8", "utf-8", "caf\u00e9"),
        ("cp1251", "cp1251", "\u043d\u043e\u0432\u043e\u0441\u0442\u0438"),
        ("windows-1251", "cp1251", "\u043d\u043e\u0432\u043e\u0441\u0442\u0438"),
        ("GBK", "gbk", "\u65b0\u95fb"),
        ("Shift_JIS", "shift_jis", "\u65b0\u805e\u8868"),
        ("windows-31j", "cp932", "\u65b0\u805e"),
        ("EUC-KR", "euc_kr", "\ub274\uc2a4"),
        ("x-windows-949", "cp949", "\ub274\uc2a4"),
        ("UTF-16", "utf-16", "caf\u00e9 \u65b0\u805e"),
        ("UTF-16LE", "utf-16-le", "caf\u00e9"),
    ],
)
def test_character_sets_go_by_python_s_and_java_s_names(name, codec, text, tmp_path):
    made = write(tmp_path / "a.csv", f"id,text,label\r\n1,{text},a\r\n".encode(codec))
    made.csv = {"encoding": name}
    made.rows = [("1", text)]
    check_text_file(made)


def test_a_truncated_file_of_two_bytes_a_character_has_one_row_with_an_error(tmp_path):
    data = "id,text,label\n1,one,a\n2,two,a".encode("utf-16-le")[:-1] + b"\x0a"
    made = write(tmp_path / "a.csv", b"\xff\xfe" + data[:-1])
    made.csv = {"encoding": "UTF-16"}
    rows = by_predict(made)
    assert [row[:2] for row in rows] == [("1", "one"), ("2", "two")]


@pytest.mark.parametrize("content", [b"\xef\xbb\xbf", b"\xef\xbb", b""])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_file_of_nothing_but_a_byte_order_mark_has_no_row(name, content, tmp_path):
    made = write(tmp_path / name, content)
    made.csv["multiline"] = False
    assert by_etl_worker(made) == []


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [("UTF-16", b"\xff\xfe"), ("UTF-16LE", b"\xff\xfe"), ("UTF-16BE", b"\xfe\xff")],
)
def test_a_mark_of_utf_16_alone_has_no_row_either(encoding, mark, tmp_path):
    made = write(tmp_path / "a.csv", mark)
    made.csv["encoding"] = encoding
    assert by_etl_worker(made) == []


@pytest.mark.parametrize("bad", ["ab", "", '"', "\n"])
def test_a_separator_is_one_character(bad):
    with pytest.raises(HowdahError) as caught:
        loader.from_dict({"data": {"csv": {"delimiter": bad}}})
    assert "data.csv" in str(caught.value)
    assert loader.from_dict({"data": {"csv": {"delimiter": "\\t"}}}).data.csv.delimiter == "\t"


def test_ids_that_are_not_in_the_encoding_are_errors_with_one_spelling(tmp_path):
    made = write(tmp_path / "a.csv", b"id,text,label\ncaf\xe9-4,one,a\nr2,tw\xe9,a\n")
    assert by_predict(made) == [
        ("caf\\xe9-4", None, "the id is not in the file's encoding"),
        ("r2", None, "the text is not in the file's encoding"),
    ]
    assert by_etl_worker(made) == [
        ("caf\\xe9-4", "one", "wrong_encoding"), ("r2", "tw\ufffd", None),
    ]  # fmt: skip
    made = write(tmp_path / "a.jsonl", '{"id": "half \\ud83d", "text": "x"}\n')
    assert by_predict(made)[0][0] == by_etl_worker(made)[0][0] == "half \\ud83d"


def test_json_arrays_are_rows_on_one_line_or_many(tmp_path):
    records = [{"id": n, "text": f"text {n}", "label": "a"} for n in range(200)]
    for indent in (None, 2):
        made = write(tmp_path / "a.json", json.dumps(records, indent=indent))
        made.rows = [(str(n), f"text {n}") for n in range(200)]
        check_text_file(made)
    broken = json.dumps(records, indent=1)
    cut, unclosed = broken[:-30], broken.replace("}", "", 1)
    for content, what in ((cut, "Unterminated string"), (unclosed, "line 7")):
        made = write(tmp_path / "a.json", content)
        with pytest.raises(DataError, match="cannot be read to its end") as caught:
            by_predict(made)
        assert what in f"{caught.value.got} {caught.value.where}"


def test_a_line_of_thirty_megabytes_is_a_row(tmp_path):
    text = "word " * 6_000_000
    made = write(tmp_path / "a.jsonl", json.dumps({"id": "1", "text": text}) + "\n")
    made.rows = [("1", text)]
    check_text_file(made)


# ------------------------------------------------------------------------------- which files
NAMES = ["reviews [final].csv", "tweets 10:30.csv", "reviews {a,b}.csv", "100% done #1?.csv",
         "_reviews.csv", ".reviews.csv", "a*b.csv", "back\\slash.csv"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_exists_is_itself_whatever_its_name(name, tmp_path, monkeypatch):
    folder = tmp_path / "run [x]"
    write(folder / "other.csv", "id,text,label\n2,other,a\n")
    made = write(folder / name, "id,text,label\n1,one,a\n")
    made.rows = [("1", "one")]
    check_text_file(made)
    data = loader.from_dict({"data": {"source": made.path}}).data
    assert [entry.path for entry in given.resolve(data).files] == [made.path]
    monkeypatch.chdir(folder)
    assert source_files(name).paths == [made.path]
    assert source_files("oth*.csv").paths == [str(folder / "other.csv")]
    data = loader.from_dict({"data": {"source": "oth*.csv"}}).data
    assert [entry.name for entry in given.resolve(data).files] == ["other.csv"]


def test_the_etl_and_predictions_read_the_same_files_of_a_directory(tmp_path):
    content = "id,text,label\n1,one,a\n"
    read = ["ds=2026-11-01/part-0.csv", "ds=2026-11-02/b/part-0.csv", "a.csv", "z.csv.gz"]
    passed_over = ["_old.csv", "._a.csv", ".tmp-a.csv.1234/part.csv", ".old-a.csv", "_tmp/b.csv",
                   "ds=2026-11-01/_SUCCESS"]  # fmt: skip
    for name in (*read, *passed_over):
        write(tmp_path / name, content)
    for source in (str(tmp_path), f"{tmp_path}/*"):
        data = loader.from_dict({"data": {"source": source}}).data
        by_etl = [entry.path for entry in given.resolve(data).files]
        assert source_files(source).paths == by_etl
        assert sorted(by_etl) == sorted(f"{tmp_path}/{name}" for name in read)


def test_files_that_are_left_out_are_named(tmp_path):
    write(tmp_path / "a.csv", "id,text\n1,one\n")
    write(tmp_path / "notes.docx", "x")
    messages: list[str] = []
    source_files(str(tmp_path), messages.append)
    assert len(messages) == 1 and "notes.docx" in messages[0]


@pytest.mark.parametrize(
    ("name", "words"),
    [("a.xlsx", "save the sheet as CSV"), ("pos/1.txt", "paste: data: {format: csv}"),
     ("data-00000-of-00001.arrow", "write it as Parquet"), ("a.zip", "unpack")],
)  # fmt: skip
def test_formats_of_everyday_are_refused_with_what_to_do(name, words, tmp_path):
    write(tmp_path / name, "x")
    for read in (
        lambda source: given.resolve(loader.from_dict({"data": {"source": source}}).data),
        lambda source: list(read_rows(source_files(source), Columns())),
    ):
        with pytest.raises(DataError) as caught:
            read(str(tmp_path))
        assert words in caught.value.remedy


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_utf_8_is_not_read_as_a_character_set_in_which_all_decodes(mark, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"{mark}no,text,label\n1,caf\u00e9,a\n", encoding="utf-8")

    def texts(encoding: str) -> list[str]:
        options = CsvOptions(encoding=encoding)
        files = source_files(str(path))
        rows = read_rows(files, Columns(), csv_options=options, id_required=False)
        return [row.text for row in rows]

    assert texts("UTF-8") == ["caf\u00e9"]
    for encoding in ("windows-1252", "GBK"):
        with pytest.raises(DataError, match="another character set") as caught:
            texts(encoding)
        assert "data.csv.encoding=UTF-8" in caught.value.remedy


# --------------------------------------------------------------------------------------- in Spark
def by_spark(spark, source: str, **data) -> list[tuple]:
    data.setdefault("columns", {"id": "id"})
    section = loader.from_dict({"data": {"source": source, **data}}).data
    origin = given.resolve(section)
    counted = None
    if origin.kind == "csv":
        counted = reading.check_quotes(spark, origin, section.csv).counted
    return sorted(tuple(row) for row in reading.read(spark, origin, section, counted).collect())


@pytest.mark.spark
def test_spark_reads_what_one_process_reads(spark, tmp_path):
    """Odd names, line ends and a character set, in one source."""
    for number, name in enumerate(NAMES[:4]):
        text = "id,text,label\r\n" + "".join(
            f"{number}-{n},caf\u00e9 {n},a" + ("\r\n", "\n", "\r\r\n")[n % 3] for n in range(30)
        )
        write(tmp_path / "in" / name, text.encode("cp1252"))
    rows = by_spark(spark, str(tmp_path / "in"), csv={"encoding": "windows-1252"})
    expected = [(f"{number}-{n}", f"caf\u00e9 {n}", "a", None, None) for number in range(4)
                for n in range(30)]  # fmt: skip
    assert rows == sorted(expected)
    records = [{"id": n, "review": {"body": f"text {n}"}, "label": "a"} for n in range(9)]
    made = write(tmp_path / "a:b.json", json.dumps(records, indent=1))
    columns = {"id": "id", "text": "review.body"}
    rows = by_spark(spark, made.path, columns=columns)
    assert [row[:2] for row in rows] == [(str(n), f"text {n}") for n in range(9)]


@pytest.mark.spark
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(3, 60))]
)
def test_spark_reads_generated_parquet_as_one_process_does(seed, spark, tmp_path):
    made = generated.parquet_file(seed, tmp_path)
    rows = by_spark(spark, made.path, columns=made.columns)
    assert [row[:2] for row in rows] == sorted((key, text or "") for key, text in made.rows)


@pytest.mark.spark
def test_a_parquet_name_that_hadoop_cannot_have_is_refused_by_name(spark, tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("tweets 10:30.parquet", "_a.parquet"):
        path = tmp_path / "in" / name
        pd.DataFrame({"id": ["1"], "text": ["x"], "label": ["a"]}).to_parquet(path)
        with pytest.raises(DataError, match="cannot read a file of this name") as caught:
            by_spark(spark, str(path))
        assert caught.value.where == str(path)
        os.remove(path)


@pytest.mark.spark
def test_spark_s_old_times_inside_of_structs_are_moments(spark, tmp_path):
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 500_000)
    table = {"text": ["a"], "label": ["x"], "meta": [{"more": {"at": at}, "other": 1}]}
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(table), path, use_deprecated_int96_timestamps=True)
    made = Made(path=str(path), columns={"id": "meta.more.at", "text": "text"})
    rows = by_spark(spark, made.path, columns=made.columns)
    assert [row[0] for row in rows] == ["2026-01-02T03:04:05.5Z"]
    assert [row[0] for row in by_predict(made)] == ["2026-01-02T03:04:05.5Z"]


@pytest.mark.spark
def test_names_of_columns_may_have_backticks(spark, tmp_path):
    columns = {"id": "the `id`", "text": "te`xt"}
    made = write(tmp_path / "a.csv", "the `id`,te`xt,label\n1,one,a\n")
    assert [row[:2] for row in by_spark(spark, made.path, columns=columns)] == [("1", "one")]
    table = {"the `id`": ["1"], "a`b": [{"te`xt": "one"}], "label": ["a"]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    columns = {"id": "the `id`", "text": "a`b.te`xt"}
    rows = by_spark(spark, str(tmp_path / "a.parquet"), columns=columns)
    assert [row[:2] for row in rows] == [("1", "one")]
