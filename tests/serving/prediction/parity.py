"""A model that is a function of a text's length, and files for it to read and write."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pyarrow.parquet as pq

from howdah import storage

LABELS = ["even", "odd", "none"]


def parity_forward(ids_BT, mask_BT):
    """even/odd by the count of real tokens: independent of padding and batch."""
    tokens_B = mask_BT.sum(axis=1)
    assert ((ids_BT != 0) == (mask_BT == 1)).all()
    logits = np.zeros((len(ids_BT), 3), np.float32)
    logits[np.arange(len(ids_BT)), tokens_B % 2] = 2.0
    logits[:, 2] = -tokens_B / 100.0
    return logits


def words(count: int) -> str:
    return " ".join(["the"] * count)


def expected_label(text: str) -> str:
    return LABELS[(len(text.split()) + 2) % 2]  # [CLS] and [SEP]


def write(path, text: str, encoding="utf-8") -> str:
    with open(path, "w", encoding=encoding, newline="") as file:
        file.write(text)
    return str(path)


def read_output(path: str) -> list[dict]:
    if path.endswith(".parquet"):
        return pq.read_table(path).to_pylist()
    if path.endswith(".csv"):
        return list(csv.DictReader(io.StringIO(storage.read_text(path))))
    return [json.loads(line) for line in storage.read_text(path).splitlines()]
