"""Classify rows of files (or of a table, with Spark) with an exported model."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence

from howdah import storage
from howdah.config.data import Columns
from howdah.config.loader import require_secrets
from howdah.config.model import Config
from howdah.config.options.source import TABLE_NAME
from howdah.core import activity
from howdah.core.activity import time_left
from howdah.errors import DataError, UsageError
from howdah.models.opened.opened import open_model
from howdah.models.profile.profile import Profile, reference_of
from howdah.models.version import open_version
from howdah.serving.drift.judge import judge
from howdah.serving.prediction import images
from howdah.serving.prediction.classify import classify, count_failed, no_profile, outputs_of
from howdah.serving.prediction.judged import Reasons
from howdah.serving.prediction.reading import SourceFiles, choose_columns, read_rows, source_files
from howdah.serving.prediction.rows import (
    SUFFIXES,
    TABLE,
    Prediction,
    format_of,
    open_output,
    refuse_output,
    refuse_source,
    spark_format_of,
)

_CHUNK_ROWS = 2048
_FIRST_ROWS = 128
"""Rows of the first chunk, which gives the speed; larger ones pad less."""
_CHUNK_SECONDS = 1.0
_FIRST_SECONDS, _PROGRESS_SECONDS = 3.0, 10.0
"""When the first line about progress comes, and the time between the others."""
_COUNTED_BYTES = 256 * 2**20
"""Files up to this size are read once more to count their lines, which takes a moment."""


def predict(
    model: str,
    source: str,
    output: str,
    *,
    text_columns: Sequence[str] | None = None,
    id_column: str | None = None,
    master: str | None = None,
    config: Config | None = None,
    framework: str | None = None,
    overwrite: bool = False,
    batch: str | None = None,
    drift: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> dict:
    """Classify all rows of `source`, in order, in bounded memory.

    Args:
        model: its address (models/version.py).
        source: a file, a pattern or a directory of .csv, .jsonl or .parquet; or a table's name,
            which Spark reads. For a model of images: serving/prediction/images.py.
        output: .parquet, .jsonl or .csv file with id, label, scores and run id; with Spark a
            directory of such files, or table:NAME, a Hive table. It appears whole at the end or not
            at all.
        text_columns: column(s) of the text; None: those that the model was trained on.
        id_column: column of the row's key; None: the training data's, if the source has it, else
            the row's number from 0.
        master: Spark master; None: no Spark, unless it is needed (a table): then that of `config`.
        config: `data.csv`, `publish.directory` and `score.max_error_fraction` are used, with Spark
            also `data.spark` and `run.user`; None: the defaults, and any number of rows in another
            character set is classified, as rows with an error.
        framework: what runs the model; None: see `serving_framework`.
        overwrite: replace an existing output, once the new one is whole.
        batch: name of the rows in a table, such as their day: predictions of other batches by
            the same model stay.
        drift: also compare the rows with the model's own profile; on one machine, for texts.
        progress: called with a line.
    Returns:
        {model, version (of a published model, else None), output, run_id, rows, errors, reasons
        (`Reasons.as_list`), rejected, labels: {label: rows} ({} for a regression)}, and with
        `drift` {drift: the verdict}; with Spark more (`predict_spark`).
    Raises:
        DataError: no rows, a missing column, a broken file.
        ModelError: no model.
        AlreadyExists: the output exists.
    """
    if batch is not None and not (output.startswith(TABLE) and batch.strip()):
        raise UsageError(
            "--batch needs a name, and a table as the output",
            expected="--output table:NAME and --batch with a name, such as a day",
            got=f"--output {output}, --batch {batch!r}",
        )
    most = 1.0 if config is None else config.score.max_error_fraction
    config = config or Config()
    by_spark = _is_table(source) or spark_format_of(source) is not None
    if master is not None or by_spark or output.startswith(TABLE):
        from howdah.serving.prediction.spark import predict_spark

        if drift:
            raise UsageError(
                "--drift judges rows that are classified on one machine",
                remedy="score a table's partitions by `howdah score`, and judge them by"
                " `howdah drift --table`",
            )
        require_secrets(config, "data.spark")
        if master is not None:
            options = config.data.spark.model_copy(update={"master": master})
            data = config.data.model_copy(update={"spark": options})
            config = config.model_copy(update={"data": data})
        return predict_spark(
            model,
            source,
            output,
            text_columns=text_columns,
            id_column=id_column,
            config=config,
            framework=framework,
            overwrite=overwrite,
            batch=batch,
            progress=progress,
        )
    refuse_output(output, overwrite=overwrite)
    version = open_version(model, config.publish.directory)
    if drift and version.kind == "image":
        raise UsageError(
            "--drift judges texts",
            remedy="`howdah drift --source` judges predictions of images",
        )
    # Look at the source before the model is loaded.
    trained = Columns(**(version.info.get("columns") or {}))
    columns = choose_columns(trained, text_columns, id_column)
    if version.kind == "image":
        columns = columns.model_copy(update={"image": _one_column(text_columns) or trained.image})
        files = images.image_files(source)
        reader = images.read_images(files, columns, id_required=id_column is not None)
        classified, most_rows = images.classify_images, images.CHUNK_ROWS
    else:
        files = source_files(source, progress, remedy="check the path; a table needs --master")
        reader = read_rows(
            files, columns, csv_options=config.data.csv, id_required=id_column is not None,
            most_undecodable=most, progress=progress,
        )  # fmt: skip
        classified, most_rows = classify, _CHUNK_ROWS
    refuse_source(output, files.paths)
    first = next(reader, None)
    if first is None:
        raise DataError("the source has no rows", where=source, remedy="check the source")
    reader = itertools.chain([first], reader)
    served = open_model(version.path, framework=framework)
    progress(f"model {version.title}, run by {served.run_by}")
    reference = reference_of(version.path) if drift else None
    if drift and reference is None:
        raise no_profile(version.path)
    profile = None if reference is None else Profile.like(reference)
    counts: Counter[str] = Counter()
    reasons = Reasons()
    rows = errors = rejected = 0
    chunk_rows = min(_FIRST_ROWS, most_rows)
    pace = _Pace(files, progress)
    with open_output(
        output, outputs_of(served), served.run_id, overwrite=overwrite, progress=progress
    ) as writer:
        while chunk := list(itertools.islice(reader, chunk_rows)):
            began = time.monotonic()
            if profile is None:
                predictions = classified(served, chunk)
            else:
                predictions = classify(served, chunk, profile.add)
                count_failed(profile, predictions)
            writer.write(predictions)
            rows += len(predictions)
            errors += sum(p.error is not None for p in predictions)
            rejected += sum(p.rejected for p in predictions)
            reasons.add(predictions)
            for one in predictions:
                counts.update(_labels_in(one))
            if time.monotonic() - began < _CHUNK_SECONDS:
                chunk_rows = min(most_rows, 2 * chunk_rows)
            pace.show(rows)
    judged = {}
    if reference is not None and profile is not None:
        judged = {"drift": judge(reference, profile, config.drift).as_dict()}
    return {
        **judged,
        "model": model,
        "version": version.number,
        "output": output,
        "run_id": served.run_id,
        "rows": rows,
        "errors": errors,
        "reasons": reasons.as_list(),
        "rejected": rejected,
        "labels": (
            {} if served.task == "regression" else {name: counts[name] for name in served.labels}
        ),
    }


class _Pace:
    """Says how far a long prediction is, how fast, and how long it will take."""

    def __init__(self, files: SourceFiles, progress: Callable[[str], None]) -> None:
        self._files, self._progress = files, progress
        self._began, self._due = time.monotonic(), _FIRST_SECONDS
        self._total: int | None = None

    def show(self, rows: int) -> None:
        """Say it if it is time to: after some seconds, then at intervals; always to an activity."""
        seconds, is_followed = time.monotonic() - self._began, activity.is_followed()
        if seconds < (_FIRST_SECONDS if is_followed else self._due):
            return
        if self._due == _FIRST_SECONDS:  # shorter work needs no total
            self._total = _rows_about(self._files)
        self._due = seconds + _PROGRESS_SECONDS
        line = f"{rows:,} rows, {rows / seconds:,.0f} rows/s"
        if self._total is not None and self._total > rows:
            line = f"{rows:,} of about {self._total:,} rows, {rows / seconds:,.0f} rows/s, "
            line += time_left(seconds, rows, self._total)
        if is_followed:
            activity.current().note(line)
        else:
            self._progress(line)


def _rows_about(files: SourceFiles) -> int | None:
    """The number of rows, from Parquet's footers and the line feeds of texts; None: not cheap."""
    total = 0
    for entry in files.entries:
        if entry.path.endswith(".parquet"):
            import pyarrow.parquet as pq

            with storage.open_read(entry.path) as file:
                total += pq.ParquetFile(file).metadata.num_rows
        elif entry.path.endswith(tuple(SUFFIXES)) and entry.size <= _COUNTED_BYTES:
            with storage.open_read(entry.path) as file:
                while data := file.read(2**20):
                    total += data.count(b"\n")
        else:
            return None
    return total


def _labels_in(prediction: Prediction) -> list[str]:
    """Return the labels that a row counts for."""
    label = prediction.label
    if isinstance(label, str):
        return [label]
    return label if isinstance(label, list) else []


def _one_column(columns: Sequence[str] | None) -> str | None:
    if columns and len(columns) > 1:
        raise UsageError(
            "a row has one image, in one column", where="--text-column", got=", ".join(columns)
        )
    return columns[0] if columns else None


def _is_table(source: str) -> bool:
    """Return whether it is a table: no directory part, no known suffix, no such file."""
    has_suffix = bool(format_of(source) or spark_format_of(source))
    is_name = TABLE_NAME.fullmatch(source) is not None and not has_suffix
    return is_name and not storage.exists(source)
