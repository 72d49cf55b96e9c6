"""Steps 1 to 3 of the pipeline, by Spark: load, clean, tokenize. 100,000 texts, a thousandth.

python prepare.py TEXTS MODEL [ROWS]
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

TEXTS, MODEL = sys.argv[1:3]
ROWS = int(sys.argv[3]) if len(sys.argv) > 3 else 100_000
FILES, WORDS, TOKENS, SHORTEST = 8, 28, 64, 20  # SHORTEST: characters
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread a Spark task

# 30,000 docstrings are cut into pieces of 28 words, so that no text has to be repeated. Pieces that
# packages have copied from each other stay in, as copies do in real tables.
words = pd.read_parquet(TEXTS, columns=["text", "label"])
words["text"] = words.text.str.split()
words["text"] = [
    [" ".join(text[first : first + WORDS]) for first in range(0, len(text), WORDS)] or [""]
    for text in words.text
]
raw = words.explode("text", ignore_index=True).sample(frac=1, random_state=1)[:ROWS]
raw["id"] = np.arange(len(raw))
os.makedirs("raw", exist_ok=True)
for number in range(FILES):
    raw[number::FILES].to_parquet(f"raw/part-{number}.parquet", index=False)

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.warehouse.dir", os.getcwd()).config("spark.sql.shuffle.partitions", FILES)
    .getOrCreate()
)  # fmt: skip
spark.sparkContext.setLogLevel("ERROR")


def tokenized(batches):
    """WordPiece ids of each text; one tokenizer a task, not one a row. Nothing is padded here: a
    batch is padded to its own longest text when it is trained on."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(os.path.join(MODEL, "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(TOKENS)
    for batch in batches:
        ids = [text.ids for text in tokenizer.encode_batch(batch.text.tolist())]
        yield pd.DataFrame({"id": batch.id, "label": batch.label, "ids": ids})


began = time.perf_counter()
texts = spark.read.parquet("raw")
print(f"texts = {texts.count()}")
print(f"files = {len(texts.inputFiles())}")

clean = texts.withColumn("text", F.trim(F.regexp_replace(F.lower("text"), r"\s+", " ")))
long_enough = clean.where(F.length("text") >= SHORTEST).cache()
print(f"shorter than {SHORTEST} characters = {ROWS - long_enough.count()}")

# One row of each text: the one with the smallest id, so that every run keeps the same.
distinct = long_enough.groupBy("text").agg(F.min(F.struct("id", "label")).alias("first"))
distinct = distinct.select("first.id", "first.label", "text").cache()
print(f"copies = {long_enough.count() - distinct.count()}")
cleaned = time.perf_counter()
print(f"clean and de-duplicate = {cleaned - began:.1f} s")

counts = distinct.groupBy("label").count().orderBy("label").collect()
labels = {row["label"]: row["count"] for row in counts}
number_of = F.create_map([F.lit(x) for pair in enumerate(labels) for x in reversed(pair)])
# Which split a row is in depends on its id alone: more rows tomorrow move none of today's.
is_validation = F.pmod(F.xxhash64("id"), F.lit(100)) < 5
ready = distinct.withColumn("label", number_of[F.col("label")].cast("int")).repartition(FILES, "id")
ready = ready.mapInPandas(tokenized, "id long, label int, ids array<int>")
ready = ready.withColumn("split", F.when(is_validation, "validation").otherwise("train"))
ready.write.mode("overwrite").partitionBy("split").parquet("ready")
tokenized_at = time.perf_counter()
print(f"tokenize and write = {tokenized_at - cleaned:.1f} s")

ready = spark.read.parquet("ready").withColumn("tokens", F.size("ids"))
rows, tokens, longest = ready.agg(F.count("*"), F.avg("tokens"), F.max("tokens")).first()
size = sum(path.stat().st_size for path in Path("ready").rglob("*.parquet"))
seconds = tokenized_at - began
print(f"rows = {rows}")
validation = ready.where(F.col("split") == "validation").count()
print(f"rows to validate on = {validation}")
print(f"tokens of a row, mean = {tokens:.1f}")
print(f"tokens of a row, most = {longest}")
print(f"bytes of a row in Parquet = {size / rows:.0f}")
imbalance = max(labels.values()) / min(labels.values())
print(f"rows of the largest label for one of the smallest = {imbalance:.1f}")
print(f"texts a second on two cores = {ROWS / seconds:.0f}")
spark.stop()
values = {"texts": ROWS, "rows": rows, "tokens": tokens, "row_bytes": size / rows}
values |= {"seconds": seconds, "labels": labels}
Path("prepare.json").write_text(json.dumps(values, indent=1), "utf-8")
