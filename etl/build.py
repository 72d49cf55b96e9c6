"""From a source to encoded rows with their splits, and all that is counted on the way."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from etl import adopt, dedup, gate, labels, reading, shards
from etl.csv_quotes import Strays
from etl.scratch import Scratch
from etl.sources import Source
from etl.split import split_column
from howdah.config_data import DataSection
from howdah.config_model import Config
from howdah.encode import Encoder
from howdah.errors import DataError
from howdah.spark.errors import crossing, translated

SAMPLES = 3
_SAMPLE_CHARACTERS = 400


@dataclass(kw_only=True)
class Built:
    """Encoded rows, rejected rows, and what was counted."""

    encoded: DataFrame
    rejected: DataFrame
    """id, text, label, reason, detail"""
    labels: list[str]
    quality: dict
    samples: dict[str, list[str]] = field(default_factory=dict)
    """{label: the beginnings of a few of its texts}"""
    reject_samples: dict[str, list[str]] = field(default_factory=dict)
    """{reason: the same of rejected rows}"""


class Kept(list):
    """Data frames to unpersist at the end, in a `with`."""

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # after a failure Spark may be gone, and the failure is what the user must see
        with contextlib.suppress(*([Exception] if kind else [])):
            for frame in reversed(self):
                frame.unpersist()


def from_text(
    spark: SparkSession,
    source: Source,
    config: Config,
    encoder: Encoder,
    kept: Kept,
    progress: Callable[[str], None],
    *,
    scratch: Scratch,
) -> Built:
    """Rows of text: read, clean, gate, de-duplicate, split, encode.

    Raises:
        DataError: an empty source, unknown labels, too many rejected rows.
    """
    data = config.data
    strays = None
    if source.kind == "csv":
        strays = reading.check_quotes(spark, source, data.csv)
    rows = reading.read(spark, source, data)
    work = partial(
        gate.clean_batches, clean=data.clean, quality=data.quality, labels=labels.mapping(data)
    )
    gated = rows.mapInArrow(crossing(work), gate.SCHEMA).persist()
    kept.append(gated)
    with translated(f"read the source {source.name}", DataError):
        first, lines = _gate_counts(gated)
    read = sum(first.values())
    passed: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    drops: Counter[str] = Counter()
    for (reason, label), count in first.items():
        if reason is None:
            passed[label] += count
        else:
            drops[reason] += count
        if reason == "bad_label" and label and label.strip():
            unknown[label.strip()] += count
    progress(f"read {read:,} rows, {sum(passed.values()):,} passed the gate")
    _refuse_empty(read, source)
    labels.refuse_unknown(data, unknown)
    _refuse_rejects(read, drops, data)
    names = labels.names(data, passed)

    passing = gated.where(F.col("reason").isNull()).select("id", "text", "label", "key")
    found = dedup.deduplicate(
        passing,
        data.dedup,
        scratch,
        kept,
        driver_edges=data.spark.driver_edges,
        progress=progress,
    )
    final = found.rows.withColumn("split", split_column("group", data.split)).persist()
    kept.append(final)
    second = _counts(final, "reason", "label")
    for (reason, _), count in second.items():
        if reason is not None:
            drops[reason] += count
    _refuse_rejects(read, drops, data)
    by_label = Counter()
    for (reason, label), count in (first + second).items():
        if reason is not None:
            by_label[label or "", reason] += count
    remaining = read - sum(drops.values())
    progress(
        f"kept {remaining:,} rows; dropped "
        + (", ".join(f"{count:,} {reason}" for reason, count in drops.most_common()) or "none")
    )
    if found.capped_entries:
        progress(
            f"{found.capped_buckets:,} buckets of near duplicates are larger than"
            f" data.dedup.max_bucket_size ({data.dedup.max_bucket_size:,}):"
            f" {found.capped_entries:,} entries were not all compared with one another; those of a"
            " bucket go to the same"
            f" split (the largest group that does has {found.largest_group:,} texts)"
        )
    columns = ("id", "text", "label", "reason", "detail")
    rejected = (
        gated.where(F.col("reason").isNotNull())
        .select(*columns)
        .unionByName(final.where(F.col("reason").isNotNull()).select(*columns))
    )
    good = final.where(F.col("reason").isNull())
    quality = {
        "read": read,
        "kept": remaining,
        "drops": {reason: drops[reason] for reason in gate.REASONS if drops[reason]},
        "drops_by_label": _nested(by_label),
        "near_duplicates": {
            "clusters": found.near_clusters,
            "largest_cluster": found.largest_cluster,
            "capped_buckets": found.capped_buckets,
            "capped_entries": found.capped_entries,
            "largest_group": found.largest_group,
            **data.dedup.model_dump(),
        },
    }
    if strays is not None:
        quality["csv"] = _csv_quality(data, lines, strays, progress)
    return Built(
        encoded=shards.encode(good, encoder, names, data.max_length),
        rejected=rejected,
        labels=names,
        quality=quality,
        samples=_samples(good, "label"),
        reject_samples=_samples(rejected, "reason"),
    )


def from_records(
    spark: SparkSession,
    source: Source,
    config: Config,
    encoder: Encoder,
    kept: Kept,
    progress: Callable[[str], None],
) -> Built:
    """Records of another writer: verified, padding stripped, ids as they are.

    Raises:
        DataError: a truncated or altered shard, a missing feature, unknown labels, no record.
    """
    data = config.data
    rows = adopt.read_records(spark, source, data, encoder, _numbered(data)).persist()
    kept.append(rows)
    with translated(f"read the records {source.name}", DataError):
        counts = _counts(rows, "reason", "label")
    read = sum(counts.values())
    _refuse_empty(read, source)
    passed = Counter({label: n for (reason, label), n in counts.items() if reason is None})
    unknown = Counter({label: n for (reason, label), n in counts.items() if reason == "bad_label"})
    drops: Counter[str] = Counter()
    by_label: Counter = Counter()
    for (reason, label), count in counts.items():
        if reason is not None:
            drops[reason] += count
            by_label[label or "", reason] += count
    labels.refuse_unknown(data, unknown)
    _refuse_rejects(read, drops, data)
    names = labels.names(data, passed)
    progress(f"read {read:,} records, {sum(passed.values()):,} passed")
    numbers = spark.createDataFrame(list(enumerate(names)), "number int, label string")
    good = rows.where(F.col("reason").isNull()).join(F.broadcast(numbers), "label")
    nothing = F.lit(None).cast("string")
    return Built(
        encoded=good.select("id", "split", F.col("number").alias("label"), "ids", "length"),
        rejected=rows.where(F.col("reason").isNotNull()).select(
            "id", nothing.alias("text"), "label", "reason", "detail"
        ),
        labels=names,
        quality={
            "read": read,
            "kept": sum(passed.values()),
            "drops": {reason: drops[reason] for reason in gate.REASONS if drops[reason]},
            "drops_by_label": _nested(by_label),
        },
    )


def _numbered(data: DataSection) -> dict[str, str] | None:
    """{label number as text: name} for records: a list names the numbers in order."""
    if isinstance(data.labels, list):
        return {str(number): name for number, name in enumerate(data.labels)}
    return labels.mapping(data)


def _counts(frame: DataFrame, *columns: str) -> Counter:
    rows = frame.groupBy(*columns).count().collect()
    return Counter({tuple(row[c] for c in columns): row["count"] for row in rows})


def _gate_counts(gated: DataFrame) -> tuple[Counter, list[tuple[int, int, str]]]:
    """({(reason, label): rows}, a list of (texts with line breaks, most in one, its id))."""
    found = gated.groupBy("reason", "label").agg(
        F.count("*").alias("count"),
        F.count(F.when(F.col("breaks") > 0, 1)).alias("broken"),
        F.max("breaks").alias("most"),
        F.max_by("id", F.struct("breaks", "id")).alias("worst"),
    )
    rows = found.collect()
    counts = Counter({(row["reason"], row["label"]): row["count"] for row in rows})
    return counts, [(row["broken"], row["most"], row["worst"]) for row in rows if row["broken"]]


def _csv_quality(
    data: DataSection,
    lines: list[tuple[int, int, str]],
    strays: Strays,
    progress: Callable[[str], None],
) -> dict:
    """What else an unclosed quote may show by, where it could not be told for certain."""
    texts = sum(count for count, _, _ in lines)
    most, worst = max(((most, worst) for _, most, worst in lines), default=(0, None))
    if texts:
        progress(
            f"{texts:,} accepted texts hold line breaks, at most {most:,} (row {worst}); if texts"
            " of this source have none, a quote is not closed there, and data.csv.multiline: false"
            " reads each line by itself"
        )
    if strays.fields:
        progress(
            f"{strays.fields:,} quoted fields hold quotes that are not escaped, and were read with"
            f" all their quotes: {'; '.join(strays.where)}"
        )
    return {
        "multiline": data.csv.multiline,
        "texts_with_line_breaks": texts,
        "most_line_breaks": most,
        "most_line_breaks_in": worst,
        "stray_quotes": strays.fields,
        "stray_quotes_at": strays.where,
    }


def _nested(counts: Counter) -> dict[str, dict[str, int]]:
    out: dict[str, dict[str, int]] = {}
    for (label, reason), count in sorted(counts.items()):
        out.setdefault(label, {})[reason] = count
    # A label column that is none would fill the manifest: the worst ones tell the story.
    worst = sorted(out, key=lambda label: -sum(out[label].values()))[:100]
    return {label: out[label] for label in sorted(worst)}


def _samples(rows: DataFrame, column: str) -> dict[str, list[str]]:
    order = Window.partitionBy(column).orderBy(F.sha2("id", 256))
    few = rows.withColumn("_n", F.row_number().over(order)).where(F.col("_n") <= SAMPLES)
    text = F.substring(F.coalesce("text", F.lit("")), 1, _SAMPLE_CHARACTERS).alias("text")
    out: dict[str, list[str]] = {}
    for row in few.select(column, "_n", text).orderBy(column, "_n").limit(300).collect():
        out.setdefault(row[column], []).append(row["text"])
    return out


def _refuse_empty(read: int, source: Source) -> None:
    if read == 0:
        raise DataError(
            "the source is empty",
            where=source.name,
            expected="at least one row",
            got="0 rows",
            remedy="check data.source; with data.csv.header the first line is no row",
        )


def _refuse_rejects(read: int, drops: Counter[str], data: DataSection) -> None:
    counted = {r: n for r, n in drops.items() if n and r not in gate.DUPLICATES}
    rejected = sum(counted.values())
    if read and rejected / read > data.quality.max_reject_fraction:
        raise DataError(
            "too many rows are rejected",
            where="data.quality.max_reject_fraction",
            expected=f"at most {data.quality.max_reject_fraction:.0%} of {read:,} rows",
            got=f"{rejected:,} rows: "
            + ", ".join(f"{n:,} {r}" for r, n in sorted(counted.items(), key=lambda x: -x[1])),
            remedy="mend the source or the column mapping, or raise the fraction",
        )
