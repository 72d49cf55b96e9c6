"""Files as other people's programs write them, with the rows that they hold.

The bytes are made here, or by json, pandas and pyarrow, never by Howdah's writers.
"""

from __future__ import annotations

import bz2
import datetime
import gzip
import json
import random
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

WORDS = ["stocks", "fell", "caf\u00e9", "\u00fcber", "r\u00e9sum\u00e9", "a", "the", "\u20ac5", "-"]
PIECES = ['"', '""', ",", ";", "\t", "|", "'", "\n", "\r\n", "\r", "\\", " ", "  ", "#", "\ufeff",
          "\u2028", "\x85", "\x0c"]  # fmt: skip
ENCODINGS = {
    "UTF-8": "utf-8", "utf8": "utf-8", "windows-1252": "cp1252", "cp1252": "cp1252",
    "ISO-8859-15": "iso8859-15", "UTF-16": "utf-16", "UTF-16LE": "utf-16-le",
}  # fmt: skip
"""{data.csv.encoding: Python's codec}; each has all characters of WORDS but U+2028 and the like."""
LINE_ENDS = [["\n"], ["\r\n"], ["\r"], ["\n", "\r\n"], ["\r\n", "\n", "\r\r\n"],
             ["\n", "\r\n", "\r\r\n", "\r"]]  # fmt: skip


@dataclass
class Made:
    """A file, how it is read, and its rows."""

    path: str
    rows: list[tuple[str | None, str | None]] = field(default_factory=list)
    """(id, text), None where the file has no value; in order."""
    csv: dict[str, Any] = field(default_factory=dict)
    """Keys of data.csv."""
    columns: dict[str, Any] = field(default_factory=lambda: {"id": "id", "text": "text"})
    broken: set[int] = field(default_factory=set)
    """Numbers of the rows that cannot be read, or whose text is not in the encoding."""


# -------------------------------------------------------------------------------------------- CSV
def csv_file(seed: int, directory: Path) -> Made:
    draw = random.Random(seed)
    name, codec = draw.choice(list(ENCODINGS.items()))
    pieces = [piece for piece in PIECES if _encodes(piece, codec)]
    delimiter = draw.choice([",", ",", ";", "\t", "|"])
    ends = draw.choice(LINE_ENDS)
    multiline = codec.startswith("utf-16") or draw.random() < 0.7
    if not multiline:
        pieces = [piece for piece in pieces if "\n" not in piece and "\r" not in piece]
    made = Made(path="", csv={"encoding": name, "delimiter": delimiter, "multiline": multiline})
    order = draw.sample(["id", "text", "label", "more"], 4)
    out: list[str] = ["\ufeff"] if codec in ("utf-8", "utf-16-le") and draw.random() < 0.3 else []
    header_quotes = draw.random() < 0.3
    header = delimiter.join(f'"{column}"' if header_quotes else column for column in order)
    out += [header, draw.choice(ends)]
    for number in range(draw.randrange(0, 40)):
        text = _text(draw, pieces)
        cells = {"id": f"r{number}", "text": text, "label": draw.choice("ab"), "more": ""}
        if draw.random() < 0.1:
            cells["more"] = _text(draw, pieces)
        if draw.random() < 0.05:
            cells["id"] = ""
        row = [_cell(draw, cells[column], delimiter) for column in order]
        kept: tuple[str | None, str | None] = (cells["id"] or None, text or None)
        if draw.random() < 0.03:
            row.append("too many")
            made.broken.add(number)
        made.rows.append(kept)
        out += [delimiter.join(row), draw.choice(ends)]
        if draw.random() < 0.05:
            # a blank line; a CR alone could be the first character of the text after it
            out.append(draw.choice([end for end in ends if end != "\r"] or ends))
    if draw.random() < 0.3:
        while out[-1] in ("\n", "\r\n", "\r", "\r\r\n") and len(out) > 2:
            out.pop()
    data = "".join(out).encode(codec)
    ending, packed = _packed(draw, data)
    path = directory / f"{seed} [{draw.choice('x:{}_')}].csv{ending}"
    path.write_bytes(packed)
    made.path = str(path)
    return made


def _encodes(piece: str, codec: str) -> bool:
    try:
        return piece.encode(codec).decode(codec) == piece
    except UnicodeEncodeError:
        return False


def _text(draw: random.Random, pieces: list[str]) -> str:
    if draw.random() < 0.05:
        return ""
    count = draw.randrange(1, 6)
    parts = [draw.choice(WORDS if draw.random() < 0.6 else pieces) for _ in range(count)]
    return draw.choice(["", " "]).join(parts)


def _cell(draw: random.Random, value: str, delimiter: str) -> str:
    special = any(sign in value for sign in ('"', delimiter, "\n", "\r"))
    if special or (value and draw.random() < 0.2):
        return '"' + value.replace('"', '""') + '"'
    return value


def _packed(draw: random.Random, data: bytes) -> tuple[str, bytes]:
    kind = draw.choice(["", "", "", ".gz", ".bz2", ".zst"])
    if kind == ".zst":
        return kind, pa.compress(data, "zstd", asbytes=True)
    pack = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[kind]
    return kind, pack(data)


# ------------------------------------------------------------------------------------------- JSON
def json_file(seed: int, directory: Path) -> Made:
    draw = random.Random(seed)
    nested = draw.random() < 0.3
    columns = {"id": "id", "text": "review.body" if nested else "text"}
    made = Made(path="", columns=columns)
    records, shown = [], []
    for number in range(draw.randrange(1, 30)):
        text: Any = _text(draw, PIECES) or "x"
        key: Any = draw.choice([f"k{number}", number, number + 0.5, None])
        record: dict[str, Any] = {"label": "a", "more": draw.choice([[], {"a": 1}, None])}
        if key is not None or not number or draw.random() < 0.5:
            record["id"] = key
        if draw.random() < 0.05:
            text = draw.choice([["a"], {"b": "c"}])
            made.broken.add(number)
        elif draw.random() < 0.05:
            text += "\ud83d"  # half an emoji: another program cut the text
            made.broken.add(number)
        if nested:
            record["review"] = {"body": text, "stars": 5}
        else:
            record["text"] = text
        records.append(record)
        made.rows.append((None if key is None else str(key), text))
    if len(made.broken) == len(records):  # no text at all is another case
        records.append({"id": "last", **({"review": {"body": "x"}} if nested else {"text": "x"})})
        made.rows.append(("last", "x"))
    ascii_only = bool(made.broken) or draw.random() < 0.5
    shape = draw.choice(["lines", "lines", "lines", "one line", "pretty"])
    if shape == "lines":
        end = draw.choice(["\n", "\r\n"])
        for record in records:
            line = json.dumps(record, ensure_ascii=ascii_only,
                              separators=draw.choice([(",", ":"), (" , ", " : ")]))  # fmt: skip
            shown.append(line + end + (end if draw.random() < 0.1 else ""))
        content = "".join(shown)
    else:
        indent = None if shape == "one line" else draw.choice([1, 2, "\t"])
        content = json.dumps(records, ensure_ascii=ascii_only, indent=indent)
    mark = "\ufeff" if draw.random() < 0.2 else ""
    ending, packed = _packed(draw, (mark + content).encode())
    path = directory / f"{seed}:{shape}{draw.choice(['.json', '.jsonl'])}{ending}"
    path.write_bytes(packed)
    made.path = str(path)
    return made


# ---------------------------------------------------------------------------------------- Parquet
def parquet_file(seed: int, directory: Path) -> Made:
    draw = random.Random(seed)
    count = draw.randrange(1, 20)
    at = datetime.datetime(2026, 1, 2, 3, 4, 5)
    since = 1_767_323_045 * 10**9  # the same in nanoseconds since 1970
    keys: dict[str, tuple[pa.Array, list[str]]] = {
        "texts": (pa.array([f"k{n}" for n in range(count)]), [f"k{n}" for n in range(count)]),
        "whole doubles": (pa.array([float(n) for n in range(count)]),
                          [str(n) for n in range(count)]),
        "doubles": (pa.array([n + 0.25 for n in range(count)]), [f"{n}.25" for n in range(count)]),
        "floats": (pa.array([n + 0.5 for n in range(count)], pa.float32()),
                   [f"{n}.5" for n in range(count)]),
        "numbers": (pa.array(range(count), pa.int64()), [str(n) for n in range(count)]),
        "large numbers": (pa.array([2**64 - 1 - n for n in range(count)], pa.uint64()),
                          [str(2**64 - 1 - n) for n in range(count)]),
        "decimals": (pa.array([Decimal(n) + Decimal("0.50") for n in range(count)],
                              pa.decimal128(10, 2)), [f"{n}.50" for n in range(count)]),
        "times": (pa.array([since + n for n in range(count)], pa.timestamp("ns")),
                  ["2026-01-02T03:04:05" + f".{n:09d}".rstrip("0").rstrip(".")
                   for n in range(count)]),
        "moments": (pa.array([since + n * 10**9 + 5 * 10**8 for n in range(count)],
                             pa.timestamp("ns", "UTC")),
                    [f"{at + datetime.timedelta(seconds=n):%Y-%m-%dT%H:%M:%S}.5Z"
                     for n in range(count)]),
        "microseconds": (pa.array([at + datetime.timedelta(seconds=n) for n in range(count)]),
                         [f"{at + datetime.timedelta(seconds=n):%Y-%m-%dT%H:%M:%S}"
                          for n in range(count)]),
        "days": (pa.array([datetime.date(2026, 1, 1 + n) for n in range(count)]),
                 [f"2026-01-{1 + n:02d}" for n in range(count)]),
    }  # fmt: skip
    column, ids = draw.choice(list(keys.values()))
    texts: list[str | None] = [_text(draw, PIECES) or None for _ in range(count)]
    texts[0] = "some text"
    array = pa.array(texts)
    nested = draw.random() < 0.4
    if draw.random() < 0.3:
        array = array.dictionary_encode() if not nested else array.cast(pa.large_string())
    table = {"label": ["a"] * count, "id": column}
    if nested:
        table["review"] = pa.StructArray.from_arrays([array, pa.nulls(count)], ["body", "no"])
    else:
        table["text"] = array
    # unmapped columns of types that Spark does not know
    table["when"] = pa.array([since] * count, pa.timestamp("ns"))
    table["time"] = pa.array([1] * count, pa.time64("ns"))
    path = directory / f"{seed}.parquet"
    pq.write_table(pa.table(table), path)
    columns = {"id": "id", "text": "review.body" if nested else "text"}
    return Made(path=str(path), rows=list(zip(ids, texts, strict=True)), columns=columns)
