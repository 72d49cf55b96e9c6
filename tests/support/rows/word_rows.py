"""Rows of two classes that a tiny model tells apart within a few steps."""

from __future__ import annotations

import csv
import os

import numpy as np

WORDS = {
    "sea": "wave tide salt shore ship sail gull coral reef foam",
    "sky": "cloud wind star moon comet storm dawn dusk hail rain",
}


def write_rows(path: str | os.PathLike, rows: int = 240) -> str:
    """Write a CSV with the columns text and label; its path."""
    rng = np.random.default_rng(5)
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["text", "label"])
        for number in range(rows):
            label = ("sea", "sky")[number % 2]
            words = rng.choice(WORDS[label].split(), 12)
            out.writerow([" ".join([*words, f"number {number}"]), label])
    return str(path)
