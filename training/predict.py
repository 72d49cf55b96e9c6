"""Classify rows of files (or of a table, with Spark) or lines of stdin with an exported model."""

from __future__ import annotations

import io
import itertools
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TextIO

from howdah import storage
from howdah.config import Config
from howdah.config_data import Columns, CsvOptions
from howdah.errors import DataError
from training.predict_io import (
    Prediction,
    Row,
    as_json,
    format_of,
    open_output,
    read_rows,
    source_files,
)
from training.serve import ServedModel, open_model

__all__ = ["choose_columns", "classify", "predict", "predict_lines"]

_CHUNK_ROWS = 2048
_PROGRESS_SECONDS = 5.0
_TABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){0,2}")


def predict(
    model: str,
    source: str,
    output: str,
    *,
    text_columns: Sequence[str] | None = None,
    id_column: str | None = None,
    csv_options: CsvOptions | None = None,
    master: str | None = None,
    config: Config | None = None,
    framework: str | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> dict:
    """Classify every row of `source`, in order, in bounded memory.

    Args:
        model: an export or a run directory, on any storage.
        source: a file, a pattern or a directory of .csv, .jsonl or .parquet; or a table's name,
            which Spark reads.
        output: .parquet, .jsonl or .csv file with id, label, scores and run id; with Spark a
            directory of such files, or table:NAME, a Hive table. It appears whole at the end or not
            at all.
        text_columns: column(s) of the text; None: those that the model was trained on.
        id_column: column of the row's key; None: the one of the training data where the source
            has it, else the row's number from 0.
        csv_options: how CSV is read; None: as `config` says.
        master: run on this Spark master; None: in this process, and where Spark is needed (a
            table) on the master of `config`.
        config: its `data.csv`, and for Spark its `data.spark` and `run.user`; None: the defaults.
        framework: tensorflow or torch; None: what the model was trained with.
        overwrite: replace an output that is there, once the new one is whole.
        progress: takes a line.
    Returns:
        {model, output, run_id, rows, errors, labels: {label: rows}}; with Spark more
        (`predict_spark`).
    Raises:
        DataError: no rows, a missing column, a broken file.
        ModelError: no model.
        AlreadyExists: the output is there.
    """
    config = config or Config()
    csv_options = csv_options or config.data.csv
    if master is not None or _is_table(source) or output.startswith("table:"):
        from training.predict_spark import predict_spark

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
            csv_options=csv_options,
            config=config,
            framework=framework,
            overwrite=overwrite,
            progress=progress,
        )
    files = source_files(source)
    served = open_model(model, framework=framework, threads=threads)
    columns = choose_columns(served.columns, text_columns, id_column)
    counts: Counter[str] = Counter()
    rows = errors = 0
    started = told = time.monotonic()
    with open_output(
        output, served.labels, served.run_id, overwrite=overwrite, progress=progress
    ) as writer:
        reader = read_rows(
            files, columns, csv_options=csv_options, id_required=id_column is not None
        )
        while chunk := list(itertools.islice(reader, _CHUNK_ROWS)):
            predictions = classify(served, chunk)
            writer.write(predictions)
            rows += len(predictions)
            errors += sum(p.error is not None for p in predictions)
            counts.update(p.label for p in predictions if p.label is not None)
            if time.monotonic() - told > _PROGRESS_SECONDS:
                told = time.monotonic()
                progress(f"{rows:,} rows, {rows / (told - started):,.0f} rows/s")
        if not rows:
            raise DataError("the source has no rows", where=source, remedy="check the source")
    return {
        "model": model,
        "output": output,
        "run_id": served.run_id,
        "rows": rows,
        "errors": errors,
        "labels": {name: counts[name] for name in served.labels},
    }


def _is_table(source: str) -> bool:
    """A name without directory or known ending that is no file here: a table's."""
    bare = _TABLE.fullmatch(source) is not None and format_of(source) is None
    return bare and not storage.exists(source)


def choose_columns(
    trained: Columns, text_columns: Sequence[str] | None, id_column: str | None
) -> Columns:
    """The training data's column mapping with what the caller says in its place."""
    changes: dict = {"id": id_column if id_column is not None else trained.id}
    if text_columns:
        changes["text"] = list(text_columns)
    return trained.model_copy(update=changes)


def classify(served: ServedModel, rows: Sequence[Row]) -> list[Prediction]:
    """Predictions of rows, in their order; a row without usable text keeps its error.

    A text that is empty after cleaning is none: the model would answer with its prior.
    """
    out: list[Prediction | None] = [None] * len(rows)
    texts, places = [], []
    for place, row in enumerate(rows):
        text = None if row.text is None else served.clean_text(row.text)
        if text is None:
            out[place] = Prediction(row.id, None, None, row.error)
        elif not text.strip():
            out[place] = Prediction(row.id, None, None, "the text is empty")
        else:
            texts.append(text)
            places.append(place)
    scores_NC = served.scores(texts)
    for place, scores_C in zip(places, scores_NC, strict=True):
        out[place] = Prediction(rows[place].id, served.labels[int(scores_C.argmax())], scores_C)
    return out


# -------------------------------------------------------------------------------------- stdin
def predict_lines(model: str, lines: TextIO, out: TextIO, *, framework: str | None = None) -> int:
    """Classify each line as it comes; one JSON object a line goes out at once.

    Lines that wait already are classified together, so that a pipe is fast and a person typing
    gets an answer to each line.

    Args:
        lines: text stream; its bytes are read as UTF-8.
        out: where answers go.
    Returns:
        The count of lines.
    """
    served = open_model(model, framework=framework)
    number = 0
    for batch in _waiting_lines(lines):
        rows = []
        for line in batch:
            broken = any("\udc80" <= character <= "\udcff" for character in line)
            error = "the text is not UTF-8" if broken else None
            rows.append(Row(str(number), None if broken else line, error))
            number += 1
        for prediction in classify(served, rows):
            out.write(as_json(prediction, served.labels, served.run_id) + "\n")
        out.flush()
    return number


def _waiting_lines(stream: TextIO) -> Iterator[list[str]]:
    """Lists of whole lines: all that can be read without waiting, at least one."""
    try:
        descriptor = stream.fileno()
    except (OSError, io.UnsupportedOperation, AttributeError):  # no file behind it
        yield from _groups(line.rstrip("\n") for line in stream)
        return
    rest = b""
    while data := os.read(descriptor, 2**16):
        *whole, rest = (rest + data).split(b"\n")
        if whole:
            yield [_decoded(line) for line in whole]
    if rest:
        yield [_decoded(rest)]


def _groups(lines: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(lines)
    while group := list(itertools.islice(iterator, 64)):
        yield group


def _decoded(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "surrogateescape")
