"""Hive tables as sources: which partitions and files they consist of, and what is refused.

Spark is asked for the catalogue's own view of a table; what Spark would read wrongly (the delta
files of a transactional table) or cannot read (other engines' views) is refused with a way out.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from etl.sources.source import Source
from howdah import storage
from howdah.config.data import DataSection
from howdah.errors import DataError, NotFound
from howdah.spark.errors import translated
from howdah.storage import Entry

_TIMES = re.compile(r"\b(current_(date|time|timestamp)|now|localtimestamp|unix_timestamp)\b", re.I)
_SELECT = re.compile(
    r"\s*(--[^\n]*\n\s*|/\*.*?\*/\s*)*(select|with|from|values|table)\b", re.I | re.S
)
_MOST_ASKED = 50
"""Combinations of partition values that the metastore is asked for one by one."""
_FILE_RELATIONS = frozenset(("LogicalRelation", "HiveTableRelation"))
_CONSTANT_RELATIONS = frozenset(("LocalRelation", "OneRowRelation", "Range"))


@dataclass(frozen=True, kw_only=True)
class Table:
    """What the catalogue says of a table."""

    name: str
    """database.table"""
    kind: str
    """MANAGED, EXTERNAL or VIEW"""
    partition_columns: list[str]
    location: str | None
    properties: dict[str, str]
    view_text: str


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
        _refuse_unreadable(table)
    elif not spark.catalog.tableExists(source.name):
        raise _no_such_table(spark, source.name)
    frame = spark.table(source.name)
    if data.partitions:
        columns = table.partition_columns if table is not None else []
        for column, values in _chosen(data.partitions, columns, source.name).items():
            frame = frame.where(F.col(f"`{column}`").cast("string").isin(values))
    return frame


def _query(spark: SparkSession, source: Source) -> DataFrame:
    if not is_select(source.query):
        raise DataError(
            "the query file must hold one SELECT",
            where=source.name,
            got="something else",  # not its text: whose file that is, is not known here
            remedy="leave out everything but the query; it only reads",
        )
    frame = spark.sql(source.query.strip().rstrip(";"))
    plan = frame._jdf.queryExecution().analyzed()
    for part in (plan, *_each(plan.subqueriesAll())):
        for leaf in _each(part.collectLeaves()):
            _refuse_unreadable_relation(leaf)
    if not plan.deterministic():
        raise DataError(
            "the query gives other rows each time that it runs",
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
    from pyspark.errors import AnalysisException

    parts = name.split(".")
    if len(parts) > 2 and parts[0] != "spark_catalog":
        return None
    parts = parts[-2:]
    database = parts[0] if len(parts) == 2 else spark.catalog.currentDatabase()
    catalogue = spark._jsparkSession.sharedState().externalCatalog()
    if len(parts) == 1 and parts[0].lower() in _temporary(spark):
        return None
    try:
        if not catalogue.tableExists(database, parts[-1]):
            return None
        return _of_java(catalogue.getTable(database, parts[-1]))
    except AnalysisException as error:
        text = str(error)
        if "table type" in text.lower() or "materialized" in text.lower():
            raise _unreadable(name, "a materialised view of Hive", text.splitlines()[0]) from error
        raise


def _temporary(spark: SparkSession) -> set[str]:
    return {t.name.lower() for t in spark.catalog.listTables() if t.isTemporary}


def _of_java(table) -> Table:
    location = table.storage().locationUri()
    view = table.viewText()
    return Table(
        name=table.identifier().unquotedString(),
        kind=table.tableType().name(),
        partition_columns=list(_each(table.partitionColumnNames())),
        location=location.get().toString() if location.isDefined() else None,
        properties=_mapping(table.properties()),
        view_text=view.get() if view.isDefined() else "",
    )


def _each(sequence):
    """The items of a Scala sequence."""
    for n in range(sequence.size()):
        yield sequence.apply(n)


def _mapping(scala_map) -> dict[str, str]:
    out, pairs = {}, scala_map.iterator()
    while pairs.hasNext():
        pair = pairs.next()
        out[pair._1()] = pair._2()
    return out


def _refuse_unreadable(table: Table) -> None:
    """Refuse what Spark reads wrongly or not at all.

    A transactional table of Hive 3 is a base and deltas with deletes among them: Spark would take
    each file for rows.
    """
    properties = {key.lower(): value.lower() for key, value in table.properties.items()}
    if properties.get("transactional") == "true":
        kind = properties.get("transactional_properties")
        raise _unreadable(
            table.name,
            "a transactional (ACID) table of Hive" + (f", {kind}" if kind else ""),
            "transactional=true",
        )
    text = table.view_text.lstrip().lower()
    if table.kind == "VIEW" and (
        properties.get("presto_view") == "true" or text.startswith("/* presto")
    ):
        raise _unreadable(table.name, "a view of Presto or Trino", table.view_text.strip()[:60])


def _refuse_unreadable_relation(leaf) -> None:
    kind = leaf.getClass().getSimpleName()
    if kind == "HiveTableRelation":
        _refuse_unreadable(_of_java(leaf.tableMeta()))
    elif kind == "LogicalRelation" and leaf.catalogTable().isDefined():
        _refuse_unreadable(_of_java(leaf.catalogTable().get()))


def _unreadable(name: str, what: str, got: str) -> DataError:
    copy = name.replace(".", "_") + "_export"
    return DataError(
        f"Spark cannot read this table rightly: it is {what}",
        where=f"data.source {name}",
        expected="an external table, or a managed one without transactions",
        got=got,
        remedy="export it with the engine that owns it, and name the copy in data.source:"
        f" CREATE EXTERNAL TABLE {copy} STORED AS PARQUET LOCATION '<directory>' AS"
        f" SELECT * FROM {name}",
    )


# --------------------------------------------------------------------------------- what it is
def _chosen(
    wanted: dict[str, list[str]], partition_columns: Sequence[str], name: str
) -> dict[str, list[str]]:
    by_lower = {column.lower(): column for column in partition_columns}
    unknown = [column for column in wanted if column.lower() not in by_lower]
    if unknown:
        raise DataError(
            f"the table is not partitioned by {', '.join(unknown)}",
            where=f"data.partitions of {name}",
            expected=", ".join(partition_columns) or "no partition column at all",
            remedy="name partition columns; other conditions go into data.query_file",
        )
    return {by_lower[column.lower()]: values for column, values in wanted.items()}


def _table_state(spark: SparkSession, table: Table, data: DataSection) -> dict:
    """Partitions with their locations, and the files in them: what a rewrite cannot leave as is.

    Hive's own time stamps (transient_lastDdlTime) are no part of it: gathering statistics changes
    them, writing a file into a partition's directory does not.
    """
    if not table.partition_columns:
        if data.partitions:
            _chosen(data.partitions, [], table.name)
        return {"files": _listed([table.location])}
    wanted = _chosen(data.partitions or {}, table.partition_columns, table.name)
    partitions, there = [], {column: set() for column in wanted}
    for spec, location in _partitions(spark, table, wanted):
        for column in wanted:
            there[column].add(spec[column])
        if all(spec[column] in values for column, values in wanted.items()):
            partitions.append(["/".join(map(_named, spec.items())), location or table.location])
    for column, values in wanted.items():
        if missing := [value for value in values if value not in there[column]]:
            raise DataError(
                "the table has no such partition",
                where=f"data.partitions of {table.name}",
                got=", ".join(f"{column}={value}" for value in missing[:8]),
                remedy=f"SHOW PARTITIONS {table.name} lists those that are there",
            )
    partitions.sort()
    return {"partitions": partitions, "files": _listed([path for _, path in partitions])}


def _partitions(
    spark: SparkSession, table: Table, wanted: dict[str, list[str]]
) -> Iterator[tuple[dict[str, str], str | None]]:
    """(partition columns' values, location) of the partitions that may be wanted.

    The metastore is asked for each combination of values where those are few: a table of ten years
    has thousands of partitions, each of which would cross from the JVM.
    """
    catalogue = spark._jsparkSession.sharedState().externalCatalog()
    database, _, bare = table.name.rpartition(".")
    database = database.rpartition(".")[2]
    option = spark._jvm.scala.Option
    asked = [option.empty()]
    if wanted and math.prod(map(len, wanted.values())) <= _MOST_ASKED:
        asked = [
            option.apply(spark._jvm.PythonUtils.toScalaMap(dict(zip(wanted, values, strict=True))))
            for values in itertools.product(*(dict.fromkeys(v) for v in wanted.values()))
        ]
    for spec in asked:
        for item in _each(catalogue.listPartitions(database, bare, spec)):
            location = item.storage().locationUri()
            path = location.get().toString() if location.isDefined() else None
            yield _mapping(item.spec()), path


def _named(value: tuple[str, str]) -> str:
    """column=value, where a value may have a slash in it."""
    column, text = value
    return f"{column}={text.replace('%', '%25').replace('/', '%2F')}"


def _query_state(frame: DataFrame, source: Source) -> dict:
    """The files that a query or view reads where all it reads is files, else its rows' digest."""
    plan = frame._jdf.queryExecution().optimizedPlan()
    kinds = {leaf.getClass().getSimpleName() for leaf in _each(plan.collectLeaves())}
    by_files = source.query is None or not _TIMES.search(source.query)
    by_files = by_files and plan.subqueriesAll().isEmpty()  # inputFiles() leaves theirs out
    if by_files and kinds & _FILE_RELATIONS and kinds <= _FILE_RELATIONS | _CONSTANT_RELATIONS:
        paths = sorted(set(frame.inputFiles()))
        if paths:
            return {"files": _listed(paths)}
    return {"rows": digest(frame)}


def digest(frame: DataFrame) -> list:
    """[rows, xor, sum] of all rows' hashes: the same for the same rows in any order."""
    # xor of row hashes: of no partitioning and no order, and it cannot overflow
    rows = frame.select(F.xxhash64(*[F.col(f"`{c}`") for c in frame.columns]).alias("h"))
    count, digest, total = rows.agg(
        F.count("*"), F.bit_xor("h"), F.sum(F.col("h").cast("decimal(38,0)"))
    ).first()
    return [count, str(digest), str(total)]


def _listed(paths: Sequence[str]) -> list[list]:
    """[path, bytes, modified] of every file at or below the paths, sorted."""
    found: dict[str, Entry] = {}
    todo = [_path_of(path) for path in paths]
    while todo:
        path = todo.pop()
        try:
            entry = storage.entry(path)
        except NotFound:
            continue  # a partition without a directory has no rows
        if not entry.is_dir:
            found[entry.path] = entry
            continue
        for inner in storage.list_dir(path):
            if inner.name.startswith(("_", ".")):
                continue  # Hadoop's convention: markers and unfinished files
            if inner.is_dir:
                todo.append(inner.path)
            else:
                found[inner.path] = inner
    return [[e.path, e.size, round(e.modified, 6)] for _, e in sorted(found.items())]


def _path_of(uri: str) -> str:
    """A storage path of the catalogue's URI: file:/a%20b -> /a b."""
    if uri.startswith("file:"):
        return "/" + unquote(uri[len("file:") :]).lstrip("/")
    scheme, separator, rest = uri.partition("://")
    return f"{scheme}://{unquote(rest)}" if separator else uri
