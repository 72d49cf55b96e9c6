"""Unclosed quotes in CSV files: what swallows lines is refused, and good files are read as ever."""

import bz2
import csv
import gzip
import io
import json
import os

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from howdah import storage
from howdah.config import loader as config_module
from howdah.config.data import CsvOptions
from howdah.data.files import csv_rows
from howdah.data.files import quotes as csv_quotes
from howdah.errors import DataError
from howdah.etl.sources import given as official
from howdah.etl.sources import reading
from howdah.etl.sources import source as sources
from tests.etl.test_pipeline import make_config, rows_of, run, sentences
from tests.fixtures.spark import etl


def scan(text, delimiter=",", block=2**20, **options):
    before, csv_quotes._BLOCK_CHARACTERS = csv_quotes._BLOCK_CHARACTERS, block
    try:
        source = io.StringIO(text, newline="")
        quotes = csv_quotes.scan(source, CsvOptions(**options), delimiter)
        if not quotes.line:  # the parser reads as many records, or raises
            lines = io.StringIO(text, newline="" if quotes.carriage else "\n")
            list(csv_rows.records(lines, CsvOptions(**options), delimiter, quotes, "file"))
        return quotes
    finally:
        csv_quotes._BLOCK_CHARACTERS = before


def good(quotes):
    return (quotes.line, quotes.strays) == (0, 0)


# ------------------------------------------------------------------------------------ the scan
GOOD = (
    'a,b\n"two\nlines",x\n"with ""q""\r\nand",y\nmid "quote" is plain,z\n"",x\n"""",x\n'
    '"x""\n""y",z\n"blank before the end" ,x\n'
)


@pytest.mark.parametrize("block", [1, 2, 3, 7, 2**20])
def test_good_files_are_good_in_blocks_of_any_size(block):
    for text in (
        GOOD,
        GOOD.rstrip("\n"),
        GOOD.replace("\n", "\r\n"),
        "\ufeff" + GOOD,
        "",
        "\n",
        '""',
    ):
        assert good(scan(text, block=block)), text
    assert good(scan(GOOD.replace("\r\n", "\n").replace("\n", "\r"), block=block))
    tabs = GOOD.replace(",", "\t")
    assert good(scan(tabs, "\t", block=block))
    escaped = 'a,b\n"say \\"so\\"\nand \\\\",x\n"\\\\",y\n'
    assert good(scan(escaped, block=block, escape="\\"))


@pytest.mark.parametrize("block", [1, 5, 2**20])
@pytest.mark.parametrize(
    ("lines", "line", "problem"),
    [
        (["a,b", "1,x", '"2,x', "3,x"], 3, "the file ends"),
        (["a,b", "1,x", '"2,x', '3 "three" 3,x'], 3, "quote on line 4"),
        (["a,b", '"1","x"', '"2,x', '"3","x"'], 3, "quote on line 4"),
        (['"a","b"', '"1","x"', '"2","x', '"3","x"', '"4","x"'], 3, "quote on line 4"),
        (['"a', "1,x"], 1, "the file ends"),
        (["a,b", '"', "2,x"], 2, "the file ends"),
    ],
)
def test_fields_that_swallow_lines_are_found_with_their_line(block, lines, line, problem):
    for newline in ("\n", "\r\n", "\r"):
        quotes = scan(newline.join(lines) + newline, block=block)
        assert (quotes.line, quotes.strays) == (line, 0) and problem in quotes.problem
        assert quotes.begin.startswith(lines[line - 1].rpartition('"')[2][:3])


def test_too_many_line_breaks_are_an_unclosed_quote(monkeypatch):
    text = 'a,b\n"' + "x\n" * 8 + '",y\nz,y\n'
    monkeypatch.setattr(csv_quotes, "MAX_LINE_BREAKS", 8)
    assert good(scan(text))
    monkeypatch.setattr(csv_quotes, "MAX_LINE_BREAKS", 7)
    for block in (1, 4, 2**20):
        quotes = scan(text, block=block)
        assert quotes.line == 2 and "more than 7 line breaks" in quotes.problem


def test_stray_quotes_within_a_line_are_counted():
    quotes = scan('a,b\n""one",x\n"t\\"wo",y\n"three" 3,"z"z\n')
    assert (quotes.line, quotes.strays, quotes.stray_line) == (0, 4, 2)


TEXTS = st.text(st.sampled_from('ab ,"\n\r\\'), max_size=8)


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=12), st.booleans(), st.integers(1, 9))
def test_what_a_writer_quotes_is_good(rows, everything, block):
    out = io.StringIO(newline="")
    quoting = csv.QUOTE_ALL if everything else csv.QUOTE_MINIMAL
    csv.writer(out, quoting=quoting, lineterminator="\n").writerows([("a", "b"), *rows])
    assert good(scan(out.getvalue(), block=block))


@given(st.text(st.sampled_from('ab,"\n\r '), max_size=60), st.integers(1, 9))
def test_blocks_make_no_difference(text, block):
    whole, parts = scan("x,y\n" + text), scan("x,y\n" + text, block=block)
    assert (whole.line, whole.problem, whole.strays) == (parts.line, parts.problem, parts.strays)


# ------------------------------------------------------------------------------------- the ETL
def _lines(count, quoted):
    texts = sentences(count)
    cut = '"{}","{}"\n' if quoted else "{},{}\n"
    return [cut.format(text, "ab"[n % 2]) for n, text in enumerate(texts)]


def _broken(lines, how):
    """The 500th row of 1,000 with one quote too many or too few."""
    text, label = lines[499].strip().replace('"', "").split(",")
    row = {
        "a lone quote": f'"{text},{label}\n',
        "no closing quote of the last field": f'"{text}","{label}\n',
    }[how]
    return [*lines[:499], row, *lines[500:]]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("quoted", "how"),
    [
        pytest.param(False, "a lone quote", marks=pytest.mark.full),
        pytest.param(True, "a lone quote", marks=pytest.mark.full),
        (True, "no closing quote of the last field"),
    ],
)
def test_one_unclosed_quote_fails_with_file_and_line(
    spark, tmp_path, tiny_model_dir, capsys, quoted, how
):
    (tmp_path / "in").mkdir()
    good, bad = tmp_path / "in" / "1.csv", tmp_path / "in" / "2.csv"
    lines = _lines(1_010, quoted)
    good.write_text("text,label\n" + "".join(lines[1_000:]))
    bad.write_text("text,label\n" + "".join(_broken(lines[:1_000], how)))
    config = tmp_path / "run.yaml"
    data = {"source": str(tmp_path / "in"), "dataset": str(tmp_path / "dataset")}
    settings = {"data": data, "model": {"base": tiny_model_dir}}
    config.write_text(config_module.dump_yaml(config_module.from_dict(settings)))
    assert etl(["--config", str(config), "--json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"] == "DataError" and answer["where"] == f"{bad}, line 501"
    assert "closing quote is missing" in answer["what"] and "multiline" in answer["remedy"]
    assert os.listdir(tmp_path / "dataset") == []

    # each line by itself: nothing is swallowed, and what is broken is one row
    assert etl(["--config", str(config), "--json", "--set", "data.csv.multiline=false"]) == 0
    capsys.readouterr()
    result, _ = run(config_module.load(str(config), ["data.csv.multiline=false"]))
    assert result.unchanged
    quality = result.manifest.quality
    assert quality["read"] == 1_010 and quality["csv"]["multiline"] is False
    lost = {"malformed": 1} if quality["kept"] < 1_010 else {}
    assert quality["drops"] == lost and quality["kept"] >= 1_009


@pytest.mark.spark
def test_line_breaks_in_good_files_are_read_and_reported(spark, tmp_path, tiny_model_dir):
    texts = sentences(40)
    rows = [(text, "ab"[n % 2]) for n, text in enumerate(texts)]
    rows[3] = ("first line\nsecond line, with a comma\r\nthird", "a")
    rows[7] = ('one "quoted"\nword', "b")
    path = tmp_path / "rows.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
        file.write('""odd" quote,a\n')
    config = make_config(tmp_path, tiny_model_dir, source=str(path))
    result, lines = run(config)
    assert sum(map(len, rows_of(result).values())) == 41
    about = result.manifest.quality["csv"]
    assert (about["texts_with_line_breaks"], about["most_line_breaks"]) == (2, 2)
    assert about["stray_quotes"] == 1 and about["stray_quotes_at"] == [f"{path}, line 45"]
    worst = about["most_line_breaks_in"]
    assert any(f"2 accepted texts have line breaks, at most 2 (row {worst})" in x for x in lines)
    assert any("quotes that are not escaped" in line and "line 45" in line for line in lines)
    assert "2 accepted texts have line breaks" in storage.read_text(result.report_path)


@pytest.mark.spark
def test_compressed_files_are_checked_and_others_refused(spark, tmp_path):
    text = 'text,label\none,a\n"two,b\nthree,a\n'
    for name, pack in (("a.csv.gz", gzip.compress), ("a.csv.bz2", bz2.compress)):
        (tmp_path / name).write_bytes(pack(text.encode()))
        with pytest.raises(Exception, match="closing quote is missing") as caught:
            _check(spark, tmp_path / name)
        assert caught.value.where.endswith(f"{name}, line 3")
    (tmp_path / "a.csv.zst").write_bytes(pa.compress(text.encode(), "zstd", asbytes=True))
    with pytest.raises(DataError, match="closing quote is missing"):
        _check(spark, tmp_path / "a.csv.zst")
    (tmp_path / "a.csv.snappy").write_bytes(b"anything")
    with pytest.raises(DataError, match="compression are not read"):
        _check(spark, tmp_path / "a.csv.snappy")
    _check(spark, tmp_path / "a.csv.gz", quote="")


def _check(spark, path, **options):
    data = config_module.from_dict({"data": {"source": str(path), "csv": options}}).data
    return reading.check_quotes(spark, sources.resolve(data), data.csv)


@pytest.mark.spark
def test_quotes_are_looked_for_by_each_set_s_own_separator(spark, tmp_path):
    """A quote after a comma opens no field of a TSV."""
    (tmp_path / "rows.csv").write_text('text,label\n"one\ntext",a\n')
    (tmp_path / "test.tsv").write_text('text\tlabel\nshe said,"no\ta\n"two\nlines"\tb\n')
    settings = {"source": str(tmp_path / "rows.csv"), "split": {}}
    settings["split"] = {"sources": {"test": str(tmp_path / "test.tsv")}}
    data = config_module.from_dict({"data": settings}).data
    assert reading.check_quotes(spark, official.resolve(data), data.csv).fields == 0
    rows = reading.read(spark, official.resolve(data), data).collect()
    assert sorted(row["text"] for row in rows) == ["one\ntext", 'she said,"no', "two\nlines"]
    (tmp_path / "test.tsv").write_text('text\tlabel\n"two,\ta\nlines\tb\n')
    with pytest.raises(DataError, match="closing quote is missing") as caught:
        reading.check_quotes(spark, official.resolve(data), data.csv)
    assert caught.value.where == f"{tmp_path}/test.tsv, line 2"


@pytest.mark.spark
def test_files_with_tabs_among_files_with_commas_are_read_by_their_names(spark, tmp_path):
    (tmp_path / "rows.csv").write_text("text,label\none,a\n")
    (tmp_path / "more.tsv").write_text("label\ttext\nb\ttwo, too\n")
    data = config_module.from_dict({"data": {"source": str(tmp_path), "format": "csv"}}).data
    counted = reading.check_quotes(spark, sources.resolve(data), data.csv).counted
    rows = reading.read(spark, sources.resolve(data), data, counted).collect()
    assert sorted((row["text"], row["label"]) for row in rows) == [("one", "a"), ("two, too", "b")]


@pytest.mark.spark
def test_a_large_file_is_read_by_several_tasks_only_without_multiline(spark, tmp_path):
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(_lines(200, True)))
    spark.conf.set("spark.sql.files.maxPartitionBytes", "2000")
    try:
        tasks, rows = {}, {}
        for multiline in (True, False):
            settings = {"source": str(tmp_path / "rows.csv"), "csv": {"multiline": multiline}}
            data = config_module.from_dict({"data": settings}).data
            table = reading.table(spark, sources.resolve(data), data)
            tasks[multiline] = table.rdd.getNumPartitions()
            rows[multiline] = sorted(table.collect())
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert tasks[True] == 1 and tasks[False] > 3
    assert rows[True] == rows[False] and len(rows[True]) == 200


def test_lines_of_utf16_cannot_be_found_alone():
    CsvOptions(multiline=False, encoding="ISO-8859-1")
    with pytest.raises(ValueError, match="multiline: false cannot find the lines"):
        CsvOptions(multiline=False, encoding="UTF-16")


def test_names_beside_a_header_are_refused():
    CsvOptions(header=False, names=["a"])
    with pytest.raises(ValueError, match=r"set csv\.header: false"):
        CsvOptions(names=["a"])
