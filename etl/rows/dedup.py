"""Exact and near duplicates, and the groups that must not cross a split.

Exact: by the cleaned text's key. Near: by `etl/rows/near.py`.

Where the data gives rows their splits (`given`), copies cannot all go to one split. A copy of a
test row is removed from train and validation, one of a validation row from train: held_out_copy.
What is like a row of test by being in one cluster with it, or in one bucket that was too large to
compare, is such a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, assert_never

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from howdah.config.options.dedup import ConflictOptions, DedupOptions
from howdah.config.splits import TEST, VALIDATION
from howdah.config.tasks import Task
from howdah.etl.rows import leaders, near
from howdah.etl.sources.given import GIVEN
from howdah.etl.workspace.kept import Kept
from howdah.etl.workspace.scratch import Scratch

_OPEN = 2
_MAJORITY = 0.9
"""Share of a text's rows that must have one label for conflict `majority` to keep them: with less
agreement the label is not known, and the text is rejected whole."""
_RANKS = {TEST: 0, VALIDATION: 1}
"""Which rows of a cluster stay where the data gives their splits: those of the lowest rank."""


@dataclass(frozen=True, kw_only=True)
class Deduplicated:
    """Rows with their fate: `reason`/`detail` for those removed, `group` for those kept."""

    rows: DataFrame
    """id, text, label, key, reason, detail, group, cluster, and what else the rows had. All of a
    group go to one split; its clusters are what was found to be alike."""
    near_clusters: int
    """Clusters of at least two different texts."""
    largest_cluster: int
    """Different texts of the largest one."""
    noisy_clusters: int
    """Clusters whose texts have different labels, a sign of wrong labels."""
    noisy_texts: int
    """Different texts in those clusters."""
    capped_buckets: int
    """LSH buckets with more different signatures than max_bucket_size."""
    capped_entries: int
    """Members beyond that, which were not all compared: each bucket's are one group."""
    largest_group: int
    """Different texts of the largest group that goes to one split as a whole."""


def deduplicate(
    rows: DataFrame,
    options: DedupOptions,
    scratch: Scratch,
    temporary: Kept,
    *,
    task: Task = "single_label",
    whole: bool = False,
    progress: Callable[[str], None] = lambda line: None,
    judged: Callable[[], None] | None = None,
    gone: Callable[[DataFrame], DataFrame] | None = None,
) -> Deduplicated:
    """Find duplicates among the rows that passed the gate.

    Args:
        rows: id, text, label, key; each id once. Other columns are kept as they are; of them
            `given` is the split that the data gives a row, or null.
        options: `data.dedup`.
        task: what labels are: a set of labels conflicts with any other set, a target with one that
            differs by more than the conflict's tolerance.
        whole: given test and validation sets keep their own duplicates and conflicts.
        progress: gets a line where joining them takes rounds.
        judged: called, after a job of its own, when all rows are kept here: what they are made of
            is not read again.
        gone: given id, text, label and key of one row for each text and label, the id of those that
            rows elsewhere stand for: they are given no reason here, and stand for no other row.

    The first of a cluster by id is kept, and those that are like no kept one (`leaders.py`): the
    outcome depends on the rows alone, never on their partitions. The same text under different
    labels is judged by `options.conflict`: by default it is rejected whole (label_conflict). Near
    duplicates under different labels are kept once a label, in the same group.
    """
    marked = _judged(rows, options.conflict, task, whole).persist()
    temporary.append(marked)
    if judged is not None:
        marked.count()
        judged()
    lone = marked.where(~F.col("conflict") & ~F.col("copy"))
    unique = lone.where(F.col("id") == F.col("first"))
    if options.near:
        clustered = near.find(unique, options, scratch, temporary, progress=progress)
    else:
        clustered = near.none(unique)
    alike = clustered.rows.withColumnRenamed("id", "first")
    # (own, first, cluster, group, label, rank) of the first row of each text and label
    owners = lone.where(F.col("id") == F.col("own")).select("own", "first", "label", "rank")
    labelled = alike.join(owners, "first")
    sizes = _sizes(labelled, "cluster")
    largest_group = _sizes(labelled, "group").largest if clustered.capped_buckets else sizes.largest
    alone = ["cluster", "label", "rank"]
    may_lead = labelled.select("own", "signature", *alone)
    if gone is not None:
        owners = lone.where(F.col("id") == F.col("own")).select("id", "text", "label", "key")
        may_lead = may_lead.join(gone(owners).withColumnRenamed("id", "own"), "own", "left_anti")
    kept = leaders.survivors(may_lead, alone, options.threshold)
    survivors = labelled.drop("signature").join(kept, "own", "left")
    held = F.lit(None).cast("string")
    if GIVEN in rows.columns:
        # Aggregated, not a window: a group may be a large part of the rows.
        groups = labelled.where(F.col("rank") < _OPEN).groupBy("group")
        first = F.struct("rank", "own", F.col("cluster").alias("of"))
        best = groups.agg(F.min(first).alias("best"))
        survivors = survivors.join(best, "group", "left")
        held = F.when(F.col("best.rank") < F.col("rank"), _held_by(F.col("best")))
    survivors = survivors.select("own", "cluster", "group", "survivor", held.alias("held"))
    fated = marked.join(survivors, "own", "left")
    return Deduplicated(
        rows=_fates(fated, rows.columns, options, whole),
        near_clusters=sizes.count,
        largest_cluster=sizes.largest,
        noisy_clusters=sizes.noisy,
        noisy_texts=sizes.noisy_members,
        capped_buckets=clustered.capped_buckets,
        capped_entries=clustered.capped_entries,
        largest_group=largest_group,
    )


def _split_of(rank: Column) -> Column:
    split = F.lit(None).cast("string")
    for name, number in _RANKS.items():
        split = F.when(rank == number, name).otherwise(split)
    return split


def _held_by(best: Column) -> Column:
    """Detail: which row of which split is like this one, or may be."""
    name = F.concat(best["own"], F.lit(" of "), _split_of(best["rank"]))
    may_be = F.concat(F.lit("in a bucket too large to compare with "), name)
    return F.when(best["of"] == F.col("cluster"), F.concat(F.lit("like "), name)).otherwise(may_be)


def _fates(
    marked: DataFrame, columns: Sequence[str], options: DedupOptions, whole: bool
) -> DataFrame:
    """The rows with reason, detail and group, from `_judged` and the clusters."""
    conflict, copy, held = F.col("conflict"), F.col("copy"), F.col("held")
    exact = (F.col("id") != F.col("own")) & F.lit(options.exact)
    like = F.col("survivor").isNotNull() & (F.col("own") != F.col("survivor"))
    if whole:
        open_ = F.col("rank") == _OPEN
        exact, like = exact & open_, like & open_
    if GIVEN not in columns:
        held = F.lit(None).cast("string")
    reason = (
        F.when(copy, "held_out_copy")
        .when(conflict, "label_conflict")
        .when(held.isNotNull(), "held_out_copy")
        .when(exact, "exact_duplicate")
        .when(like, "near_duplicate")
    )
    same = F.concat(F.lit("same text as "), F.coalesce("first", F.lit("rejected rows")))
    detail = (
        F.when(copy, F.concat(same, F.lit(" of "), _split_of(F.col("best_rank"))))
        .when(conflict, F.concat(F.lit("labels: "), F.col("labels")))
        .when(held.isNotNull(), held)
        .when(exact, F.concat(F.lit("same text as "), F.col("own")))
        .when(like, F.concat(F.lit("like "), F.col("survivor")))
    )
    return marked.select(
        *columns,
        reason.alias("reason"),
        detail.alias("detail"),
        F.coalesce("group", "first", "id").alias("group"),
        F.coalesce("cluster", "first", "id").alias("cluster"),
    )


def _judged(rows: DataFrame, conflict: ConflictOptions, task: Task, whole: bool) -> DataFrame:
    """The rows with what those of the same text say of them:

    rank      by the split that the data gives
    copy      of a row of a lower rank, that is in test or validation
    conflict  with other labels, and out
    labels    of the text
    first     the text's first row that is neither; null where there is none
    own       its first row with the same label
    """
    # Windows, not joins with aggregates: a join would hold the plan of its rows twice, and Spark
    # writes the plan of each action, with those of all cached frames in it, as text.
    text = Window.partitionBy("key")
    rank = best = F.lit(_OPEN)
    same = ["key"]
    if GIVEN in rows.columns:
        for split, number in _RANKS.items():
            rank = F.when(F.col(GIVEN) == split, number).otherwise(rank)
        best = F.min("rank").over(text)
        same = ["key", "rank"]
    rows = rows.withColumn("rank", rank)
    label = Window.partitionBy(*same, "label")
    out = _conflict(conflict, task, Window.partitionBy(*same), label)
    if whole:
        out = out & (F.col("rank") == _OPEN)
    names = F.collect_set("label").over(Window.partitionBy(*same))
    rows = rows.select(
        "*",
        best.alias("best_rank"),
        (F.col("rank") > best).alias("copy"),
        out.alias("conflict"),
        F.concat_ws(", ", F.sort_array(names)).alias("labels"),
    )
    stays = F.when(~F.col("conflict") & ~F.col("copy"), F.col("id"))
    first = F.min(stays).over(text)
    if conflict.policy == "keep" or whole:
        least = F.min(stays).over(Window.partitionBy("key", "label"))
    else:
        least = first
    return rows.select("*", first.alias("first"), F.coalesce(least, "id").alias("own"))


def _conflict(options: ConflictOptions, task: Task, same: WindowSpec, label: WindowSpec) -> Column:
    """True for rows that are rejected since others of the same text have another label."""
    if options.policy == "reject":
        if task == "regression":
            target = F.col("label").cast("double")
            return F.max(target).over(same) - F.min(target).over(same) > options.tolerance
        return F.min("label").over(same) != F.max("label").over(same)
    if options.policy == "majority":
        share = F.count("*").over(label) / F.count("*").over(same)
        return share < _MAJORITY
    if options.policy == "keep":
        return F.lit(False)
    assert_never(options.policy)


class _Sizes(NamedTuple):
    """Sets with two members or more: their count, the largest's size (1 if there is none), how many
    have several labels, and the members of those."""

    count: int
    largest: int
    noisy: int
    noisy_members: int


def _sizes(labelled: DataFrame, column: str) -> _Sizes:
    """Count the sets of texts that a column names."""
    texts = F.count(F.when(F.col("own") == F.col("first"), 1))  # not its other labels
    sizes = labelled.groupBy(column).agg(
        texts.alias("n"), (F.min("label") != F.max("label")).alias("noisy")
    )
    noisy = F.when(F.col("noisy"), F.col("n"))
    count, most, clusters, texts = (
        sizes.where(F.col("n") > 1)
        .agg(F.count("*"), F.max("n"), F.count(noisy), F.sum(noisy))
        .first()
    )
    return _Sizes(count, most or 1, clusters, texts or 0)
