"""Every Hadoop that the mini cluster starts, by tests of each seam; the page of those that passed.

The newest one is that of all other tests on Hadoop.
"""

import importlib.util
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from howdah.core.child import Child
from howdah.hadoop.versions import TRIED
from tests import ROOT
from tests.fixtures.cluster import HADOOP, REUSE, REUSE_SECURE
from tools.minicluster import kerberos
from tools.minicluster.maven import jars

STATIC_JOB = "tests/yarn/test_skein.py::test_a_static_job_from_submission_to_its_end"
CASES = {
    "storage": [
        *("-m", "hadoop and not full"),
        "tests/storage/test_contract.py",  # over RPC and WebHDFS
        "tests/doctor/test_hadoop.py::test_a_cluster_that_answers_and_its_version",
        "tests/etl/sources/test_hive.py",
    ],
    "jobs": [
        *("-m", "hadoop"),
        STATIC_JOB,
        "tests/yarn/test_hours.py",  # elastic: a rank is killed, the others go on
        "tests/etl/launch/test_yarn.py::test_a_dataset_is_made_in_cluster_mode_and_found_again",
    ],
    "kerberos": [
        "tests/storage/test_kerberos.py::test_a_keytab_is_enough",
        "tests/yarn/test_skein_secure.py::test_a_keytab_is_all_it_takes",
    ],
}
OTHERS = [version for version in jars.VERSIONS if version != jars.HADOOP_VERSION]


def run(version, cases):
    """These tests in a process of their own, whose clusters have this Hadoop."""
    argv = [sys.executable, "-m", "pytest", "-q", *cases]
    env = {key: value for key, value in os.environ.items() if key not in (REUSE, REUSE_SECURE)}
    lines = []
    child = Child(
        argv, cwd=ROOT, env=env | {HADOOP: version}, on_line=lines.append,
        death_signal=signal.SIGINT,
    )  # fmt: skip
    try:
        code = child.wait()
    finally:
        child.end(signal.SIGINT, 60)  # lets its fixtures stop the daemons
        child.read_rest()
    assert code == 0 and re.search(r"\d+ passed", lines[-1]), "\n".join(lines[-80:])


@pytest.mark.hadoop
@pytest.mark.timeout(600)  # the first time its jars are fetched
def test_a_job_on_the_hadoop_that_most_clouds_have():
    run("3.3.6", [STATIC_JOB])


@pytest.mark.full
@pytest.mark.hadoop
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("cases", CASES)
@pytest.mark.parametrize("version", OTHERS)
def test_every_seam_on_another_hadoop(version, cases):
    if cases == "kerberos" and version in kerberos.UNTRIED:
        pytest.skip("the mini cluster has no Kerberos with it")
    run(version, CASES[cases])


def test_what_was_tried_is_what_tests_run_on_and_what_the_page_lists():
    """What is installed, fetched and in the table's cells "tried with", by the product's list."""
    files = [*ROOT.glob("requirements*.lock"), *ROOT.glob("tests/fixtures/pinned/*.txt")]
    locked = "".join(path.read_text() for path in files)
    for name, software in (("pyspark", "Spark"), ("transformers", "transformers")):
        assert set(re.findall(rf"^{name}==(\S+)", locked, re.MULTILINE)) == set(TRIED[software])
    spark = Path(importlib.util.find_spec("pyspark").origin).parent
    (spark_jar,) = spark.glob("jars/hive-metastore-*.jar")
    theirs = jars.METASTORE.name.rpartition("-")[2]
    assert set(TRIED["Hive metastore"]) <= {spark_jar.stem.rpartition("-")[2], theirs}
    assert set(TRIED["Hadoop"]) <= set(jars.VERSIONS)
    page = (ROOT / "docs" / "operations.md").read_text()
    for software, versions in TRIED.items():
        (month,) = set(versions.values())  # else: several parts of one cell
        row = re.search(rf"^\| {software}\b.*$", page, re.MULTILINE)
        assert row and f"| {', '.join(versions)} ({month})" in row[0], software
