"""Hive tables as sources: which partitions and files they consist of, and what is refused.

Spark is asked for the catalogue's own view of a table; what Spark would read wrongly (the delta
files of a transactional table) or cannot read (other engines' views) is refused with a way out.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from howdah.config.data import DataSection
from howdah.config.options.partition import canonical, text_of
from howdah.errors import DataError
from howdah.etl.sources.source import Source
from howdah.spark.errors import translated
from howdah.spark.hive_catalog import (
    Catalogue,
    Table,
    each,
    listed,
    refuse_unreadable,
    rows_of,
    table_of_java,
)
from howdah.spark.paths import quoted

_TIMES = re.compile(r"\b(current_(date|time|timestamp)|now|localtimestamp|unix_timestamp)\b", re.I)
# Comments are atomic: else a text of many of them is tried in each of their combinations.
_SELECT = re.compile(
    r"(?>[\s(]+|--[^\n]*\n|/\*.*?\*/)*+(select|with|from|values|table)\b", re.I | re.S
)
_FILE_RELATIONS = frozenset(("LogicalRelation", "HiveTableRelation"))
_CONSTANT_RELATIONS = frozenset(("LocalRelation", "OneRowRelation", "Range"))


# ------------------------------------------------------------------------------------ reading
def resolved(spark: SparkSession, source: Source, data: DataSection) -> Source:
    """The source with its present state as `identity`: files, partitions, or the rows' digest.

    Raises:
        DataError: no such table or partition, or one that Spark cannot read rightly.
    """
    with translated(f"read the table {source.name}", DataError):
        frame = read(spark, source, data)
        identity = {
            "columns": [[f.name, f.dataType.simpleString()] for f in frame.schema.fields],
        }
        if source.query is not None:
            identity["query"] = hashlib.sha256(source.query.encode()).hexdigest()
        else:
            identity["table"] = source.name
        table = None if source.query is not None else _catalogued(spark, source.name)
        if table is not None and table.kind != "VIEW" and table.location:
            return replace(source, identity={**identity, **_table_state(spark, table, data)})
        return replace(source, identity={**identity, **_query_state(frame, source)})


def read(spark: SparkSession, source: Source, data: DataSection) -> DataFrame:
    """The rows of the table's chosen partitions, or of the query."""
    if source.query is not None:
        return _query(spark, source)
    table = _catalogued(spark, source.name)
    if table is not None:
        refuse_unreadable(table)
    elif not spark.catalog.tableExists(source.name):
        raise _no_such_table(spark, source.name)
    frame = spark.table(source.name)
    if data.partitions:
        columns = table.partition_columns if table is not None else []
        frame = rows_of(frame, _chosen(data.partitions, columns, source.name))
    return frame


def _query(spark: SparkSession, source: Source) -> DataFrame:
    if not is_select(source.query):
        raise DataError(
            "the query file must hold one SELECT",
            where=source.name,  # without the query's text, which may hold secrets
            remedy="leave out everything but the query; it only reads",
        )
    frame = spark.sql(source.query.strip().rstrip(";"))
    plan = frame._jdf.queryExecution().analyzed()
    for part in (plan, *each(plan.subqueriesAll())):
        for leaf in each(part.collectLeaves()):
            _refuse_unreadable_relation(leaf)
    if not plan.deterministic():
        raise DataError(
            "the query returns different rows each time it runs",
            where=source.name,
            expected="no rand(), uuid() or the like",
            remedy="sample by a hash of a key instead: WHERE pmod(hash(id), 10) = 0",
        )
    return frame


def is_select(query: str) -> bool:
    """Whether a text begins as a query that only reads."""
    return _SELECT.match(query) is not None


def _no_such_table(spark: SparkSession, name: str) -> DataError:
    database = name.rpartition(".")[0]
    names: list[str] = []
    if not database or spark.catalog.databaseExists(database):
        names = [t.name for t in spark.catalog.listTables(database or None)]
    near = difflib.get_close_matches(name.rpartition(".")[2], names, n=3)
    return DataError(
        "there is no such table",
        where=f"data.source {name}",
        got="nearest: " + ", ".join(near) if near else None,
        remedy="give database.table, and let Spark find the metastore (hive-site.xml in"
        " HADOOP_CONF_DIR, or spark.hadoop.hive.metastore.uris in data.spark.conf)",
    )


# ---------------------------------------------------------------------------------- catalogue
def _catalogued(spark: SparkSession, name: str) -> Table | None:
    """The catalogue's entry; None for temporary views and tables of other catalogues."""
    if "." not in name:
        tables = spark.catalog.listTables()
        if any(table.isTemporary and table.name.lower() == name.lower() for table in tables):
            return None
    return Catalogue.of(spark).table(name)


def _refuse_unreadable_relation(leaf) -> None:
    kind = leaf.getClass().getSimpleName()
    if kind == "HiveTableRelation":
        refuse_unreadable(table_of_java(leaf.tableMeta()))
    elif kind == "LogicalRelation" and leaf.catalogTable().isDefined():
        refuse_unreadable(table_of_java(leaf.catalogTable().get()))


# --------------------------------------------------------------------------------- what it is
def _chosen(
    patterns: dict[str, list[str]], partition_columns: Sequence[str], name: str
) -> dict[str, list[str]]:
    by_lower = {column.lower(): column for column in partition_columns}
    unknown = [column for column in patterns if column.lower() not in by_lower]
    if unknown:
        raise DataError(
            f"the table is not partitioned by {', '.join(unknown)}",
            where=f"data.partitions of {name}",
            expected=", ".join(partition_columns) or "no partition column at all",
            remedy="name partition columns; other conditions go into data.query_file",
        )
    return {by_lower[column.lower()]: values for column, values in patterns.items()}


def _table_state(spark: SparkSession, table: Table, data: DataSection) -> dict:
    """Partitions with their locations, and the files in them: what a rewrite cannot leave as is.

    Hive's own time stamps (transient_lastDdlTime) are not part of it: gathering statistics changes
    them, writing a file into a partition's directory does not.
    """
    if not table.partition_columns:
        return {"files": listed([table.location])}
    patterns = _chosen(data.partitions or {}, table.partition_columns, table.name)
    partitions, present = [], {column: set() for column in patterns}
    for one in Catalogue.of(spark).matching(table, patterns):
        for column in patterns:
            present[column].add(canonical(one.spec[column], table.columns[column]))
        partitions.append([text_of(one.spec), one.location or table.location])
    for column, values in patterns.items():
        kind = table.columns[column]
        if missing := [value for value in values if canonical(value, kind) not in present[column]]:
            raise DataError(
                "the table has no such partition",
                where=f"data.partitions of {table.name}",
                got=", ".join(f"{column}={value}" for value in missing[:8]),
                remedy=f"SHOW PARTITIONS {table.name} lists those that are there",
            )
    partitions.sort()
    return {"partitions": partitions, "files": listed([path for _, path in partitions])}


def _query_state(frame: DataFrame, source: Source) -> dict:
    """The files that a query or view reads where all it reads is files, else its rows' digest."""
    plan = frame._jdf.queryExecution().optimizedPlan()
    kinds = {leaf.getClass().getSimpleName() for leaf in each(plan.collectLeaves())}
    by_files = source.query is None or not _TIMES.search(source.query)
    by_files = by_files and plan.subqueriesAll().isEmpty()  # inputFiles() leaves theirs out
    if by_files and kinds & _FILE_RELATIONS and kinds <= _FILE_RELATIONS | _CONSTANT_RELATIONS:
        paths = sorted(set(frame.inputFiles()))
        if paths:
            return {"files": listed(paths)}
    return {"rows": digest(frame)}


def digest(frame: DataFrame) -> list:
    """[rows, xor, sum] of all rows' hashes: the same for the same rows in any order."""
    # xor of row hashes: of no partitioning and no order, and it cannot overflow
    # (by its name, since PySpark 3.4 has no function for it)
    rows = frame.select(F.xxhash64(*[F.col(quoted(c)) for c in frame.columns]).alias("h"))
    count, digest, total = rows.agg(
        F.count("*"), F.call_udf("bit_xor", F.col("h")), F.sum(F.col("h").cast("decimal(38,0)"))
    ).first()
    return [count, str(digest), str(total)]
