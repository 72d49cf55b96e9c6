"""Paths and names of columns as Spark must get them."""

from __future__ import annotations

from urllib.parse import unquote

from howdah import storage


def quoted(column: str) -> str:
    """A column's name, whatever characters it has, for `functions.col` and schemas.

    >>> quoted("a`b.c")
    '`a``b.c`'
    """
    return "`" + column.replace("`", "``") + "`"


def spark_path(path: str, *, pattern: bool = True) -> str:
    """A path as Spark must get it: a plain one would be taken for the cluster's file system's.

    Args:
        pattern: it is given where Spark reads the characters of a glob as one; False: it is taken
            as it is, as the option basePath is.
    """
    if not storage.is_local(path):
        return path
    local = storage.local_path(path)
    if pattern:  # there is no other way to name the file
        local = "".join(f"\\{c}" if c in "*?[]{}\\" else c for c in local)
    return f"file://{local}"


def path_of(uri: str) -> str:
    """A storage path of a URI, as catalogues and Spark's settings have it; of a plain path itself.

    >>> path_of("file:/a%20b"), path_of("hdfs://nn:8020/w/ds=a%3Ab")
    ('/a b', 'hdfs://nn:8020/w/ds=a:b')
    """
    if uri.startswith("file:"):
        return "/" + unquote(uri[len("file:") :]).lstrip("/")
    scheme, separator, rest = uri.partition("://")
    return f"{scheme}://{unquote(rest)}" if separator else uri
