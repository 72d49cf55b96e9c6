"""Rows with an error: how they are counted, shown and spelt; ids as the outputs have them."""

from __future__ import annotations

import csv
import io
import json

import pandas as pd
import pytest

from howdah import cli
from howdah.config.loader import from_dict
from howdah.errors import TooManyErrors
from howdah.serving.prediction import judged
from howdah.serving.prediction import predict as predictor
from howdah.serving.prediction.lines import predict_lines
from howdah.serving.prediction.rows import Prediction
from tests.serving.prediction.parity import read_output, write


@pytest.fixture
def command(served, tiny_model_dir, capsys):
    """Runs `howdah predict` in this process; gives its exit code and what it prints."""

    def run(*words: str) -> tuple[int, str]:
        argv = ["predict", "--model", str(tiny_model_dir), *words]
        code = cli.run(lambda: cli.app(argv, standalone_mode=False))
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_lines_with_an_error_are_counted_at_the_end(served):
    messages: list[str] = []
    lines = io.StringIO("the\n\nthe the\n")
    assert predict_lines("m", lines, io.StringIO(), progress=messages.append) == 3
    assert messages == [
        "model m, run by torch on the CPU", "1 of 3 lines have an error (1 the text is empty)"
    ]  # fmt: skip


def test_errors_of_reasons_that_are_not_shown_count():
    reasons = judged.Reasons()
    reasons.add([Prediction(str(n), None, None, f"reason {n}") for n in range(7)])
    (line,) = judged.of_lines(9, reasons)
    assert line.startswith("7 of 9 lines have an error") and line.count("reason") == 5


def test_errors_are_counted_by_reason_and_too_many_end_with_code_3(command, tmp_path):
    rows = [f'{{"key": "k{n}", "text": "the"}}' for n in range(97)]
    source = write(tmp_path / "in.jsonl", "\n".join([*rows, "{no", "[1]", '{"key": 1}', "{no"]))
    output = str(tmp_path / "out.jsonl")
    code, log = command("--source", source, "--output", output)
    assert code == 0
    assert f"101 rows -> {output}; 4 with an error (2 not JSON; " in log
    code, log = command(
        "--source", source, "--output", output, "--overwrite",
        "--set", "score.max_error_fraction=0.01",
    )  # fmt: skip
    assert code == 3 and "4 of 101 rows (3.96%)" in log and "not JSON: 2 (row 97, line 98" in log
    assert len(read_output(output)) == 101  # with the errors of each


def test_a_share_of_errors_may_be_exactly_the_limit():
    config = from_dict({"score": {"max_error_fraction": 0.29}})  # 0.29 * 100 < 29
    summary = {"rows": 100, "errors": 29, "reasons": [], "output": "out.csv"}
    judged.require_few(summary, config, "in.csv")
    with pytest.raises(TooManyErrors):
        judged.require_few({**summary, "errors": 30}, config, "in.csv")
    assert not judged.too_many(0, 0, 0.0)


def test_a_table_is_no_path_in_messages():
    summary = {"rows": 3, "errors": 3, "output": "table:daily", "reasons": []}
    assert judged.lines(summary)[0].startswith("3 rows -> table:daily;")
    with pytest.raises(TooManyErrors) as caught:
        judged.require_few(summary, from_dict({}), "news")
    assert caught.value.where == "table:daily"


def test_rows_in_another_character_set_are_explained(command, tmp_path):
    text = "key,text\n" + "".join(f"k{n},the caf\u00e9\n" for n in range(20))
    source = write(tmp_path / "in.csv", text, "cp1252")
    output = str(tmp_path / "out.csv")
    code, log = command("--source", source, "--output", output)
    assert code == 3 and "data: {csv: {encoding: windows-1252}}" in log
    option = ("--set", "data.csv.encoding=windows-1252")
    code, _ = command("--source", source, "--output", output, "--overwrite", *option)
    assert code == 0 and not any(row["error"] for row in read_output(output))


def test_rows_without_the_id_s_column_are_numbered_aloud(command, tmp_path):
    source = write(tmp_path / "in.csv", "id,text\n7,the\n")
    code, log = command("--source", source, "--output", str(tmp_path / "out.csv"))
    assert code == 0 and "no column 'key': ids are the rows' numbers" in log


def test_ids_with_line_breaks_are_read_back_from_csv(served, tmp_path):
    keys = ["a\rb", "c\nd", "e\r\nf", 'g"h']
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(json.dumps({"key": key, "text": "the"}) for key in keys))
    output = str(tmp_path / "out.csv")
    predictor.predict("m", str(source), output)
    with open(output, newline="") as file:
        assert [row["id"] for row in csv.DictReader(file)] == keys
    assert pd.read_csv(output)["id"].to_list() == keys


@pytest.mark.parametrize("name", ["out.parquet", "out.csv", "out.jsonl"])
def test_an_id_that_is_not_utf8_is_an_error_row_in_each_output(name, served, tmp_path):
    source = tmp_path / "in.csv"
    source.write_bytes(b"key,text\ncaf\xe9-4,the\nk2,the\n")
    output = str(tmp_path / name)
    assert predictor.predict("m", str(source), output)["errors"] == 1
    rows = read_output(output)
    assert [row["id"] for row in rows] == ["caf\\xe9-4", "k2"]
    assert "the id is not in the file's encoding" in rows[0]["error"]
