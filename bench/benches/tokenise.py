"""Spark tokenise: etl/write/shards.py's encode against pandas_udf + transformers, batched.

The same texts (docstrings of this environment, made about 40,000 rows), the same session on
local[*]; ids are compared row by row. Bar: >= 2x, ids identical.
"""

from __future__ import annotations

import itertools
import sys
import tempfile

import pandas as pd

from bench import harness
from howdah.data.encode import Encoder

ROWS = 40_000
MAX_LENGTH = 128


def _texts() -> list[str]:
    """Docstrings that spell no special token (there transformers and we differ on purpose)."""
    from tools.demo.corpus import PACKAGES, corpus

    special = ("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]")
    texts = [
        text
        for _, text, _ in corpus(PACKAGES)
        if text and not any(word in text for word in special)
    ]
    return list(itertools.islice(itertools.cycle(texts), ROWS))


def main() -> None:
    """Both in one Spark session, in turn."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, IntegerType

    from howdah.config.data import SparkOptions
    from howdah.etl.write.shards import encode
    from howdah.spark.session import session
    from tools import minilm

    base, _ = minilm.base_model(lambda line: print(line, file=sys.stderr))
    encoder = Encoder.load(base)
    with session(SparkOptions()) as spark, tempfile.TemporaryDirectory() as folder:
        texts = _texts()
        spark.createDataFrame(
            [(f"{n:08d}", text, "a", "train") for n, text in enumerate(texts)],
            "id string, text string, label string, split string",
        ).repartition(8).write.parquet(f"{folder}/rows")
        rows = spark.read.parquet(f"{folder}/rows").cache()
        rows.count()
        state: dict = {}

        @F.pandas_udf(ArrayType(IntegerType()))
        def transformers_ids(text: pd.Series) -> pd.Series:
            if "tokenizer" not in state:
                from transformers import AutoTokenizer

                state["tokenizer"] = AutoTokenizer.from_pretrained(base, use_fast=True)
            encoded = state["tokenizer"](
                text.tolist(), truncation=True, max_length=MAX_LENGTH, padding=False
            )
            return pd.Series(encoded["input_ids"])

        def peer_frame():
            return rows.select("id", transformers_ids("text").alias("ids"))

        def ours_frame():
            return encode(rows, encoder, ["a"], MAX_LENGTH)

        def drain(frame) -> None:
            frame.write.format("noop").mode("overwrite").save()

        theirs = {row["id"]: row["ids"] for row in peer_frame().collect()}
        width = 2 if encoder.vocab_size <= 1 << 16 else 4
        for row in ours_frame().collect():
            raw = bytes(row["ids"])
            ids = [
                int.from_bytes(raw[at : at + width], "little") for at in range(0, len(raw), width)
            ]
            if ids != theirs[row["id"]]:
                raise SystemExit(f"ids differ in row {row['id']}: {ids} and {theirs[row['id']]}")
        result = harness.compare(
            "Spark tokenise", peer="pandas_udf + transformers fast, batched",
            run_peer=lambda: drain(peer_frame()), run_ours=lambda: drain(ours_frame()),
            work=ROWS, unit="rows/s", bar=">= 2x", in_process=False,
        )  # fmt: skip
    harness.report("tokenise", [result], identical_rows=ROWS)


if __name__ == "__main__":
    main()
