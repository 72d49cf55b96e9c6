"""`howdah partition` of files and markers; `howdah model published`. Tables: airflow/daily."""

from __future__ import annotations

import json

import pytest

from howdah.cli import app, run
from howdah.config.loader import from_dict
from howdah.errors import ConfigError
from howdah.spark import days


def answer_of(words, capsys):
    """(exit code, the JSON object) of a command in this process."""
    code = run(lambda: app([*words, "--json"], standalone_mode=False), as_json=True)
    return code, json.loads(capsys.readouterr().out)


def test_files_of_a_day_are_looked_for_at_its_path(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("text,label\n")
    command = ["partition", "--source", f"{tmp_path}/in/{{ds}}.csv", "--partition", "ds=1"]
    assert answer_of(command, capsys)[1]["there"] is True
    code, answer = answer_of([*command, "--partition", "ds=2"], capsys)
    assert (code, answer["there"], answer["missing"]) == (0, False, ["ds=2"])


def test_a_directory_is_there_once_it_has_a_file_that_is_no_marker_and_a_marker_at_once(tmp_path):
    day, config = tmp_path / "ds=1", from_dict({"data": {"source": f"{tmp_path}/ds={{ds}}"}})

    def missing(ready=None):
        return days.search(config, ["ds=1"], source=None, ready=ready).missing()

    assert missing() == ["ds=1"]
    (day / "part").mkdir(parents=True)
    (day / "_SUCCESS").touch()
    (day / "part" / ".tmp-1").touch()
    assert missing() == ["ds=1"]
    assert missing(f"{tmp_path}/ds={{ds}}/_SUCCESS") == []
    (day / "part" / "a.parquet").touch()
    assert missing() == []
    pattern = from_dict({"data": {"source": f"{tmp_path}/ds={{ds}}/part/*.parquet"}})
    assert days.search(pattern, ["ds=1"], source=None, ready=None).missing() == []
    (day / "part" / "a.parquet").unlink()
    (day / "hour=1").mkdir()
    for parts in ("ds={ds}/*", "ds={ds}/hour=*"):  # markers and empty directories are not rows
        source = from_dict({"data": {"source": f"{tmp_path}/{parts}"}})
        assert days.search(source, ["ds=1"], source=None, ready=None).missing() == ["ds=1"]
    assert missing(f"{tmp_path}/ds={{ds}}/_SUCC*") == []


def test_what_is_a_table_is_left_to_the_metastore():
    table = from_dict({"data": {"source": "news.csv", "format": "hive"}})
    assert days.search(table, ["ds=1"], source=None, ready=None).paths == {}
    assert days.search(table, ["ds=1"], source="other.csv", ready=None).paths
    assert days.search(from_dict({}), ["ds=1"], source="a.b", ready=None).paths == {}
    with pytest.raises(ConfigError, match="which table or files"):
        days.search(from_dict({}), ["ds=1"], source=None, ready=None)


def test_a_policy_judges_the_path_that_the_partition_completes(tmp_path, capsys):
    (tmp_path / "policy.yaml").write_text(json.dumps({"roots": [str(tmp_path / "in")]}))
    base = ["--policy", str(tmp_path / "policy.yaml"), "partition", "--partition", "ds=1"]
    code, _ = answer_of([*base, "--source", f"{tmp_path}/in/{{ds}}"], capsys)
    assert code == 0
    code, refused = answer_of([*base, "--source", f"{tmp_path}/out/{{ds}}"], capsys)
    assert code == 2 and "roots" in str(refused["problems"])
    code, refused = answer_of([*base, "--source", "hr.pay"], capsys)
    assert code == 2 and "tables" in str(refused["problems"])
    answer_of(["config", "explain", "run.name"], capsys)  # without the policy again


def test_published_says_which_version_is_current(tmp_path, capsys):
    words = [
        "model",
        "published",
        "--set",
        f"publish.directory={tmp_path}",
        "--set",
        "publish.name=m",
    ]
    assert answer_of(words, capsys)[1] == {
        "model": f"{tmp_path}/m",
        "versions": [],
        "current": None,
    }
    entry = {"version": 2, "published": "2026-11-01T00:00:00+00:00", "by": "me@host", "order": [2]}
    (tmp_path / "m" / "history").mkdir(parents=True)
    (tmp_path / "m" / "history" / "000001.json").write_text(json.dumps(entry))
    (tmp_path / "m" / "v=2").mkdir()
    (tmp_path / "m" / "v=2" / "manifest.json").write_text("{}")
    answer = answer_of(words, capsys)[1]
    assert answer["versions"] == [2]
    assert (answer["current"]["version"], answer["current"]["by"]) == (2, "me@host")
    assert answer["current"]["path"] == f"{tmp_path}/m/v=2"
