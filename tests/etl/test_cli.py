"""`howdah etl` as a script sees it: exit codes, one JSON object, nothing half-written."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pyspark
import pytest

from howdah.config import loader as config_module
from howdah.core.processes import marked
from howdah.errors import ClusterError
from howdah.spark import session as etl_spark
from tests.fixtures.spark import FEW_JOBS, etl
from tests.support.waiting import wait_until


def _config(tmp_path, base, **data):
    settings = {
        "data": {
            "dataset": str(tmp_path / "dataset"),
            "spark": {"master": "local[1]"},
            **FEW_JOBS,
            **data,
        },
        "model": {"base": base},
    }
    path = tmp_path / "run.yaml"
    path.write_text(config_module.dump_yaml(config_module.from_dict(settings)))
    return str(path)


def _csv(tmp_path, rows):
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    return str(path)


def _fails(capsys, argv, code):
    assert etl([*argv, "--json"]) == code
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert out.count("\n") == 1 and answer["exit_code"] == code
    assert "Traceback" not in err and answer["what"] in err
    return answer


def test_bad_configuration_and_source_before_spark_starts(tmp_path, tiny_model_dir, capsys):
    config = _config(tmp_path, tiny_model_dir, source=str(tmp_path / "nothing.csv"))
    answer = _fails(capsys, ["--config", config], 3)
    assert "nothing.csv" in answer["where"]
    _fails(capsys, ["--config", config, "--set", "data.sauce=x"], 2)
    _fails(capsys, ["--config", config, "--set", "data.source=null"], 2)
    source = _csv(tmp_path, [("some text", "a"), ("other text", "b")])
    no_model = ["--set", f"data.source={source}", "--set", f"model.base={tmp_path}/none"]
    _fails(capsys, ["--config", config, *no_model], 4)
    assert not (tmp_path / "dataset").exists()


@pytest.mark.spark
@pytest.mark.parametrize(
    ("rows", "data", "what"),
    [
        ([], {}, "the source is empty"),
        ([("one text", "a"), ("two texts", "a")], {}, "at least two labels"),
        ([("one text", "a"), ("two texts", "z")], {"labels": ["a", "b"]}, "does not list"),
        ([("x", "a"), ("y", "b"), ("a good text", "a")], {}, "too many rows are rejected"),
        (
            [("one text", "a"), ("two texts", "b")],
            {"split": {"test": 0.99, "validation": 0.0}},
            "no row is left for training",
        ),
    ],
)
def test_bad_rows_fail_with_code_3_and_leave_nothing(
    spark, tmp_path, tiny_model_dir, capsys, rows, data, what
):
    config = _config(tmp_path, tiny_model_dir, source=_csv(tmp_path, rows), **data)
    answer = _fails(capsys, ["--config", config], 3)
    assert what in answer["what"]
    left = tmp_path / "dataset"
    assert not left.exists() or os.listdir(left) == []


@pytest.mark.spark
def test_a_good_run_prints_one_object_and_then_unchanged(spark, tmp_path, tiny_model_dir, capsys):
    rows = [(f"text of row {n} and {n * 7919}", "ab"[n % 2]) for n in range(40)]
    config = _config(tmp_path, tiny_model_dir, source=_csv(tmp_path, rows))
    assert etl(["--config", config, "--json"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert sum(answer["rows"].values()) == 40 and not answer["unchanged"]
    assert f"committed {answer['dataset']}" in err
    assert etl(["--config", config, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["unchanged"] and again["dataset"] == answer["dataset"]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.full)],
)
def test_a_signal_ends_it_and_leaves_nothing(tmp_path, tiny_model_dir, number, code):
    rows = [(f"text of row {n} and {n * 7919}", "ab"[n % 2]) for n in range(400)]
    config = _config(tmp_path, tiny_model_dir, source=_csv(tmp_path, rows))
    process = subprocess.Popen(
        [sys.executable, "-m", "howdah.cli", "etl", "--config", config],
        stderr=subprocess.PIPE,
        text=True,
    )
    dataset = tmp_path / "dataset"
    try:
        deadline = time.monotonic() + 120
        while not list(dataset.glob("v=*/_run-*.json")):  # its lease: the work has begun
            assert process.poll() is None and time.monotonic() < deadline, "it never began"
            time.sleep(0.02)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == code, err
    quiet(err)
    assert "nothing was committed" in err
    assert list(dataset.iterdir()) == []


def quiet(err):
    """Nothing of Python's, Py4J's or the JVM's own comes between Howdah's lines."""
    assert not re.search(r"Traceback|Exception|ERROR|^\s+at ", err, re.MULTILINE), err


SLOW_JAVA = """#!/bin/sh
case "$*" in
*launcher.Main*) ;;
*deploy.SparkSubmit*) touch {begun}; sleep 1; touch {goes_on} ;;
esac
exec {java} "$@"
"""


@pytest.mark.spark
def test_a_signal_while_the_jvm_starts_leaves_no_jvm(tmp_path, tiny_model_dir):
    """One that starts late finds no file for its port, and would stay without a parent."""
    home, begun, goes_on = tmp_path / "java", tmp_path / "begun", tmp_path / "goes-on"
    (home / "bin").mkdir(parents=True)
    java = os.path.realpath(shutil.which("java"))
    slow = home / "bin" / "java"
    slow.write_text(SLOW_JAVA.format(begun=begun, goes_on=goes_on, java=java))
    slow.chmod(0o755)
    rows = [(f"text of row {n} and {n * 7919}", "ab"[n % 2]) for n in range(40)]
    config = _config(tmp_path, tiny_model_dir, source=_csv(tmp_path, rows))
    mark = str(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "howdah.cli", "etl", "--config", config],
        env={**os.environ, "JAVA_HOME": str(home), "MARK": mark},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(begun.exists)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, err
    quiet(err)
    wait_until(lambda: not marked("MARK", mark))
    assert not goes_on.exists()


@pytest.mark.spark
@pytest.mark.full
def test_a_signal_at_any_moment_is_one_message(tmp_path, tiny_model_dir):
    rows = [(f"text of row {n} and {n * 7919}", "ab"[n % 2]) for n in range(400)]
    config = _config(tmp_path, tiny_model_dir, source=_csv(tmp_path, rows))
    command = [sys.executable, "-m", "howdah.cli", "etl", "--config", config]
    mark = str(tmp_path)
    for tenths in range(4, 120, 3):
        process = subprocess.Popen(
            command, env={**os.environ, "MARK": mark}, stderr=subprocess.PIPE, text=True
        )
        try:
            try:
                process.wait(tenths / 10)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=120)
        finally:
            process.kill()
        quiet(err)
        wait_until(lambda: not marked("MARK", mark))
        if process.returncode == 0:
            break
        assert process.returncode == 130, err


def test_java_that_is_missing_or_old_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ClusterError, match="Spark needs Java, but none was found"):
        etl_spark.require_java(pyspark.__path__[0])
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.7.0_80\"' >&2\n")
    java.chmod(0o755)
    with pytest.raises(ClusterError, match="does not run on Java 7") as caught:
        etl_spark.require_java(pyspark.__path__[0])
    assert "1.7.0_80" in caught.value.got and "17" in caught.value.expected
