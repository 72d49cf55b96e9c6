"""PostgreSQL as a source: by a table's name or one SELECT, read over JDBC by one or several tasks.

What is noticed of changes: `data.jdbc.watermark`. Tasks read in transactions of their own, at
different times; so the state is looked up again when all is read, and one that has changed ends
the run.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession

from howdah import redact
from howdah.config.data import DataSection, JdbcOptions
from howdah.core.machine import is_loopback
from howdah.errors import ConfigError, DataError
from howdah.etl.sources import hive
from howdah.etl.sources.source import Source
from howdah.spark.errors import translated
from howdah.storage import private_files

VARIABLE = "HOWDAH_JDBC_URL"
_PARTITIONS = 8
"""Tasks, and connections at once, that divide a table by ranges: a database serves this many beside
its other clients, and more seldom read faster."""
_FETCH_SIZE = 1_000
"""Rows that a task fetches at once. PostgreSQL's driver fetches a whole result otherwise, and a
task's memory must hold it."""
_URL = "one line: postgresql://user:password@host:5432/database"
_PARAMETERS = frozenset({
    "sslmode", "sslrootcert", "sslcert", "sslkey", "connectTimeout", "socketTimeout",
    "loginTimeout", "targetServerType", "currentSchema", "channelBinding",
})  # fmt: skip
"""Parameters of a URL that are passed on: others of the driver load classes or write files."""
_QUOTED = re.compile(r"""'[^']*'|"[^"]*"|--[^\n]*|/\*.*?\*/""", re.S)
"""Texts, quoted names and comments of SQL, in which a semicolon ends nothing."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """A database, and the account to read it with."""

    name: str
    """postgresql://host:port/database"""
    url: str
    """JDBC URL without user and password."""
    user: str
    password: str = field(repr=False)


def resolved(spark: SparkSession, source: Source, data: DataSection) -> Source:
    """The source with its present state as `identity`.

    Raises:
        ConfigError, PermissionDenied: no URL of a database, or one that others may read.
        DataError: no such table or column, or the database lets no one in.
    """
    at, options = server(data.jdbc), data.jdbc
    with _translated(source):
        frame = _frame(spark, source, at, options)
        identity: dict[str, Any] = {
            "server": at.name,
            "schema": [[f.name, f.dataType.simpleString()] for f in frame.schema.fields],
        }
        if source.query is not None:
            identity["query"] = hashlib.sha256(source.query.encode()).hexdigest()
        else:
            identity["table"] = source.name
        if options.watermark is None:
            identity["rows"] = hive.digest(read(spark, source, data))
        else:
            column = _column(frame, options.watermark, "data.jdbc.watermark", source)
            select = f"count(*) AS n, CAST(max({_quoted(column)}) AS text) AS latest"
            state = _asked(spark, source, at, select)
            identity["watermark"] = [column, state["n"], state["latest"]]
        return replace(source, identity=identity)


def read(spark: SparkSession, source: Source, data: DataSection) -> DataFrame:
    """The rows, read by as many tasks as the options say."""
    at, options = server(data.jdbc), data.jdbc
    with _translated(source):
        frame = _frame(spark, source, at, options)
        if options.partition_column is None:
            return frame
        column = _column(frame, options.partition_column, "data.jdbc.partition_column", source)
        name = _quoted(column)
        select = f"CAST(min({name}) AS text) AS low, CAST(max({name}) AS text) AS high"
        bounds = _asked(spark, source, at, select)
        if bounds["low"] is None:  # no row, or no value in any
            return frame
        divided = {
            "partitionColumn": column, "numPartitions": str(_PARTITIONS),
            "lowerBound": bounds["low"], "upperBound": bounds["high"],
        }  # fmt: skip
        return _frame(spark, source, at, options, divided)


def _frame(
    spark: SparkSession,
    source: Source,
    at: Server,
    options: JdbcOptions,
    more: dict[str, str] | None = None,
) -> DataFrame:
    settings = {**_options(at), "fetchsize": str(_FETCH_SIZE), **(more or {})}
    return spark.read.format("jdbc").options(dbtable=_relation(source), **settings).load()


def _asked(spark: SparkSession, source: Source, at: Server, what: str) -> Any:
    """The one row of what the database itself computes."""
    relation = f"(SELECT {what} FROM {_relation(source)}) AS howdah_asked"
    return spark.read.format("jdbc").options(dbtable=relation, **_options(at)).load().first()


def _options(at: Server) -> dict[str, str]:
    return {
        "url": at.url,
        "user": at.user,
        "password": at.password,
        "driver": "org.postgresql.Driver",
        "ApplicationName": "howdah etl",
        # a query could call a function that writes
        "readOnly": "true",
        "readOnlyMode": "always",
    }


def _relation(source: Source) -> str:
    if source.query is None:
        return source.name
    query = source.query.strip().rstrip(";")
    # A backslash may escape a quote, and $ quotes in a way of PostgreSQL's: then none is left out.
    bare = query if "\\" in query or "$" in query else _QUOTED.sub("", query)
    if not hive.is_select(query) or ";" in bare:
        raise DataError(
            "the query file must hold one SELECT",
            where=source.name,  # without the query's text, which may hold secrets
            remedy="leave out everything but the query; it only reads",
        )
    return f"(\n{query}\n) AS howdah_source"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _column(frame: DataFrame, name: str, where: str, source: Source) -> str:
    if name not in frame.columns:
        raise DataError(
            f"the source has no column {name!r}",
            where=f"{where} of {source.name}",
            expected=", ".join(frame.columns),
            got=name,
        )
    return name


def _translated(source: Source) -> Any:
    return translated(f"read {source.name} from the database", DataError)


# ------------------------------------------------------------------------------- the connection
def server(options: JdbcOptions) -> Server:
    """The database of `data.jdbc.url_file`, else of the environment.

    Raises:
        ConfigError: neither is given, or it is not a URL of PostgreSQL; never with the URL's text.
        PermissionDenied: users other than its owner may read the file.
    """
    if options.url_file is None:
        where, text = f"environment variable {VARIABLE}", os.environ.get(VARIABLE, "")
        if not text:
            raise ConfigError(
                "no database is given",
                where=f"data.jdbc.url_file, {where}",
                expected=f"in one of them, {_URL}",
                remedy="write the line into a file of mode 0600, and name it in data.jdbc.url_file",
            )
    else:
        where = options.url_file
        text = private_files.read(
            where, what="the file with the database's password", where=f"data.jdbc.url_file {where}"
        )
    try:
        return _parsed(text.removeprefix("\ufeff").strip(), where)
    except ValueError:  # the port is not a number
        raise _no_url(where) from None


def _parsed(text: str, where: str) -> Server:
    parts = urlsplit(text.removeprefix("jdbc:"))
    database = parts.path.removeprefix("/")
    whole = parts.hostname and database and "/" not in database and parts.username
    if parts.scheme not in ("postgresql", "postgres") or not whole or "\n" in text:
        raise _no_url(where)
    names = [pair.partition("=")[0] for pair in parts.query.split("&") if pair]
    if other := sorted(set(names) - _PARAMETERS):
        raise ConfigError(
            "a parameter of the database's URL is not passed on",
            where=where,
            expected=", ".join(sorted(_PARAMETERS)),
            got=", ".join(other),
            remedy="leave it out; user and password stand before the host",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    name = f"postgresql://{host}:{parts.port or 5432}/{database}"
    query = parts.query
    if "sslmode" not in names and not is_loopback(parts.hostname):
        # The driver's own default, `prefer`, sends the password to any process that answers.
        query = "&".join(filter(None, (query, "sslmode=verify-full")))
    query = f"?{query}" if query else ""
    return Server(
        name=redact.text(name),
        url=f"jdbc:{name}{query}",
        user=unquote(parts.username),
        password=unquote(parts.password or ""),
    )


def _no_url(where: str) -> ConfigError:
    return ConfigError(
        "not a URL of a PostgreSQL database",
        where=where,
        expected=_URL,
        remedy="characters such as @ and / in the password are written as %40 and %2F",
    )
