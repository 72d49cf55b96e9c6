"""Predictions with Spark: of a table, or of more files than one machine can read.

On YARN the executors need nothing installed: a Python environment with the model's framework and
Howdah's wheel are shipped as for the ETL, and YARN copies the model's files. Cleaning, truncation
and scoring are those of one machine (`serving/prediction/classify.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from howdah import storage
from howdah.config.data import Columns, CsvOptions
from howdah.config.model import Config
from howdah.config.options.source import LAKES, TABLE_NAME
from howdah.core.activity import Progress
from howdah.data.hive_table import replace_partition
from howdah.errors import DataError, UsageError
from howdah.hadoop.kerberos import logged_in
from howdah.models.opened.runtimes import serving_framework
from howdah.models.version import open_version
from howdah.packaging import cluster_paths
from howdah.serving.prediction import files, frames, sessions
from howdah.serving.prediction.cluster import ModelFiles, files_of
from howdah.serving.prediction.executor import Predictor, Reader, summarize, workers
from howdah.serving.prediction.files import SparkSourceFiles
from howdah.serving.prediction.judged import LINE_OF_SPARK, SHOWN_REASONS
from howdah.serving.prediction.reading import choose_columns, no_ids
from howdah.serving.prediction.rows import (
    TABLE,
    Outputs,
    format_of,
    refuse_existing,
    refuse_output,
    refuse_source,
    spark_format_of,
    staged_output,
)
from howdah.spark import connectors, shipping
from howdah.spark.errors import translated
from howdah.spark.interrupts import interrupts
from howdah.spark.session import is_active

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BY_SPARK = ("orc", "avro", *LAKES)
"""Values of data.format that decide how a path without a known suffix is read."""


def predict_spark(
    model: str,
    source: str,
    output: str,
    *,
    text_columns: Sequence[str] | None,
    id_column: str | None,
    config: Config,
    framework: str | None,
    overwrite: bool,
    batch: str | None,
    progress: Progress,
) -> dict:
    """`predict` with Spark; the arguments are the same. `output` becomes a directory of part files.

    `table:NAME` as output is a Hive table: the predictions replace its partition of the model's
    run_id, or with a batch that of run_id and batch; a missing table is created. A replaced
    directory or partition stays until the new one is whole.

    Rows without an id column are numbered by Spark (unique, increasing, with gaps).

    Args:
        config: `data.spark` (with the master) and `run.user` are used.
    Returns:
        The result of `predict`, and {application, workers: {count, peak_bytes, opened, python}}:
        the number of Python processes that classified, the highest peak memory, the largest number
        of models that one opened, and their environments (sys.prefix).
    Raises:
        DataError: no rows, no such table or file, a missing column.
        ConfigError: conflicting settings, or paths that a cluster cannot read.
        ClusterError: Spark is not installed or does not start, or executors fail.
        StorageError: the output could not be renamed to its name; the error names both.
        Interrupted, Terminated: after SIGINT or SIGTERM; the application is killed.
    """
    options = config.data.spark
    _check(config, source, output)
    form = _output_form(output, overwrite)
    with interrupts("the prediction"), logged_in(*options.login):
        version = open_version(model, config.publish.directory)
        request = _Request(
            model=files_of(version, framework), source=source, output=output, form=form,
            text_columns=text_columns, id_column=id_column, csv_options=config.data.csv,
            overwrite=overwrite, batch=batch,
        )  # fmt: skip
        runtime = serving_framework(version, framework)
        with sessions.explained(config):
            made = _predict(request, config, runtime, progress)
        return {"model": model, "version": version.number, **made}


@dataclass(frozen=True, kw_only=True)
class _Request:
    """A prediction's source, model and output."""

    model: ModelFiles
    source: str
    output: str
    form: str
    """parquet, jsonl, csv or table."""
    text_columns: Sequence[str] | None
    id_column: str | None
    csv_options: CsvOptions
    overwrite: bool
    batch: str | None
    """Name of the rows in a table."""

    @property
    def outputs(self) -> Outputs:
        """Columns of the predictions."""
        return Outputs(task=self.model.version.task, labels=())

    @property
    def schema(self) -> str:
        """Spark's schema of the predictions."""
        *columns, error = self.outputs.spark.items()
        return ", ".join(f"{n} {kind}" for n, kind in [*columns, ("run_id", "string"), error])

    @property
    def hive(self) -> bool:
        """True if the prediction needs the Hive metastore."""
        return self.form == "table" or not _is_file(self.source)


def _predict(request: _Request, config: Config, framework: str, progress: Progress) -> dict:
    if request.form == "table":
        return _classify(request, config, framework, progress, None)
    # Outside the Spark session, since a task that still runs would create the directory again.
    with staged_output(request.output, overwrite=request.overwrite, progress=progress) as staged:
        return _classify(request, config, framework, progress, staged)


def _classify(
    request: _Request, config: Config, framework: str, progress: Progress, staged: str | None
) -> dict:
    """Write the predictions to the directory `staged`, or if None into the table.

    Returns:
        The summary of the predictions.
    """
    kind = _kind(config, request.source)
    columns = choose_columns(
        Columns(**(request.model.version.info.get("columns") or {})),
        request.text_columns,
        request.id_column,
    )
    source_files = None
    if _is_file(request.source) and kind not in LAKES:
        source_files = files.find(request.source, kind)
        if request.form != "table":
            refuse_source(request.output, [request.source, *source_files.paths])
        files.check(
            source_files, columns, request.csv_options, id_required=request.id_column is not None,
            progress=progress,
        )  # fmt: skip
    config = _connected(config, kind, progress)
    ready = sessions.ready(
        request.model, config, framework, progress, hive=request.hive, name="howdah predict"
    )
    with ready as (spark, location, application):
        progress(f"reading {request.source} with Spark on {config.data.spark.master}")
        rows, read = _rows(spark, request, columns, source_files, kind, progress)
        seen = spark.sparkContext.accumulator({}, workers())
        predictor = Predictor(location, framework, seen, read=read)
        predicted = rows.mapInArrow(predictor, request.schema)
        with translated("classify the rows"):
            if staged is None:
                summary = _write_table(spark, predicted, request, progress)
            else:
                _write(predicted, staged, request.form)
                summary = _summary(spark, staged, request)
                _require_rows(summary, request.source)
        about = summarize(seen.value)
    return {"output": request.output, **summary, "application": application, "workers": about}


def _check(config: Config, source: str, output: str) -> None:
    options = config.data.spark
    shipping.refuse_two_identities(config)
    sessions.refuse_other_spark(options)
    if shipping.on_yarn(options):
        paths = {} if output.startswith(TABLE) else {"--output": output}
        if _is_file(source):
            paths["--source"] = source
        cluster_paths.refuse_local(paths)


# --------------------------------------------------------------------------------- in and out
def _is_file(source: str) -> bool:
    if format_of(source) or spark_format_of(source) or any(mark in source for mark in "*?["):
        return True
    return storage.exists(source)


def _output_form(output: str, overwrite: bool) -> str:
    if output.startswith(TABLE):
        if not TABLE_NAME.fullmatch(output.removeprefix(TABLE)):
            raise UsageError(
                "the output is not a table's name", where=output, expected=f"{TABLE}database.table"
            )
        return "table"
    if "." in storage.name(output):
        return refuse_output(output, overwrite=overwrite)
    refuse_existing(output, overwrite=overwrite)
    return "parquet"


def _kind(config: Config, source: str) -> str | None:
    """Return the format of a source that only Spark reads: by its suffix, else by data.format."""
    kind = spark_format_of(source)
    if kind is None and format_of(source) is None and config.data.format in _BY_SPARK:
        return config.data.format
    return kind


def _connected(config: Config, kind: str | None, progress: Progress) -> Config:
    """Add the jars and settings that a new session lacks for a format to the configuration."""
    if kind is None or is_active():
        return config
    options = config.data.spark
    more = connectors.settings(config, progress, kind=kind)
    options = options.model_copy(update={"conf": connectors.joined(more, options.conf)})
    data = config.data.model_copy(update={"spark": options})
    return config.model_copy(update={"data": data})


def _rows(
    spark: SparkSession,
    request: _Request,
    columns: Columns,
    source_files: SparkSourceFiles | None,
    kind: str | None,
    progress: Progress,
) -> tuple[DataFrame, Reader | None]:
    """Return the source's rows, and the reader of their batches if they are not (id, text)."""
    from pyspark.errors import AnalysisException

    source = request.source
    try:
        if source_files is not None:
            return files.read(spark, source_files, columns, request.csv_options)
        if kind is not None and _is_file(source):
            connectors.require(spark, kind)
            table = spark.read.format(kind).load(source)
        else:
            table = spark.table(source)
    except AnalysisException as error:
        raise DataError(
            "Spark cannot read the source",
            where=source,
            expected="a .csv, .jsonl, .parquet, .orc or .avro path, or a table's name",
            got=str(error).splitlines()[0],
        ) from None
    id_column = (request.model.version.info.get("columns") or {}).get("id")
    if id_column and not request.id_column and id_column not in table.columns:
        progress(no_ids(id_column))
    rows = frames.id_and_text(
        table, request.model.version.info, source=source, text_columns=request.text_columns,
        id_column=request.id_column,
    )  # fmt: skip
    return rows, None


def _write(predicted: DataFrame, target: str, form: str) -> None:
    from pyspark.sql import functions as F

    if form == "parquet":
        predicted.write.parquet(target)
    elif form == "jsonl":
        predicted.write.json(target)
    else:  # CSV has no arrays
        lists = [field.name for field in predicted.schema if field.dataType.typeName() == "array"]
        flat = predicted.withColumns({name: F.to_json(name) for name in lists})
        # without quoteAll Spark leaves a CR unquoted, which other readers take for a line's end
        writer = flat.write.option("header", True).option("escape", '"').option("quoteAll", True)
        writer.csv(target)


def _write_table(
    spark: SparkSession, predicted: DataFrame, request: _Request, progress: Progress
) -> dict:
    """Replace the partition of the model, or of the model and the batch; return its summary."""
    from pyspark.errors import AnalysisException

    table = request.output.removeprefix(TABLE)
    run_id = request.model.version.run_id
    batch = {} if request.batch is None else {"batch": request.batch}
    summary: dict = {}

    def check(written: DataFrame) -> None:
        summary.update(_counts(written, request.outputs), run_id=run_id)
        _require_rows(summary, request.source)

    try:
        replace_partition(
            spark,
            predicted,
            table,
            columns=request.outputs.spark,
            partition={"run_id": run_id or "none", **batch},
            what="predictions",
            check=check,
            progress=progress,
        )
    except AnalysisException as error:
        raise DataError(
            "Spark cannot write the table", where=table, got=str(error).splitlines()[0]
        ) from None
    return summary


def _require_rows(summary: dict, source: str) -> None:
    if not summary["rows"]:
        raise DataError("the source has no rows", where=source, remedy="check the source")


def _summary(spark: SparkSession, path: str, request: _Request) -> dict:
    """Count the rows written; reading them back avoids running the model twice."""
    from pyspark.sql import functions as F

    outputs = request.outputs
    if request.form == "csv":
        reader = spark.read.option("header", True).option("escape", '"')
        frame = reader.option("multiLine", True).csv(path)  # ids may hold line breaks
        if outputs.task == "multi_label":
            frame = frame.withColumn(outputs.name, F.from_json(outputs.name, "array<string>"))
    elif request.form == "jsonl":
        frame = spark.read.json(path, schema=request.schema)
    else:
        frame = spark.read.schema(request.schema).parquet(path)  # without rows there may be no file
    return _counts(frame, outputs) | {"run_id": frame.agg(F.max("run_id")).collect()[0][0]}


def _counts(frame: DataFrame, outputs: Outputs) -> dict:
    from pyspark.sql import functions as F

    name, failed = outputs.name, F.count("error").alias("failed")
    reasons = {"reasons": _reasons(frame)}
    if outputs.task != "single_label":
        rows, wrong = frame.agg(F.count("*"), failed).first()
        if outputs.task == "multi_label":
            each = frame.select(F.explode(name).alias("label"))
            labels = {row["label"]: row["count"] for row in each.groupBy("label").count().collect()}
        elif outputs.task == "regression":
            labels = {}
        else:
            assert_never(outputs.task)
        return {"rows": rows, "errors": wrong, "rejected": 0, "labels": labels, **reasons}
    counted = frame.groupBy("label").agg(F.count("*").alias("rows"), failed).collect()
    labels = {row["label"]: row["rows"] for row in counted if row["label"] is not None}
    rows, wrong = (sum(row[key] for row in counted) for key in ("rows", "failed"))
    return {
        "rows": rows, "errors": wrong, "rejected": rows - wrong - sum(labels.values()),
        "labels": labels, **reasons,
    }  # fmt: skip


def _reasons(frame: DataFrame) -> list[dict]:
    """Return `Reasons.as_list` of written predictions."""
    from pyspark.sql import functions as F

    failed = frame.where(F.col("error").isNotNull())
    failed = failed.withColumn("reason", F.regexp_replace("error", LINE_OF_SPARK, ""))
    grouped = failed.groupBy("reason").agg(
        F.count("*").alias("rows"), F.min_by(F.struct("id", "error"), "id").alias("first")
    )
    return [
        {"error": row["reason"], "rows": row["rows"], "example": row["first"]["id"],
         "first": row["first"]["error"]}
        for row in grouped.orderBy(F.desc("rows"), "reason").limit(SHOWN_REASONS).collect()
    ]  # fmt: skip
