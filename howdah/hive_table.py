"""A Hive table with a partition for each version or run, written from Spark.

Nothing of Spark is imported: callers bring their session's DataFrame.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from howdah.errors import AlreadyExists, DataError, StorageError
from howdah.replace import put_in_place

__all__ = ["quoted", "replace_partition"]

_STAGED = ("parquet", "orc")
"""File formats that are written beside a partition and then renamed into its place."""
_FILES = (*_STAGED, "hive", "csv", "json", "text", "avro")
"""What DESCRIBE calls tables of plain files; every other provider commits by itself."""


def quoted(table: str) -> str:
    """`database.table` as Spark SQL wants a name that may hold anything.

    >>> quoted("shop.reviews")
    '`shop`.`reviews`'
    """
    return ".".join(f"`{part}`" for part in table.split("."))


def replace_partition(
    spark: Any,
    frame: Any | None,
    table: str,
    *,
    columns: Mapping[str, str],
    key: str,
    value: str,
    what: str,
    check: Callable[[Any], None] = lambda written: None,
    progress: Callable[[str], None] = lambda line: None,
) -> None:
    """Make a frame's rows one partition of a table; running again leaves one copy of them.

    The partition that is there stays until the new one is whole: Spark's INSERT OVERWRITE would
    delete it before the first row is written.

    Args:
        spark: the session.
        frame: a DataFrame that has all of `columns`; None: no row, and no such partition.
        table: made, as Parquet, if it is not there.
        columns: {name: SQL type} of the table, in its order, the partition's column left out.
        key: the partition's column, a string.
        value: of this partition.
        what: what the rows are, for the message.
        check: gets the rows as they were written, before they become the partition (a table
            format with transactions of its own: after that); what it raises leaves the old one.
        progress: takes a line.
    Raises:
        DataError: the table is there, and has other columns or a file format that cannot be
            replaced in one piece.
        StorageError: the new partition could not be put in its place; says where both are.
    """
    name = quoted(table)
    declared = ", ".join(f"{column} {type_}" for column, type_ in columns.items())
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {name} ({declared}) PARTITIONED BY ({key} string)"
        " STORED AS PARQUET"
    )
    there = spark.table(table).columns
    if there != [*columns, key]:
        raise DataError(
            f"the table for {what} has other columns",
            where=table,
            expected=", ".join((*columns, key)),
            got=", ".join(there),
            remedy="name another table; it is made if it is not there",
        )
    literal = value.replace("\\", "\\\\").replace("'", "\\'")
    partition = f"PARTITION ({key}='{literal}')"
    if frame is None:
        spark.sql(f"ALTER TABLE {name} DROP IF EXISTS {partition}")
        return
    about = _described(spark, name)
    form = _format(about)
    if form is None:
        _insert(spark, frame, name, columns, partition)
        check(spark.table(table).where(f"`{key}` = '{literal}'"))
        return
    if form not in _STAGED:
        raise DataError(
            f"the table for {what} has a file format that is not written",
            where=table,
            expected="a table stored as Parquet or ORC",
            got=about.get("InputFormat", form),
            remedy="name another table; it is made, as Parquet, if it is not there",
        )
    files = _HadoopFiles(spark)
    target = _location(spark, files, table, key, value)
    directory, _, own = target.rpartition("/")
    token = secrets.token_hex(4)
    # Neither Spark nor Hive reads names that begin with a dot.
    fresh, aside = f"{directory}/.tmp-{own}.{token}", f"{directory}/.old-{own}.{token}"
    types = dict(spark.table(table).dtypes)
    chosen = frame.selectExpr(*(f"CAST(`{c}` AS {types[c]}) AS `{c}`" for c in columns))
    try:
        chosen.write.format(form).save(fresh)
        check(spark.read.schema(chosen.schema).format(form).load(fresh))
    except BaseException:
        files.remove(fresh, recursive=True)
        raise
    left = put_in_place(fresh, target, overwrite=True, keep=True, aside=aside, files=files)
    if left is not None:
        progress(f"the partition that was replaced could not be removed: {left}")
    spark.sql(f"ALTER TABLE {name} ADD IF NOT EXISTS {partition}")
    spark.catalog.refreshTable(name)


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
    """What DESCRIBE says: {field: value}; of fields that it says twice the first."""
    found: dict[str, str] = {}
    for row in spark.sql(f"DESCRIBE EXTENDED {name}").collect():
        found.setdefault(row["col_name"], row["data_type"])
    return found


def _format(about: Mapping[str, str]) -> str | None:
    """The file format of a table by its description; None: a table format with transactions."""
    provider = about.get("Provider", "hive").lower()
    if provider not in _FILES:
        return None
    if provider == "hive":
        reads = about.get("InputFormat", "")
        return next((form for form in _STAGED if form in reads.lower()), provider)
    return provider


def _location(spark: Any, files: _HadoopFiles, table: str, key: str, value: str) -> str:
    """The directory of a partition: where it is registered, else where it would be made."""
    jvm = spark.sparkContext._jvm
    catalogue = spark._jsparkSession.sharedState().externalCatalog()
    *database, own = table.split(".")
    place = (database[-1] if database else spark.catalog.currentDatabase(), own)
    wanted = jvm.java.util.HashMap()
    wanted.put(key, value)
    there = catalogue.getPartitionOption(
        *place, jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(wanted)
    )
    if there.isDefined():
        return files.path(there.get().storage().locationUri().get())
    # The name as the catalogue itself would make it.
    util = jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils
    above = files.path(catalogue.getTable(*place).storage().locationUri().get())
    return f"{above.rstrip('/')}/{util.getPartitionPathString(key, value)}"


class _HadoopFiles:
    """A table's files as Spark itself reaches them: any file system of Hadoop's, the same user."""

    def __init__(self, spark: Any) -> None:
        self._context = spark.sparkContext
        self._hadoop = self._context._jvm.org.apache.hadoop.fs

    def path(self, uri: Any) -> str:
        """The path that a catalogue's java.net.URI means, in which nothing is percent-encoded."""
        return self._hadoop.Path(uri).toString()

    def _at(self, path: str) -> tuple[Any, Any]:
        made = self._hadoop.Path(path)
        return made.getFileSystem(self._context._jsc.hadoopConfiguration()), made

    def _call(self, doing: str, path: str, call: Callable[[Any, Any], Any]) -> Any:
        from py4j.protocol import Py4JJavaError

        try:
            return call(*self._at(path))
        except Py4JJavaError as error:
            reason = str(error.java_exception.toString())
            raise StorageError(f"cannot {doing}", where=path, got=reason) from error

    def exists(self, path: str) -> bool:
        """Whether a file or directory is there."""
        return self._call("look up", path, lambda fs, at: fs.exists(at))

    def rename_dir(self, source: str, target: str) -> None:
        """One rename."""
        if self.exists(target):
            raise AlreadyExists("cannot publish: it is there already", where=target)
        to = self._hadoop.Path(target)

        def rename(fs: Any, at: Any) -> bool:
            fs.mkdirs(to.getParent())
            return fs.rename(at, to)

        if not self._call("rename", source, rename):
            raise StorageError("cannot rename", where=source, got=f"{target} is not taken as name")

    def remove(self, path: str, recursive: bool = False) -> None:
        """Remove a file, or a directory with all it holds; missing is not an error."""
        self._call("remove", path, lambda fs, at: fs.delete(at, recursive))
