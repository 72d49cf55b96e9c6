"""How much of the evaluation splits is near what is trained on: looked up, not assumed.

Near duplicates above `data.dedup.threshold` are in one split. Here a sample of validation and test
rows is looked up among all training rows at a lower similarity, so that a user sees what is left of
near copies, or how many there are where near duplicates are not removed.

The training rows are read once, by tasks that know the sample; nothing is shuffled but one row for
each sampled row and task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark import Broadcast
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from etl.rows import minhash
from howdah.config.data import QualityOptions
from howdah.config.splits import TEST, TRAIN, VALIDATION
from howdah.spark.errors import crossing

PERMUTATIONS = 64
BANDS, ROWS = 21, 3
"""Pairs that are 0.6 alike meet in a bucket with a probability of 0.994, those that are 0.5 alike
with 0.94."""
_FOUND = "sample int, similarity double, near string"
_EXAMPLES = 5

Sample = tuple[list[np.ndarray], np.ndarray, np.ndarray]
"""(shingle sets of S texts, bucket keys int64[N] sorted, int32[N]: the text that each is of)."""


def estimate(rows: DataFrame, options: QualityOptions) -> dict:
    """Look a sample of the evaluation rows up among the training rows.

    Args:
        rows: id, text, split of the rows that are kept.

    Returns:
        {"similarity": from which a row counts as found, "splits": {split: {"sampled": rows,
        "found": rows with a training row as similar}}, "examples": the most similar pairs,
        {"split", "id", "near": the training row's id, "similarity"}}
    """
    drawn = [
        rows.where(F.col("split") == split)
        .orderBy(F.sha2("id", 256), "id")
        .limit(options.leakage_sample)
        .select("id", "text", "split")
        for split in (VALIDATION, TEST)
    ]
    # one job for both, whose rows come in any order
    sampled = sorted(drawn[0].unionByName(drawn[1]).collect(), key=lambda row: row["id"])
    best: dict[int, tuple[float, str]] = {}
    if sampled:
        context = rows.sparkSession.sparkContext
        sample = context.broadcast(_sample([row["text"] for row in sampled]))
        work = partial(_look_up, sample=sample, similarity=options.leakage_similarity)
        train = rows.where(F.col("split") == TRAIN).select("id", "text")
        found = train.mapInArrow(crossing(work), _FOUND).groupBy("sample")
        # the smallest id of those as similar, so that a second run says the same
        closest = F.struct(-F.col("similarity"), "near")
        for row in found.agg(F.min(closest).alias("closest")).collect():
            best[row["sample"]] = (-row["closest"][0], row["closest"]["near"])
        sample.unpersist()
    splits: dict[str, dict[str, int]] = {}
    for number, row in enumerate(sampled):
        counts = splits.setdefault(row["split"], {"sampled": 0, "found": 0})
        counts["sampled"] += 1
        counts["found"] += number in best
    closest_pairs = sorted(best, key=lambda number: (-best[number][0], number))[:_EXAMPLES]
    return {
        "similarity": options.leakage_similarity,
        "splits": splits,
        "examples": [
            {
                "split": sampled[number]["split"],
                "id": sampled[number]["id"],
                "near": best[number][1],
                "similarity": round(best[number][0], 3),
            }
            for number in closest_pairs
        ],
    }


def share(found: dict) -> float:
    """The share of the sampled rows that were found, of what `estimate` returns."""
    sampled = sum(counts["sampled"] for counts in found["splits"].values())
    return sum(counts["found"] for counts in found["splits"].values()) / sampled if sampled else 0.0


def _keys(texts: list[str]) -> np.ndarray:
    """int64[B, BANDS]"""
    return minhash.band_keys(minhash.signatures(texts, "auto", PERMUTATIONS), BANDS, ROWS)


def _sample(texts: list[str]) -> Sample:
    keys = _keys(texts).reshape(-1)
    owners = np.repeat(np.arange(len(texts), dtype=np.int32), BANDS)
    order = np.argsort(keys, kind="stable")
    return minhash.sets(texts, "auto"), keys[order], owners[order]


def _look_up(
    batches: Iterable[pa.RecordBatch], sample: Broadcast, similarity: float
) -> Iterator[pa.RecordBatch]:
    """mapInArrow: for each sampled text the training row of this task that is most like it."""
    sets, keys, owners = sample.value
    best: dict[int, tuple[float, str]] = {}
    for batch in batches:
        texts = batch.column("text").to_pylist()
        if not texts:
            continue
        pairs = _meetings(_keys(texts), keys, owners)
        met = sorted({row for row, _ in pairs})
        rows = dict(zip(met, minhash.sets([texts[row] for row in met], "auto"), strict=True))
        for row, owner in sorted(pairs):
            alike = minhash.jaccard(rows[row], sets[owner])
            near = (-alike, batch.column("id")[row].as_py())
            if alike >= similarity and (owner not in best or near < best[owner]):
                best[owner] = near
    yield pa.RecordBatch.from_arrays(
        [
            pa.array(list(best), pa.int32()),
            pa.array([-alike for alike, _ in best.values()], pa.float64()),
            pa.array([near for _, near in best.values()], pa.string()),
        ],
        names=["sample", "similarity", "near"],
    )


def _meetings(rows: np.ndarray, keys: np.ndarray, owners: np.ndarray) -> set[tuple[int, int]]:
    """{(row, sampled text)} that share a bucket.

    Args:
        rows: int64[B, BANDS], bucket keys of B rows.
        keys, owners: see `Sample`.
    """
    flat = rows.reshape(-1)
    first = np.searchsorted(keys, flat, "left")
    count = np.searchsorted(keys, flat, "right") - first
    hits = np.flatnonzero(count)
    met = np.repeat(hits // rows.shape[1], count[hits])
    offset = np.concatenate([np.arange(n) for n in count[hits]]) if len(hits) else np.empty(0, int)
    owned = owners[np.repeat(first[hits], count[hits]) + offset]
    return set(zip(met.tolist(), owned.tolist(), strict=True))
