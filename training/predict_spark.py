"""The same predictions on Spark: of a table, or of files too many for one machine.

The export's files are broadcast; each Python worker opens the model once and keeps it. Cleaning,
cutting and scoring are `training/predict.py`'s own.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from howdah import modelfiles, storage
from howdah.config_model import Columns, CsvOptions
from howdah.errors import AlreadyExists, ClusterError, DataError, UsageError
from howdah.hive_table import replace_partition
from training.export import INFO, resolve_export
from training.predict_io import Row, format_of
from training.serve import EXPORT_PATTERNS, ServedModel, choose_framework, open_model

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["predict_spark"]

_SCHEMA = "id string, label string, scores array<float>, run_id string, error string"
_ROWS_PER_BATCH = "2048"
TABLE = "table:"
"""Before an output that is a Hive table's name."""
_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+){0,2}")
_TABLE_COLUMNS = {
    "id": "string", "label": "string", "scores": "array<float>", "error": "string",
}  # fmt: skip


def predict_spark(
    model: str,
    source: str,
    output: str,
    *,
    text_columns: Sequence[str] | None,
    id_column: str | None,
    csv_options: CsvOptions | None,
    master: str,
    framework: str | None,
    overwrite: bool,
    progress: Callable[[str], None],
) -> dict:
    """`predict` on Spark; the arguments are its own. `output` becomes a directory of part files.

    `table:NAME` as output is a Hive table: the predictions replace its partition of the model's
    run_id, and the table is made if it is not there.

    Rows without an id column are numbered by Spark (unique, increasing, with gaps).

    Raises:
        DataError: no rows, no such table or file, a missing column.
        ClusterError: Spark is not installed or does not start.
    """
    form = _output_form(output, overwrite)
    files = _model_files(model)
    info = _json_of(files, INFO)
    chosen = choose_framework(framework, trained_with=info.get("framework"))
    trained = Columns(**info.get("columns", {}))
    text = list(text_columns) if text_columns else trained.text
    table = output.removeprefix(TABLE) if form == "table" else None
    with _session(master, hive=table is not None or not _is_file(source)) as spark:
        progress(f"reading {source} with Spark on {master}")
        rows = _read(spark, source, csv_options or CsvOptions())
        chosen_rows = _chosen(
            rows, source, text, id_column, trained.id if trained.id in rows.columns else None,
            trained.separator,
        )  # fmt: skip
        shared = spark.sparkContext.broadcast(files)
        predicted = chosen_rows.mapInArrow(_Predictor(shared, chosen), _SCHEMA)
        if table is not None:
            summary = _write_table(spark, predicted, table, info.get("run_id"), source)
            return {"model": model, "output": output, **summary}
        temp = f"{output.rstrip('/')}.tmp-{secrets.token_hex(4)}"
        try:
            _write(predicted, temp, form)
            summary = _summary(spark, temp, form)
            if not summary["rows"]:
                raise DataError("the source has no rows", where=source, remedy="check the source")
            if overwrite:
                storage.remove(output, recursive=True)
            storage.rename_dir(temp, output)
        finally:
            storage.remove(temp, recursive=True)
    return {"model": model, "output": output, **summary}


# --------------------------------------------------------------------------------- in and out
def _is_file(source: str) -> bool:
    return format_of(source) is not None or storage.exists(source)


def _output_form(output: str, overwrite: bool) -> str:
    if output.startswith(TABLE):
        if not _NAME.fullmatch(output.removeprefix(TABLE)):
            raise UsageError(
                "the output is no table name", where=output, expected=f"{TABLE}database.table"
            )
        return "table"
    form = format_of(output) or ("parquet" if "." not in storage.name(output) else None)
    if form not in ("parquet", "jsonl", "csv"):
        raise UsageError(
            "the format of the output is not known",
            where=output,
            expected="a directory's name, which may end in .parquet, .jsonl or .csv",
        )
    if storage.exists(output) and not overwrite:
        raise AlreadyExists(
            "the output is there already", where=output, remedy="give another name, or remove it"
        )
    return form


def _model_files(model: str) -> dict[str, bytes]:
    local = modelfiles.fetch(resolve_export(model), patterns=EXPORT_PATTERNS)
    names = {"config.json", INFO, "model.safetensors"}
    return {
        entry.name: storage.read_bytes(entry.path)
        for entry in storage.list_dir(local)
        if not entry.is_dir and (entry.name in names or entry.name in _TOKENIZER)
    }


_TOKENIZER = frozenset(modelfiles.TOKENIZER_PATTERNS)


def _json_of(files: dict[str, bytes], name: str) -> dict:
    import json

    return json.loads(files[name]) if name in files else {}


@contextlib.contextmanager
def _session(master: str, *, hive: bool) -> Iterator[SparkSession]:
    """The active session, or one for this call alone."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ClusterError(
            "Spark is not installed",
            where=f"--master {master}",
            remedy="install pyspark, or give files and no --master",
        ) from None
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    builder = SparkSession.builder.master(master).appName("howdah predict")
    if master.startswith("local"):
        # Workers of this machine run this interpreter and find this checkout.
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        paths = [root, os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        for key, value in (("driver.host", "127.0.0.1"), ("driver.bindAddress", "127.0.0.1"),
                           ("ui.enabled", "false")):  # fmt: skip
            builder = builder.config(f"spark.{key}", value)
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.log.level", "ERROR")
    if hive:
        builder = builder.enableHiveSupport()
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        raise ClusterError(
            "Spark did not start",
            where=f"--master {master}",
            got=str(error).splitlines()[0] if str(error) else type(error).__name__,
            remedy="check the master's address and Java (`howdah doctor`)",
        ) from error
    try:
        yield spark
    finally:
        spark.stop()


def _read(spark: SparkSession, source: str, options: CsvOptions) -> DataFrame:
    """The source as Spark reads it: by its ending, else as a table."""
    from pyspark.errors import AnalysisException

    form = format_of(source)
    try:
        if form == "csv":
            reader = spark.read.option("header", options.header).option("multiLine", True)
            reader = reader.option("sep", options.delimiter).option("quote", options.quote)
            reader = reader.option("escape", options.escape or options.quote)
            frame = reader.option("encoding", options.encoding).csv(source)
            return frame.toDF(*options.names) if options.names and not options.header else frame
        if form == "jsonl":
            return spark.read.json(source)
        if form == "parquet" or storage.exists(source):
            return spark.read.parquet(source)
        return spark.table(source)
    except AnalysisException as error:
        raise DataError(
            "Spark cannot read the source",
            where=source,
            expected="a .csv, .jsonl or .parquet path, or a table's name",
            got=str(error).splitlines()[0],
            remedy="check the name; a directory without such an ending is read as Parquet",
        ) from None


def _chosen(
    rows: DataFrame,
    source: str,
    text: Sequence[str],
    id_column: str | None,
    trained_id: str | None,
    separator: str,
) -> DataFrame:
    """(id, text) of the rows; text is null where all of its columns are."""
    from pyspark.sql import functions as F

    missing = [c for c in (*text, *([id_column] if id_column else [])) if c not in rows.columns]
    if missing:
        raise DataError(
            f"the source has no column {missing[0]!r}",
            where=source,
            got=f"columns {', '.join(rows.columns)}",
            remedy="--text-column and --id-column name them",
        )
    key = id_column or trained_id
    row_id = F.col(f"`{key}`").cast("string") if key else F.monotonically_increasing_id()
    parts = [F.col(f"`{name}`").cast("string") for name in text]
    joined = F.when(F.coalesce(*parts).isNotNull(), F.concat_ws(separator, *parts))
    return rows.select(row_id.cast("string").alias("id"), joined.alias("text"))


def _write(predicted: DataFrame, target: str, form: str) -> None:
    from pyspark.sql import functions as F

    if form == "parquet":
        predicted.write.parquet(target)
    elif form == "jsonl":
        predicted.write.json(target)
    else:  # CSV has no arrays
        flat = predicted.withColumn("scores", F.to_json("scores"))
        flat.write.option("header", True).option("escape", '"').csv(target)


def _write_table(
    spark: SparkSession, predicted: DataFrame, table: str, run_id: str | None, source: str
) -> dict:
    """Replace the model's partition of a table; what `_summary` gives."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    try:
        replace_partition(
            spark,
            predicted,
            table,
            columns=_TABLE_COLUMNS,
            key="run_id",
            value=run_id or "none",
            what="predictions",
        )
    except AnalysisException as error:
        raise DataError(
            "Spark cannot write the table",
            where=table,
            got=str(error).splitlines()[0],
            remedy="check the database's name and your right to write there",
        ) from None
    summary = _counts(spark.table(table).where(F.col("run_id") == (run_id or "none")))
    if not summary["rows"]:
        raise DataError("the source has no rows", where=source, remedy="check the source")
    return summary


def _summary(spark: SparkSession, path: str, form: str) -> dict:
    """Counts, taken from what was written: the model runs once."""
    if form == "csv":
        frame = spark.read.option("header", True).option("escape", '"').csv(path)
    elif form == "jsonl":
        frame = spark.read.json(path, schema=_SCHEMA)
    else:
        frame = spark.read.parquet(path)
    return _counts(frame)


def _counts(frame: DataFrame) -> dict:
    from pyspark.sql import functions as F

    counted = frame.groupBy("label", "run_id").agg(F.count("*").alias("rows")).collect()
    labels = {row["label"]: row["rows"] for row in counted if row["label"] is not None}
    rows = sum(row["rows"] for row in counted)
    return {
        "run_id": next((row["run_id"] for row in counted), None),
        "rows": rows,
        "errors": rows - sum(labels.values()),
        "labels": labels,
    }


# ------------------------------------------------------------------------------- in the workers
_opened: dict[str, ServedModel] = {}
"""Models that this worker process has opened, by the identity of the broadcast."""


class _Predictor:
    """mapInArrow's function: batches of (id, text) to batches of predictions."""

    def __init__(self, files: Any, framework: str) -> None:
        self._files = files
        self._framework = framework
        self._key = secrets.token_hex(8)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from training.predict import classify

        served = self._model()
        for batch in batches:
            columns = batch.to_pydict()
            rows = [
                Row(row_id, text, None if text is not None else "the text is null")
                for row_id, text in zip(columns["id"], columns["text"], strict=True)
            ]
            predictions = classify(served, rows)
            yield pa.record_batch(
                {
                    "id": pa.array([p.id for p in predictions], pa.string()),
                    "label": pa.array([p.label for p in predictions], pa.string()),
                    "scores": pa.array([p.scores for p in predictions], pa.list_(pa.float32())),
                    "run_id": pa.array([served.run_id] * len(predictions), pa.string()),
                    "error": pa.array([p.error for p in predictions], pa.string()),
                }
            )

    def _model(self) -> ServedModel:
        if self._key not in _opened:
            with tempfile.TemporaryDirectory(prefix="howdah-model-") as directory:
                for name, data in self._files.value.items():
                    with open(os.path.join(directory, name), "wb") as file:
                        file.write(data)
                # Spark runs a worker a core: each takes one thread.
                _opened[self._key] = open_model(directory, framework=self._framework, threads=1)
        return _opened[self._key]
