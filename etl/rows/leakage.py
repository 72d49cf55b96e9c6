"""Measure how many rows of the evaluation splits are near training rows.

Near duplicates above `data.dedup.threshold` are in one split. Here a sample of validation and test
rows is looked up among all training rows at a lower similarity, so that a user sees what is left of
near copies, or how many there are where near duplicates are not removed.

The training rows are read once, by tasks that know the sample; nothing is shuffled but one row for
each sampled row and task.

Where a part is appended, old rows of validation and test are in the sample, by their signatures in
the ledger, and the training rows are those of the part: what it adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark import Broadcast
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from howdah.config.data import DedupOptions, QualityOptions
from howdah.config.options.dedup import NUM_PERMUTATIONS
from howdah.config.splits import TEST, TRAIN, VALIDATION
from howdah.core.processes import limit
from howdah.errors import DataError
from howdah.etl.rows import minhash
from howdah.spark.errors import crossing

PERMUTATIONS = 64
BANDS, ROWS = 21, 3
"""A pair with a similarity of 0.6 meets in a bucket with a probability of 0.994, one of 0.5 with
0.94."""
SIMILARITY = 0.6
"""Jaccard similarity from which a looked-up row counts as a near copy: below the threshold of near
duplicates (0.7), and no lower than the bands above find."""
SAMPLE = limit("leakage_sample", 1_000)
"""Rows of validation, and of test, that are looked up: their share with a near copy is known to 3
percentage points."""
_FOUND = "sample int, similarity double, near string"
_EXAMPLES = 5

Sample = tuple[Sequence[np.ndarray], np.ndarray, np.ndarray]
"""(shingle set or signature of S texts, bucket keys int64[N] sorted, int32[N]: whose each is)."""


@dataclass(frozen=True, kw_only=True)
class Old:
    """Rows of validation and test that a part is appended to."""

    rows: DataFrame
    """id, split, signature"""
    dedup: DedupOptions
    """Options with which the signatures were made."""


def judged(
    rows: DataFrame,
    options: QualityOptions,
    progress: Callable[[str], None],
    old: Old | None = None,
) -> dict:
    """The `estimate`, reported and compared with data.quality.max_leakage.

    Raises:
        DataError: more than data.quality.max_leakage.
    """
    estimated = estimate(rows, old)
    counts = ", ".join(
        f"{count['found']:,} of {count['sampled']:,} {split}"
        for split, count in estimated["splits"].items()
    )
    if not counts:
        return estimated
    training = "training row" if old is None else "training row of this part"
    at_least = f"with similarity >= {estimated['similarity']:g}"
    sentence = f"near-duplicate check: {counts} rows have a {training} {at_least}"
    progress(sentence)
    most = options.max_leakage
    if most is not None and share(estimated) > most:
        pairs = ", ".join(f"{pair['id']} like {pair['near']}" for pair in estimated["examples"][:3])
        raise DataError(
            "too many evaluation rows have near duplicates among the training rows",
            where="data.quality.max_leakage",
            expected=f"at most {most:.2%}",
            got=f"{share(estimated):.2%}: {sentence}; {pairs}",
            remedy="lower data.dedup.threshold, keep related rows together by data.split, or raise"
            " data.quality.max_leakage",
        )
    return estimated


def estimate(rows: DataFrame, old: Old | None = None) -> dict:
    """Look a sample of the evaluation rows up among the training rows.

    Args:
        rows: id, text, split of the rows that are kept.
        old: more evaluation rows, of which there are signatures alone: how alike they are to a
            training row is estimated by the share of equal entries.

    Returns:
        {"similarity": from which a row counts as found, "splits": {split: {"sampled": rows,
        "found": rows with a training row as similar}}, "examples": the most similar pairs,
        {"split", "id", "near": the training row's id, "similarity"}}
    """
    held = rows.select("id", "text", "split", F.lit(None).cast("binary").alias("signature"))
    if old is not None:
        held = held.unionByName(old.rows, allowMissingColumns=True)
    drawn = [
        held.where(F.col("split") == split).orderBy(F.sha2("id", 256), "id").limit(SAMPLE)
        for split in (VALIDATION, TEST)
    ]
    # one job for both, whose rows come in any order
    sampled = sorted(drawn[0].unionByName(drawn[1]).collect(), key=lambda row: row["id"])
    best: dict[int, tuple[float, str]] = {}
    if sampled:
        context = rows.sparkSession.sparkContext
        numbers = [n for n, row in enumerate(sampled) if row["text"] is not None]
        texts = [sampled[n]["text"] for n in numbers]
        parts = [(numbers, (minhash.sets(texts), *_sorted(_keys(texts))), None)]
        if numbers := [n for n, row in enumerate(sampled) if row["text"] is None]:
            raw = b"".join(sampled[n]["signature"] for n in numbers)
            signature = np.frombuffer(raw, np.uint32).reshape(len(numbers), -1)
            parts.append((numbers, (signature, *_sorted(_keys_of(signature))), old.dedup))
        sample = context.broadcast(parts)
        work = partial(_look_up, sample=sample, similarity=SIMILARITY)
        train = rows.where(F.col("split") == TRAIN).select("id", "text")
        nearest = train.mapInArrow(crossing(work), _FOUND).groupBy("sample")
        # the smallest id of those as similar, so that a second run says the same
        closest = F.struct(-F.col("similarity"), "near")
        for row in nearest.agg(F.min(closest).alias("closest")).collect():
            best[row["sample"]] = (-row["closest"][0], row["closest"]["near"])
        sample.unpersist()
    splits: dict[str, dict[str, int]] = {}
    for number, row in enumerate(sampled):
        counts = splits.setdefault(row["split"], {"sampled": 0, "found": 0})
        counts["sampled"] += 1
        counts["found"] += number in best
    closest_pairs = sorted(best, key=lambda number: (-best[number][0], number))[:_EXAMPLES]
    return {
        "similarity": SIMILARITY,
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


def share(estimated: dict) -> float:
    """The share of the sampled rows that were found, of what `estimate` returns."""
    counts = estimated["splits"].values()
    return sum(one["found"] for one in counts) / max(1, sum(one["sampled"] for one in counts))


def _keys(texts: list[str]) -> np.ndarray:
    """int64[B, BANDS]"""
    return minhash.band_keys(minhash.signatures(texts, "auto", PERMUTATIONS), BANDS, ROWS)


def _keys_of(signature: np.ndarray) -> np.ndarray:
    """int64[B, bands] of B signatures; of short ones fewer bands."""
    return minhash.band_keys(signature, min(BANDS, signature.shape[1] // ROWS), ROWS)


def _sorted(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    owners = np.repeat(np.arange(len(keys), dtype=np.int32), keys.shape[1])
    keys = keys.reshape(-1)
    order = np.argsort(keys, kind="stable")
    return keys[order], owners[order]


def _look_up(
    batches: Iterable[pa.RecordBatch], sample: Broadcast, similarity: float
) -> Iterator[pa.RecordBatch]:
    """mapInArrow: for each sampled text the training row of this task that is most like it."""
    best: dict[int, tuple[float, str]] = {}
    for batch in batches:
        texts = batch.column("text").to_pylist()
        if not texts:
            continue
        for numbers, (sampled, keys, owners), dedup in sample.value:
            if dedup is None:
                pairs = sorted(_meetings(_keys(texts), keys, owners))
                met = sorted({row for row, _ in pairs})
                rows = dict(zip(met, minhash.sets([texts[r] for r in met]), strict=True))
                alike = [minhash.jaccard(rows[row], sampled[owner]) for row, owner in pairs]
            else:
                signed = minhash.signatures(texts, dedup.ngram, NUM_PERMUTATIONS)
                pairs = sorted(_meetings(_keys_of(signed), keys, owners))
                alike = [float((signed[row] == sampled[owner]).mean()) for row, owner in pairs]
            for (row, owner), share_ in zip(pairs, alike, strict=True):
                number, near = numbers[owner], (-share_, batch.column("id")[row].as_py())
                if share_ >= similarity and (number not in best or near < best[number]):
                    best[number] = near
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
