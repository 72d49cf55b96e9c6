"""Decoding and the quality gate of images: each row leaves with its pixels, or with a reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

import pyarrow as pa
from pyspark import Broadcast

from etl.rows.gate import DETAIL_CHARACTERS
from howdah.config.data import ImageOptions
from howdah.data.images import UnusableImage
from howdah.data.inputs import encoder_of_files

SCHEMA = (
    "id string, text string, label string, reason string, detail string, key string, pixels binary"
)
"""`pixels` (uint8) and `key`, a hash of them, of the rows that pass."""


def decode_batches(
    batches: Iterable[pa.RecordBatch],
    files: Broadcast,
    options: ImageOptions,
    labels: dict[str, str] | None,
) -> Iterator[pa.RecordBatch]:
    """mapInArrow: (id, text, label, reason, detail, image) -> SCHEMA; earlier reasons are kept.

    Args:
        files: (ImageEncoder.files, .source, .hash).
        labels: {value in the source: label name}, or None where every value is a label.
    """
    encoder = encoder_of_files("image", *files.value)
    for batch in batches:
        columns = batch.to_pydict()
        out: dict[str, list] = {name: [] for name in ("label", "reason", "detail", "key", "pixels")}
        for label, reason, detail, image in zip(
            columns["label"], columns["reason"], columns["detail"], columns["image"], strict=True
        ):
            pixels = None
            value = (label or "").strip()
            name = labels.get(value) if labels is not None else value
            if reason is None:
                try:
                    pixels = encoder.decode(image or b"", options).tobytes()
                except UnusableImage as error:
                    reason, detail = error.reason, error.detail
            if reason is None and not name:
                reason = "bad_label"
                detail = value[:DETAIL_CHARACTERS] if value else "no label"
            key = pixel_key(pixels) if reason is None else None
            row = (name or label, reason, detail, key, pixels if reason is None else None)
            for column, each in zip(out.values(), row, strict=True):
                column.append(each)
        kinds = [pa.string()] * 4 + [pa.binary()]
        arrays = (pa.array(out[name], kind) for name, kind in zip(out, kinds, strict=True))
        yield pa.RecordBatch.from_arrays(
            [batch.column("id"), batch.column("text"), *arrays], names=["id", "text", *out]
        )


def pixel_key(pixels: bytes) -> str:
    """Key of an image's pixels: equal keys are exact duplicates (SHA-256, 128 bits)."""
    return sha256(pixels).hexdigest()[:32]
