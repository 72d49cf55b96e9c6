"""Decoding and the quality gate of images: each row leaves with its pixels, or with a reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

import pyarrow as pa
from pyspark import Broadcast

from howdah.data.images import UnusableImage
from howdah.data.inputs import encoder_of_files
from howdah.data.targets import label_name
from howdah.etl.rows.gate import DETAIL_CHARACTERS, columns_of
from howdah.etl.rows.numbering import GROUP, Name, Names, with_ids

SCHEMA = (
    "id string, text string, label string, reason string, detail string, key string, pixels binary"
)
"""`pixels` (uint8) and `key`, a hash of them, of the rows that pass."""


def decode_batches(
    batches: Iterable[pa.RecordBatch],
    files: Broadcast,
    labels: dict[str, str] | None,
) -> Iterator[pa.RecordBatch]:
    """mapInArrow: (key, text, label, reason, detail, image, `numbering.GROUP`) -> SCHEMA; earlier
    reasons are kept.

    Args:
        files: (ImageEncoder.files, .source, .hash).
        labels: {value in the source: label name}, or None where every value is a label.
    """
    names = Names()
    yield from with_ids(_judged(batches, files, labels, names), names)


def _judged(
    batches: Iterable[pa.RecordBatch],
    files: Broadcast,
    labels: dict[str, str] | None,
    names: Names,
) -> Iterator[tuple[pa.RecordBatch, list[Name]]]:
    """SCHEMA without the id, and the names of the rows."""
    encoder = encoder_of_files("image", *files.value)
    for batch in batches:
        columns = columns_of(batch)
        out: dict[str, list] = {name: [] for name in ("label", "reason", "detail", "key", "pixels")}
        named: list[Name] = []
        for source_key, group, label, reason, detail, image in zip(
            *(columns[name] for name in ("key", GROUP, "label", "reason", "detail", "image")),
            strict=True,
        ):
            pixels = None
            value = label_name(label or "")
            name = labels.get(value) if labels is not None else value
            if reason is None:
                try:
                    pixels = encoder.decode(image or b"").tobytes()
                except UnusableImage as error:
                    reason, detail = error.reason, error.detail
            if reason is None and not name:
                reason = "bad_label"
                detail = value[:DETAIL_CHARACTERS] if value else "no label"
            row_name = names.of(group, source_key, passes=reason is None)
            if row_name.again:
                reason, detail = "duplicate_id", f"key {source_key}"
            key = pixel_key(pixels) if reason is None else None
            row = (name or label, reason, detail, key, pixels if reason is None else None)
            for column, each in zip(out.values(), row, strict=True):
                column.append(each)
            named.append(row_name)
        kinds = [pa.string()] * 4 + [pa.binary()]
        arrays = (pa.array(out[name], kind) for name, kind in zip(out, kinds, strict=True))
        encoded = pa.RecordBatch.from_arrays([batch.column("text"), *arrays], names=["text", *out])
        yield encoded, named


def pixel_key(pixels: bytes) -> str:
    """Key of an image's pixels: equal keys are exact duplicates (SHA-256, 128 bits)."""
    return sha256(pixels).hexdigest()[:32]
