"""Spark's settings for the size of a source and a cluster, where the user gives none.

Spark's own defaults are one number for all: 200 shuffle partitions, and a tenth of the heap for all
that is not the JVM's. The ETL's work is in Python workers, one for each task at once, which live in
that tenth: YARN kills a container that grows beyond it.
"""

from __future__ import annotations

import math
import re
from typing import Any

from howdah.config.data import SparkOptions
from howdah.core import machine
from howdah.errors import ConfigError

OVERHEAD = ("spark.executor.memoryOverhead", "spark.executor.memoryOverheadFactor")
"""Keys of an executor's memory outside the JVM's heap: the first in MiB, the second a share."""
JVM_MIB = 384
"""Spark's least overhead: the JVM's memory outside its heap."""
_WORKER_MIB = 400
"""A Python worker of the ETL: 216 MB at its peak with 320,000 rows of 300 bytes, and 85 MB more
once the cache of word hashes is full."""
_PARTITIONS = "spark.sql.shuffle.partitions"
_USUAL_PARTITIONS = 200
_PARTITIONS_A_CORE = 3
_PARTITION_BYTES = 64 * 2**20
_SMALL_PARTITION_BYTES = 256 * 2**10
"""Least bytes of a partition, where the source fills fewer than the usual number: a smaller task
costs more than its work."""
_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BATCH_ROWS = 2_000
"""10,000 rows, Spark's own, of long pages would be hundreds of MB in a worker before the gate cuts
them."""
_SMALL_BYTES = 2 * 2**20
"""Most bytes of a source whose local session is for a few seconds: some 15,000 texts."""
_SMALL = {
    # One task a stage: each costs more than its rows.
    _PARTITIONS: "1",
    "spark.default.parallelism": "1",
    # Adaptive execution plans each stage of a query again, as a job of its own.
    "spark.sql.adaptive.enabled": "false",
    # Compiling a query takes longer than to interpret it for a few thousand rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Spark's pages of 64 MiB, one or more an operator, would be cleared and collected all the time.
    "spark.buffer.pageSize": "1m",
    # No page shows the queries' plans as text.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.maxPlanStringLength": "0",
}
_UNITS = {"": 1.0, "k": 2**-10, "m": 1.0, "g": 2**10, "t": 2**20}

_LOCAL = re.compile(r"local(-cluster)?\[\s*(\d+|\*)(?:\s*,\s*(\d+))?")


def local_cores(master: str) -> int:
    """Tasks that a local session of this master runs at once; `*` is what this process may use.

    The second number of local[N, F] is that of failures that a task may have.

    >>> local_cores("local"), local_cores("local[2, 4]"), local_cores("local-cluster[2,3,1024]")
    (1, 2, 6)
    """
    match = _LOCAL.match(master)
    if match is None:
        return 1
    cluster, first, second = match.groups()
    number = machine.cores() if first == "*" else int(first)
    return number * int(second or 1) if cluster else number


def executor_overhead(options: SparkOptions) -> dict[str, str]:
    """{setting: MiB} of an executor's memory outside the JVM's heap, or {} where it is given.

    >>> executor_overhead(SparkOptions(executor_memory="4g", executor_cores=2))
    {'spark.executor.memoryOverhead': '1184m'}
    """
    if any(key in options.conf for key in OVERHEAD):
        return {}
    cores = _whole(options, "spark.executor.cores", options.executor_cores)
    tasks = max(1, cores // max(1, _whole(options, "spark.task.cpus", 1)))
    heap = re.fullmatch(
        r"(\d+)([kmgt]?)b?",
        options.conf.get("spark.executor.memory", options.executor_memory).lower(),
    )
    tenth = int(heap[1]) * _UNITS[heap[2]] / 10 if heap else 0.0  # Spark refuses other spellings
    return {OVERHEAD[0]: f"{math.ceil(max(tenth, JVM_MIB + tasks * _WORKER_MIB))}m"}


def for_source(options: SparkOptions, size: int | None) -> dict[str, str]:
    """{setting: value} of queries over a source on a cluster, without what the user gives.

    Args:
        size: bytes of the source's files; None where that is not known: the executors alone
            decide then, and Spark's usual number.
    """
    cores = _whole(options, "spark.executor.cores", options.executor_cores)
    executors = _whole(options, "spark.executor.instances", options.executors or 0)
    by_size = _USUAL_PARTITIONS
    if size is not None:
        by_size = min(by_size, math.ceil(size / _SMALL_PARTITION_BYTES))
        by_size = max(by_size, math.ceil(size / _PARTITION_BYTES))
    partitions = max(by_size, _PARTITIONS_A_CORE * cores * max(executors, 1))
    settings = {_PARTITIONS: str(partitions), _BATCH: str(_BATCH_ROWS)}
    return {key: value for key, value in settings.items() if key not in options.conf}


def for_small(size: int | None) -> dict[str, str]:
    """{setting: value} of a local session for a source of so few bytes that planning and compiling
    its queries would take longer than to run them; {} for another one.

    Args:
        size: bytes of the source's files; None where that is not known.
    """
    return dict(_SMALL) if size is not None and size <= _SMALL_BYTES else {}


def _whole(options: SparkOptions, key: str, default: int) -> int:
    text = options.conf.get(key, str(default)).strip()
    if not text.isdecimal():
        raise ConfigError(
            "a setting of Spark is not a whole number", where=f"data.spark.conf: {key}", got=text
        )
    return int(text)


def apply(spark: Any, settings: dict[str, str]) -> None:
    """Set them in a running SparkSession."""
    for key, value in settings.items():
        spark.conf.set(key, value)
