"""What the catalogue says of Hive tables: partitions, their locations, and the files in them.

Asked through Spark's own client of the metastore, in a session's JVM or in one without an
application (`reading`): no executor is needed to learn what has changed.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from howdah import storage
from howdah.config.data import SparkOptions
from howdah.config.options.partition import NULL, canonical
from howdah.errors import DataError, NotFound
from howdah.spark.errors import translated
from howdah.spark.paths import path_of, quoted
from howdah.spark.session import driver_jvm, is_active
from howdah.storage import Entry

_MOST_ASKED = 50
"""Combinations of partition values that the metastore is asked for one by one."""
_AS_SPELT = ("string", "date")
"""Types whose values have one spelling: the metastore can be asked for them."""
_UTILS = "org.apache.spark.api.python.PythonUtils"


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
    columns: dict[str, str]
    """{name: Spark's type} in the table's order, the partition columns last."""
    provider: str
    """hive, parquet, orc, ...; of a table format its name."""


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition of a table."""

    spec: dict[str, str]
    """{column: value}, in the table's order."""
    location: str | None
    """Its directory's URI."""


class Catalogue:
    """The metastore, as a JVM's client sees it.

    Args:
        jvm: Py4J's view of the JVM.
        external: Spark's ExternalCatalog in it.
        database: of names without one.
    """

    def __init__(self, jvm: Any, external: Any, database: str = "default") -> None:
        self._jvm = jvm
        self._external = external
        self._database = database

    @classmethod
    def of(cls, spark: Any) -> Catalogue:
        """The catalogue of a session."""
        external = spark._jsparkSession.sharedState().externalCatalog()
        return cls(spark._jvm, external, spark.catalog.currentDatabase())

    def _parts(self, name: str) -> tuple[str, str] | None:
        """(database, table); None for a table of another catalogue."""
        parts = name.split(".")
        if len(parts) > 2 and parts[0] != "spark_catalog":
            return None
        parts = parts[-2:]
        return (parts[0] if len(parts) == 2 else self._database), parts[-1]

    def table(self, name: str, *, where: str = "data.source") -> Table | None:
        """The entry of a table or view; None: there is none in this catalogue.

        Args:
            where: the key or option that names the table, for messages.
        Raises:
            DataError: a materialised view, of which the catalogue cannot say more.
        """
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import AnalysisException

        parts = self._parts(name)
        if parts is None:
            return None
        try:
            if not self._external.tableExists(*parts):
                return None
            return table_of_java(self._external.getTable(*parts))
        except (AnalysisException, Py4JJavaError) as error:
            text = str(error)
            if "table type" in text.lower() or "materialized" in text.lower():
                reason = next((line for line in text.splitlines() if "able" in line), text)
                kind = "a materialised view of Hive"
                raise _unreadable(name, kind, reason.strip(), where) from error
            raise

    def tables(self, database: str | None) -> list[str]:
        """Names of a database's tables; none of one that is missing."""
        database = database or self._database
        if not self._external.databaseExists(database):
            return []
        return list(each(self._external.listTables(database)))

    def specs(self, table: Table) -> list[dict[str, str]]:
        """{column: value} of each partition; quicker than `partitions`, for tables with thousands.

        A value that is null is `__HIVE_DEFAULT_PARTITION__`.
        """
        parts = self._parts(table.name) or ("", "")
        names = self._external.listPartitionNames(*parts, self._jvm.scala.Option.empty())
        partitions = []
        for name in each(names):
            pairs = (part.partition("=") for part in name.split("/"))
            # The catalogue escapes what a path cannot hold as %XX.
            by_lower = {unquote(column).lower(): unquote(value) for column, _, value in pairs}
            partitions.append(
                {column: by_lower[column.lower()] for column in table.partition_columns}
            )
        return partitions

    def partitions(
        self, table: Table, filters: Mapping[str, Sequence[str]] | None = None
    ) -> Iterator[Partition]:
        """The partitions that may have these values.

        The metastore is asked for each combination of values where those are few: a table of ten
        years has thousands of partitions, each of which would cross from the JVM.

        Args:
            filters: {partition column: values}; none: all partitions.
        """
        database, bare = self._parts(table.name) or ("", "")
        option = self._jvm.scala.Option
        to_scala = getattr(self._jvm, _UTILS).toScalaMap
        options = [option.empty()]
        if filters and math.prod(map(len, filters.values())) <= _MOST_ASKED:
            options = [
                option.apply(to_scala(dict(zip(filters, values, strict=True))))
                for values in itertools.product(*(dict.fromkeys(v) for v in filters.values()))
            ]
        for spec in options:
            for item in each(self._external.listPartitions(database, bare, spec)):
                location = item.storage().locationUri()
                values = _mapping(item.spec())
                yield Partition(
                    spec={name: values[name] for name in table.partition_columns if name in values}
                    or values,
                    location=location.get().toString() if location.isDefined() else None,
                )

    def matching(self, table: Table, filters: Mapping[str, Sequence[str]]) -> Iterator[Partition]:
        """The partitions with these values, in whatever spelling the metastore has them.

        Args:
            filters: {partition column: values}, by the table's own names of its columns.
        """
        kinds = table.columns
        values = {
            column: {canonical(value, kinds[column]) for value in accepted}
            for column, accepted in filters.items()
        }
        exact = {
            column: accepted for column, accepted in filters.items() if kinds[column] in _AS_SPELT
        }
        for one in self.partitions(table, exact):
            if all(canonical(one.spec[c], kinds[c]) in accepted for c, accepted in values.items()):
                yield one


def rows_of(frame: Any, filters: Mapping[str, Sequence[str]]) -> Any:
    """The rows of a table's partitions: a DataFrame of those with these values.

    Values are compared as the column's type has them: `05` is the hour 5, and the partition of
    null has no value that a comparison would find.
    """
    from pyspark.sql import functions as F

    for name, values in filters.items():
        column, kind = F.col(quoted(name)), frame.schema[name].dataType
        matches = column.isin(*(F.lit(value).cast(kind) for value in values if value != NULL))
        frame = frame.where(matches | column.isNull() if NULL in values else matches)
    return frame


@contextlib.contextmanager
def reading(options: SparkOptions, *, user: str | None = None) -> Iterator[Catalogue]:
    """The catalogue without a Spark application; that of the active session if there is one.

    Args:
        options: `data.spark`.
        user: proxied user (doAs).
    Raises:
        ClusterError: the JVM does not start, or the metastore does not answer.
    """
    if is_active():
        from pyspark.sql import SparkSession

        yield Catalogue.of(SparkSession.builder.getOrCreate())
        return
    with driver_jvm(options, user=user) as jvm, translated("ask the metastore"):
        conf = jvm.org.apache.spark.SparkConf()
        hadoop = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(conf)
        site = conf.getClass().getClassLoader().getResource("hive-site.xml")
        if site is not None:  # as a session's SharedState does
            hadoop.addResource(site)
        warehouse = conf.get("spark.sql.warehouse.dir", "")
        if warehouse:  # where an embedded metastore that is new puts its database
            hadoop.set("hive.metastore.warehouse.dir", warehouse)
        yield Catalogue(jvm, jvm.org.apache.spark.sql.hive.HiveExternalCatalog(conf, hadoop))


# ------------------------------------------------------------------------------- from the JVM
def table_of_java(table: Any) -> Table:
    """A CatalogTable's entry."""
    location = table.storage().locationUri()
    view = table.viewText()
    provider = table.provider()
    return Table(
        name=table.identifier().unquotedString().removeprefix("spark_catalog."),
        kind=table.tableType().name(),
        partition_columns=list(each(table.partitionColumnNames())),
        location=location.get().toString() if location.isDefined() else None,
        properties=_mapping(table.properties()),
        view_text=view.get() if view.isDefined() else "",
        columns={f.name(): f.dataType().simpleString() for f in each(table.schema())},
        provider=(provider.get() if provider.isDefined() else "hive").lower(),
    )


def each(sequence: Any) -> Iterator[Any]:
    """The items of a Scala sequence."""
    for n in range(sequence.size()):
        yield sequence.apply(n)


def _mapping(scala_map: Any) -> dict[str, str]:
    out, pairs = {}, scala_map.iterator()
    while pairs.hasNext():
        pair = pairs.next()
        out[pair._1()] = pair._2()
    return out


# ------------------------------------------------------------------------------ what is refused
def refuse_unreadable(table: Table, *, where: str = "data.source") -> None:
    """Refuse what Spark reads wrongly or not at all.

    A transactional table of Hive 3 is a base and deltas with deletes among them: Spark would take
    each file for rows.

    Raises:
        DataError: such a table, or a view of another engine.
    """
    properties = {key.lower(): value.lower() for key, value in table.properties.items()}
    if properties.get("transactional") == "true":
        kind = properties.get("transactional_properties")
        what = "a transactional (ACID) table of Hive" + (f", {kind}" if kind else "")
        raise _unreadable(table.name, what, "transactional=true", where)
    text = table.view_text.lstrip().lower()
    if table.kind == "VIEW" and (
        properties.get("presto_view") == "true" or text.startswith("/* presto")
    ):
        shown = table.view_text.strip()[:60]
        raise _unreadable(table.name, "a view of Presto or Trino", shown, where)


def _unreadable(name: str, what: str, got: str, where: str) -> DataError:
    copy = name.replace(".", "_") + "_export"
    return DataError(
        f"Spark cannot read this table correctly: it is {what}",
        where=f"{where} {name}",
        expected="an external table, or a managed one without transactions",
        got=got,
        remedy=f"export it with the engine that owns it, and name the copy in {where}:"
        f" CREATE EXTERNAL TABLE {copy} STORED AS PARQUET LOCATION '<directory>' AS"
        f" SELECT * FROM {name}",
    )


# --------------------------------------------------------------------------------------- files
def listed(paths: Sequence[str]) -> list[list]:
    """[path, bytes, modified] of every file at or below the paths, sorted."""
    entries: dict[str, Entry] = {}
    todo = [path_of(path) for path in paths]
    while todo:
        path = todo.pop()
        try:
            entry = storage.entry(path)
        except NotFound:
            continue  # a partition without a directory has no rows
        if not entry.is_dir:
            entries[entry.path] = entry
            continue
        for inner in storage.list_dir(path):
            if inner.name.startswith(("_", ".")):
                continue  # Hadoop's convention: markers and unfinished files
            if inner.is_dir:
                todo.append(inner.path)
            else:
                entries[inner.path] = inner
    return [[e.path, e.size, round(e.modified, 6)] for _, e in sorted(entries.items())]
