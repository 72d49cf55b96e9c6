"""The doctor's check of Spark: whether its version, Java, Python and packages fit together."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

from howdah.doctor.checks import Check, java_major
from howdah.packaging import spark_versions

_JAVA_SECONDS = 30.0


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
            return Check(
                "Spark", "warn", description, "pip install 'howdah[etl]', in a checkout make setup"
            )
        origin, version = "PySpark", importlib.metadata.version("pyspark")
    java = _java(env)
    python = sys.version_info[:2]
    packages = {name: importlib.metadata.version(name) for name in ("pandas", "pyarrow")}
    problems = spark_versions.problems(version, java=java, python=python, packages=packages)
    if problems:
        works = spark_versions.working(java=java, python=python)
        return Check("Spark", "fail", f"{origin}: " + "; ".join(problems), f"use {works}")
    with_java = f"Java {java}" if java else "an unknown Java"
    return Check(
        "Spark", "ok", f"{version} ({origin}) fits {with_java}, Python {python[0]}.{python[1]}"
    )


def _java(env: Mapping[str, str]) -> int | None:
    """Major version of the Java that Spark would start; None: check_java reports the problem."""
    home = env.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java", path=env.get("PATH"))
    if not java or not os.path.exists(java):
        return None
    try:
        done = subprocess.run(
            [java, "-version"], env=dict(env), capture_output=True, text=True, check=False,
            timeout=_JAVA_SECONDS, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return java_major(done.stderr + done.stdout)
