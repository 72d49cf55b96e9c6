"""`howdah score` on YARN: nothing installed on the nodes, the model on HDFS; Kerberos."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from howdah import storage
from howdah.config import loader as config_module
from howdah.hadoop.resourcemanager import APPLICATION
from howdah.packaging.staging import PACKAGES
from tests.fixtures.etl_yarn import SPARK
from tests.serving.scoring.test_score import descendants, made_model
from tests.support.hadoop.kerberos_users import become_alice, ticket
from tests.support.models.versions import manifest_of
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.hadoop, pytest.mark.spark, pytest.mark.timeout(2400)]

# Makes or reads tables of the metastore, in a process of its own: STATEMENT...
SQL = """
import json, sys
from howdah.config.data import SparkOptions
from howdah.spark.session import session
conf = {"spark.sql.shuffle.partitions": "1"}
options = SparkOptions(master="local[1]", driver_memory="640m", conf=conf)
with session(options, hive=True) as spark:
    for statement in sys.argv[1:]:
        found = [row.asDict() for row in spark.sql(statement).collect()]
print("FOUND " + json.dumps(found, default=str))
"""
DAYS = ("2026-11-01", "2026-11-02")
LIMIT = 900.0
"""Seconds that detect a hang."""


class Scoring:
    """`howdah score` on the cluster, with a published model and tables on its HDFS."""

    def __init__(self, cluster, directory, base_dir, place, *, env=None, spark=None):
        self.cluster, self.directory, self.place = cluster, directory, place
        self.env = {**cluster.env, "PYTHONPATH": os.getcwd(), **(env or {})}
        self.name = "score_" + directory.rpartition("/")[2]
        assert cluster.metastore_uri  # starts it, and writes hive-site.xml
        exported = made_model(str(place / "export"), base_dir, "run-5", 5)
        self.model = f"{directory}/models/news"
        for entry in os.listdir(exported):
            storage.upload(os.path.join(exported, entry), f"{self.model}/v=1/{entry}")
        current = json.dumps({"version": 1}).encode()
        storage.write_whole(f"{self.model}/v=1/manifest.json", manifest_of(exported).encode())
        storage.write_whole(f"{self.model}/history/000001.json", current)
        storage.write_whole(f"{self.model}/current.json", current)
        made = config_module.from_dict({"data": {"spark": {**SPARK, **(spark or {})}}})
        self.config = str(place / "score.yaml")
        (place / "score.yaml").write_text(config_module.dump_yaml(made))
        self.sql(
            f"CREATE DATABASE {self.name} LOCATION '{directory}/{self.name}.db'",
            f"CREATE TABLE {self.name}.texts (key string, words string)"
            " PARTITIONED BY (ds string) STORED AS ORC",
            *(self.inserted(day, 25) for day in DAYS),
        )

    def inserted(self, day, count, text="'the cat'"):
        values = ", ".join(f"('{day[-2:]}-{n}', {text})" for n in range(count))
        return f"INSERT INTO {self.name}.texts PARTITION (ds='{day}') VALUES {values}"

    def sql(self, *statements):
        """Rows of the last statement."""
        done = subprocess.run(
            [sys.executable, "-c", SQL, *statements], env=self.env, cwd=self.place,
            capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
        return json.loads(line.removeprefix("FOUND "))

    def words(self, *more):
        tables = ["--source", f"{self.name}.texts", "--output", f"{self.name}.scored"]
        return [
            sys.executable, "-m", "howdah.cli", "score", "--config", self.config,
            "--model", self.model, *tables, *more, "--json",
        ]  # fmt: skip

    def run(self, *words):
        """(exit code, the JSON object, stderr)."""
        done = subprocess.run(
            self.words(*words), env=self.env, cwd=self.place, capture_output=True, text=True,
            timeout=LIMIT, check=False,
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return done.returncode, json.loads(lines[-1]) if lines else None, done.stderr

    def killed(self, what):
        """(exit code, stderr) of a command of which a process is killed once it scores.

        Args:
            what: part of that process's command line.
        """
        log = self.place / f"killed-{what}.txt"
        with log.open("w") as file:
            process = subprocess.Popen(
                self.words("--since", f"ds={DAYS[0]}"), env=self.env, cwd=self.place,
                stdout=subprocess.DEVNULL, stderr=file,
            )  # fmt: skip
        try:
            wait_until(lambda: process.poll() is not None or "1 of 2" in log.read_text(), LIMIT)
            inside = {process.pid: " ".join(process.args), **descendants(process.pid)}
            (victim,) = [pid for pid, line in inside.items() if what in line]
            os.kill(victim, signal.SIGKILL)
            return process.wait(LIMIT), log.read_text()
        finally:
            process.kill()

    def state(self, log):
        """YARN's final state of the application that a command's stderr names, once it has one."""
        application = APPLICATION.search(log).group()

        def ended():
            done = self.cluster.run("yarn", "application", "-status", application, env=self.env)
            (line,) = [line for line in done.stdout.splitlines() if "Final-State" in line]
            state = line.rpartition(":")[2].strip()
            return None if state == "UNDEFINED" else state

        return wait_until(ended, LIMIT)

    def check(self):
        """Both days are scored in one application, by the shipped environment; then none is."""
        code, answer, err = self.run("--since", f"ds={DAYS[0]}")
        assert code == 0, err
        assert [one["state"] for one in answer["partitions"]] == ["scored"] * 2
        assert answer["application"].startswith("application_") and answer["framework"] == "onnx"
        about = answer["workers"]
        assert about["count"] >= 1 and about["opened"] == 1
        nodes = os.path.realpath(self.cluster.directory)
        for prefix in about["python"]:
            assert os.path.realpath(prefix).startswith(nodes) and "/howdah-score-" in prefix
        rows = self.sql(f"SELECT * FROM {self.name}.scored ORDER BY id")
        assert sorted(row["id"] for row in rows) == sorted(
            f"{day[-2:]}-{n}" for day in DAYS for n in range(25)
        )
        assert {(row["model"], row["model_version"], row["error"]) for row in rows} == {
            ("news", 1, None)
        }
        marker = f"{self.model}/scored/{self.name}.scored/ds={DAYS[0]}/done.json"
        assert storage.read_json(marker)["rows"] == 25
        self.sql(self.inserted(DAYS[1], 3))
        code, answer, err = self.run("--partition", f"ds={DAYS[0]}")
        assert code == 0, err
        assert answer["application"] is None and answer["partitions"][0]["state"] == "skipped"
        # A command that fails at last has no application that succeeded.
        self.sql(self.inserted("2026-11-03", 4, "NULL"))
        code, answer, err = self.run("--partition", "ds=2026-11-03")
        assert code == 3 and answer["error"] == "TooManyErrors", err
        assert self.state(err) == "KILLED"


@pytest.mark.full  # in every run: predictions by onnx on YARN (tests/serving/prediction)
def test_from_a_partition_to_a_partition_with_nothing_on_the_nodes(
    healthy_cluster, hadoop_env, hdfs_dir, tiny_model_dir, tmp_path
):
    scoring = Scoring(healthy_cluster, hdfs_dir, tiny_model_dir, tmp_path)
    try:
        scoring.check()
        staged = [
            entry
            for entry in storage.list_dir(storage.join(_staging(scoring), PACKAGES))
            if entry.name.startswith("howdah-score-")
        ]
        assert staged and max(entry.size for entry in staged) < 150 * 2**20
    finally:
        healthy_cluster.end_applications()


def _staging(scoring):
    from howdah.config.loader import load
    from howdah.packaging import cluster_paths

    config = load(scoring.config, [])
    return cluster_paths.staging(config, config.data.spark)


@pytest.mark.full
def test_an_application_whose_command_was_killed_has_failed(
    healthy_cluster, hadoop_env, hdfs_dir, tiny_model_dir, tmp_path
):
    scoring = Scoring(healthy_cluster, hdfs_dir, tiny_model_dir, tmp_path)
    try:
        for what, code in (("howdah.cli", -9), ("org.apache.spark.deploy.SparkSubmit", 5)):
            ended, output = scoring.killed(what)
            assert ended == code, output
            assert scoring.state(output) == "FAILED", what
    finally:
        healthy_cluster.end_applications()


@pytest.mark.full
def test_the_same_with_kerberos_and_a_keytab_alone(
    secure_cluster, secure_dir, tiny_model_dir, tmp_path, monkeypatch
):
    become_alice(secure_cluster, tmp_path, monkeypatch)
    spark = {
        "keytab": str(secure_cluster.keytab("alice")),
        "principal": secure_cluster.principal("alice"),
    }
    env = ticket(secure_cluster, tmp_path, "alice", "sql")
    scoring = Scoring(secure_cluster, secure_dir, tiny_model_dir, tmp_path, env=env, spark=spark)
    cluster_env = dict(scoring.env)
    run, none = scoring.run, {"KRB5CCNAME": f"FILE:{tmp_path}/none", "KRB5_CLIENT_KTNAME": "/none"}

    def by_keytab(*words):
        scoring.env = {**cluster_env, **none}
        try:
            return run(*words)
        finally:
            scoring.env = cluster_env

    scoring.run = by_keytab
    scoring.check()
