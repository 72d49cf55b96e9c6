"""The environment with PySpark 3.5 (tools/spark35_env.py), and its Spark as a cluster's own."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def spark35_python():
    """Interpreter of the environment with PySpark 3.5; fetched once into the cache."""
    argv = [sys.executable, str(ROOT / "tools" / "spark35_env.py")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="session")
def spark35_home(spark35_python):
    """SPARK_HOME of a Spark 3.5, as a cluster has one."""
    argv = [spark35_python, "-c", "import pyspark; print(pyspark.__path__[0])"]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
