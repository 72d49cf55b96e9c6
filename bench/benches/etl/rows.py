"""Rows with planted copies, as Parquet."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WORDS = 50_000
_CHUNK = 50_000


def write(path: str, count: int, seed: int = 0) -> None:
    """Write `count` rows: id, text, label, original (of a copy: the id that it is of), exact."""
    random = np.random.default_rng(seed)
    names = np.array([f"{_word(n)}" for n in range(WORDS)])
    shares = 1 / np.arange(10, WORDS + 10)
    shares /= shares.sum()
    kept: list[tuple[int, list[str]]] = []
    schema = pa.schema(
        [("id", pa.string()), ("text", pa.string()), ("label", pa.string()),
         ("original", pa.string()), ("exact", pa.bool_())]
    )  # fmt: skip
    with pq.ParquetWriter(path, schema) as writer:
        for begin in range(0, count, _CHUNK):
            size = min(_CHUNK, count - begin)
            lengths = np.clip(random.lognormal(np.log(40), 0.5, size), 5, 300).astype(int)
            drawn = names[random.choice(WORDS, lengths.sum(), p=shares)]
            texts = [part.tolist() for part in np.split(drawn, np.cumsum(lengths)[:-1])]
            kind = random.random(size)
            table: dict[str, list] = {name: [] for name in schema.names}
            for n in range(size):
                original, exact, words, number = None, None, texts[n], begin + n
                label = number % 4
                if kept and kind[n] < 0.1:
                    at, words = kept[int(random.integers(len(kept)))]
                    original, exact, label = f"r{at:09d}", bool(kind[n] < 0.05), at % 4
                    if not exact:
                        words = [*words]
                        words[int(random.integers(len(words)))] = f"other{number}"
                elif len(kept) < 200_000:
                    kept.append((number, words))
                for name, value in zip(
                    schema.names,
                    (f"r{number:09d}", " ".join(words), f"label{label}", original, exact),
                    strict=True,
                ):
                    table[name].append(value)
            writer.write_table(pa.table(table, schema))


def _word(n: int) -> str:
    letters = ""
    while True:
        n, digit = divmod(n, 20)
        letters += "bcdfghjklmnpqrstvwxz"[digit] + "aeiou"[digit % 5]
        if not n:
            return letters
