"""What Spark's executors do for a baseline: shards to n-grams. It imports only what is shipped to
them (the kind `etl` of howdah/packaging/kinds.py).
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from howdah.data.manifest import ShardEntry
from howdah.data.record import RecordLayout, decode_example, read_frames
from howdah.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = "label double, weight double, grams array<string>"
_BATCH_ROWS = 1_000


def rows_of(
    batches: Iterable[pa.RecordBatch],
    entries: dict[str, ShardEntry],
    layout: RecordLayout,
    ngrams: int,
    weights: list[float] | None,
) -> Iterator[pa.RecordBatch]:
    """Rows of whole shards, as ROWS.

    Args:
        batches: of the columns path and content.
        entries: {file name: shard}.
        weights: of each class; None: all 1.
    Raises:
        DataError: a shard is truncated or altered.
    """
    for batch in batches:
        for path, content in zip(batch["path"], batch["content"], strict=True):
            name = path.as_py().rpartition("/")[2]
            data = _checked(content.as_py(), entries[name], path.as_py())
            rows: list[tuple[float, float, list[str]]] = []
            for offset, payload in read_frames(data, name):
                example = decode_example(payload, layout, where=f"{name}, offset {offset}")
                weight = 1.0 if weights is None else weights[example.label]
                grams = _grams(example.input_ids.tolist(), ngrams)
                rows.append((float(example.label), weight, grams))
                if len(rows) == _BATCH_ROWS:
                    yield _batch(rows)
                    rows = []
            if rows:
                yield _batch(rows)


def _checked(data: bytes, entry: ShardEntry, path: str) -> bytes:
    """A shard's records, once its bytes are those that the manifest lists."""
    import google_crc32c

    found = google_crc32c.value(data)
    if (len(data), found) != (entry.bytes, entry.crc32c):
        raise DataError(
            "a shard is truncated or altered",
            where=path,
            expected=f"{entry.bytes} bytes, CRC-32C {entry.crc32c:08x}",
            got=f"{len(data)} bytes, CRC-32C {found:08x}",
            remedy="restore the file, or remove the version directory and run `howdah etl` again",
        )
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError("a shard cannot be unpacked", where=path, got=str(error)) from None


def _grams(ids: list[int], longest: int) -> list[str]:
    """All n-grams as texts, for Spark's HashingTF.

    >>> _grams([2, 7, 3], 2)
    ['2', '7', '3', '2 7', '7 3']
    """
    words = [str(one) for one in ids]
    return [
        " ".join(words[at : at + order])
        for order in range(1, longest + 1)
        for at in range(len(words) - order + 1)
    ]


def _batch(rows: list[tuple[float, float, list[str]]]) -> pa.RecordBatch:
    import pyarrow as pa

    labels, weights, grams = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(labels, pa.float64()),
            pa.array(weights, pa.float64()),
            pa.array(grams, pa.list_(pa.string())),
        ],
        names=["label", "weight", "grams"],
    )
