"""Combinations of Spark, Java and Python that run, and the doctor's lines about them."""

import pytest

from howdah.doctor import spark as doctor_spark
from howdah.packaging import spark_versions


@pytest.mark.parametrize(
    ("spark", "java", "python", "fits"),
    [
        ("3.5.8", 8, (3, 11), True),
        ("3.5.8", 17, (3, 8), True),
        ("3.5.8", 21, (3, 11), False),
        ("3.5.8", 17, (3, 12), False),
        ("4.0.1", 17, (3, 11), True),
        ("4.2.1", 11, (3, 11), False),
        ("4.2.1", 21, (3, 14), True),
        ("4.2.1", 17, (3, 9), False),
        ("3.4.4", 17, (3, 11), True),
        ("3.4.4", 17, (3, 12), False),
        ("3.3.4", 17, (3, 11), False),
    ],
)
def test_combinations(spark, java, python, fits):
    problems = spark_versions.problems(spark, java=java, python=python)
    assert (problems == []) is fits, problems


def test_packages_have_a_least_and_a_last_version():
    assert spark_versions.problems("4.2.1", packages={"pandas": "2.3.3", "pyarrow": "25.0.1"}) == []
    (old,) = spark_versions.problems("4.2.1", packages={"pyarrow": "17.0.0"})
    assert "18.0.0 or later" in old
    (new,) = spark_versions.problems("3.5.8", packages={"pandas": "3.0.0"})
    assert "before 3" in new


def test_a_working_combination_is_named():
    assert spark_versions.working(java=17, python=(3, 11)) == "Spark 4.2 with Java 17"
    assert spark_versions.working(java=11, python=(3, 11)) == "Spark 3.5 with Java 11"
    assert spark_versions.working(java=None, python=(3, 11)) == "Spark 4.2 with Java 17 or 21"


def test_the_version_of_a_home_is_that_of_its_jars(tmp_path):
    assert spark_versions.version_of(str(tmp_path)) is None
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.8.jar").touch()
    assert spark_versions.version_of(str(tmp_path)) == "3.5.8"
    assert spark_versions.scala_of(str(tmp_path)) == "2.12"


def _java(tmp_path, version):
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return str(java.parent.parent)


def test_the_doctor_names_a_combination_that_works(tmp_path):
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    (home / "jars" / "spark-core_2.12-3.5.8.jar").touch()
    env = {"JAVA_HOME": _java(tmp_path, "21.0.2"), "SPARK_HOME": str(home), "PATH": ""}
    check = doctor_spark.check_spark(env)
    assert check.status == "fail" and "Java 21" in check.found
    assert "Spark 4.2 with Java 21" in check.remedy


def test_the_installed_pyspark_fits_here():
    import os

    env = {k: v for k, v in os.environ.items() if k != "SPARK_HOME"}
    check = doctor_spark.check_spark(env)
    assert check.status == "ok", check
