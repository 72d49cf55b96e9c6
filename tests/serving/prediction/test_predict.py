"""Predictions: formats in and out, bad rows, order, atomic output, stdin. The model is a simple
function of the ids here; tests/test_training_serve_*.py open real exports."""

from __future__ import annotations

import csv
import gc
import gzip
import io
import json
import os
import sys
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from howdah import storage
from howdah.config.loader import from_dict
from howdah.errors import AlreadyExists, DataError, NotFound, PermissionDenied, UsageError
from howdah.models.decision import softmax
from howdah.serving.prediction import predict as predictor
from howdah.serving.prediction.lines import predict_lines
from tests.serving.prediction.parity import expected_label, read_output, words, write

# -------------------------------------------------------------------------------- formats, order
TEXTS = [words(n) for n in (3, 60, 1, 2, 7, 30, 4)]


@pytest.fixture(params=["csv", "jsonl", "parquet", "csv.gz", "jsonl.gz"])
def source(request, tmp_path) -> str:
    path = str(tmp_path / f"in.{request.param}")
    if request.param == "parquet":
        table = pa.table({"key": pa.array(range(100, 107)), "text": TEXTS, "more": [1] * 7})
        pq.write_table(table, path)
        return path
    if request.param.startswith("csv"):
        text = io.StringIO(newline="")
        csv.writer(text).writerows([["key", "text"], *zip(range(100, 107), TEXTS, strict=True)])
        data = text.getvalue()
    else:
        pairs = zip(range(100, 107), TEXTS, strict=True)
        data = "".join(json.dumps({"key": k, "text": t}) + "\n" for k, t in pairs)
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "wb") as file:
        file.write(data.encode())
    return path


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_every_format_in_and_out_in_order(served, source, tmp_path, ending):
    output = str(tmp_path / f"out.{ending}")
    summary = predictor.predict("m", source, output)
    rows = read_output(output)
    assert [row["id"] for row in rows] == [str(k) for k in range(100, 107)]
    assert [row["label"] for row in rows] == [expected_label(text) for text in TEXTS]
    assert {row["run_id"] for row in rows} == {"run-9"}
    want = softmax(np.array([[2.0, 0.0, -0.05]]))[0]  # three words: five tokens, odd
    first = rows[0]
    if ending == "parquet":
        assert first["scores"] == pytest.approx([want[1], want[0], want[2]], rel=1e-5)
        assert pq.read_schema(output).metadata[b"labels"] == b"even\nodd\nnone"
    elif ending == "jsonl":
        assert first["scores"] == pytest.approx(
            dict(zip(["odd", "even", "none"], want, strict=True)), abs=1e-6
        )
    else:
        assert float(first["score_odd"]) == pytest.approx(want[0], abs=1e-6)
    assert summary["rows"] == 7
    assert summary["errors"] == 0
    assert sum(summary["labels"].values()) == 7
    assert sorted(os.listdir(tmp_path)) == sorted(
        [os.path.basename(source), os.path.basename(output)]
    )


def test_many_chunks_keep_the_order(served, tmp_path, monkeypatch):
    monkeypatch.setattr(predictor, "_CHUNK_ROWS", 16)
    counts = np.random.default_rng(0).integers(1, 70, 100)
    lines = [json.dumps({"text": words(n)}) for n in counts]
    source = write(tmp_path / "in.jsonl", "\n".join(lines) + "\n")
    output = str(tmp_path / "out.jsonl")
    predictor.predict("m", source, output)
    rows = read_output(output)
    assert [row["id"] for row in rows] == [f"row {n}" for n in range(100)]
    cut = [min(n, 62) for n in counts]
    assert [row["label"] for row in rows] == [expected_label(words(n)) for n in cut]


def test_a_directory_and_a_pattern_in_the_order_of_names(served, tmp_path):
    directory = tmp_path / "in"
    directory.mkdir()
    write(directory / "b.jsonl", '{"text": "the"}\n')
    write(directory / "a.csv", "text\nthe the\n")
    write(directory / "_SUCCESS", "")
    for number, source in enumerate([str(directory), str(directory / "*.*")]):
        output = str(tmp_path / f"out{number}.jsonl")
        assert predictor.predict("m", source, output)["rows"] == 2
        assert [row["label"] for row in read_output(output)] == ["even", "odd"]


def test_memory_storage_both_ways(served):
    try:
        storage.write_whole("memory://p/in.jsonl", b'{"text": "the"}\n')
        for ending in ("jsonl", "csv", "parquet"):
            predictor.predict("m", "memory://p/in.jsonl", f"memory://p/out.{ending}")
        names = [entry.name for entry in storage.list_dir("memory://p", unfinished=True)]
        assert names == ["in.jsonl", "out.csv", "out.jsonl", "out.parquet"]
        row = json.loads(storage.read_text("memory://p/out.jsonl"))
        assert row["label"] == "odd"
    finally:
        storage.remove("memory://p", recursive=True)


# -------------------------------------------------------------------------------------- columns
def test_the_caller_s_columns_override_the_training_s(served, tmp_path):
    source = write(tmp_path / "in.csv", "title,body,n\na,b c,x7\n,b c,x8\n")
    output = str(tmp_path / "out.jsonl")
    with pytest.raises(DataError, match="no column 'text'") as caught:
        predictor.predict("m", source, output)
    assert "title, body, n" in caught.value.expected
    predictor.predict("m", source, output, text_columns=["title", "body"], id_column="n")
    rows = read_output(output)
    assert [row["id"] for row in rows] == ["x7", "x8"]
    assert rows[0]["label"] == expected_label("a b c")
    with pytest.raises(DataError, match="no column 'nn'") as caught:
        predictor.predict(
            "m", source, str(tmp_path / "o.csv"), text_columns=["body"], id_column="nn"
        )
    assert "did you mean n?" in caught.value.got


def test_without_a_key_rows_are_numbered(served, tmp_path):
    source = write(tmp_path / "in.csv", "text\nthe\nthe the\n")
    output = str(tmp_path / "out.csv")
    predictor.predict("m", source, output)
    assert [row["id"] for row in read_output(output)] == ["row 0", "row 1"]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_row_without_a_key_beside_keys_gets_no_number_alone(served, tmp_path, ending):
    # Its number could be the key of another row: here it is 2.
    source = write(tmp_path / "in.csv", "text,key\nthe,0\nof,1\nin,\nthe,2\nof,3,more\n")
    output = str(tmp_path / f"out.{ending}")
    predictor.predict("m", source, output, overwrite=True)
    assert [row["id"] for row in read_output(output)] == ["0", "1", "row 2", "2", "row 4"]


def test_overwrite_deletes_no_directory_of_other_files(served, tmp_path):
    source = write(tmp_path / "in.csv", "text,key\nthe,0\n")
    output = tmp_path / "out.csv"
    output.mkdir()
    (output / "_SUCCESS").touch()
    (output / "part-00000.csv").touch()
    (output / "thesis.doc").touch()
    with pytest.raises(AlreadyExists, match="other files than predictions") as caught:
        predictor.predict("m", source, str(output), overwrite=True)
    assert caught.value.got == "thesis.doc"
    (output / "thesis.doc").unlink()
    predictor.predict("m", source, f"{output}/", overwrite=True)
    assert output.is_file()


def test_a_pipe_is_refused(served, tmp_path):
    pipe = str(tmp_path / "in.csv")
    os.mkfifo(pipe)
    with pytest.raises(DataError, match="not a file"):
        predictor.predict("m", pipe, str(tmp_path / "out.csv"))


def test_csv_options_byte_order_marks_and_tabs(served, tmp_path):
    source = write(tmp_path / "in.csv", '7|"two|words\nhere"\r\n\r\n8|one\r\n', encoding="utf-16")
    options = {"header": False, "names": ["key", "text"], "delimiter": "|", "encoding": "utf-16"}
    output = str(tmp_path / "out.jsonl")
    predictor.predict("m", source, output, config=from_dict({"data": {"csv": options}}))
    assert [row["id"] for row in read_output(output)] == ["7", "8"]
    marked = write(tmp_path / "bom.csv", "\ufefftext\nthe\n")
    predictor.predict("m", marked, str(tmp_path / "o2.jsonl"))
    tabs = write(tmp_path / "in.tsv", "key\ttext\n1\ta, b\n")
    predictor.predict("m", tabs, str(tmp_path / "o3.jsonl"))
    assert read_output(str(tmp_path / "o3.jsonl"))[0]["id"] == "1"


# ------------------------------------------------------------------------------------- bad rows
def test_bad_rows_are_written_with_their_error(served, tmp_path):
    lines = [
        b'{"key": "a", "text": "the"}',
        b'{"key": "b", "text": null}',
        b'{"key": "c"}',
        b'{"key": "d", "text": ["the"]}',
        b'{"key": "e", "text": " \\t "}',
        b'{"key": "f", "text": "bad \xff byte"}',
        b"{not json",
        b"[1]",
        b'{"key": "i", "text": "the the"}',
    ]
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\n".join(lines))
    output = str(tmp_path / "out.parquet")
    summary = predictor.predict("m", str(source), output)
    rows = read_output(output)
    assert [row["label"] for row in rows] == ["odd"] + [None] * 7 + ["even"]
    assert [row["id"] for row in rows] == ["a", "b", "c", "d", "e", "f", "row 6", "row 7", "i"]
    errors = [row["error"] for row in rows]
    assert errors[0] is errors[8] is None
    for error, part in zip(
        errors[1:8],
        [
            "is empty",
            "is empty",
            "an array, not",
            "empty",
            "encoding",
            "line 7: not JSON",
            "line 8: list",
        ],
        strict=True,
    ):
        assert part in error
    assert rows[1]["scores"] is None
    assert summary["rows"] == 9
    assert summary["errors"] == 7


def test_numbers_and_truth_values_of_json_are_texts_as_written(served, tmp_path, monkeypatch):
    """Predict reads them as the ETL does: tests/etl/sources/test_sources.py."""
    texts = []
    real = predictor.classify

    def kept(model, rows):
        texts.extend(row.text for row in rows)
        return real(model, rows)

    monkeypatch.setattr(predictor, "classify", kept)
    written = ["1.10", "5", "1E5", "-0", "true", "NaN", "12345678901234567890.0"]
    lines = "".join(f'{{"key": {text}, "text": {text}}}\n' for text in written)
    source = write(tmp_path / "in.jsonl", lines)
    output = str(tmp_path / "out.jsonl")
    assert predictor.predict("m", source, output)["errors"] == 0
    assert texts == [row["id"] for row in read_output(output)] == written


def test_ragged_csv_rows(served, tmp_path):
    source = write(tmp_path / "in.csv", "key,text\n1,the\n2\n3,the,extra\n4,the the\n")
    output = str(tmp_path / "out.csv")
    assert predictor.predict("m", source, output)["errors"] == 2
    rows = read_output(output)
    assert [row["label"] for row in rows] == ["odd", "", "", "even"]
    assert "1 fields instead of 2" in rows[1]["error"]


def test_an_unclosed_quote_is_refused_before_rows_are_lost_in_it(served, tmp_path):
    lines = ["key,text", *(f"{n},the" for n in range(1000))]
    lines[500] = '499,"the'
    source = write(tmp_path / "in.csv", "\n".join(lines) + "\n")
    output = str(tmp_path / "out.csv")
    with pytest.raises(DataError, match="its closing quote is missing") as caught:
        predictor.predict("m", source, output)
    assert caught.value.where == f"{source}, line 501"
    assert not os.path.exists(output)
    # Without multiline each line is parsed by itself: no row is lost.
    for options in ({"multiline": False}, {"quote": ""}):
        config = from_dict({"data": {"csv": options}})
        summary = predictor.predict("m", source, output, config=config, overwrite=True)
        assert (summary["rows"], summary["errors"]) == (1000, 0)
        assert read_output(output)[499]["id"] == "499"


def test_texts_are_cleaned_as_in_training(served, tmp_path):
    source = write(tmp_path / "in.jsonl", json.dumps({"text": "the  \x00 &amp;\nthe"}) + "\n")
    output = str(tmp_path / "out.jsonl")
    predictor.predict("m", source, output)
    assert read_output(output)[0]["label"] == expected_label("the & the")


# ------------------------------------------------------------------------------------- refusals
def test_refusals_leave_no_output_and_come_before_a_model_is_loaded(served, tmp_path, monkeypatch):
    monkeypatch.setattr(predictor, "open_model", lambda *_, **__: pytest.fail("a model is loaded"))
    empty = write(tmp_path / "empty.csv", "")
    header = write(tmp_path / "header.csv", "key,text\n")
    fake = write(tmp_path / "fake.parquet", "no parquet")
    broken = tmp_path / "broken.jsonl.gz"
    broken.write_bytes(gzip.compress(b'{"text": "the"}\n' * 1000)[:40])
    strange = write(tmp_path / "in.xlsx", "x")
    semicolons = write(tmp_path / "semicolons.csv", "key;text\n1;x\n")
    before = sorted(os.listdir(tmp_path))
    output = str(tmp_path / "out.jsonl")
    for source, kind in (
        (semicolons, DataError), (empty, DataError), (header, DataError), (fake, DataError),
        (str(broken), DataError), (strange, DataError), (str(tmp_path / "absent.csv"), NotFound),
    ):  # fmt: skip
        with pytest.raises(kind) as caught:
            predictor.predict("m", source, output)
        assert caught.value.where
        assert sorted(os.listdir(tmp_path)) == before, source
    for name in ("out.txt", "out", "out.csv.gz", "out.xlsx", "out.csv.bz2", "o.jsonl.zst", "o.tsv"):
        with pytest.raises(UsageError, match="format of the output"):
            predictor.predict("m", write(tmp_path / "ok.csv", "text\nx\n"), str(tmp_path / name))


@pytest.mark.parametrize("source, output", [("a.csv", "./a.csv"), ("a.csv", "link.csv"),
                                            (".", "a.csv"), ("*.csv", "b.csv")])  # fmt: skip
def test_an_output_never_replaces_its_own_source(served, tmp_path, monkeypatch, source, output):
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "b.csv"):
        write(tmp_path / name, "text,key\nthe cat,1\n")
    os.symlink("a.csv", "link.csv")
    with pytest.raises(UsageError, match="would replace its own source"):
        predictor.predict("model", source, output, overwrite=True)
    for name in ("a.csv", "b.csv"):
        assert storage.read_text(name) == "text,key\nthe cat,1\n"


def test_an_existing_output_is_kept(served, tmp_path):
    source = write(tmp_path / "in.csv", "text\nthe\n")
    output = write(tmp_path / "out.csv", "mine")
    with pytest.raises(AlreadyExists):
        predictor.predict("m", source, output)
    assert storage.read_text(output) == "mine"
    predictor.predict("m", source, output, overwrite=True)
    assert read_output(output)[0]["label"] == "odd"


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_failed_last_rename_loses_neither_the_old_nor_the_new_output(
    served, tmp_path, monkeypatch, ending
):
    source = write(tmp_path / "in.csv", "text\nthe\n")
    output = str(tmp_path / f"out.{ending}")
    predictor.predict("m", source, output)
    before = storage.read_bytes(output)
    rename = storage.rename_dir

    def failing(one, other):
        if ".tmp-" in one:
            raise PermissionDenied("no right to write there", where=other)
        rename(one, other)

    monkeypatch.setattr(storage, "rename_dir", failing)
    write(source, "text\nthe the\n")
    with pytest.raises(PermissionDenied) as caught:
        predictor.predict("m", source, output, overwrite=True)
    assert storage.read_bytes(output) == before
    (new,) = (name for name in os.listdir(tmp_path) if name.startswith(".tmp-"))
    assert str(tmp_path / new) in caught.value.remedy
    monkeypatch.undo()
    os.rename(tmp_path / new, tmp_path / f"again.{ending}")
    assert read_output(str(tmp_path / f"again.{ending}"))[0]["label"] == expected_label("the the")


def test_a_failure_midway_with_overwrite_leaves_the_old_output(served, tmp_path, monkeypatch):
    source = write(tmp_path / "in.csv", "text\nthe\n")
    output = write(tmp_path / "out.csv", "mine")

    def failing(model, rows):
        raise DataError("the disk went away")

    monkeypatch.setattr(predictor, "classify", failing)
    with pytest.raises(DataError, match="went away"):
        predictor.predict("m", source, output, overwrite=True)
    assert storage.read_text(output) == "mine"
    assert sorted(os.listdir(tmp_path)) == ["in.csv", "out.csv"]


def test_csv_is_read_as_configured(served, tmp_path):
    source = write(tmp_path / "in.csv", "key;text\na;the the\n")
    config = from_dict({"data": {"csv": {"delimiter": ";"}}})
    output = str(tmp_path / "out.csv")
    predictor.predict("m", source, output, config=config)
    assert read_output(output)[0]["id"] == "a"


def test_a_failure_midway_leaves_no_output(served, tmp_path, monkeypatch):
    monkeypatch.setattr(predictor, "_CHUNK_ROWS", 2)
    lines = ['{"text": "the"}'] * 5
    source = write(tmp_path / "in.jsonl", "\n".join(lines))
    real, calls = predictor.classify, []

    def failing(model, rows):
        calls.append(len(rows))
        if len(calls) == 2:
            raise DataError("the disk went away")
        return real(model, rows)

    monkeypatch.setattr(predictor, "classify", failing)
    with pytest.raises(DataError, match="went away"):
        predictor.predict("m", source, str(tmp_path / "out.jsonl"))
    assert os.listdir(tmp_path) == ["in.jsonl"]


# ---------------------------------------------------------------------------------------- stdin
def test_lines_of_a_stream_are_classified(served):
    out = io.StringIO()
    count = predict_lines("m", io.StringIO("the\n\nthe the\n"), out)
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert count == 3
    assert [row["label"] for row in rows] == ["odd", None, "even"]
    assert rows[1]["error"] == "the text is empty"
    assert [row["id"] for row in rows] == ["0", "1", "2"]


def test_a_line_is_answered_before_the_next_is_typed(served):
    """A writer that waits for each answer gets it: no line waits for a fuller batch."""
    to_model, typing = os.pipe()
    answers, from_model = os.pipe()
    stdin = open(to_model, encoding="utf-8")  # noqa: SIM115 - closed below
    stdout = open(from_model, "w", encoding="utf-8")  # noqa: SIM115

    def serve() -> None:
        predict_lines("m", stdin, stdout)
        stdout.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with open(answers, encoding="utf-8") as reader:
        os.write(typing, b"the\n")
        assert json.loads(reader.readline())["label"] == "odd"
        os.write(typing, b"the t")  # a line in two writes is one line
        os.write(typing, b"he\nb\xff\n")
        assert json.loads(reader.readline())["label"] == "even"
        assert "UTF-8" in json.loads(reader.readline())["error"]
        os.write(typing, b"last without a line's end")
        os.close(typing)
        assert json.loads(reader.readline())["id"] == "3"
        assert reader.readline() == ""
    thread.join(timeout=60)
    stdin.close()
    assert not thread.is_alive()


def test_importing_predict_loads_no_framework():
    import subprocess

    script = (
        "import sys, howdah.serving.prediction.predict\n"
        "import howdah.training.evaluation.evaluate, howdah.models.export.export\n"
        "heavy = {'torch', 'tensorflow', 'transformers', 'pyspark', 'horovod'} & set(sys.modules)\n"
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_parquet_file_with_a_damaged_page_is_refused(served, tmp_path, form, monkeypatch):
    """Its footer is whole, so that it is found only when its rows are read."""
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    source = str(tmp_path / "in.parquet")
    pq.write_table(pa.table({"key": ["a", "b"], "text": ["the", "of"]}), source)
    with open(source, "r+b") as file:
        file.seek(6)
        file.write(b"XXXXXXXX")
    with pytest.raises(DataError, match="not a Parquet file") as caught:
        predictor.predict("somewhere", source, str(tmp_path / f"out.{form}"))
    assert caught.value.where == source and caught.value.got and caught.value.remedy
    assert os.listdir(tmp_path) == ["in.parquet"]
    del caught
    gc.collect()
    assert not ignored  # the output's writer has nothing left to write
