"""Parquet files that a run keeps between Spark jobs, beside the version that it makes.

They lie below `scratch-<token>/` in the version directory and are removed when the run ends; what a
killed run left is swept with its other files (`etl/workspace/staging.py`), unless it says that it
is whole: then the run that makes the same version goes on from it. `<name>.json` says so: it is
written last and has the sizes of all files.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from howdah import __version__, storage
from howdah.core.processes import limit
from howdah.errors import DataError, NotFound, StorageError
from howdah.etl.workspace.staging import scratch_name
from howdah.spark.errors import translated
from howdah.spark.paths import spark_path

_ROW_GROUP = 500_000  # rows; several tasks can share a file
_FILE_ROWS = limit("scratch_file_rows", 25_000)
"""Most rows of a file: a piece is made of whole files, as many as can be read at once."""
_MOST_PIECES = 16
"""Each is a job, or two, of a second's own: what a kill costs at most is one piece of the work."""


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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
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
            writer = frame.write.mode("overwrite").option("maxRecordsPerFile", _FILE_ROWS)
            writer.parquet(written)
            return frame.sparkSession.read.schema(frame.schema).parquet(spark_path(path))

    def finish(self, name: str, frames: Mapping[str, DataFrame], **about: Any) -> None:
        """Say that frames are whole.

        Args:
            frames: what `keep` returned, by its name.
            about: what else a later run needs of them, as JSON.
        Raises:
            StorageError: it cannot be written.
        """
        body = {
            "etl_version": __version__,
            "files": {frame: self._sizes(frame) for frame in frames},
            "schemas": {frame: rows.schema.jsonValue() for frame, rows in frames.items()},
            "about": about,
        }
        storage.write_whole(self._file(name), json.dumps(body).encode())

    def finished(self, spark: SparkSession, name: str) -> tuple[dict[str, DataFrame], dict] | None:
        """The frames and the `about` that `finish` wrote; None if a file is missing or changed."""
        try:
            body = storage.read_json(self._file(name))
        except (NotFound, DataError):
            return None
        same = {frame: self._sizes(frame) for frame in body["files"]} == body["files"]
        if not same or body["etl_version"] != __version__:
            return None
        self._used, frames = True, {}
        with translated("read intermediate data"):
            for frame, schema in body["schemas"].items():
                path = spark_path(storage.join(self._directory, frame))
                frames[frame] = spark.read.schema(StructType.fromJson(schema)).parquet(path)
        return frames, body["about"]

    def once_by_pieces(
        self, name: str, rows: DataFrame, work: Callable[[DataFrame], DataFrame], kept: str
    ) -> DataFrame:
        """`keep` of each piece's result, but of those that an earlier run has done.

        Args:
            name: that of `rows`.
            rows: a frame that `keep` or `finished` returned.
            work: what is done with them; it looks at each row alone.
            kept: the beginning of the results' names.
        """
        spark, files = rows.sparkSession, sorted(self._sizes(name))
        at_once = max(spark.sparkContext.defaultParallelism, -(-len(files) // _MOST_PIECES))
        names = []
        for first in range(0, len(files), at_once):
            some = files[first : first + at_once]
            paths = [spark_path(storage.join(self._directory, name, file)) for file in some]
            # Other cores than the earlier run's make other pieces.
            names.append(piece := f"{kept}-{first}-{first + len(some)}")
            if (before := self.finished(spark, piece)) is not None:
                done = before[0][piece]
            else:
                done = self.keep(work(spark.read.schema(rows.schema).parquet(*paths)), piece)
                self.finish(piece, {piece: done})
        paths = [spark_path(storage.join(self._directory, piece)) for piece in names]
        return spark.read.schema(done.schema).parquet(*paths)

    def _file(self, name: str) -> str:
        return storage.join(self._directory, f"{name}.json")

    def _sizes(self, frame: str) -> dict[str, int]:
        """{name: bytes} of a frame's files."""
        try:
            entries = storage.list_dir(storage.join(self._directory, frame))
        except NotFound:
            return {}
        return {entry.name: entry.size for entry in entries if entry.name.endswith(".parquet")}

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
    job. For a frame from a list Spark would start Python workers of a kind that nothing else here
    needs, which takes a second or two.

    Args:
        schema: "name type, name type".
    """
    kinds = dict(column.split(" ", 1) for column in schema.split(", "))
    if not rows:  # of no rows Spark makes a list's frame in any case
        columns = [F.lit(None).cast(kind).alias(name) for name, kind in kinds.items()]
        return spark.range(0).select(*columns)
    import pandas as pd  # late: it takes half a second, in which Spark starts

    return spark.createDataFrame(pd.DataFrame(list(rows), columns=list(kinds)), schema)
