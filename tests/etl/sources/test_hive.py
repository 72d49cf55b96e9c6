"""Tables of a real metastore on a real HDFS: partitions, queries, what Spark would read wrongly."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from howdah.config import loader as config_module
from howdah.config.model import Config
from howdah.errors import ConfigError, DataError
from howdah.etl import pipeline
from howdah.etl.sources import hive
from howdah.etl.sources import source as sources
from howdah.etl.sources.source import Source
from howdah.spark.paths import path_of


@pytest.fixture(scope="module")
def answers(cluster, tmp_path_factory, tiny_model_dir):
    """What tests/workers/hive.py found; one JVM for all of it."""
    cluster.restore()
    name = f"/test/hive-{tmp_path_factory.mktemp('hive').name}"
    cluster.make_dir(name)
    argv = [sys.executable, "-m", "tests.workers.hive", cluster.metastore_uri]
    argv += [cluster.hdfs_url + name, tiny_model_dir]
    done = subprocess.run(
        argv, env=cluster.env, capture_output=True, text=True, timeout=280, check=False
    )
    cluster.remove(name)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def _rows(answer):
    assert "error" not in answer, answer
    rows = answer["rows"]
    return rows if isinstance(rows, int) else sum(rows.values())


@pytest.mark.hadoop
@pytest.mark.spark
def test_partitions_are_chosen_and_listed_in_the_manifest(answers):
    assert _rows(answers["whole"]) == 120 and _rows(answers["two_days"]) == 80
    source = answers["two_days"]["source"]
    assert [name for name, _ in source["partitions"]] == ["ds=2026-01-01", "ds=2026-01-03"]
    assert all(place.startswith("hdfs://") for _, place in source["partitions"])
    assert source["files"] and all("2026-01-02" not in path for path, *_ in source["files"])
    again = answers["two_days_again"]
    assert again["unchanged"] and again["hash"] == answers["two_days"]["hash"]
    assert len(answers["whole"]["source"]["partitions"]) == 3


@pytest.mark.hadoop
@pytest.mark.spark
def test_a_text_table_changes_with_its_own_partitions_only(answers):
    assert _rows(answers["text_table"]) == 40
    assert answers["text_other_day_grew"] == answers["text_table"]
    grew = answers["text_table_grew"]
    assert grew["source"] != answers["text_table"]["source"] and _rows(grew) == 41
    slash = answers["slash"]
    assert _rows(slash) == 1
    assert [name for name, _ in slash["source"]["partitions"]] == ["ds=2026%2F02%2F01"]


@pytest.mark.hadoop
@pytest.mark.spark
def test_a_query_is_a_source_and_its_files_its_state(answers):
    assert _rows(answers["query"]) == 40 and len(answers["query"]["source"]["query"]) == 64
    assert answers["query_again"]["unchanged"]
    assert not any("are usable" in line for line in answers["query_again"]["lines"])
    grew = answers["query_grew"]
    assert _rows(grew) == 41 and grew["source"]["files"] != answers["query"]["source"]["files"]
    assert _rows(answers["query_now"]) == 121 and "rows" in answers["query_now"]["source"]
    # Spark does not list the files of a subquery: its rows are the state
    assert _rows(answers["subquery"]) == 121 and "rows" in answers["subquery"]["source"]
    assert _rows(answers["view"]) == 121 and answers["view"]["source"]["files"]


@pytest.mark.hadoop
@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [
        ("no_such_day", "no such partition", "SHOW PARTITIONS"),
        ("no_such_column", "not partitioned by day", "data.query_file"),
        ("no_such_table", "no such table", "metastore"),
        ("query_random", "different rows each time", "hash"),
        ("query_drops", "one SELECT", "only reads"),
        ("transactional", "transactional (ACID)", "CREATE EXTERNAL TABLE"),
        ("query_transactional", "transactional (ACID)", "CREATE EXTERNAL TABLE"),
        ("subquery_transactional", "transactional (ACID)", "CREATE EXTERNAL TABLE"),
        ("presto_view", "Presto or Trino", "CREATE EXTERNAL TABLE"),
        ("materialized", "materialised view", "CREATE EXTERNAL TABLE"),
        ("rejects_wrong", "other columns", "another table"),
    ],
)
def test_what_cannot_be_read_rightly_is_refused(answers, name, what, remedy):
    error = answers[name]["error"]
    assert what in error["what"] and remedy in error["remedy"] and error["exit_code"] == 3


@pytest.mark.hadoop
@pytest.mark.spark
def test_rejected_rows_come_as_a_table_too(answers):
    rejected = answers["rejected"]
    assert [row["reason"] for row in rejected] == ["empty", "too_short"]
    assert {row["dataset"] for row in rejected} == {answers["rejects"]["hash"]}


def test_the_configuration_refuses_what_does_not_go_together():
    for data in (
        {"partitions": {"ds": ["1"]}, "source": "a.csv"},
        {"query_file": "q.sql", "source": "t", "format": "hive"},
        {"spark": {"keytab": "/k"}},
    ):
        with pytest.raises(ConfigError):
            config_module.from_dict({"data": data})
    made = config_module.from_dict(
        {"data": {"format": "hive", "source": "t", "partitions": {"year": 2026, "m": [1, 2]}}}
    )
    assert made.data.partitions == {"year": ["2026"], "m": ["1", "2"]}


def test_paths_of_a_catalogue_become_storage_paths():
    assert path_of("file:/a%20b/ds=1") == "/a b/ds=1"
    assert path_of("hdfs://nn:8020/w/ds=a%3Ab") == "hdfs://nn:8020/w/ds=a:b"


def test_a_version_depends_on_what_is_read_not_on_how_it_was_asked_for():
    encoder = SimpleNamespace(hash="tokenizer")
    table = Source(kind="hive", name="t", identity={"files": [["hdfs://nn/t/ds=1/a", 7, 1.0]]})

    def version(**data):
        config = config_module.from_dict({"data": {"format": "hive", **data}})
        return pipeline.dataset_hash(config, table, encoder)

    first = version(source="t", partitions={"ds": ["1", "2"]})
    assert first == version(source="t", partitions={"ds": ["2", "1"]})
    assert first == version(query_file="q.sql")
    assert first == version(source="t", rejects_table="rejects")
    assert first != version(source="t", max_length=64)


@pytest.mark.parametrize(
    ("query", "reads"),
    [
        ("\ufeffSELECT 1", True),  # as Windows writes it
        ("-- news\n/* of\nlast year */ select 1", True),
        ("(SELECT 1) UNION ALL (SELECT 2)", True),
        ("/* a */\n" * 200 + "INSERT INTO t VALUES (1)", False),  # as fast as one comment
        ("INSERT INTO t SELECT 1", False),
    ],
)
def test_a_query_begins_as_one_behind_comments_and_brackets(tmp_path, query, reads):
    path = tmp_path / "q.sql"
    path.write_text(query)
    data = config_module.from_dict({"data": {"format": "hive", "query_file": str(path)}}).data
    assert hive.is_select(sources.resolve(data).query) == reads


def test_of_a_file_that_is_no_query_nothing_is_shown():
    """data.query_file may name any file that the process can read."""
    secret = Source(kind="hive", name="/etc/shadow", query="root:hunter2:19000:0:99999:7:::")
    with pytest.raises(DataError) as caught:
        hive.read(None, secret, Config().data)
    assert "hunter2" not in str(caught.value)
    assert "one SELECT" in str(caught.value)
