"""Predictions with Spark equal those of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from howdah.data.encode import Encoder
from howdah.models.export.export import export
from howdah.models.export.run_info import RunInfo
from howdah.models.weights.pretrained import load_base
from tests.serving.prediction.test_files import REFUSED, alike, odd_files

pytestmark = pytest.mark.spark

LABELS = ["a", "b", "c"]
TEXTS = ["the  cat", "of and", None, "", *(f"{'in ' * n}to" for n in range(1, 30))]

# Runs in its own process: no other test's session, and no framework, may be loaded.
SCRIPT = """
import json, sys
from howdah.serving.prediction.predict import predict
model, source, output, master, text, framework = [*sys.argv[1:], "torch"][:6]
summary = predict(model, source, output, text_columns=[text], id_column="key",
    framework=framework, master=None if master == "-" else master)
assert "torch" not in sys.modules or master == "-"  # the driver needs no framework
print(json.dumps(summary))
"""


def run(*words: str, cwd: str | None = None) -> subprocess.CompletedProcess:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.getcwd()}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], cwd=cwd,
        env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


@pytest.fixture
def model(tmp_path, tiny_model_dir) -> str:
    base = load_base(tiny_model_dir)
    rng = np.random.default_rng(2)
    head = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in base.family.head_shapes(base.config, 3).items()
    }
    info = RunInfo(
        run_id="run-5", max_length=16, clean={"whitespace": True}, framework="torch",
        base={"source": "tiny", "hash": base.hash},
        tokenizer_hash=Encoder.load(tiny_model_dir).hash,
    )  # fmt: skip
    return export(
        str(tmp_path / "export"), weights=base.weights | head, base_config=base.config,
        tokenizer_files=base.tokenizer_files, label_names=LABELS, run_info=info,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("framework", "kind"),
    [
        ("torch", "orc"),
        pytest.param("torch", "parquet", marks=pytest.mark.full),
        pytest.param("onnx", "parquet", marks=pytest.mark.full),
    ],
)
def test_spark_and_one_process_agree(framework, kind, model, tmp_path):
    """ORC is read by Spark alone."""
    source = str(tmp_path / "in.parquet")
    keys = [f"k{n:02d}" for n in range(len(TEXTS))]
    table = pa.table({"key": keys, "words": TEXTS})
    pq.write_table(table, source, row_group_size=8)
    orc.write_table(table, str(tmp_path / "in.orc"))
    one, many = str(tmp_path / "one.parquet"), str(tmp_path / "many.parquet")
    done = run(model, source, one, "-", "words", framework)
    assert done.returncode == 0, done.stderr[-3000:]
    spark = run(model, str(tmp_path / f"in.{kind}"), many, "local[2]", "words", framework)
    assert spark.returncode == 0, spark.stderr[-3000:]

    first, second = json.loads(done.stdout), json.loads(spark.stdout)
    for key in ("run_id", "rows", "errors"):
        assert first[key] == second[key]
    assert first["errors"] == 2
    assert {k: v for k, v in first["labels"].items() if v} == second["labels"]

    expected = {row["id"]: row for row in pq.read_table(one).to_pylist()}
    got = {row["id"]: row for row in pq.read_table(many).to_pylist()}
    assert sorted(got) == sorted(expected) == keys
    for key, row in expected.items():
        assert got[key]["label"] == row["label"]
        assert got[key]["error"] == row["error"]
        if row["scores"] is not None:
            np.testing.assert_allclose(got[key]["scores"], row["scores"], atol=1e-5)
            # Batches differ; with onnx no score depends on them.
            assert framework != "onnx" or got[key]["scores"] == row["scores"]
    assert not [name for name in os.listdir(tmp_path) if ".tmp-" in name]


@pytest.mark.full  # in every run where the ETL reads by this code: tests/etl/sources/test_csv.py
def test_an_unclosed_quote_is_refused_before_rows_are_lost_in_it(model, tmp_path):
    source = str(tmp_path / "in.csv")
    with open(source, "w") as file:
        file.write('key,words\n1,the cat\n2,"the\n3,cat\n')
    done = run(model, source, str(tmp_path / "out"), "local[1]", "words")
    assert done.returncode != 0
    assert "its closing quote is missing" in done.stderr
    assert f"{source}, line 3" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["export", "in.csv"]


@pytest.mark.full  # an unclosed quote takes the same way
def test_a_missing_column_is_one_message(model, tmp_path):
    source = str(tmp_path / "in.csv")
    with open(source, "w") as file:
        file.write("key,words\n1,the cat\n")
    done = run(model, source, str(tmp_path / "out"), "local[1]", "text")
    assert done.returncode != 0
    assert "DataError" in done.stderr
    assert "the source has no column 'text'" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["export", "in.csv"]


@pytest.mark.full  # in every run from partition to partition: tests/serving/scoring/test_score.py
def test_predictions_become_a_partition_of_a_hive_table(model, tmp_path):
    source = str(tmp_path / "in.jsonl")
    for texts in (["the cat", "of", "in"], ["the cat", None]):  # the second replaces the first
        with open(source, "w") as file:
            for number, text in enumerate(texts):
                file.write(json.dumps({"key": str(number), "words": text}) + "\n")
            file.write('{"key": 1.10, "words": "a number as its text"}\n')
        # without Hive's settings the metastore is in the working directory
        done = run(model, source, "table:2026_predicted", "local[1]", "words", cwd=str(tmp_path))
        assert done.returncode == 0, done.stderr[-3000:]
        summary = json.loads(done.stdout.splitlines()[-1])
        assert summary["rows"] == len(texts) + 1 and summary["run_id"] == "run-5"
    rows = pq.read_table(str(tmp_path / "spark-warehouse" / "2026_predicted")).to_pylist()
    assert sorted(row["id"] for row in rows) == ["0", "1", "1.10"]
    assert {row["run_id"] for row in rows} == {"run-5"}
    succeeded = {row["id"]: row["error"] is None for row in rows}
    assert succeeded == {"0": True, "1": False, "1.10": True}
    # and such a name is read as a table, not as a file that is missing
    done = run(model, "2026_predicted", str(tmp_path / "out"), "-", "words", cwd=str(tmp_path))
    assert "the source has no column 'words'" in done.stderr


# ------------------------------------------------------------------ what is there, and failures
# Several predictions in one session, as a notebook would make them.
SESSION = """
import json, sys
from howdah.config.data import SparkOptions
from howdah.errors import HowdahError
from howdah.spark.session import session
from howdah.serving.prediction.predict import predict

with session(SparkOptions(master="local[1]", driver_memory="1g"), hive=True):
    for words in json.loads(sys.argv[1]):
        try:
            print("DONE", json.dumps(predict(framework="torch", id_column="key",
                text_columns=["words"], **({"master": "local[1]"} | words))))
        except HowdahError as error:
            print("DONE", json.dumps(error.as_dict()))
"""


def in_one_session(*calls: dict, cwd: str) -> list[dict]:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", SESSION, json.dumps(calls)], cwd=cwd,
        env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("DONE ")]
    return [json.loads(line.removeprefix("DONE ")) for line in lines]


@pytest.mark.full  # in every run as rows, without a model: test_files.py
def test_odd_files_are_read_alike_by_spark_and_in_one_process(model, tmp_path):
    (tmp_path / "in").mkdir()
    sources = odd_files(tmp_path / "in")
    masters = {"one": None, "many": "local[1]"}
    calls = [
        {"source": source, "output": str(tmp_path / f"{name}-{how}.parquet"), "master": master}
        for name, source in sources.items()
        for how, master in masters.items()
    ]
    done = in_one_session(*({"model": model, **call} for call in calls), cwd=str(tmp_path))
    for (name, source), first, second in zip(sources.items(), done[::2], done[1::2], strict=True):
        for key in ("error", "what", "where", "got", "rows", "errors"):
            assert first.get(key) == second.get(key), (source, key, first, second)
        assert ("what" in first) == (name in REFUSED), (name, first)
        if name not in REFUSED:
            one, many = (
                sorted(
                    (*alike(row["id"], row["error"]), row["label"] or "")
                    for row in pq.read_table(tmp_path / f"{name}-{how}.parquet").to_pylist()
                )
                for how in masters
            )
            assert one == many, name


def put_rows(directory, *keys: str) -> str:
    directory.mkdir()
    rows = {"key": list(keys), "words": ["the cat"] * len(keys)}
    pq.write_table(pa.table(rows), directory / "part.parquet", use_dictionary=False)
    return str(directory)


def with_damaged_pages(directory) -> str:
    """A source that Spark fails on while it reads: the footer is whole, the pages are not."""
    source = put_rows(directory, *(f"k{n}" for n in range(400)))
    path = directory / "part.parquet"
    data = bytearray(path.read_bytes())
    data[4:1500] = b"\xff" * 1496
    path.write_bytes(data)
    return source


@pytest.mark.full  # storage.commit's crash tests are in every run
def test_an_overwritten_output_stays_until_the_new_one_is_whole(model, tmp_path):
    one, two = put_rows(tmp_path / "one.parquet", "a", "b"), put_rows(tmp_path / "two.parquet", "c")
    none = put_rows(tmp_path / "none.parquet")
    damaged = with_damaged_pages(tmp_path / "damaged.parquet")
    with open(tmp_path / "three.tsv", "w") as file:
        file.write("key\twords\nt\tthe cat, the dog\n")
    out, table = str(tmp_path / "out"), "table:predicted"
    tsv = {"source": str(tmp_path / "three.tsv"), "output": str(tmp_path / "tabs")}
    calls = [tsv] + [
        {"source": source, "output": output, "overwrite": True}
        for output in (out, table)
        for source in (one, damaged, none, two)
    ]
    days = [(one, "2026-11-01"), (two, "2026-11-02"), (two, "2026-11-01")]
    batched = [{"source": rows, "output": "table:daily", "batch": day} for rows, day in days]
    script = [{"model": model, **call} for call in [*calls[:-1], *batched]]
    tabs, *done = in_one_session(*script, cwd=str(tmp_path))
    # a batch stays when the same model classifies another one, and is replaced by itself
    daily = pq.read_table(str(tmp_path / "spark-warehouse" / "daily")).to_pylist()
    assert {row["run_id"] for row in daily} == {"run-5"}
    batches = sorted((str(row["batch"]), row["id"]) for row in daily)
    assert batches == [("2026-11-01", "c"), ("2026-11-02", "c")]
    assert done.pop(-3)["rows"] == 2 and [done.pop()["rows"], done.pop()["rows"]] == [1, 1]
    assert tabs["rows"] == 1 and pq.read_table(tsv["output"])["id"].to_pylist() == ["t"]
    for first, *failed in (done[:3], done[4:]):
        assert first["rows"] == 2
        assert [summary["error"] for summary in failed] == ["ClusterError", "DataError"]
        assert "no rows" in failed[1]["what"]
    assert done[3]["rows"] == 1
    assert pq.read_table(out)["id"].to_pylist() == ["c"]
    partition = tmp_path / "spark-warehouse" / "predicted"
    assert sorted(pq.read_table(str(partition))["id"].to_pylist()) == ["a", "b"]
    # One worker classified all rows, and opened the model once.
    assert {summary["workers"]["opened"] for summary in (tabs, done[0], done[3], done[4])} == {1}

    (last,) = in_one_session({"model": model, **calls[-1]}, cwd=str(tmp_path))
    assert last["rows"] == 1
    assert pq.read_table(str(partition))["id"].to_pylist() == ["c"]
    hidden = [name for _, names, _ in os.walk(tmp_path) for name in names if ".old-" in name]
    hidden += [name for _, names, _ in os.walk(tmp_path) for name in names if ".tmp-" in name]
    assert hidden == []
