"""True labels of predicted rows, joined by the rows' ids: how many there are, and how many
predictions are right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from howdah import storage
from howdah.config.data import Columns
from howdah.data.files import checks
from howdah.errors import DataError, UsageError
from howdah.spark import ids
from training.prediction import files
from training.prediction.reading import read_rows, source_files
from training.prediction.rows import format_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from howdah.config.loader import Config

__all__ = ["joined_file", "joined_table"]


def joined_file(
    path: str,
    predicted: Mapping[str, str | None],
    *,
    id_column: str,
    label_column: str,
    names: Mapping[str, str] | None,
) -> tuple[int, int]:
    """(rows, right ones) of those whose label is in a file.

    Args:
        path: CSV, JSON lines or Parquet with columns of ids and labels.
        predicted: {id: predicted label}.
        names: data.labels, {value in the file: label}; None: the values are the labels.
    Raises:
        DataError: a column is missing, or no row has a label.
    """
    columns = Columns(text=label_column, id=id_column, label=label_column)
    rows = right = 0
    for row in read_rows(source_files(path), columns, id_required=True):
        if row.id not in predicted or row.text is None:
            continue
        label = row.text if names is None else names.get(row.text, row.text)
        rows += 1
        right += predicted[row.id] == label
    if not rows:
        raise DataError(
            "no predicted row has a label in this file",
            where=path,
            expected=f"ids in column {id_column!r}, as the rows have them",
            remedy="check --id-column, and that the predictions are of the same rows",
        )
    return rows, right


def joined_table(
    config: Config,
    scored: str,
    partition: Mapping[str, str],
    labels: str,
    *,
    id_column: str,
    label_column: str,
    progress: Callable[[str], None] = lambda line: None,
) -> tuple[int, int]:
    """`joined_file` of a scored partition and a table, by Spark.

    Args:
        scored: the table with columns id and label.
        partition: of it, with the column `model`.
        labels: db.table, or files.
    """
    from howdah.spark.session import session

    names = config.data.labels
    with session(config.data.spark, name="howdah drift", hive=True, user=config.run.user) as spark:
        from pyspark.sql import functions as F

        truth = _truth(spark, config, labels, id_column, label_column)
        missing = {id_column, label_column} - set(truth.columns)
        if missing:
            raise UsageError(
                "the labels' table lacks a column",
                where=labels,
                expected=", ".join(sorted(missing)),
                got=", ".join(truth.columns),
                remedy="name them by --id-column and --label-column",
            )
        rows = spark.table(scored)
        for column, value in partition.items():
            rows = rows.where(F.col(column).cast("string") == value)
        label = F.col(f"truth.{label_column}").cast("string")
        if names:
            pairs = [F.lit(text) for pair in names.items() for text in pair]
            label = F.coalesce(F.create_map(*pairs)[label], label)
        same = F.col("rows.id").cast("string") == F.col(f"truth.{id_column}").cast("string")
        both = rows.alias("rows").join(truth.alias("truth"), same)
        both = both.where(F.col("rows.label").isNotNull() & label.isNotNull())
        right = F.sum((F.col("rows.label") == label).cast("bigint"))
        found = both.agg(F.count("*").alias("n"), right.alias("right")).first()
    if not found["n"]:
        raise DataError(
            "no scored row has a label in this table",
            where=labels,
            expected=f"ids in column {id_column!r}, as the scored rows have them",
            remedy="check --id-column and --label-column",
        )
    progress(f"labels of {found['n']:,} rows were found in {labels}")
    return int(found["n"]), int(found["right"] or 0)


def _truth(
    spark: SparkSession, config: Config, labels: str, id_column: str, label_column: str
) -> DataFrame:
    """The columns of a table or of files with labels, ids spelt as predictions spell them."""
    if format_of(labels) is None and not storage.exists(labels):
        truth = spark.table(labels)
        if id_column not in truth.columns:
            return truth
    else:
        found = files.find(labels, None)
        columns = Columns(text=label_column, id=id_column)
        asked = {"--id-column": id_column, "--label-column": label_column}
        checks.check(
            {entry.path: entry for entry in found.entries}, found.form,
            [checks.Wanted(name=name, where=where) for where, name in asked.items()],
            config.data.csv, source=labels, root=found.root, remedy="name them by these options",
        )  # fmt: skip
        truth = files.table(spark, found, columns, config.data.csv)
    spelt = ids.column(truth[f"`{id_column}`"], truth.schema[id_column].dataType)
    return truth if spelt is None else truth.withColumn(id_column, spelt)
