"""Mistakes that the first MiB of a source tells: each is named in one message before Spark starts.

The files are written by hand, by pandas and by pyarrow.
"""

import csv
import gzip
import json
import os
import subprocess
import sys

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from howdah import storage
from howdah.cli.begin import fitness, starter
from howdah.config import loader
from howdah.config.data import CsvOptions
from howdah.errors import DataError, HowdahError, render
from howdah.etl import peek
from tests import ROOT

COLUMNS = {"id": "ticket_id", "text": "message", "label": "category"}
HEADER = ["ticket_id", "channel", "message", "category"]
LABELS = ["account", "billing", "shipping"]
ROWS = [
    [f"T-{n}", "mail", f"the caf\u00e9 sent invoice {n}, again", LABELS[n % 3]] for n in range(60)
]


def lines(delimiter=",", header=HEADER, rows=ROWS) -> str:
    quoted = [[f'"{one}"' if delimiter in one else one for one in row] for row in rows]
    return "".join(delimiter.join(row) + "\n" for row in [header, *quoted])


def objects(rows=ROWS) -> list[dict[str, str]]:
    return [dict(zip(HEADER, row, strict=True)) for row in rows]


def write(path, content) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def look(source: str, **data):
    settings = {"source": source, "columns": COLUMNS, **data}
    return peek.look(loader.from_dict({"data": settings}).data)


def sheet(folder) -> str:
    return write(folder / "messages.xlsx", b"PK\x03\x04" + bytes(60))


def text_folder(folder) -> str:
    for row in ROWS:
        write(folder / "texts" / row[3] / f"{row[0]}.txt", row[2])
    return str(folder / "texts")


def saved_to_disk(folder) -> str:
    """Write what `Dataset.save_to_disk` does: an Arrow stream and two files of JSON."""
    table = pa.table({"message": [r[2] for r in ROWS],
                      "category": [LABELS.index(r[3]) for r in ROWS]})  # fmt: skip
    (folder / "saved").mkdir()
    with pa.OSFile(str(folder / "saved/data-00000-of-00001.arrow"), "wb") as file:
        with pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    features = {"message": {"dtype": "string", "_type": "Value"},
                "category": {"names": LABELS, "_type": "ClassLabel"}}  # fmt: skip
    write(folder / "saved/dataset_info.json", json.dumps({"features": features}))
    write(folder / "saved/state.json", "{}")
    return str(folder / "saved")


def in_parquet(folder, **columns) -> str:
    path = str(folder / "messages.parquet")
    pd.DataFrame({**pd.DataFrame(objects()), **columns}).to_parquet(path)
    return path


def in_feather(folder) -> str:
    path = str(folder / "m.feather")
    pd.DataFrame(objects()).to_feather(path)
    return path


WRONG = {
    "semicolons": (
        lambda f: write(f / "m.csv", lines(";")), {},
        ["no column 'message'", 'paste: data: {csv: {delimiter: ";"}}'],
    ),
    "tabs": (
        lambda f: write(f / "m.csv", lines("\t")), {},
        ["no column 'message'", r'paste: data: {csv: {delimiter: "\t"}}'],
    ),
    "semicolons of Windows": (
        lambda f: write(f / "m.csv", lines(
            ";", [*HEADER[:3], "cat\u00e9gorie"]).encode("cp1252")),
        {"columns": {**COLUMNS, "label": "cat\u00e9gorie"}},
        ['paste: data: {csv: {delimiter: ";", encoding: windows-1252}}'],
    ),
    "windows-1252": (
        lambda f: write(f / "m.csv", lines().encode("cp1252")), {},
        ["another character set", "60 of 60 rows are not UTF-8",
         "data: {csv: {encoding: windows-1252}}"],
    ),
    "UTF-8 read as windows-1252": (
        lambda f: write(f / "m.csv", lines()), {"csv": {"encoding": "windows-1252"}},
        ["another character set", "60 of 60 rows are not windows-1252; all of them decode as UTF-8",
         "data: {csv: {encoding: UTF-8}}"],
    ),
    "UTF-16": (
        lambda f: write(f / "m.csv", lines("\t").encode("utf-16")), {},
        [r'paste: data: {csv: {delimiter: "\t", encoding: UTF-16}}'],
    ),
    "a JSON array that breaks off": (
        lambda f: write(f / "m.json", json.dumps(objects(), indent=1)[:-40]), {},
        ["a JSON array cannot be read to its end", "one object per line"],
    ),
    "the id's column": (
        lambda f: write(f / "m.csv", lines(header=["id", *HEADER[1:]])), {},
        ["no column 'ticket_id'", "data.columns.id", "id, channel, message, category",
         "data: {columns: {text: message, label: category, id: id}}"],
    ),
    "another column": (
        lambda f: write(f / "m.csv.gz", gzip.compress(lines().encode())),
        {"columns": {**COLUMNS, "text": "mesage"}},
        ["no column 'mesage'", "did you mean message?", "m.csv.gz"],
    ),
    "a sheet": (sheet, {}, ["spreadsheets are not read", "CSV UTF-8", "read_excel"]),
    "a sheet named as CSV": (
        lambda f: write(f / "m.csv", b"PK\x03\x04" + bytes(60)), {},
        ["an Excel workbook", "not text", "read_excel"],
    ),
    "Parquet named as CSV": (
        lambda f: os.rename(in_parquet(f), f / "m.csv") or str(f / "m.csv"), {},
        ["a Parquet file, not text", "paste: data: {format: parquet}"],
    ),
    "Feather": (
        lambda f: in_feather(f), {}, ["Feather files are not read", "read_table", "m.parquet"],
    ),
    "directories of texts": (text_folder, {}, ["a directory of text files", "python -c"]),
    "save_to_disk": (
        saved_to_disk, {},
        ["save_to_disk is not read", "python -c", 'labels: {"0": account, "1": billing, '],
    ),
    "an unknown label": (
        lambda f: write(f / "m.csv", lines()), {"labels": ["account", "biling", "shipping"]},
        ["labels that data.labels does not list", "'billing' (20 rows)", "did you mean 'biling'?"],
    ),
    "one class": (
        lambda f: write(f / "m.csv", lines(rows=[[*r[:3], "billing"] for r in ROWS])), {},
        ["at least two labels", "got:      billing"],
    ),
    "an empty file": (lambda f: write(f / "m.csv", ""), {}, ["the source is empty", "0 bytes"]),
    "a header alone": (lambda f: write(f / "m.csv", lines(rows=[])), {}, ["the source is empty"]),
    "an unclosed quote": (
        lambda f: write(f / "m.csv", lines(rows=[*ROWS, ["T-60", "mail", '"never', "billing"]])),
        {}, ["its closing quote is missing", "line 62"],
    ),
    "a directory without rows": (
        lambda f: os.path.dirname(write(f / "photos/a.png", b"x")), {},
        ["format does not follow", "a.png"],
    ),
    "a wrong path": (lambda f: write(f / "m.csv", "x")[:-5] + "messages.csv", {},
                     ["the source does not exist", "holds m.csv"]),
    "an integer text": (
        lambda f: in_parquet(f, message=range(60)), {},
        ["a column is of another type", "int64"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_named_in_one_message(mistake, tmp_path):
    make, data, words = WRONG[mistake]
    with pytest.raises(HowdahError) as caught:
        look(make(tmp_path), **data)
    message = render(caught.value)
    assert [one for one in words if one not in message] == [], message
    assert str(tmp_path) in message
    assert caught.value.exit_code == (2 if "photos" in words or "a.png" in words else 3)


@pytest.mark.parametrize("make", [text_folder, saved_to_disk, in_feather])
def test_the_line_of_a_refusal_makes_a_source(make, tmp_path):
    with pytest.raises(HowdahError) as caught:
        look(make(tmp_path))
    _, command, *pasted = caught.value.remedy.splitlines()
    python = command.replace("python ", f"{sys.executable} ", 1)
    subprocess.run(["sh", "-c", python], cwd=tmp_path, check=True, timeout=60)
    data = {"columns": {"text": "text", "label": "label", "id": "id"}}
    if make is in_feather:
        data = {"columns": COLUMNS, "source": "m.parquet"}
    elif pasted[0] == "and paste:":
        data = yaml.safe_load(pasted[1])["data"]
        assert data["columns"] == {"text": "message", "label": "category"}
    source = data.pop("source", "messages.jsonl")
    seen = look(str(tmp_path / source), **data)
    assert seen.rows == 60 and seen.labels == dict.fromkeys(LABELS, 20)


def pandas_csv(folder) -> str:
    path = str(folder / "messages.csv")
    pd.DataFrame(objects()).to_csv(path)  # its index is a column without a name
    return path


def pandas_parquet(folder) -> str:
    frame = pd.DataFrame(objects())
    frame["category"] = frame["category"].astype("category")
    frame["message"] = frame["message"].astype("string[pyarrow]")
    path = str(folder / "m.parquet")
    frame[frame.index % 1 == 0].set_index(pd.RangeIndex(5, 125, 2)[:60].to_numpy()).to_parquet(path)
    table = pq.read_table(path)
    assert "__index_level_0__" in table.schema.names
    large = table.set_column(
        table.schema.get_field_index("message"), "message",
        table["message"].cast(pa.large_string()),
    )  # fmt: skip
    pq.write_table(large, path)
    return path


RIGHT = {
    "CSV of pandas": (pandas_csv, {}, "separator ','"),
    "Parquet of pandas": (pandas_parquet, {}, "Parquet"),
    "a JSON array": (
        lambda f: write(f / "m.json", json.dumps(objects(), indent=1)), {},
        "one array of objects",
    ),
    "JSON lines": (
        lambda f: write(f / "m.jsonl", "".join(json.dumps(one) + "\n" for one in objects())), {},
        "one object per line",
    ),
    "a byte order mark": (
        lambda f: write(f / "m.csv", "\ufeff" + lines().replace("\n", "\r\n")), {},
        "UTF-8 with a byte order mark",
    ),
    "a directory with an umlaut": (
        lambda f: os.path.dirname(write(f / "d\u00fcr re/m.csv", lines())), {}, "separator ','",
    ),
    "blanks in the header": (
        lambda f: write(f / "m.csv", lines(header=[*HEADER[:3], "category "])), {}, "CSV",
    ),
    "another storage": (
        lambda f: storage.write_whole("memory://peek/m.csv", lines().encode())
        or "memory://peek/m.csv",
        {}, "separator ','",
    ),
    "labels in the names of directories": (
        lambda f: [
            write(f / "m" / f"category={name}" / "part.jsonl", "".join(
                json.dumps({k: v for k, v in one.items() if k != "category"}) + "\n"
                for one in objects() if one["category"] == name))
            for name in LABELS
        ] and str(f / "m"),
        {}, "one object per line",
    ),
    "Windows, as it is set": (
        lambda f: write(f / "m.tsv", lines("\t").encode("cp1252")),
        {"csv": {"encoding": "windows-1252"}}, r"separator '\t'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_files_of_other_programs_are_seen_as_they_are(name, tmp_path):
    make, data, words = RIGHT[name]
    seen = look(make(tmp_path), **data)
    assert words in seen.samples[0].description
    first = "directories" in name  # the first file of three is looked at
    assert (seen.rows, seen.whole, dict(seen.reasons)) == (20 if first else 60, not first, {})
    assert seen.labels == dict.fromkeys(LABELS[: 1 if first else 3], 20)
    blanks = [line for line in seen.lines() if "'category '" in line]
    assert len(blanks) == (name == "blanks in the header")


def test_only_the_beginning_of_a_large_file_is_read(tmp_path):
    """The MiB ends inside of a quoted field with line breaks; labels are sorted, as exports are."""
    row = ["T", "mail", "a line\nand " + "a second " * 5_000, "account"]
    path = tmp_path / "m.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows([[f"T-{n}", *row[1:]] for n in range(100)])
        file.write('"never closed')
    seen = look(str(path), quality={"max_characters": 100_000})
    assert not seen.whole and 10 < seen.rows < 30
    assert any("all of the first" in line for line in seen.advice)


def test_labels_that_need_a_look_come_with_the_lines_to_paste(tmp_path):
    odd = {0: "Billing", 1: "N/A", 2: "N/A"}
    rows = [[*row[:3], odd.get(n, row[3])] for n, row in enumerate(ROWS)]
    path = write(tmp_path / "m.csv", lines(rows=rows))
    page = "\n".join(look(path).lines())
    assert "'Billing' (1 rows)" in page and "'N/A' (2 rows) reads like a missing value" in page
    pasted = yaml.safe_load(page.partition("paste into the configuration: ")[2])["data"]
    seen = look(path, **pasted)
    assert seen.labels["billing"] == 20 and len(seen.labels) == 3 and seen.reasons["bad_label"] == 2
    assert not seen.advice


def test_rows_without_an_id_are_not_judged_by_their_labels(tmp_path):
    """The peek judges as the ETL does: unknown labels fail, a few rows without an id do not."""
    path = write(tmp_path / "m.csv", lines(rows=[*ROWS, ["", "mail", "some text", "other"]]))
    seen = look(path, labels=LABELS)
    assert seen.reasons == {"no_id": 1} and seen.labels.total() == 60


def test_rows_with_an_earlier_rows_id_are_counted_as_the_etl_drops_them(tmp_path):
    again = [[ROWS[n][0], "mail", f"another text, number {n}", "account"] for n in range(20)]
    path = write(tmp_path / "m.csv", lines(rows=[*ROWS, *again]))
    seen = look(path)
    assert "all 80 rows: 60 pass; rejected: 20 duplicate_id" in seen.lines()
    assert look(path, columns={**COLUMNS, "id": None}).reasons == {}
    official = look(path, split={"sources": {"test": write(tmp_path / "t.csv", lines())}})
    assert official.reasons == {"duplicate_id": 20}  # an official set's keys are its own


def test_a_source_that_is_not_files_of_rows_is_not_looked_at():
    assert look("db.messages", format="hive") is None


def test_a_separator_that_texts_have_too_is_not_taken(tmp_path):
    from howdah.data.files.peek import sniffed

    path = write(tmp_path / "m.csv", lines(";"))
    assert sniffed(path, CsvOptions()).delimiter == ";"
    assert sniffed(write(tmp_path / "n.csv", lines()), CsvOptions()).delimiter == ","


# ------------------------------------------------------------------------------- the commands
def howdah(*words: str, cwd, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "howdah.cli", *words], cwd=cwd, capture_output=True, text=True,
        timeout=120, env=os.environ | {"PYTHONPATH": str(ROOT)} | env,
    )  # fmt: skip


def test_from_a_file_to_a_configuration_and_a_check(tmp_path):
    write(tmp_path / "m.csv", lines(";", [*HEADER[:3], "category "]).encode("cp1252"))
    assert howdah("etl", "--check", cwd=tmp_path).returncode == 2
    done = howdah("config", "init", "run.yaml", "--source", "m.csv", cwd=tmp_path)
    written = f"written: {tmp_path}/run.yaml\nnext: howdah etl --config run.yaml\n"
    assert (done.returncode, done.stderr) == (0, written)
    again = howdah("config", "init", "run.yaml", "--source", "m.csv", cwd=tmp_path)
    assert again.returncode == 5  # never overwritten
    assert "remedy:   give another name" in again.stderr
    done = howdah("etl", "--check", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"no --config: {tmp_path}/run.yaml is used" in done.stderr
    assert f"source: {tmp_path}/m.csv" in done.stdout
    assert "labels: account 20, billing 20, shipping 20" in done.stdout
    assert sorted(os.listdir(tmp_path)) == ["m.csv", "run.yaml"]


def test_an_etl_that_would_fail_starts_no_spark(tmp_path):
    """Nor does it import it."""
    write(tmp_path / "m.csv", lines(";"))
    config = {"data": {"source": "m.csv", "columns": COLUMNS}}
    write(tmp_path / "run.yaml", json.dumps(config))
    done = howdah("etl", "--json", cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
    answer = json.loads(done.stdout)
    assert done.returncode == answer["exit_code"] == 3
    assert 'paste: data: {csv: {delimiter: ";"}}' in answer["remedy"]
    assert str(tmp_path / "m.csv") in answer["where"]
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "howdah.etl.peek" in imported
    assert not imported & {"pyspark", "torch", "tensorflow", "transformers"}


# ------------------------------------------------------------------------- configurations
def configuration(source: str) -> tuple[dict, list[str]]:
    text, notes = starter.from_source(source)
    loader.from_dict(yaml.safe_load(text))
    return yaml.safe_load(text), notes


@pytest.mark.parametrize("lines", [
    ["Text;Kategorie", *(f"Tor, Ball, Spiel {n};{'ab'[n % 2]}" for n in range(60))],
    ["Kategorie;Text", *(f"{'ab'[n % 2]};Spiel {n}, ja" for n in range(60))],
    ["Text;Note", *(f'"Spiel {n}";{n % 4},5' for n in range(60))],
])  # fmt: skip
def test_a_comma_in_each_text_is_no_separator(tmp_path, lines):
    path = write(tmp_path / "m.csv", "\n".join(lines) + "\n")
    data = configuration(path)[0]["data"]
    assert data["csv"] == {"delimiter": ";"}
    assert {*data["columns"].values()} <= {*lines[0].split(";")}
    seen = look(path, csv=data["csv"], columns=data["columns"])
    assert seen.rows == 60


def test_the_header_of_a_file_that_was_joined_is_no_row(tmp_path):
    half = "id,text,label\n" + "".join(f"{n},a text {n},{'ab'[n % 2]}\n" for n in range(30))
    data = configuration(write(tmp_path / "m.csv", half + half))[0]["data"]
    assert data["columns"]["text"] == "text"
    assert "csv" not in data


@pytest.mark.parametrize("name, content, words", [
    ("m.csv", "sep=,\n" + "id,text,label\n1,a,b\n" * 20, ["line 2", "3 fields instead of 2"]),
    ("m.csv", "sep=;\n" + "id;text;label\n1;a, b;c\n" * 20, ["3 fields instead of 2"]),
    ("m.csv", "# export\n" + "id;text;label\n1;a;b\n" * 20, ["3 fields instead of 1"]),
    ("m.csv", "text;label\n" + "a, b;c;\n" * 20, ["3 fields instead of 2", "text, label"]),
    ("m.csv", "# export\nid,text\n" + "1,a\n" * 20, ["line 2", "lines above the header"]),
    ("m.jsonl", '{\n "text": "a",\n "label": "b"\n}\n' * 20, ["jq -c ."]),
])  # fmt: skip
def test_a_file_of_which_no_row_can_be_read_says_why(tmp_path, name, content, words):
    with pytest.raises(DataError, match="no row can be read") as caught:
        starter.from_source(write(tmp_path / name, content))
    message = render(caught.value)
    assert [word for word in words if word not in message] == [], message


def test_a_label_is_not_taken_for_a_text_of_bytes(tmp_path):
    path = str(tmp_path / "m.parquet")
    texts = [f"a text {n}".encode() for n in range(60)]
    pd.DataFrame({"text": texts, "label": ["a", "b"] * 30}).to_parquet(path)
    with pytest.raises(DataError, match="'text' has bytes"):
        starter.from_source(path)
    captions = [f"a caption {n}" for n in range(60)]
    pd.DataFrame({"content": texts, "caption": captions, "label": ["a", "b"] * 30}).to_parquet(path)
    assert configuration(path)[0]["data"]["columns"]["text"] == "caption"


def test_columns_are_named_by_their_names_and_values(tmp_path):
    rows = [{"key": f"{n}", "Sender": "abc"[n % 3], "body": f"a long text of number {n}" * 9,
             "subject": f"text {n}", "day": n % 30, "Class": "yes" if n % 2 else "no"}
            for n in range(60)]  # fmt: skip
    path = str(tmp_path / "m.parquet")
    pd.DataFrame(rows).to_parquet(path)
    data = configuration(path)[0]["data"]
    assert data["columns"] == {"text": "body", "label": "Class", "id": "key"}
    assert set(data) == {"source", "columns", "dataset"}  # nothing that is a default
    write(
        tmp_path / "m.jsonl",
        "".join(json.dumps({"a": f"some text of row {n}", "b": n % 4}) + "\n" for n in range(60)),
    )
    assert configuration(f"{tmp_path}/m.jsonl")[0]["data"]["columns"] == {"text": "a", "label": "b"}


def test_labels_that_look_alike_are_mapped_in_the_configuration(tmp_path):
    odd = {0: "Billing", 1: "N/A"}
    rows = [[*row[:3], odd.get(n, row[3])] for n, row in enumerate(ROWS)]
    written, notes = configuration(write(tmp_path / "m.csv", lines("\t", rows=rows)))
    data = written["data"]
    assert data["csv"] == {"delimiter": "\t"} and notes == []
    assert data["labels"] == {"Billing": "billing", **{name: name for name in LABELS}}
    assert data["quality"] == {"unknown_label": "reject"}


def test_a_file_without_a_header_gets_names(tmp_path):
    source = write(tmp_path / "m.csv", lines(";").partition("\n")[2])
    data = configuration(source)[0]["data"]
    names = [f"column_{n}" for n in range(1, 5)]
    assert data["csv"] == {"delimiter": ";", "header": False, "names": names}
    assert data["columns"] == {"text": "column_3", "label": "column_4"}
    assert look(**data).labels == dict.fromkeys(LABELS, 20)


def test_a_file_without_a_label_is_told(tmp_path):
    source = write(tmp_path / "m.csv", lines(header=HEADER[2:3], rows=[[r[2]] for r in ROWS]))
    written, notes = configuration(source)
    assert written["data"]["columns"]["text"] == "message"
    assert "no column looks like a label" in notes[0] and "regression" not in notes[0]


def test_the_doctor_checks_what_a_configuration_names(tmp_path, tiny_model_dir):
    def statuses(**sections) -> dict[str, str]:
        config = loader.from_dict({"model": {"base": tiny_model_dir}, **sections})
        return {one.name: one.status for one in fitness.check(config)}

    data = {"source": write(tmp_path / "m.csv", lines()), "columns": COLUMNS,
            "dataset": str(tmp_path / "none")}  # fmt: skip
    fit = {"base model": "ok", "source": "ok", "dataset": "skip", "cluster": "skip"}
    assert statuses(data=data) == fit
    assert statuses(data=data, model={"base": f"{tmp_path}/no"})["base model"] == "fail"
    assert statuses(data=data, model={"base": "org/name"})["base model"] == "warn"
    assert statuses(data=data | {"columns": {"text": "mesage"}})["source"] == "fail"
    (tmp_path / "empty").mkdir()
    broken = data | {"dataset": str(tmp_path / "empty")}
    broken = statuses(data=broken, job={"on": "local"})
    assert (broken["dataset"], broken["cluster"]) == ("fail", "fail")
