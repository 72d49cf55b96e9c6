"""`python -m bench.peers.near_duplicates WAY ROWS.parquet FOLDER`: one way to find near duplicates;
prints seconds, and what was found, as JSON. For the ways see the end of this file.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import struct
import sys
import time

import pyarrow.parquet as pq

THRESHOLD = 0.7
LEAST_WORDS = 10


def _ours(path: str, folder: str) -> tuple[float, dict[str, str]]:
    from pyspark.sql import functions as F

    from howdah.config.data import DedupOptions, SparkOptions
    from howdah.etl.rows import dedup, gate
    from howdah.etl.workspace.scratch import Scratch
    from howdah.spark.session import session

    options = DedupOptions(exact=False)
    with session(SparkOptions(master="local[2]", driver_memory="4g")) as spark:
        spark.range(1).count()
        began = time.monotonic()
        frame = spark.read.parquet(path).select("id", "text", "label")
        key = F.udf(gate.text_key, "string")
        with Scratch(f"{folder}/v=0", "bench") as scratch:
            keyed = frame.withColumn("key", key("text"))
            pairs = dedup.deduplicate(keyed, options, scratch, [])
            groups = {row["id"]: row["group"] for row in pairs.rows.select("id", "group").collect()}
        return time.monotonic() - began, groups


def _datasketch(path: str, folder: str) -> tuple[float, dict[str, str]]:
    from datasketch import MinHash, MinHashLSH

    began = time.monotonic()
    table = pq.read_table(path, columns=["id", "text"])
    lsh = MinHashLSH(threshold=THRESHOLD, num_perm=128)
    groups: dict[str, str] = {}
    signatures = {}
    for row_id, text in zip(*(table.column(n).to_pylist() for n in ("id", "text")), strict=True):
        words = text.lower().split()
        shingles = {*words, *map(" ".join, itertools.pairwise(words))}
        signature = MinHash(num_perm=128)
        signature.update_batch([shingle.encode() for shingle in shingles])
        near = [
            other for other in lsh.query(signature)
            if signature.jaccard(signatures[other]) >= THRESHOLD
        ]  # fmt: skip
        groups[row_id] = groups[near[0]] if near else row_id
        for other in near[1:]:  # rare: a row that joins two groups
            old, new = groups[other], groups[row_id]
            if old != new:
                groups = {k: new if v == old else v for k, v in groups.items()}
        lsh.insert(row_id, signature)
        signatures[row_id] = signature
    return time.monotonic() - began, groups


def _mllib(path: str, folder: str) -> tuple[float, dict[str, str]]:
    import numpy as np
    from pyspark.ml.feature import HashingTF, MinHashLSH, NGram, Tokenizer
    from pyspark.sql import functions as F

    from howdah.config.data import SparkOptions
    from howdah.etl.rows.components import roots
    from howdah.spark.session import session

    with session(SparkOptions(master="local[2]", driver_memory="4g")) as spark:
        spark.range(1).count()
        began = time.monotonic()
        frame = spark.read.parquet(path).select("id", "text")
        frame = Tokenizer(inputCol="text", outputCol="words").transform(frame)
        frame = NGram(n=2, inputCol="words", outputCol="pairs").transform(frame)
        frame = frame.withColumn("shingles", F.concat("words", "pairs"))
        hashed = HashingTF(
            inputCol="shingles", outputCol="features", binary=True, numFeatures=1 << 22
        )
        frame = hashed.transform(frame).select("id", "features").cache()
        model = MinHashLSH(inputCol="features", outputCol="hashes", numHashTables=3, seed=1)
        joined = model.fit(frame).approxSimilarityJoin(frame, frame, 1 - THRESHOLD)
        a, b = F.col("datasetA.id").alias("a"), F.col("datasetB.id").alias("b")
        pairs = joined.where(F.col("datasetA.id") < F.col("datasetB.id")).select(a, b).collect()
        ids = sorted({row[k] for row in pairs for k in ("a", "b")})
        number = {name: n for n, name in enumerate(ids)}
        edges = np.array([[number[r["a"]], number[r["b"]]] for r in pairs], np.int64).reshape(-1, 2)
        groups = {row["id"]: row["id"] for row in frame.select("id").collect()}
        if len(edges):
            nodes, root = roots(edges[:, 0], edges[:, 1])
            groups |= {ids[n]: ids[r] for n, r in zip(nodes, root, strict=True)}
        return time.monotonic() - began, groups


def _datatrove(path: str, folder: str, n_grams: int) -> tuple[float, dict[str, str]]:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import (
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.pipeline.readers import ParquetReader

    config = MinhashConfig(n_grams=n_grams)
    source, work = f"{folder}/halves", f"{folder}/datatrove-{n_grams}-{time.time_ns()}"
    table = pq.read_table(path, columns=["id", "text"])
    os.makedirs(source, exist_ok=True)
    half = (len(table) + 1) // 2
    for number in range(2):  # a task reads whole files
        pq.write_table(table.slice(number * half, half), f"{source}/{number}.parquet")
    stages = (
        ([ParquetReader(source, read_metadata=False, shuffle_files=False),
          MinhashDedupSignature(f"{work}/signatures", config)], 2),
        ([MinhashDedupBuckets(f"{work}/signatures", f"{work}/pairs", config=config)],
         config.num_buckets),
        ([MinhashDedupCluster(f"{work}/pairs", f"{work}/clusters", config, save_cluster_id=True)],
         1),
    )  # fmt: skip
    began = time.monotonic()
    for number, (pipeline, tasks) in enumerate(stages):
        LocalPipelineExecutor(
            pipeline, tasks=tasks, workers=2, logging_dir=f"{work}/logs{number}"
        ).run()
    ids = table.column("id").to_pylist()
    groups = {row_id: row_id for row_id in ids}
    for number in range(2):
        with open(f"{work}/clusters/{number:06d}.clusters", "rb") as file:
            for row, cluster in struct.iter_unpack("<2I", file.read()):
                groups[ids[number * half + row]] = f"cluster {cluster}"
    return time.monotonic() - began, groups


WAYS = {
    "ours": _ours,
    "datasketch": _datasketch,
    "mllib": _mllib,
    "datatrove": functools.partial(_datatrove, n_grams=5),
    "datatrove-2": functools.partial(_datatrove, n_grams=2),
}


def main(way: str, path: str, folder: str) -> None:
    seconds, groups = WAYS[way](path, folder)
    table = pq.read_table(path).to_pylist()
    planted = [
        row for row in table
        if row["exact"] is False and len(row["text"].split()) >= LEAST_WORDS
    ]  # fmt: skip
    copies = sum(groups[row["id"]] == groups[row["original"]] for row in planted)
    sizes: dict[str, int] = {}
    for group in groups.values():
        sizes[group] = sizes.get(group, 0) + 1
    joined = sum(size for size in sizes.values() if size > 1)
    print(json.dumps({"seconds": seconds, "found": copies / len(planted), "joined": joined}))


if __name__ == "__main__":
    main(*sys.argv[1:])
