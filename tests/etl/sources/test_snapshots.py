"""Iceberg, Delta and Avro: real tables and files, read with the connectors from Maven."""

import json
import os
import subprocess
import sys

import pytest

from howdah.config import loader as config_module
from howdah.config.data import DataSection
from howdah.config.options.source import moment_of
from howdah.errors import ConfigError
from howdah.etl.sources import given
from howdah.spark import connectors
from tests import ROOT


def scenarios(kind, tmp_path, base, python=sys.executable):
    """What tests/workers/connectors.py found."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [python, "-m", "tests.workers.connectors", kind, str(tmp_path), base]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def rows(result):
    return sum(result["rows"].values())


def snapshot(result):
    return result["source"]["snapshot"]


def judge_snapshots(results):
    newest, older = results["newest"], results["older"]
    assert (rows(newest), newest["unchanged"]) == (80, False), results
    assert (rows(older), older["unchanged"]) == (40, False), results
    assert older["hash"] != newest["hash"]
    # by whichever words a snapshot was asked for, it is the same source
    for name in ("newest_again", "pinned", "by_time"):
        assert (
            results[name]["source"].items() <= newest["source"].items()
            and rows(results[name]) == 80
        )
    after = results["pinned_after"]  # though the table has a newer one
    assert (after["hash"], after["unchanged"]) == (newest["hash"], True)
    assert rows(results["appended"]) == 120
    assert len({snapshot(results[name]) for name in ("older", "newest", "appended")}) == 3
    assert snapshot(results["by_path"]) == snapshot(older) and rows(results["by_path"]) == 40
    for name in ("before_all", "unknown"):
        error = results[name]["error"]
        assert "no such snapshot" in error["what"], error
        assert error["where"].startswith("data.as_of") and str(snapshot(newest)) in error["got"]
    assert results["no_table"]["error"]["error"] == "DataError"


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.timeout(1200)  # several ETLs, and jars that are fetched
def test_a_delta_tables_version_is_pinned(tmp_path, tiny_model_dir):
    results = scenarios("delta", tmp_path, tiny_model_dir)
    judge_snapshots(results)
    assert snapshot(results["replaced"]) == snapshot(results["older"])  # of another table
    assert results["replaced"]["source"]["id"] != results["older"]["source"]["id"]


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.timeout(1200)  # the first time the environment is fetched
def test_an_iceberg_tables_snapshot_is_pinned(spark35_python, tmp_path, tiny_model_dir):
    judge_snapshots(scenarios("iceberg", tmp_path, tiny_model_dir, spark35_python))


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.timeout(1200)  # several ETLs, and jars that are fetched
def test_avro_files_are_read_and_their_columns_compared(tmp_path, tiny_model_dir):
    results = scenarios("avro", tmp_path, tiny_model_dir)
    assert rows(results["auto"]) == 80 and results["auto"]["source"]["kind"] == "avro"
    error = results["other_columns"]["error"]
    assert "Avro files do not have the same columns" in error["what"]
    assert "ds=2026-01-03" in error["where"] + error["expected"]


# ------------------------------------------------------------------------------ without Spark
@pytest.mark.parametrize(
    ("text", "value"),
    [("as_of: 7", 7), ("as_of: '7'", 7), ("as_of: 2026-11-01", "2026-11-01"),
     ("as_of: 2026-11-01T06:00:00Z", "2026-11-01T06:00:00+00:00")],
)  # fmt: skip
def test_a_snapshot_is_a_number_or_a_time(tmp_path, text, value):
    path = tmp_path / "run.yaml"
    path.write_text("data: {format: delta, source: /t, " + text + "}\n")
    assert config_module.load(str(path)).data.as_of == value


@pytest.mark.parametrize("data", [{"as_of": "soon"}, {"as_of": -1}, {"as_of": True}])
def test_what_names_no_snapshot_is_refused(data):
    with pytest.raises(ConfigError, match="as_of"):
        config_module.from_dict({"data": {"format": "delta", "source": "/t", **data}})


def test_a_snapshot_is_of_formats_that_keep_them():
    with pytest.raises(ConfigError, match="as_of needs format: iceberg or delta"):
        config_module.from_dict({"data": {"source": "/t.csv", "as_of": 1}})


def test_a_time_without_zone_is_utc():
    assert moment_of("2026-11-01T06:00:00") == moment_of("2026-11-01T07:00:00+01:00")


def test_a_number_is_of_one_table_and_a_time_of_all():
    data = {"source": "/t", "format": "delta", "split": {"sources": {"test": "/held-out"}}}
    for as_of, kept in ((3, None), ("2026-11-01", "2026-11-01")):
        section = DataSection.model_validate({**data, "as_of": as_of})
        assert given.data_of(section, "test").as_of == kept


def test_a_directory_is_a_path_and_a_name_a_table():
    def names_table(form, source):
        return DataSection(format=form, source=source).names_table

    assert names_table("iceberg", "lake.db.t") and names_table("delta", "t")
    assert not names_table("delta", "hdfs:///t") and not names_table("iceberg", "/a/b")
    assert names_table("jdbc", "public.t") and not names_table("csv", "t")


@pytest.mark.parametrize(("spark", "scala"), [("4.2.1", "2.13"), ("3.5.9", "2.13")])
def test_a_spark_without_a_connector_is_refused_before_it_starts(monkeypatch, spark, scala):
    monkeypatch.setattr(connectors.spark_versions, "version_of", lambda home: spark)
    monkeypatch.setattr(connectors.spark_versions, "scala_of", lambda home: scala)
    config = config_module.from_dict({"data": {"format": "iceberg", "source": "lake.db.t"}})
    with pytest.raises(ConfigError, match="no connector for iceberg") as caught:
        connectors.settings(config, print)
    assert "3.5" in caught.value.expected and "data.spark.home" in caught.value.remedy
    jar = {"spark": {"conf": {"spark.jars": "/x/iceberg-spark-runtime-9.jar"}}}
    config = config_module.from_dict({"data": {"format": "iceberg", "source": "t", **jar}})
    assert connectors.settings(config, print) == {}


def test_lists_of_jars_are_joined_and_other_settings_are_the_users():
    ours = {"spark.jars": "a.jar", "spark.sql.extensions": "A", "x": "1"}
    theirs = {"spark.jars": "b.jar", "x": "2"}
    assert connectors.joined(ours, theirs) == {
        "spark.jars": "a.jar,b.jar", "spark.sql.extensions": "A", "x": "2",
    }  # fmt: skip
