"""The parent of Spark's Python workers in a short local session (`spark.python.daemon.module`).

It imports what they run before it forks them: a worker would need seconds for it, and each of a
session's workers would do it again.
"""

from __future__ import annotations

import gc

import pyspark.worker  # noqa: F401
from pyspark import daemon

import howdah.etl.version  # noqa: F401

if __name__ == "__main__":
    # A worker collects garbage after each task: not among all that was imported.
    gc.freeze()
    daemon.manager()
