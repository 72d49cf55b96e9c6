"""Whether a day's rows are there: partitions of a table, files, or the marker of a complete day."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from howdah import storage
from howdah.config.model import Config
from howdah.config.options.partition import expanded, is_files, parse
from howdah.errors import ConfigError, DataError
from howdah.hadoop.kerberos import logged_in

_HIDDEN = ("_", ".")
"""Hadoop's convention: markers and unfinished files."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is looked for: paths on storage, or partitions that a metastore knows."""

    config: Config
    name: str
    """The table, or the paths' pattern."""
    partitions: dict[str, dict[str, str]]
    """{partition: {column: value}}."""
    paths: dict[str, str]
    """{partition: path}; none: the metastore is asked."""

    def missing(self) -> list[str]:
        """Look once: the partitions that are not there, in their order.

        Raises:
            DataError: there is no such table, or it has other partition columns.
        """
        options = self.config.data.spark
        with logged_in(*options.login):
            if self.paths:
                return [name for name, path in self.paths.items() if not _is_there(path)]
            return self._not_in_metastore()

    def _not_in_metastore(self) -> list[str]:
        from howdah.spark import hive_catalog
        from howdah.spark.errors import translated

        data, missing = self.config.data, []
        options = data.spark.model_copy(update={"driver_memory": "512m"})
        with hive_catalog.reading(options, user=self.config.run.user) as catalogue:
            with translated(f"look at the table {self.name}", DataError):
                table = catalogue.table(self.name, where="--source")
                if table is None:
                    database = self.name.rpartition(".")[0]
                    near = difflib.get_close_matches(
                        self.name.rpartition(".")[2], catalogue.tables(database or None), n=3
                    )
                    raise DataError(
                        "there is no such table",
                        where=f"--source {self.name}",
                        got="nearest: " + ", ".join(near) if near else None,
                        remedy="give database.table, and let Spark find the metastore"
                        " (hive-site.xml in HADOOP_CONF_DIR)",
                    )
                columns = {column.lower(): column for column in table.partition_columns}
                for partition, values in self.partitions.items():
                    if unknown := [column for column in values if column.lower() not in columns]:
                        raise DataError(
                            f"the table is not partitioned by {', '.join(unknown)}",
                            where=f"--partition {partition} of {table.name}",
                            expected=", ".join(table.partition_columns) or "no partition column",
                        )
                    filters = {columns[c.lower()]: [value] for c, value in values.items()}
                    if next(catalogue.matching(table, filters), None) is None:
                        missing.append(partition)
        return missing


def search(
    config: Config, partitions: Sequence[str], *, source: str | None, ready: str | None
) -> Search:
    """Decide what is to be looked for; looks at nothing yet.

    Args:
        partitions: each a=b/c=d.
        source: a table, or files with {column} for a partition's value; None: `data.source`.
        ready: a file or directory that marks a complete day, asked for instead.
    Raises:
        ConfigError: a partition is none, or there is no source.
    """
    parsed = {partition: parse(partition) for partition in partitions}
    name = source or config.data.source
    if name is None:
        raise ConfigError(
            "nothing says which table or files to look for",
            where="--source, data.source",
            expected="database.table, or a path",
        )
    configured = name == config.data.source and config.data.names_table
    pattern = ready or (name if is_files(name) and not configured else None)
    paths = {} if pattern is None else {each: expanded(pattern, each) for each in parsed}
    return Search(config=config, name=pattern or name, partitions=parsed, paths=paths)


def _is_there(path: str) -> bool:
    """True for a file (an empty one may be a marker), for a directory with a file at any depth that
    is neither a marker nor unfinished, and for a pattern that matches one. A pattern matches such
    names only where its last part begins like them."""
    hits = storage.find(path)
    if not storage.name(path).startswith(_HIDDEN):
        hits = [hit for hit in hits if not storage.name(hit).startswith(_HIDDEN)]
    return any(not storage.is_dir(hit) or _has_files(hit) for hit in hits)


def _has_files(directory: str) -> bool:
    inside = [each for each in storage.list_dir(directory) if not each.name.startswith(_HIDDEN)]
    return any(not each.is_dir for each in inside) or any(
        _has_files(each.path) for each in inside if each.is_dir
    )
