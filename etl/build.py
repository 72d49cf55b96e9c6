"""Turns a source into encoded rows with their splits, and counts what happens on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from howdah.config.data import DataSection
from howdah.config.model import Config
from howdah.config.tasks import Task
from howdah.core.activity import Stages
from howdah.core.processes import limit
from howdah.data.encode import Encoder
from howdah.data.files.quotes import Quotes
from howdah.data.images import ImageEncoder
from howdah.data.lineage.forgotten import NONE, Forgotten
from howdah.data.spark.text_rows import Strays
from howdah.data.targets import label_mapping, label_name
from howdah.errors import ConfigError, DataError
from howdah.etl import built, counting
from howdah.etl.built import Built
from howdah.etl.history import judge
from howdah.etl.history.past import Past
from howdah.etl.rows import dedup, forgotten, gate, labels, leakage, near, numbering, split, units
from howdah.etl.rows import images as image_rows
from howdah.etl.sources import given, images, reading
from howdah.etl.sources.source import Source
from howdah.etl.workspace.kept import Kept, release
from howdah.etl.workspace.scratch import Scratch, local_table
from howdah.etl.write import adopt
from howdah.spark.errors import crossing, translated

_BATCH_IMAGES, _BATCH_BYTES = 1_000, 16 * 2**20
"""Most images, and bytes of their pixels, in one Arrow batch."""
_MANY_ROWS = limit("many_rows", 100_000)
"""Number of rows from which on an extra job to unpersist rows cached twice pays off, and files from
which a run that takes a killed one's place goes on."""


def from_text(
    spark: SparkSession,
    source: Source,
    config: Config,
    encoder: Encoder,
    kept: Kept,
    progress: Stages,
    *,
    scratch: Scratch,
    past: Past | None = None,
    gone: Forgotten = NONE,
) -> Built:
    """Rows of text: read, clean, gate, de-duplicate, split, encode.

    Args:
        gone: rows that are left out.
        past: the version that they are appended to, whose rows they are compared with as well.
    Raises:
        DataError: an empty source, unknown labels, too many rejected rows.
    """
    data = config.data
    strays = reading.check_quotes(spark, source, data.csv) if source.kind == "csv" else None
    counted = None if strays is None else strays.counted
    gated = _gate(spark, source, data, gone, past, counted).persist()
    kept.append(gated)
    with translated(f"read the source {source.name}", DataError):
        at_gate, lines = counting.at_gate(gated, data)
    read = sum(at_gate.values())
    counting.refuse_encoding(read, counting.drops_of(at_gate), source, data, progress)
    _refuse_splits(gated, at_gate, data)
    several = (
        counting.labels_of(gated.where(F.col("reason").isNull()), data)
        if data.task == "multi_label"
        else None
    )
    names = _labels_at_gate(at_gate, source, data, progress, several, past)

    progress.begin("find duplicates")
    passed = gated.where(F.col("reason").isNull()).drop("reason", "detail", "breaks")
    passed, official = split.given_by(passed, data.split)
    judging = None
    if past is not None and past.parent is not None:
        judging = judge.judging_of(passed, past, data, kept)
        passed = judging.fresh
    rejects = gated.where(F.col("reason").isNotNull())
    judged, stays = None, gated
    if read >= _MANY_ROWS and judging is None:  # which reads the gate's rows again
        stays = rejects = rejects.persist()
        judged = partial(_let_go, gated, rejects, kept)
    deduplicated = dedup.deduplicate(
        passed,
        data.dedup,
        scratch,
        kept,
        task=data.task,
        whole=official is not None and data.split.time.column is None,
        progress=progress,
        judged=judged,
        gone=None if judging is None else judging.gone,
    )
    progress.begin("divide into splits")
    rows, joined = deduplicated.rows, None
    if data.split.group:
        joined = units.of_groups(rows, scratch, kept, progress=progress)
        rows = joined.rows
    if judging is not None:
        final = judging.place(rows)
    else:
        final = split.assign(rows.drop("cluster"), data.split, official, kept, task=data.task)
    # From files: what is asked of them from here on has a plan of one step and reads its columns
    # alone, and all that they are made of goes.
    final = scratch.keep(final, built.FINAL)
    release(kept, but=[stays])

    counts = at_gate + counting.by(counting.of_task(final, data.task), "reason", "label")
    quality = counting.judged(read, counts, data, progress)
    quality["near_duplicates"] = {
        "clusters": deduplicated.near_clusters,
        "largest_cluster": deduplicated.largest_cluster,
        "capped_buckets": deduplicated.capped_buckets,
        "capped_entries": deduplicated.capped_entries,
        "largest_group": deduplicated.largest_group,
        "noisy_clusters": deduplicated.noisy_clusters,
        "noisy_texts": deduplicated.noisy_texts,
        **({} if judging is None else judging.capped(progress)),
        **data.dedup.model_dump(),
    }
    _split_quality(quality, data, official, joined, final, progress)
    _warn_capped(deduplicated, data, progress)
    if strays is not None:
        quality["csv"] = _csv_quality(data, lines, strays, progress)
    resumable = read >= _MANY_ROWS and past is None
    if resumable:
        rejects = built.keep_rejects(rejects, scratch)
    rejected = built.rejected(rejects, final)
    good = final.where(F.col("reason").isNull())
    old = None if judging is None else judging.held_out(spark)
    quality["leakage"] = leakage.judged(good, data.quality, progress, old)
    samples = counting.samples(good, label=_sampled(good, data.task, names), reason=rejected)
    about = {"labels": names, "quality": quality, "samples": samples}
    if resumable:
        built.finish(scratch, final, rejects, about)
    return built.of_rows(final, rejected, about, data, encoder, scratch if resumable else None)


def _sampled(good: DataFrame, task: Task, names: list[str]) -> DataFrame:
    """The rows by whose labels samples are taken; a regression's have one name."""
    if task == "multi_label":
        return counting.each_label(good)
    if task == "regression":
        return good.withColumn("label", F.lit(names[0]))
    return good


def _split_quality(
    quality: dict,
    data: DataSection,
    official: split.Given | None,
    joined: units.Units | None,
    final: DataFrame,
    progress: Callable[[str], None],
) -> None:
    """Add what the data says of the splits, and how far groups are joined."""
    result = {} if official is None else official.as_quality()
    if official is not None:
        counts = ", ".join(f"{name} {count:,}" for name, count in official.rows.items())
        progress(f"splits given by the data: {counts} rows")
        copies = quality["drops"].get("held_out_copy", 0)
        if copies:
            progress(f"{copies:,} rows are left out: duplicates of rows of test or validation")
    if joined is not None:
        result["groups"] = {"joined": joined.joined, "largest": joined.largest}
        if joined.without:
            result["groups"]["without"] = joined.without
            names = ", ".join(data.split.group)
            progress(f"{joined.without:,} rows have no value in data.split.group ({names})")
        if official is not None:
            names = final.where(F.col("reason").isNull()).groupBy("group")
            both = names.agg((F.min("split") != F.max("split")).alias("both")).where("both")
            result["groups"]["in_several_splits"] = both.count()
            if both := result["groups"]["in_several_splits"]:
                progress(f"{both:,} groups have rows in several of the splits that the data gives")
    if result:
        quality["split"] = result


def from_images(
    spark: SparkSession,
    source: Source,
    config: Config,
    encoder: ImageEncoder,
    kept: Kept,
    progress: Callable[[str], None],
    *,
    scratch: Scratch,
    gone: Forgotten = NONE,
) -> Built:
    """Rows of images: read, decode, gate, de-duplicate, split.

    Duplicates are images of equal pixels once resized: the model cannot tell them apart.

    Raises:
        DataError: an empty source, unknown labels, too many rejected rows.
    """
    data = config.data
    _refuse_given_splits(
        data,
        "the splits of images can only be drawn",
        expected="fractions or numbers of rows",
        remedy="leave these keys out",
    )
    # An Arrow batch of Spark's 10,000 rows could be gigabytes of pixels.
    batch = max(1, min(_BATCH_IMAGES, _BATCH_BYTES // encoder.image.values))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(batch))
    files = spark.sparkContext.broadcast((encoder.files, encoder.source, encoder.hash))
    work = partial(image_rows.decode_batches, files=files, labels=label_mapping(data))
    rows = images.read(spark, source, data)
    if source.kind == "image":  # a file's path is its own: nothing is to be brought together
        rows = rows.withColumn(numbering.GROUP, F.col("key"))
    else:
        rows = numbering.gathered(rows, content="image")
    rows = rows.mapInArrow(crossing(work), image_rows.SCHEMA)
    gated = forgotten.leave_out(rows, gone).persist()
    kept.append(gated)
    with translated(f"read the source {source.name}", DataError):
        at_gate, _ = counting.at_gate(gated, data)
    read = sum(at_gate.values())
    names = _labels_at_gate(at_gate, source, data, progress)
    # What is alike in looks but not in its pixels is not looked for: data.dedup.near is for texts.
    exact = data.dedup.model_copy(update={"near": False})
    deduplicated = dedup.deduplicate(
        gated.where(F.col("reason").isNull()).select("id", "text", "label", "key"),
        exact,
        scratch,
        kept,
        progress=progress,
    )
    final = split.assign(deduplicated.rows, data.split, None, kept).persist()
    kept.append(final)
    quality = counting.judged(read, at_gate + counting.by(final, "reason", "label"), data, progress)
    rejected = built.rejected(gated.where(F.col("reason").isNotNull()), final)
    numbers = local_table(spark, list(enumerate(names)), "number int, label string")
    good = final.where(F.col("reason").isNull()).select("id", "text", "label", "split")
    encoded = (
        good.join(F.broadcast(numbers), "label")
        # A rejected row may be named like a key: "a#2" is the second row of the key "a".
        .join(gated.where(F.col("reason").isNull()).select("id", "pixels"), "id")
        .select(
            "id", "split", F.col("number").alias("label"), F.col("pixels").alias("ids"),
            F.lit(encoder.tokens).alias("length"),
        )
    )  # fmt: skip
    samples = counting.samples(None, label=good, reason=rejected)
    return Built(
        encoded=encoded,
        rejected=rejected,
        labels=names,
        quality=quality,
        samples=samples["label"],
        reject_samples=samples["reason"],
    )


def _let_go(gated: DataFrame, rejects: DataFrame, kept: list[DataFrame]) -> None:
    """Keep only the gate's rejected rows cached: the next step caches the others."""
    rejects.count()
    kept.append(rejects)
    gated.unpersist()


def _gate(
    spark: SparkSession,
    source: Source,
    data: DataSection,
    gone: Forgotten,
    past: Past | None,
    counted: Mapping[str, Quotes] | None = None,
) -> DataFrame:
    """The source's rows, cleaned and judged: `gate.SCHEMA`."""
    work = partial(
        gate.clean_batches, clean=data.clean, quality=data.quality, rules=labels.rules(data)
    )
    columns = given.columns(data.split)
    more = "".join(f", {name} {kind}" for name, kind in columns.items())
    rows = reading.read(spark, source, data, counted)
    rows = numbering.gathered(rows, list(columns))
    rows = rows.mapInArrow(crossing(work), gate.SCHEMA + more)
    if past is not None:
        rows = judge.with_own_ids(rows, past, data)
    return forgotten.leave_out(rows, gone)


def _labels_at_gate(
    at_gate: Counter,
    source: Source,
    data: DataSection,
    progress: Callable[[str], None],
    several: Counter[str] | None = None,
    past: Past | None = None,
) -> list[str]:
    """The names of the labels, once what the gate let pass is enough to go on with.

    Args:
        at_gate: (reason or None, label) -> rows.
        several: label -> rows that passed, where rows have any number of labels.
        past: whose labels keep their numbers.
    """
    passed: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    for (reason, label), count in at_gate.items():
        if reason is None:
            passed[label or ""] += count
        elif reason == "bad_label" and (value := label_name(label or "")):
            unknown[value] += count
    read = sum(at_gate.values())
    rows = sum(passed.values())
    progress(f"read {read:,} rows: {rows:,} are usable")
    counting.refuse_empty(read, source)
    labels.refuse_unknown(data, unknown)
    gate.refuse_rejects(read, counting.drops_of(at_gate), data)
    before = [] if past is None else past.labels
    if data.task == "regression":
        if not rows:
            raise DataError(
                "no row has a target",
                where=f"data.columns.label: {data.columns.label}",
                remedy="check data.columns.label; see the rejected rows' reasons",
            )
        return before or [data.columns.label]
    return labels.names(data, passed if several is None else several, before)


def _refuse_given_splits(data: DataSection, what: str, *, expected: str, remedy: str) -> None:
    """Fail on keys of data.split that only rows of text have columns for."""
    if keys := data.split.of_texts:
        raise ConfigError(
            what,
            where="data.split." + ", data.split.".join(keys),
            expected=expected,
            remedy=remedy,
        )


def _refuse_splits(gated: DataFrame, at_gate: Counter, data: DataSection) -> None:
    """Fail on values of data.split.column that name no split, unless such rows are rejected."""
    count = counting.drops_of(at_gate)[given.BAD_SPLIT]
    if not count or data.quality.unknown_label == "reject":
        return
    bad = gated.where(F.col("reason") == given.BAD_SPLIT).groupBy("detail").count()
    worst = bad.orderBy(F.col("count").desc(), "detail").limit(5).collect()
    raise DataError(
        "the source has rows whose split is not known",
        where=f"data.split.column: {data.split.column}",
        expected=", ".join(data.split.words),
        got=f"{count:,} rows: "
        + ", ".join(f"{row['detail']!r} ({row['count']:,} rows)" for row in worst),
        remedy="list the values in data.split.values, or set data.quality.unknown_label: reject",
    )


def _warn_capped(
    deduplicated: dedup.Deduplicated, data: DataSection, progress: Callable[[str], None]
) -> None:
    if deduplicated.capped_entries:
        progress(
            f"{deduplicated.capped_buckets:,} buckets of near duplicates are larger than"
            f" {near.MAX_BUCKET_SIZE:,} texts:"
            f" {deduplicated.capped_entries:,} entries were not all compared with one another;"
            " those of a bucket go to the same"
            f" split (the largest group that does has {deduplicated.largest_group:,} texts)"
        )


def from_records(
    spark: SparkSession,
    source: Source,
    config: Config,
    encoder: Encoder,
    kept: Kept,
    progress: Callable[[str], None],
    gone: Forgotten = NONE,
) -> Built:
    """Records of another writer: verified, padding stripped, ids as they are.

    Raises:
        DataError: a truncated or altered shard, a missing feature, unknown labels, no record.
    """
    data = config.data
    _refuse_given_splits(
        data,
        "the splits of records can only be drawn by their ids",
        expected="fractions, or 'train', 'validation' and 'test' in the files' names",
        remedy="leave these keys out, or give the texts as the source",
    )
    read_rows = adopt.read_records(spark, source, data, encoder, _numbered(data))
    rows = forgotten.leave_out(read_rows, gone).persist()
    kept.append(rows)
    with translated(f"read the records {source.name}", DataError):
        counts, _ = counting.at_gate(rows, data)
    read = sum(counts.values())
    counting.refuse_empty(read, source)
    passed = Counter({label: n for (reason, label), n in counts.items() if reason is None})
    unknown = Counter({label: n for (reason, label), n in counts.items() if reason == "bad_label"})
    labels.refuse_unknown(data, unknown)
    gate.refuse_rejects(read, counting.drops_of(counts), data)
    names = labels.names(data, passed)
    progress(f"read {read:,} records: {sum(passed.values()):,} are usable")
    numbers = local_table(spark, list(enumerate(names)), "number int, label string")
    good = rows.where(F.col("reason").isNull()).join(F.broadcast(numbers), "label")
    nothing = F.lit(None).cast("string")
    return Built(
        encoded=good.select("id", "split", F.col("number").alias("label"), "ids", "length"),
        rejected=rows.where(F.col("reason").isNotNull()).select(
            "id", nothing.alias("text"), "label", "reason", "detail"
        ),
        labels=names,
        quality=counting.quality_of(read, counts),
    )


def _numbered(data: DataSection) -> dict[str, str] | None:
    """{label number as text: name} for records: a list names the numbers in order."""
    if isinstance(data.labels, list):
        return {str(number): name for number, name in enumerate(data.labels)}
    return label_mapping(data)


def _csv_quality(
    data: DataSection,
    lines: list[tuple[int, int, str]],
    strays: Strays,
    progress: Callable[[str], None],
) -> dict:
    """Signs of an unclosed quote that the check of quotes cannot prove."""
    texts = sum(count for count, _, _ in lines)
    most, worst = max(((most, worst) for _, most, worst in lines), default=(0, None))
    if texts:
        progress(
            f"{texts:,} accepted texts have line breaks, at most {most:,} (row {worst}); if texts"
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
