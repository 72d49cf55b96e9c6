"""Times of a database are the same on a machine in any time zone."""

import json
import os
import subprocess
import sys

import pytest

from howdah.etl.sources import jdbc
from howdah.spark import properties
from tests.etl.sources.test_jdbc import postgres  # noqa: F401
from tests.workers.zones import ROWS

SCRIPT = """
import json, sys
from howdah.config.data import SparkOptions
from howdah.data.spark.ids import column
from howdah.spark.session import session

conf = {"spark.driver.extraJavaOptions": "-Dits.own=1", "spark.sql.codegen.wholeStage": "false"}
options = SparkOptions(master="local[1]", driver_memory="512m", conf=conf)
with session(options) as spark:
    jvm, url = spark._jvm, "jdbc:derby:memory:times;create=true"
    with_rows = jvm.java.sql.DriverManager.getConnection(url)
    statement = with_rows.createStatement()
    statement.execute("CREATE TABLE t (seen TIMESTAMP)")
    for at in sys.argv[1:]:
        statement.execute(f"INSERT INTO t VALUES ('{at}')")
    rows = spark.read.jdbc(url, "t")
    ids = rows.select(column(rows["SEEN"], rows.schema["SEEN"].dataType)).collect()
    own = jvm.java.lang.System.getProperty("its.own")
    print(json.dumps([sorted(row[0] for row in ids), own]))
"""
TIMES = [
    "2026-03-08 02:30:00", "2026-03-29 02:30:00", "2026-03-29 03:30:00", "2026-10-25 02:30:00",
    "2026-11-01 00:30:00", "2026-11-01 01:30:00",
]  # fmt: skip
ZONES = ["Europe/Berlin", pytest.param("America/Los_Angeles", marks=pytest.mark.full)]


@pytest.mark.spark
@pytest.mark.parametrize("zone", ZONES)
def test_times_of_a_database_do_not_shift_where_clocks_are_changed(tmp_path, zone):
    environment = {**os.environ, "TZ": zone}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, *TIMES], env=environment, cwd=tmp_path, check=False,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2_000:]
    ids, value = json.loads(run.stdout.splitlines()[-1])
    assert ids == [at.replace(" ", "T") + "Z" for at in TIMES] and value == "1"


@pytest.mark.full
@pytest.mark.hadoop
@pytest.mark.spark
@pytest.mark.timeout(900)  # six ETLs, and a jar that is fetched
def test_tables_give_the_same_rows_and_ids_in_each_zone(
    healthy_cluster,
    hdfs_dir,
    postgres,  # noqa: F811
    tiny_model_dir,
):
    """Hive's partitions and PostgreSQL's rows of the nights in which clocks are changed."""
    database = f"zones_{hdfs_dir.rpartition('/')[2]}"
    argv = [sys.executable, "-m", "tests.workers.zones", healthy_cluster.metastore_uri]
    argv += [hdfs_dir, tiny_model_dir, database]
    answers = {}
    for zone in ("UTC", "Europe/Berlin", "America/Los_Angeles"):
        env = {**healthy_cluster.env, jdbc.VARIABLE: postgres, "TZ": zone}
        done = subprocess.run(
            argv, env=env, capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        answers[zone] = json.loads(done.stdout.splitlines()[-1])
    assert answers["Europe/Berlin"] == answers["America/Los_Angeles"] == answers["UTC"]
    keys = {kind: answer["ids"] for kind, answer in answers["UTC"].items()}
    every = [seen.replace(" ", "T") + "Z" for seen, _, _ in ROWS]
    assert keys == {"hive": every[12:], "jdbc": every}
    assert len(answers["UTC"]["hive"]["partitions"]) == 3


def test_options_of_the_jvm_stay():
    driver, executor = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"
    utc = "-Duser.timezone=UTC"
    assert properties.in_utc({}, "") == {driver: utc, executor: utc}
    made = properties.in_utc({driver: "-Xss4m"}, f"{executor}  -XX:+UseG1GC\n{driver} -Xss1m\n")
    assert made == {driver: f"-Xss4m {utc}", executor: f"-XX:+UseG1GC {utc}"}
    theirs = {driver: "-Duser.timezone=Asia/Tokyo -Xss4m"}
    assert properties.in_utc(theirs, "")[driver] == theirs[driver]
