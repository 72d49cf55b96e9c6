"""Rows that a key of the data holds together: the same user, document or thread.

Rows of one value of a column of `data.split.group`, and rows of one group of duplicates, go to one
split. So the split's units are the components of both relations together: a text that two users
wrote joins all rows of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from howdah.etl.rows.components import connected_components
from howdah.etl.sources.given import GROUPS
from howdah.etl.workspace.kept import Kept
from howdah.etl.workspace.scratch import Scratch

_DUPLICATES, _KEYED = "d:", "g:"


@dataclass(frozen=True, kw_only=True)
class Units:
    """What must not cross the split."""

    rows: DataFrame
    """The rows; `group` is the unit that a row belongs to."""
    joined: int
    """Groups of the data and of duplicates that are joined to others."""
    largest: int
    """Rows of the largest unit."""
    without: int
    """Rows that have no value in any column: their duplicates alone are held together with them."""


def of_groups(
    rows: DataFrame,
    scratch: Scratch,
    temporary: Kept,
    *,
    progress: Callable[[str], None] = lambda line: None,
) -> Units:
    """Join groups of duplicates with those that the data names.

    Args:
        rows: reason, group, groups (array of "<column>=<value>"). Rows with a reason stay as they
            are and join nothing: they are in no split.
        progress: gets a line where joining them takes rounds.

    A unit is named by the smallest of the names in it, a function of the rows alone. Units are
    nodes by a 64-bit hash of their name: two that share it by chance stay in one split, no more.
    """
    duplicates = F.concat(F.lit(_DUPLICATES), F.col("group"))
    keyed = F.transform(GROUPS, lambda value: F.concat(F.lit(_KEYED), value))
    unit = F.coalesce(F.get(keyed, F.lit(0)), duplicates)
    rows = rows.withColumn("unit", unit).withColumn("node", F.xxhash64("unit")).persist()
    temporary.append(rows)
    kept = rows.where(F.col("reason").isNull())
    keys = F.explode(F.concat(F.array(duplicates), keyed)).alias("of")
    entries = kept.select("unit", "node", keys).distinct()
    # Of each key that several units have, an edge from its first unit to each of the others.
    spans = entries.groupBy("of").agg(F.min("node").alias("low"), F.max("node").alias("high"))
    spans = spans.where(F.col("low") != F.col("high")).select("of", "low")
    edges = entries.join(spans, "of").select(F.col("low").alias("a"), F.col("node").alias("b"))
    components = connected_components(edges, scratch, temporary, progress=progress)
    components = scratch.keep(components, f"{scratch.path('units')}/found")
    units = kept.select("unit", "node").distinct().join(components, "node")
    names = units.groupBy("root").agg(F.min("unit").alias("name"))
    named = rows.join(components.join(names, "root").select("node", "name"), "node", "left")
    group = F.coalesce("name", "unit").alias("group")
    out = named.select(*(c for c in rows.columns if c not in ("unit", "node", "group")), group)
    sizes = (
        out.where(F.col("reason").isNull())
        .groupBy("group")
        .agg(F.count("*").alias("count"), F.count(F.when(F.size(GROUPS) == 0, 1)).alias("without"))
    )
    largest, without = sizes.agg(F.max("count"), F.sum("without")).first()
    return Units(rows=out, joined=components.count(), largest=largest or 0, without=without or 0)
