"""What is counted of rows on their way to a dataset, and what too few or too many of them fail."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from howdah.config.data import DataSection
from howdah.config.tasks import Task
from howdah.data.clean import PAIR
from howdah.data.files import encodings
from howdah.errors import DataError
from howdah.etl.rows import gate, labels
from howdah.etl.sources.source import Source

SAMPLES = 3
_MOST_SAMPLES = 300
_SAMPLE = 1_000
"""Texts in which personal data is looked for: a share of 1 % is known to 0.6 percentage points."""
_SAMPLE_CHARACTERS = 400
_MOST_COUNTED = 4 * labels.MOST_LABELS
"""Pairs of a reason and a label that the driver takes in; each is some 500 bytes there."""


def by(frame: DataFrame, *columns: str) -> Counter:
    """{values of the columns: rows}."""
    rows = frame.groupBy(*columns).count().collect()
    return Counter({tuple(row[c] for c in columns): row["count"] for row in rows})


def of_task(rows: DataFrame, task: Task) -> DataFrame:
    """The rows as they are counted: sets of labels and targets are as many as there are rows, so
    that only the labels of one label a row are groups of their own. What could not be read as
    labels is kept, for the messages."""
    if task == "single_label":
        return rows
    return rows.withColumn("label", F.when(F.col("reason") == "bad_label", F.col("label")))


def labels_of(rows: DataFrame, data: DataSection) -> Counter[str]:
    """{label: rows that have it} of rows whose labels are sets.

    Raises:
        DataError: too many for a column of labels; they are not collected.
    """
    each = each_label(rows)
    counts = each.groupBy("label").count().limit(labels.MOST_LABELS + 1).collect()
    if len(counts) > labels.MOST_LABELS:
        count, *examples = _spread(each)
        labels.refuse_too_many(data, max(count, len(counts)), *examples)
    return Counter({row["label"]: row["count"] for row in counts})


def _spread(rows: DataFrame) -> tuple[int, str | None, str | None]:
    """(an estimate of the number of labels, the first and the last of them)."""
    columns = (F.approx_count_distinct("label"), F.min("label"), F.max("label"))
    return tuple(rows.agg(*columns).first())


def each_label(rows: DataFrame) -> DataFrame:
    """The rows, once for each label of their sets."""
    names = F.from_json("label", "array<string>")
    return rows.withColumn("label", F.explode(names))


def at_gate(gated: DataFrame, data: DataSection) -> tuple[Counter, list[tuple[int, int, str]]]:
    """({(reason, label): rows}, a list of (texts with line breaks, most in one, its id)).

    Args:
        gated: reason, label, id; of texts also `breaks`.
    Raises:
        DataError: too many for a column of labels; they are not collected.
    """
    gated = of_task(gated, data.task)
    if "breaks" not in gated.columns:
        gated = gated.withColumn("breaks", F.lit(0))
    totals = gated.groupBy("reason", "label").agg(
        F.count("*").alias("count"),
        F.count(F.when(F.col("breaks") > 0, 1)).alias("broken"),
        F.max("breaks").alias("most"),
        F.max_by("id", F.struct("breaks", "id")).alias("worst"),
    )
    rows = totals.limit(_MOST_COUNTED + 1).collect()
    if len(rows) > _MOST_COUNTED:
        labels.refuse_too_many(data, *_spread(gated.where(F.col("reason").isNull())))
        # The labels of rejected rows are of use only where they are frequent.
        frequent = (
            totals.where(F.col("reason").isNotNull())
            .orderBy(F.desc("count"), "reason", "label")
            .limit(labels.MOST_LABELS)
            .select(
                F.col("reason").alias("r"), F.col("label").alias("l"), F.lit(True).alias("often")
            )
        )
        same = F.col("reason").eqNullSafe(F.col("r")) & F.col("label").eqNullSafe(F.col("l"))
        shown = F.col("reason").isNull() | F.col("often").isNotNull()
        rows = (
            totals.join(F.broadcast(frequent), same, "left")
            .groupBy("reason", F.when(shown, F.col("label")).alias("label"))
            .agg(
                F.sum("count").alias("count"),
                F.sum("broken").alias("broken"),
                F.max("most").alias("most"),
                F.max_by("worst", F.struct("most", "worst")).alias("worst"),
            )
            .collect()
        )
    counts = Counter({(row["reason"], row["label"]): row["count"] for row in rows})
    return counts, [(row["broken"], row["most"], row["worst"]) for row in rows if row["broken"]]


def judged(read: int, counts: Counter, data: DataSection, progress: Callable[[str], None]) -> dict:
    """What the manifest says of the rows, unless too many are rejected."""
    drops = drops_of(counts)
    gate.refuse_rejects(read, drops, data)
    quality = quality_of(read, counts)
    progress(
        f"kept {quality['kept']:,} rows; dropped "
        + (", ".join(f"{count:,} {reason}" for reason, count in drops.most_common()) or "none")
    )
    return quality


def refuse_encoding(
    read: int, drops: Counter, source: Source, data: DataSection, progress: Callable[[str], None]
) -> None:
    """Say where rows are dropped as wrongly encoded that another character set explains.

    Raises:
        DataError: they are more than 1 % of the rows: those with accents, say, not any rows.
    """
    count = drops["wrong_encoding"]
    if not count or source.kind not in ("csv", "jsonl"):
        return
    parts = (source, *source.parts.values())
    encoding = data.csv.encoding if source.kind == "csv" else "UTF-8"
    other = encodings.explained([e.path for part in parts for e in part.files], encoding)
    if other is None:
        return
    if count > encodings.MOST_DROPPED * read:
        raise encodings.refused(source.name, count, read, source.kind, other, encoding)
    problem = encodings.problem(count, read, other, encoding)
    progress(f"{problem}: {encodings.remedy(source.kind, other)}")


def drops_of(counts: Counter) -> Counter[str]:
    """reason -> rows, of (reason or None, label) -> rows."""
    drops: Counter[str] = Counter()
    for (reason, _), count in counts.items():
        if reason is not None:
            drops[reason] += count
    return drops


def quality_of(read: int, counts: Counter) -> dict:
    """What the manifest says of any source: rows read, kept and dropped."""
    drops = drops_of(counts)
    return {
        "read": read,
        "kept": read - sum(drops.values()),
        "drops": {reason: drops[reason] for reason in gate.REASONS if drops[reason]},
        "drops_by_label": _drops_by_label(counts),
    }


def _drops_by_label(counts: Counter) -> dict[str, dict[str, int]]:
    """{label: {reason: rows}}, both sorted."""
    dropped = Counter()
    for (reason, label), count in counts.items():
        if reason is not None:
            dropped[label or "", reason] += count
    out: dict[str, dict[str, int]] = {}
    for (label, reason), count in sorted(dropped.items()):
        out.setdefault(label, {})[reason] = count
    # A column of free text given as the label column would fill the manifest: keep the worst.
    worst = sorted(out, key=lambda label: -sum(out[label].values()))[:100]
    return {label: out[label] for label in sorted(worst)}


def samples(texts: DataFrame | None, **rows: DataFrame) -> dict[str, dict[str, list[str]]]:
    """{column: {value of it: the beginnings of a few of its texts}}, the same in every run.

    Args:
        texts: rows of which a sample regardless of any column is {"any": {"any": its beginnings}}.
        rows: {column: rows whose texts are taken for each of its values}; all are one job.
    """
    kinds = [_samples(frame, column) for column, frame in rows.items()]
    if texts is not None:
        every = texts.withColumn("any", F.lit("any"))
        kinds.append(_samples(every, "any", _SAMPLE))
    out: dict[str, dict[str, list[str]]] = {column: {} for column in ("any", *rows)}
    taken = functools.reduce(DataFrame.unionByName, kinds).collect()
    for row in sorted(taken, key=lambda row: (row["value"] or "", row["_n"])):
        out[row["column"]].setdefault(row["value"], []).append(row["text"])
    return out


def _samples(rows: DataFrame, column: str, each: int | None = None) -> DataFrame:
    """(column, value, _n, text): `each` texts of all rows, or SAMPLES for each value."""
    digest = F.sha2("id", 256)
    if each is None:
        place = F.row_number().over(Window.partitionBy(column).orderBy(digest))
        few = rows.withColumn("_n", place).where(F.col("_n") <= SAMPLES)
        few = few.orderBy(column, "_n").limit(_MOST_SAMPLES)
    else:
        few = rows.orderBy(digest).limit(each).withColumn("_n", F.lit(0))
    text = F.substring(F.coalesce("text", F.lit("")), 1, _SAMPLE_CHARACTERS)
    text = F.regexp_replace(text, PAIR, " [SEP] ").alias("text")
    return few.select(F.lit(column).alias("column"), F.col(column).alias("value"), "_n", text)


def refuse_empty(read: int, source: Source) -> None:
    """Fail where the source has no row."""
    if read == 0:
        raise DataError(
            "the source is empty",
            where=source.name,
            remedy="check data.source; with data.csv.header the first line is not a row",
        )
