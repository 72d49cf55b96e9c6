"""The doctor's check of Spark: whether its version, Java, Python and packages fit together."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping

from howdah.doctor.checks import Check, java_major, java_of, run_program
from howdah.doctor.packages import installed_version
from howdah.packaging import spark_versions

_INSTALL = "pip install 'howdah[etl]', in a checkout make setup"


def check_spark(env: Mapping[str, str]) -> Check:
    """Check the Spark of SPARK_HOME, else the installed PySpark, by spark_versions.py."""
    home = env.get("SPARK_HOME")
    if home:
        origin, version = f"SPARK_HOME={home}", spark_versions.version_of(home)
        if version is None:
            remedy = "set SPARK_HOME to a directory with jars/, or unset it"
            return Check("Spark", "fail", f"{origin}: no Spark in it", remedy)
    else:
        if importlib.util.find_spec("pyspark") is None:
            description = "no PySpark, SPARK_HOME is not set: no ETL, no job on Spark"
            return Check("Spark", "warn", description, _INSTALL)
        origin, version = "PySpark", importlib.metadata.version("pyspark")
    packages = {name: installed_version(name) for name in ("pandas", "pyarrow")}
    if lacking := [name for name, installed in packages.items() if installed is None]:
        description = f"{origin}: {' and '.join(lacking)} missing: no ETL, no job on Spark"
        return Check("Spark", "warn", description, _INSTALL)
    java_program = java_of(env)
    java = java_major(run_program([java_program, "-version"], env)[1]) if java_program else None
    python = sys.version_info[:2]
    problems = spark_versions.problems(version, java=java, python=python, packages=packages)
    if problems:
        works = spark_versions.working(java=java, python=python)
        return Check("Spark", "fail", f"{origin}: " + "; ".join(problems), f"use {works}")
    with_java = f"Java {java}" if java else "an unknown Java"
    return Check(
        "Spark", "ok", f"{version} ({origin}) fits {with_java}, Python {python[0]}.{python[1]}"
    )
