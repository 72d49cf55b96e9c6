"""Classify image files, or a Parquet column of them, with an exported model of images.

An image that cannot be decoded does not stop the others; its prediction has a null label and an
error.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from howdah import storage
from howdah.config.data import Columns
from howdah.data import ids
from howdah.data.files import footers
from howdah.data.files.checks import no_column
from howdah.data.files.listing import files_of
from howdah.data.images import MAX_BYTES, UnusableImage
from howdah.errors import HowdahError, NotFound, UsageError
from howdah.models.opened.opened import ServedModel
from howdah.serving.prediction.reading import SourceFiles, parquet_batches
from howdah.serving.prediction.rows import NO_KEY, Prediction, format_of
from howdah.storage.charsets import spelled

CHUNK_ROWS = 64
"""Number of images in memory at once, as files' bytes and as pixels."""
_OPTIONS = "--text-column names the column of the images, --id-column that of the id"


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
            out[number] = Prediction(row.id, None, None, f"{error.reason} ({error.detail})")
    for number, scores_C in zip(numbers, served.image_scores(pixels), strict=True):
        out[number] = Prediction(rows[number].id, served.decided(scores_C), scores_C)
    return out


# -------------------------------------------------------------------------------------- the source
def image_files(source: str) -> SourceFiles:
    """List the files of a source: an image file, a pattern, a directory, or .parquet file(s).

    Raises:
        NotFound: there are none.
        UsageError: some are Parquet, and others are not.
    """
    directory, entries = files_of(source) or (None, [])
    if not entries:
        raise NotFound(
            "the source has no files",
            where=source,
            expected="an image file, a pattern, a directory of images, or .parquet files",
        )
    if len({format_of(entry.path) == "parquet" for entry in entries}) > 1:
        raise UsageError(
            "the source holds Parquet files and others",
            where=source,
            remedy="narrow it to one kind, e.g. DIR/*.parquet",
        )
    if directory is not None:
        entries = sorted(entries, key=lambda entry: entry.path)
    return SourceFiles(entries=entries, root=directory)


def read_images(files: SourceFiles, columns: Columns, *, id_required: bool) -> Iterator[ImageRow]:
    """Yield the images of files, in order.

    Args:
        columns: of Parquet: `image`, and the id; without an id it is the row's number from 0. An
            image file's id is its path below the source.
        id_required: refuse a source without the id column, rather than number its rows.
    Raises:
        DataError: a missing column, a broken Parquet file.
    """
    if format_of(files.paths[0]) == "parquet":
        number = itertools.count()
        for path in files.paths:
            yield from _parquet_rows(path, columns.image, columns.id, id_required, number)
        return
    above = "" if files.root is None else files.root.rstrip("/") + "/"
    for path in files.paths:
        yield image_file(path, spelled(path.removeprefix(above)))


def image_file(path: str, row_id: str) -> ImageRow:
    """Read a file as a row; one that is too large or unreadable gets an error."""
    try:
        size = storage.size(path)
        if size > MAX_BYTES:
            return ImageRow(row_id, None, f"too_large ({size:,} bytes)")
        return ImageRow(row_id, storage.read_bytes(path))
    except HowdahError as error:
        return ImageRow(row_id, None, f"cannot be read: {error.what}")


def _parquet_rows(
    path: str, column: str, key: str | None, key_required: bool, number: Iterator[int]
) -> Iterator[ImageRow]:
    top, *inner = column.split(".")
    names = footers.schema(path, "parquet").names
    for name in (top, *([key] if key and key_required else [])):
        if name not in names:
            raise no_column(name, names, where=path, remedy=_OPTIONS)
    has_key = key is not None and key in names
    for batch in parquet_batches(path, [top, *([key] if has_key else [])], CHUNK_ROWS):
        keys = ids.texts(batch.column(key)) if has_key else [None] * batch.num_rows
        for record, row_key in zip(batch.to_pylist(), keys, strict=True):
            count = next(number)
            value = record[top]
            for field in inner:
                value = value.get(field) if isinstance(value, dict) else None
            if row_key is None:  # beside ids a number could be another row's
                row_key = f"{NO_KEY}{count}" if key else str(count)
            if isinstance(value, bytes):
                yield ImageRow(row_key, value)
            else:
                why = "null" if value is None else f"{type(value).__name__}, not bytes"
                yield ImageRow(row_key, None, f"the image is {why}")
