"""Read files that hold their columns' names and types with Spark: Parquet, ORC, Avro."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from howdah.data.files.footers import Kind
from howdah.spark.paths import spark_path

__all__ = ["load"]


def load(spark: Any, kind: Kind, paths: Sequence[str], root: str | None) -> Any:
    """A DataFrame of the files' columns, and as texts those of directories' names below `root`.

    Args:
        spark: the SparkSession.
        paths: of files that `footers.check_alike` has passed.
        root: the directory that they were found below, if they were.
    """
    reader = spark.read.format(kind)
    if root:
        reader = reader.option("basePath", spark_path(root))
    if kind == "avro":
        reader = reader.option("ignoreExtension", "true")
    # label=01 in a directory's name is a text: as a number it would be 1
    inference = "spark.sql.sources.partitionColumnTypeInference.enabled"
    before = spark.conf.get(inference)
    spark.conf.set(inference, "false")
    try:
        return reader.load([spark_path(path) for path in paths])
    finally:
        spark.conf.set(inference, before)
