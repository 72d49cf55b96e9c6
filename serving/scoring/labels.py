"""True labels of predicted rows, joined by id: their number, and that of right predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from howdah import storage
from howdah.config.data import Columns, CsvOptions
from howdah.data.files import checks
from howdah.data.spark import ids
from howdah.data.targets import label_mapping, label_name
from howdah.errors import DataError, UsageError
from howdah.serving.prediction import files
from howdah.serving.prediction.judged import named
from howdah.serving.prediction.reading import read_rows, source_files
from howdah.serving.prediction.rows import EMPTY, Row, format_of
from howdah.spark.errors import translated
from howdah.spark.paths import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import Row as SparkRow

    from howdah.config.model import Config

_OPTIONS = "--id-column and --set data.columns.label=NAME name them"


def joined_file(
    path: str,
    predicted: Mapping[str, str | None],
    *,
    id_column: str,
    label_column: str,
    names: Mapping[str, str] | None,
    csv_options: CsvOptions,
    progress: Callable[[str], None] = lambda line: None,
) -> tuple[int, int]:
    """Count (rows, right ones) of the predicted rows whose label is in a file, each row once.

    Args:
        path: CSV, JSON lines or Parquet with columns of ids and labels. An id with several labels
            is left out, and a line says so.
        predicted: {id: predicted label}.
        names: `targets.label_mapping`; None: the values are the labels.
    Raises:
        DataError: a column is missing, or no row has a label.
    """
    columns = Columns(text=label_column, id=id_column)
    labels: dict[str, str] = {}
    unclear: set[str] = set()
    unread: list[Row] = []
    for row in read_rows(source_files(path), columns, csv_options=csv_options, remedy=_OPTIONS):
        if row.error not in (None, EMPTY):
            unread.append(row)
        if not row.has_key or row.id not in predicted or row.text is None:
            continue
        value = label_name(row.text)
        label = value if names is None else names.get(value, value)
        if labels.setdefault(row.id, label) != label:
            unclear.add(row.id)
    for row_id in unclear:
        del labels[row_id]
    if unread:
        example = f"{unread[0].error} ({named(unread[0].id)})"
        progress(f"{path}: {len(unread):,} rows cannot be read and are left out, such as {example}")
    if unclear:
        progress(_unclear(path, len(unclear), min(unclear)))
    if not labels:
        raise DataError(
            "no predicted row has a label in this file",
            where=path,
            expected=f"the rows' ids in column {id_column!r} (--id-column)",
            got=f"{len(unclear):,} ids with several labels" if unclear else None,
        )
    right = sum(predicted[row_id] == label for row_id, label in labels.items())
    return len(labels), right


def _unclear(where: str, count: int, example: str) -> str:
    return f"{where}: {count:,} ids have several labels and are left out, for example {example!r}"


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
    """Call `joined_file` for a scored partition and a table, with Spark.

    Args:
        scored: the table with columns id and label.
        partition: a partition of it, with the column `model`.
        labels: db.table, or files.
    """
    from howdah.spark.session import session

    with session(config.data.spark, name="howdah drift", hive=True, user=config.run.user) as spark:
        from pyspark.sql import functions as F

        with translated("read the labels", DataError):
            truth = _truth(spark, config, labels, id_column, label_column)
        missing = {id_column, label_column} - set(truth.columns)
        if missing:
            raise UsageError(
                "the labels' table lacks a column",
                where=labels,
                expected=", ".join(sorted(missing)),
                got=", ".join(truth.columns),
                remedy=_OPTIONS,
            )
        rows = spark.table(scored)
        for column, value in partition.items():
            rows = rows.where(F.col(column).cast("string") == value)
        with translated("join the labels"):
            comparison = _compared(rows, truth, id_column, label_column, label_mapping(config.data))
    if comparison["unclear"]:
        progress(_unclear(labels, comparison["unclear"], comparison["example"]))
    if not comparison["n"]:
        raise DataError(
            "no scored row has a label in this table",
            where=labels,
            expected=f"the rows' ids in column {id_column!r} (--id-column)",
        )
    progress(f"labels of {comparison['n']:,} rows were found in {labels}")
    return int(comparison["n"]), int(comparison["right"] or 0)


def _compared(
    rows: DataFrame,
    truth: DataFrame,
    id_column: str,
    label_column: str,
    names: Mapping[str, str] | None,
) -> SparkRow:
    """Return (n: rows with a label, right ones, unclear: ids with several labels, one of these).

    Args:
        rows: scored rows, with columns id and label.
        truth: ids and labels, an id any number of times.
        names: `targets.label_mapping`.
    """
    from pyspark.sql import functions as F

    label = ids.label(F.col(quoted(label_column)).cast("string"))
    if names:
        pairs = [F.lit(text) for pair in names.items() for text in pair]
        label = F.coalesce(F.create_map(*pairs)[label], label)
    key = F.col(quoted(id_column)).cast("string")
    truth = truth.select(key.alias("id"), label.alias("truth")).dropna().groupBy("id")
    truth = truth.agg(F.min("truth").alias("truth"), F.max("truth").alias("other"))
    rows = rows.select(F.col("id").cast("string"), F.col("label")).where("label is not null")
    clear = F.col("truth") == F.col("other")
    counted = rows.join(truth, "id").agg(
        F.count(F.when(clear, 1)).alias("n"),
        F.count(F.when(clear & (F.col("label") == F.col("truth")), 1)).alias("right"),
        F.count(F.when(~clear, 1)).alias("unclear"),
        F.min(F.when(~clear, F.col("id"))).alias("example"),
    )
    return counted.first()


def _truth(
    spark: SparkSession, config: Config, labels: str, id_column: str, label_column: str
) -> DataFrame:
    """Return the columns of a table or of files with labels, ids spelt as in predictions."""
    if format_of(labels) is None and not storage.exists(labels):
        if not spark.catalog.tableExists(labels):
            raise DataError("there is no such table or file", where=f"--labels {labels}")
        truth = spark.table(labels)
        if id_column not in truth.columns:
            return truth
    else:
        label_files = files.find(labels, None)
        columns = Columns(text=label_column, id=id_column)
        options = {"--id-column": id_column, "data.columns.label": label_column}
        checks.check(
            {entry.path: entry for entry in label_files.entries}, label_files.form,
            [checks.Wanted(name=name, where=where) for where, name in options.items()],
            config.data.csv, source=labels, root=label_files.root, remedy=_OPTIONS,
        )  # fmt: skip
        truth = files.table(spark, label_files, columns, config.data.csv)
    spelt = ids.column(truth[quoted(id_column)], truth.schema[id_column].dataType)
    return truth if spelt is None else truth.withColumn(id_column, spelt)
