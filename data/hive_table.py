"""Write a partition of a Hive table from Spark: one for each dataset version or run.

Imports nothing of Spark: callers pass their session and DataFrame.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from howdah.errors import AlreadyExists, DataError, StorageError
from howdah.spark import paths
from howdah.storage import commit

_STAGED = ("parquet", "orc")
"""File formats that are written beside a partition and then renamed into its place."""
_FILES = (*_STAGED, "hive", "csv", "json", "text", "avro")
"""Providers of tables of plain files in DESCRIBE; every other one has transactions of its own."""


def quoted(table: str) -> str:
    """`database.table` quoted for Spark SQL.

    >>> quoted("shop.reviews")
    '`shop`.`reviews`'
    """
    return ".".join(map(paths.quoted, table.split(".")))


def replace_partition(
    spark: Any,
    frame: Any | None,
    table: str,
    *,
    columns: Mapping[str, str],
    partition: Mapping[str, str],
    what: str,
    check: Callable[[Any], None] = lambda written: None,
    progress: Callable[[str], None] = lambda line: None,
) -> None:
    """Replace one partition of a table by a frame's rows; writing them again leaves one copy.

    The old partition stays until the new one is complete; Spark's INSERT OVERWRITE would delete it
    before the first row is written.

    Args:
        spark: the session.
        frame: a DataFrame with all of `columns`; None: no rows, the partition is dropped.
        table: created, as Parquet, if it does not exist.
        columns: {name: SQL type} of the table, in its order, without the partition's columns.
        partition: {column: value} of this partition, strings, in the table's order.
        what: what the rows are, for the message.
        check: called with the written rows before they become the partition, which an error of it
            prevents (after that for a table format with transactions of its own).
        progress: called with a line.
    Raises:
        DataError: the table exists with other columns, or with a file format whose partitions
            cannot be replaced by a rename.
        StorageError: the rename failed; it names the paths of the old and the new partition.
    """
    name = quoted(table)
    declared = ", ".join(f"{column} {type_}" for column, type_ in columns.items())
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {name} ({declared})"
        f" PARTITIONED BY ({', '.join(f'{key} string' for key in partition)}) STORED AS PARQUET"
    )
    table_columns = spark.table(table).columns
    if table_columns != [*columns, *partition]:
        raise DataError(
            f"the table for {what} has other columns",
            where=table,
            expected=", ".join((*columns, *partition)),
            got=", ".join(table_columns),
            remedy="name another table; it is created if it does not exist",
        )
    escaped = {
        key: value.replace("\\", "\\\\").replace("'", "\\'") for key, value in partition.items()
    }
    literals = {key: f"'{value}'" for key, value in escaped.items()}
    spec = ", ".join(f"{key}={literal}" for key, literal in literals.items())
    if frame is None:
        spark.sql(f"ALTER TABLE {name} DROP IF EXISTS PARTITION ({spec})")
        return
    about = _described(spark, name)
    form = _format(about)
    if form is None:
        _insert(spark, frame, name, columns, f"PARTITION ({spec})")
        condition = " AND ".join(f"`{key}` = {literal}" for key, literal in literals.items())
        check(spark.table(table).where(condition))
        return
    if form not in _STAGED:
        raise DataError(
            f"the table for {what} has a file format that is not written",
            where=table,
            expected="a table stored as Parquet or ORC",
            got=about.get("InputFormat", form),
            remedy="name another table; it is created, as Parquet, if it does not exist",
        )
    files = _HadoopFiles(spark)
    target = _location(spark, files, table, partition)
    types = dict(spark.table(table).dtypes)
    chosen = frame.selectExpr(*(f"CAST(`{c}` AS {types[c]}) AS `{c}`" for c in columns))
    with commit.stage(commit.hidden(target, "tmp"), files=files) as staged:
        chosen.write.format(form).save(staged.path)
        check(spark.read.schema(chosen.schema).format(form).load(staged.path))
        replaced = staged.publish(target, aside=commit.hidden(target, "old"), keep=True)
    if replaced is not None and not commit.discard(replaced, files=files):
        progress(f"the partition that was replaced could not be removed: {replaced}")
    spark.sql(f"ALTER TABLE {name} ADD IF NOT EXISTS PARTITION ({spec})")
    spark.catalog.refreshTable(name)


def file_format(spark: Any, table: str) -> str | None:
    """The format of a table's files: parquet, orc, or Spark's name of its provider; None: a table
    format with transactions."""
    return _format(_described(spark, quoted(table)))


def _insert(spark: Any, frame: Any, name: str, columns: Mapping[str, str], partition: str) -> None:
    view = f"howdah_{secrets.token_hex(8)}"
    frame.select(*columns).createOrReplaceTempView(view)
    try:
        spark.sql(
            f"INSERT OVERWRITE TABLE {name} {partition} SELECT {', '.join(columns)} FROM {view}"
        )
    finally:
        spark.catalog.dropTempView(view)


# ------------------------------------------------------------------------------- the catalogue
def _described(spark: Any, name: str) -> dict[str, str]:
    """DESCRIBE's {field: value}; of a field that comes twice the first value."""
    description: dict[str, str] = {}
    for row in spark.sql(f"DESCRIBE EXTENDED {name}").collect():
        description.setdefault(row["col_name"], row["data_type"])
    return description


def _format(about: Mapping[str, str]) -> str | None:
    """The file format of a table by its description; None: a table format with transactions."""
    provider = about.get("Provider", "hive").lower()
    if provider not in _FILES:
        return None
    if provider == "hive":
        reads = about.get("InputFormat", "")
        return next((form for form in _STAGED if form in reads.lower()), provider)
    return provider


def _location(spark: Any, files: _HadoopFiles, table: str, partition: Mapping[str, str]) -> str:
    """The directory of a partition: as registered, else as the catalogue would create it."""
    jvm = spark.sparkContext._jvm
    catalogue = spark._jsparkSession.sharedState().externalCatalog()
    *database, table_name = table.split(".")
    name = (database[-1] if database else spark.catalog.currentDatabase(), table_name)
    values = jvm.java.util.HashMap()
    for key, value in partition.items():
        values.put(key, value)
    partition_entry = catalogue.getPartitionOption(
        *name, jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(values)
    )
    if partition_entry.isDefined():
        return files.path(partition_entry.get().storage().locationUri().get())
    # The catalogue's own function escapes the value.
    util = jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils
    above = files.path(catalogue.getTable(*name).storage().locationUri().get())
    below = (util.getPartitionPathString(key, value) for key, value in partition.items())
    return "/".join((above.rstrip("/"), *below))


class _HadoopFiles:
    """A table's files by Spark's own Hadoop client: any file system of Hadoop's, the same user."""

    def __init__(self, spark: Any) -> None:
        self._context = spark.sparkContext
        self._hadoop = self._context._jvm.org.apache.hadoop.fs

    def path(self, uri: Any) -> str:
        """The path of a catalogue's java.net.URI, not percent-encoded."""
        return self._hadoop.Path(uri).toString()

    def _call(self, doing: str, path: str, call: Callable[[Any, Any], Any]) -> Any:
        from py4j.protocol import Py4JJavaError

        try:
            at = self._hadoop.Path(path)
            return call(at.getFileSystem(self._context._jsc.hadoopConfiguration()), at)
        except Py4JJavaError as error:
            reason = str(error.java_exception.toString())
            raise StorageError(f"cannot {doing}", where=path, got=reason) from error

    def exists(self, path: str) -> bool:
        """True if a file or directory exists."""
        return self._call("look up", path, lambda fs, at: fs.exists(at))

    def rename_dir(self, source: str, target: str) -> None:
        """One rename, which of Hadoop's may move INTO an existing directory: that is refused."""
        if self.exists(target):
            raise AlreadyExists("cannot publish: it exists already", where=target)
        to = self._hadoop.Path(target)

        def rename(fs: Any, at: Any) -> bool:
            fs.mkdirs(to.getParent())
            return fs.rename(at, to)

        if not self._call("rename", source, rename):
            raise StorageError(
                "cannot rename", where=source, got=f"Hadoop refused the new name {target}"
            )

    def remove(self, path: str, recursive: bool = False) -> None:
        """Remove a file, or a directory and its contents; missing is not an error."""
        self._call("remove", path, lambda fs, at: fs.delete(at, recursive))
