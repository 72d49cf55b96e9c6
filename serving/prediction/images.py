"""Classify image files, or a Parquet column of them, with an exported model of images.

An image that cannot be decoded does not stop the others; its prediction has a null label and an
error.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from howdah import storage
from howdah.data import ids
from howdah.data.files.listing import files_of
from howdah.data.images import MAX_BYTES, UnusableImage
from howdah.errors import DataError, HowdahError, NotFound, UsageError
from howdah.models.opened.opened import ServedModel
from howdah.serving.prediction.classify import outputs_of
from howdah.serving.prediction.judged import Reasons
from howdah.serving.prediction.rows import Prediction, as_json, format_of, open_output
from howdah.storage.charsets import spelled

_CHUNK_ROWS = 64
"""Number of images in memory at once, as files' bytes and as pixels."""


@dataclass(frozen=True)
class ImageRow:
    """An image to classify: a file's bytes, or an error."""

    id: str
    data: bytes | None
    error: str | None = None


def classify_images(served: ServedModel, rows: Sequence[ImageRow]) -> list[Prediction]:
    """Predict images, in their order; one that cannot be decoded gets an error."""
    out: list[Prediction | None] = [None] * len(rows)
    pixels, numbers = [], []
    for number, row in enumerate(rows):
        if row.data is None:
            out[number] = Prediction(row.id, None, None, row.error)
            continue
        try:
            pixels.append(served.encoder.decode(row.data))
            numbers.append(number)
        except UnusableImage as error:
            out[number] = Prediction(row.id, None, None, str(error))
    for number, scores_C in zip(numbers, served.image_scores(pixels), strict=True):
        out[number] = Prediction(rows[number].id, served.decided(scores_C), scores_C)
    return out


def predict_images(
    served: ServedModel,
    model: str,
    source: str,
    output: str,
    *,
    image_column: str | None = None,
    id_column: str | None = None,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> dict:
    """Classify all images of `source`, in order, in bounded memory; `predict` for images.

    Args:
        model: the model's address, for the summary.
        source: an image file, a pattern, a directory (searched below, too), or .parquet file(s).
        image_column: column of the files' bytes in Parquet; None: that of the training data.
        id_column: column of the row's key; None: the training data's, if the source has it, else
            the row's number. An image file's id is its path below the source.
    Raises:
        DataError: no rows, a missing column, a broken Parquet file.
        AlreadyExists: the output exists.
    """
    files, root = _files(source)
    columns = served.columns
    column, key = image_column or columns.image, id_column or columns.id
    counts: Counter[str] = Counter()
    reasons = Reasons()
    rows = errors = rejected = 0
    with open_output(
        output, outputs_of(served), served.run_id, overwrite=overwrite, progress=progress
    ) as writer:
        images = _rows(files, root, column, key, id_column is not None)
        while chunk := list(itertools.islice(images, _CHUNK_ROWS)):
            predictions = classify_images(served, chunk)
            writer.write(predictions)
            rows += len(predictions)
            errors += sum(one.error is not None for one in predictions)
            rejected += sum(one.rejected for one in predictions)
            reasons.add(predictions)
            counts.update(one.label for one in predictions if one.label is not None)
        if not rows:
            raise DataError("the source has no rows", where=source, remedy="check the source")
    return {
        "model": model,
        "output": output,
        "run_id": served.run_id,
        "rows": rows,
        "errors": errors,
        "reasons": reasons.as_list(),
        "rejected": rejected,
        "labels": {name: counts[name] for name in served.labels},
    }


def predict_image_lines(served: ServedModel, lines: TextIO, out: TextIO) -> int:
    """Classify the image files whose paths are the lines; a JSON object per line, at once.

    Returns:
        The number of lines.
    """
    number = 0
    for line in lines:
        path = line.rstrip("\r\n")
        [prediction] = classify_images(served, [_file(path, path)])
        out.write(as_json(prediction, outputs_of(served), served.run_id) + "\n")
        out.flush()
        number += 1
    return number


# -------------------------------------------------------------------------------------- the source
def _files(source: str) -> tuple[list[str], str]:
    """Return the sorted files, and the prefix of their paths that their ids omit."""
    directory, entries = files_of(source) or (None, [])
    paths = [entry.path for entry in entries]
    root = "" if directory is None else directory.rstrip("/") + "/"
    if directory is not None:
        paths.sort()
    if not paths:
        raise NotFound(
            "the source has no files",
            where=source,
            expected="an image file, a pattern, a directory of images, or .parquet files",
        )
    parquet = [format_of(path) == "parquet" for path in paths]
    if any(parquet) and not all(parquet):
        raise UsageError(
            "the source holds Parquet files and others",
            where=source,
            remedy="narrow it to one kind, e.g. DIR/*.parquet",
        )
    return paths, root


def _rows(
    files: Sequence[str],
    root: str,
    column: str,
    key: str | None,
    key_required: bool,
) -> Iterator[ImageRow]:
    if format_of(files[0]) != "parquet":
        for path in files:
            yield _file(path, spelled(path.removeprefix(root)))
        return
    number = itertools.count()
    for path in files:
        yield from _parquet_rows(path, column, key, key_required, number)


def _file(path: str, row_id: str) -> ImageRow:
    """Read a file as a row; one that is too large or unreadable gets an error."""
    try:
        size = storage.size(path)
        if size > MAX_BYTES:
            return ImageRow(row_id, None, f"too_large: {size:,} bytes")
        return ImageRow(row_id, storage.read_bytes(path))
    except HowdahError as error:
        return ImageRow(row_id, None, f"cannot be read: {error.what}")


def _parquet_rows(
    path: str, column: str, key: str | None, key_required: bool, number: Iterator[int]
) -> Iterator[ImageRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    top, *inner = column.split(".")
    with storage.open_read(path) as file:
        try:
            parquet = pq.ParquetFile(file)
        except pa.ArrowInvalid as error:
            raise DataError("the file is not Parquet", where=path, got=str(error)) from None
        names = parquet.schema_arrow.names
        for name in (top, *([key] if key and key_required else [])):
            if name not in names:
                raise DataError(
                    f"the source has no column {name!r}",
                    where=path,
                    got=f"columns {', '.join(names)}",
                    remedy="--text-column names the column of the images, --id-column the key's",
                )
        selected = [top, *([key] if key in names else [])]
        for batch in parquet.iter_batches(_CHUNK_ROWS, columns=selected):
            keys = [None] * batch.num_rows
            if key is not None and key in names:
                keys = ids.texts(batch.column(key))
            for record, row_key in zip(batch.to_pylist(), keys, strict=True):
                count = next(number)
                value = record[top]
                for field in inner:
                    value = value.get(field) if isinstance(value, dict) else None
                row_id = str(count) if row_key is None else row_key
                if isinstance(value, bytes):
                    yield ImageRow(row_id, value)
                else:
                    why = "null" if value is None else f"{type(value).__name__}, not bytes"
                    yield ImageRow(row_id, None, f"the image is {why}")
