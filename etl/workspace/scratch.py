"""Parquet files that a run keeps between Spark jobs, beside the version that it makes.

They lie below `scratch-<token>/` in the version directory and are removed when the run ends; what a
killed run left is swept with its other files (`etl/workspace/staging.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from howdah import storage
from howdah.errors import StorageError
from howdah.etl.workspace.staging import scratch_name
from howdah.spark.errors import translated
from howdah.spark.paths import spark_path

_ROW_GROUP = 500_000  # rows; several tasks can share a file


class Scratch:
    """A context with a directory for intermediate data frames; made when it is first needed.

    Args:
        version: the version directory that the run writes to.
        token: the run's token (`Lease.token`).
    """

    def __init__(self, version: str, token: str) -> None:
        self._directory = storage.join(version, scratch_name(token))
        self._places = 0
        self._used = False

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After a failure `staging.discard` removes it, together with the run's other files.
        if self._used and kind is None:
            # What cannot be removed now is swept later: no reason to lose the version.
            with contextlib.suppress(StorageError):
                storage.remove(self._directory, recursive=True)

    def path(self, name: str) -> str:
        """A name below which no other caller keeps anything: `components-1`."""
        self._places += 1
        return f"{name}-{self._places}"

    def keep(self, frame: DataFrame, name: str) -> DataFrame:
        """Write a data frame and return it as it is read from its files.

        Raises:
            ClusterError: Spark cannot write below `data.dataset`.
        """
        self._used = True
        path = storage.join(self._directory, name)
        written = f"file://{storage.local_path(path)}" if storage.is_local(path) else path
        with translated("keep intermediate data", writes=self._directory):
            frame.write.mode("overwrite").parquet(written)
            return frame.sparkSession.read.schema(frame.schema).parquet(spark_path(path))

    def put(self, spark: SparkSession, table: pa.Table, name: str) -> DataFrame:
        """Write a table that the driver has and return it as it is read from its file.

        `createDataFrame` would hold it in the JVM, and a copy of it in each task's message.

        Raises:
            StorageError: it cannot be written.
        """
        self._used = True
        path = storage.join(self._directory, name)
        with storage.open_write(storage.join(path, "part-00000.parquet")) as file:
            pq.write_table(table, file, row_group_size=_ROW_GROUP)
        with translated("read intermediate data"):
            return spark.read.parquet(spark_path(path))

    def drop(self, name: str) -> None:
        """Remove what is not needed any more."""
        storage.remove(storage.join(self._directory, name), recursive=True)


def local_table(spark: SparkSession, rows: Sequence[tuple], schema: str) -> DataFrame:
    """A data frame of rows that the driver has, as a part of the plan: it is broadcast without a
    job, which a frame from a list would need.

    Args:
        schema: "name type, name type".
    """
    import pandas as pd  # late: it takes half a second, in which Spark starts

    names = [column.split()[0] for column in schema.split(", ")]
    return spark.createDataFrame(pd.DataFrame(list(rows), columns=names), schema)
