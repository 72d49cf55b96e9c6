"""Files are read alike by Spark's workers and in one process; test_spark.py classifies them too."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from howdah.config.data import Columns, CsvOptions
from howdah.errors import DataError
from howdah.serving.prediction import files
from howdah.serving.prediction.reading import read_rows, source_files

COLUMNS = Columns(text=["words"], id="key")
REFUSED = {
    "no_words": "no column 'words'", "no_json_words": "no column 'words'",
    "no_parquet_words": "do not have the same columns", "no_key": "no column 'key'",
    "number_words": "do not have the same columns", "numbers": "of another type",
    "other_keys": "do not have the same columns", "lines": "its closing quote is missing",
}  # fmt: skip
"""{source of `odd_files`: what is said of it}."""


def odd_files(directory) -> dict[str, str]:
    """{what: a source} of files that two readers could read in two ways."""

    def put(name: str, content: str | bytes) -> None:
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    put("csv/1.csv", 'key,words,label\nk1,the cat,a\nk2,"of\nand, in",b\n\nk3,in,b,more\nk4,cat\n')
    put("csv/2.csv", "\ufefflabel,words,key\r\na,of the,k5\r\nb,,k6\r\n")
    put("csv/3.tsv", "words\tmore\tkey\nthe, cat\tx\tk7\n")
    put("lines/1.csv", "label,key,words\n" + "".join(f"a,k{n},the cat {n}\n" for n in range(40)))
    put("lines/2.csv", 'key,words\n\nk50,"the\nk51,cat,more\nk52\n')
    put("lines/3.csv", "")
    put("csv/4.csv", "")
    put("csv/5.csv", b"\nkey,words\nk8,the \xff cat\n")
    put(
        "json/1.jsonl", '{"key": 1.10, "words": 1.10}\n\n{"words": "the"}\n[1]\n{"key": "x"}\n{no\n'
    )
    put("json/2.jsonl", '{"words": true, "key": true}\n{"key": 3.0, "words": {"of": 1}}\n')
    put("json/3.json", b'{"key": "k4", "words": "the \xff"}\n{"key": null, "words": NaN}\n')
    (directory / "parquet").mkdir()
    one = pa.table({"key": [1.5, 2.5], "words": ["the cat", None]})
    other = pa.table({"words": pa.array(["of"]).dictionary_encode(), "more": [1], "key": [3.5]})
    pq.write_table(one, directory / "parquet" / "1.parquet")
    pq.write_table(other, directory / "parquet" / "2.parquet")

    (directory / "nulls").mkdir()
    nothing = pa.table({"key": [1.5], "words": pa.nulls(1)})
    pq.write_table(nothing, directory / "nulls" / "1.parquet")
    put("no_key/1.csv", "key,words\n1,the\n")
    put("no_key/2.csv", "words\nthe\n")
    put("no_words/1.csv", "key,words\n1,the\n")
    put("no_words/2.csv", "key,text\n1,the\n")
    put("no_json_words/1.jsonl", '{"key": 1, "words": "the"}\n')
    put("no_json_words/2.jsonl", '{"key": 2, "text": "the"}\n')
    for name, columns in {
        "no_parquet_words": {"key": [3.5], "text": ["of"]},
        "numbers": {"key": [3.5], "words": [5]},
        "number_words": {"key": [3.5], "words": [5]},
        "other_keys": {"key": ["3"], "words": ["of"]},
    }.items():
        (directory / name).mkdir()
        if name != "numbers":
            pq.write_table(one, directory / name / "1.parquet")
        pq.write_table(pa.table(columns), directory / name / "2.parquet")
    return {path.name: str(path) for path in sorted(directory.iterdir())}


def alike(row_id: str, error: str | None) -> tuple[str, str]:
    """(id, error) without a row's number and its line. No key of `odd_files` is a whole number."""
    key = re.sub(r"^(row )?\d+$", r"\1", row_id)
    return key, re.sub(r"^line \d+: ", "", error or "")


def by_spark(spark, source, columns, options, *, id_required):
    def rows(batches):
        for batch in reader(batches):
            cells = {
                name: [getattr(row, name) for row in batch] for name in ("id", "text", "error")
            }
            yield pa.RecordBatch.from_pydict(cells, pa.schema(dict.fromkeys(cells, pa.string())))

    inputs = files.find(source, None)
    files.check(inputs, columns, options, id_required=id_required)
    frame, reader = files.read(spark, inputs, columns, options)
    return frame.mapInArrow(rows, "id string, text string, error string")


def compared(spark, source, *, columns=COLUMNS, id_required=True, **options):
    """Rows in one process and by Spark, or their refusals."""
    options = CsvOptions(**options)
    answers = []
    for way in ("one", "spark"):
        try:
            if way == "one":
                here = read_rows(
                    source_files(source), columns, csv_options=options, id_required=id_required
                )
                rows = [(row.id, row.text, row.error) for row in here]
            else:
                rows = by_spark(spark, source, columns, options, id_required=id_required).collect()
            answers.append(sorted((*alike(row[0], row[2]), row[1] or "") for row in rows))
        except DataError as error:
            answers.append([(error.what, error.where, error.got)])
    assert answers[0] == answers[1]
    return answers[0]


@pytest.mark.spark
def test_spark_and_one_process_make_the_same_rows_of_odd_files(spark, tmp_path):
    sources = odd_files(tmp_path)
    outcomes = {name: compared(spark, source) for name, source in sources.items()}
    for name, what in REFUSED.items():
        assert len(outcomes[name]) == 1 and what in outcomes[name][0][0], name
    assert [row for row in outcomes["csv"] if not row[1]] == [
        ("k1", "", "the cat"), ("k2", "", "of\nand, in"), ("k5", "", "of the"),
        ("k7", "", "the, cat"),
    ]  # fmt: skip
    errors = [row[1] for row in outcomes["csv"] if row[1]]
    assert sorted(errors) == ["2 fields instead of 3", "4 fields instead of 3",
                              "the text is empty",
                              "the text is not in the file's encoding"]  # fmt: skip
    assert ("1.10", "", "1.10") in outcomes["json"] and ("true", "", "true") in outcomes["json"]
    assert ("3.0", "the text is an object, not a text", "") in outcomes["json"]
    assert outcomes["nulls"] == [("1.5", "the text is empty", "")]
    assert [row[0] for row in outcomes["parquet"]] == ["1.5", "2.5", "3.5"]


@pytest.mark.spark
def test_lines_of_large_files_are_read_by_several_tasks(spark, tmp_path):
    source = odd_files(tmp_path)["lines"]
    spark.conf.set("spark.sql.files.maxPartitionBytes", "300")
    try:
        rows = compared(spark, source, multiline=False)
        whole, by_line = (
            by_spark(spark, f"{source}/1.csv", COLUMNS, CsvOptions(multiline=multiline),
                     id_required=True).rdd.getNumPartitions()
            for multiline in (True, False)
        )  # fmt: skip
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert whole == 1 and by_line > 2
    assert len(rows) == 43 and ("k50", "", "the") in rows
    assert [row[1] for row in rows if row[1]] == ["1 fields instead of 2", "3 fields instead of 2"]


@pytest.mark.spark
def test_rows_without_a_key_are_numbered_and_files_with_and_without_are_refused(spark, tmp_path):
    sources = odd_files(tmp_path)
    (refusal,) = compared(spark, sources["no_key"], id_required=False)
    assert "some files have the id column" in refusal[0]
    assert refusal[1] == f"{sources['no_key']}/2.csv"
    options = CsvOptions()
    source = f"{sources['lines']}/1.csv"
    rows = by_spark(spark, source, Columns(text="words"), options, id_required=False)
    assert len({row["id"] for row in rows.collect()}) == rows.count()
    with pytest.raises(DataError, match="several formats"):
        files.find(f"{tmp_path}/*/1.*", None)
