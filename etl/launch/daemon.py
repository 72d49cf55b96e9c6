"""The parent of Spark's Python workers in a local session (`spark.python.daemon.module`).

It imports what they run before it forks them: a worker would need seconds for it, and each of a
session's workers would do it again. When a task has failed, the JVM closes the connection to
its worker. The worker then ends quietly; PySpark's own prints a traceback among the command's
lines.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any

_WORK = (
    "howdah.data.spark.text_rows", "howdah.etl.rows.gate", "howdah.etl.rows.leakage",
    "howdah.etl.rows.near", "howdah.etl.write.shards",
)  # fmt: skip
"""Modules of the functions that an ETL of texts gives to its workers."""


def without_archives(path: list[str]) -> list[str]:
    """Python's search path without the archives of pyspark and py4j that Spark puts before the
    packages that are installed, if they are theirs: a module of an archive is compiled each time.
    """
    others = [entry for entry in path if not entry.endswith(".zip")]
    installed = PathFinder.find_spec("pyspark", others)
    if installed is None or installed.origin is None:
        return path
    home = os.path.dirname(installed.origin)
    theirs = [entry for entry in path if entry.startswith(os.path.join(home, "python", "lib"))]
    return [entry for entry in path if entry not in theirs]


def quiet(work: Callable[..., int]) -> Callable[..., int]:
    """PySpark's `worker`, with exit code 1 where the JVM has closed the connection."""

    def worker(*args: Any) -> int:
        try:
            return work(*args)
        except (BrokenPipeError, ConnectionResetError):
            return 1

    return worker


if __name__ == "__main__":
    sys.path[:] = without_archives(sys.path)
    from pyspark import daemon

    daemon.worker = quiet(daemon.worker)
    for module in ("pyspark.worker", *_WORK):
        importlib.import_module(module)
    # A worker collects garbage after each task: not among all that was imported.
    gc.freeze()
    daemon.manager()
