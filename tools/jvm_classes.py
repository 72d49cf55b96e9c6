"""A class archive of Spark for the tests' JVMs, which takes a third off their processor time.

    python -m tools.jvm_classes      writes it, for this Java and this PySpark

A JVM of Spark loads and verifies ten thousand classes, and tests start dozens of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from howdah.spark.classes import SHORT_JVM

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "build" / "spark-classes.jsa"
_QUIET = "-Xlog:cds*=off"


def options() -> str:
    """Options of a JVM; without the file, or with other jars, it loads its classes as usual."""
    return f"{SHORT_JVM} -XX:SharedArchiveFile={FILE} {_QUIET}"


def make() -> int:
    """Write the file unless it exists; return an exit code. Tests pass without it, but slower."""
    if shutil.which("java") is None:
        print("java is missing: Spark's classes are not written")
        return 1
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    made_of = FILE.with_suffix(".txt")
    now = f"{java.stderr}PySpark {version('pyspark')}\n"
    if FILE.exists() and made_of.exists() and made_of.read_text() == now:
        return 0
    FILE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FILE.parent, prefix="spark-classes-") as place:
        fresh = Path(place) / FILE.name
        env = os.environ | {
            "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable,
            "SPARK_SUBMIT_OPTS": f"{SHORT_JVM} -XX:ArchiveClassesAtExit={fresh} {_QUIET}",
        }  # fmt: skip
        program = str(Path(sys.executable).parent / "spark-submit")
        argv = [program, "--master", "local[1]", str(ROOT / "tests/workers/spark_classes.py")]
        done = subprocess.run(argv, cwd=place, env=env, check=False)
        if done.returncode or not fresh.exists():
            print(f"Spark's classes were not written: {program} ended with {done.returncode}")
            return 1
        made_of.unlink(missing_ok=True)
        os.replace(fresh, FILE)
    made_of.write_text(now)
    return 0


if __name__ == "__main__":
    sys.exit(make())
