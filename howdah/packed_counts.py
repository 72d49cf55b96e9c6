"""How many rows of a shard have each label, where labels are thousands.

A manifest of 280 shards and 10,000 labels has 2.8 million such numbers: as JSON 48 MB, and as
Python's dictionaries some 250 MB in each process that reads it. Here they are two arrays, and one
text in the manifest.
"""

from __future__ import annotations

import base64
import binascii
import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import ItemsView, Iterator, Mapping
from itertools import accumulate, pairwise

MOST_PLAIN = 256
"""Labels of a shard up to which the manifest has an object {label number: rows}."""


class PackedCounts(Mapping[str, int]):
    """{label number as text: rows}, as a dictionary of few labels has it.

    >>> counts = PackedCounts({"7": 2, "300": 1})
    >>> dict(PackedCounts.parse(counts.text())) == {"7": 2, "300": 1}, counts["300"]
    (True, 1)
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        pairs = sorted((int(label), rows) for label, rows in counts.items())
        self._labels = array("i", (label for label, _ in pairs))  # ascending
        self._rows = array("i", (rows for _, rows in pairs))

    @classmethod
    def parse(cls, text: str) -> PackedCounts:
        """From what `text` gave.

        Raises:
            ValueError: it did not.
        """
        try:
            raw = zlib.decompress(base64.b64decode(text, validate=True))
        except (binascii.Error, zlib.error) as error:
            raise ValueError(f"not counts of labels: {error}") from None
        if len(raw) % 8:
            raise ValueError("not counts of labels: half a number")
        counts = cls({})
        counts._labels.extend(accumulate(_ints(raw[: len(raw) // 2])))
        counts._rows.extend(_ints(raw[len(raw) // 2 :]))
        return counts

    def text(self) -> str:
        """Base64 of zlib of little-endian int32: each label's distance from the one before (the
        first one's from 0), then the rows of each."""
        steps = array("i", (after - before for before, after in pairwise([0, *self._labels])))
        raw = _ordered(steps).tobytes() + _ordered(self._rows).tobytes()
        return base64.b64encode(zlib.compress(raw, 9)).decode()

    def __getitem__(self, label: str) -> int:
        at = bisect_left(self._labels, int(label))
        if at == len(self._labels) or self._labels[at] != int(label):
            raise KeyError(label)
        return self._rows[at]

    def __iter__(self) -> Iterator[str]:
        return map(str, self._labels)

    def __len__(self) -> int:
        return len(self._labels)

    def items(self) -> ItemsView[str, int]:
        """All pairs, in one pass."""
        return _Items(self)


class _Items(ItemsView):
    def __iter__(self) -> Iterator[tuple[str, int]]:
        return zip(self._mapping, self._mapping._rows, strict=True)


def _ints(raw: bytes) -> array:
    values = array("i")
    values.frombytes(raw)
    return _ordered(values)


def _ordered(values: array) -> array:
    """The numbers with their bytes swapped if this machine is not little-endian, as the file is."""
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values
