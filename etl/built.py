"""Rows that are encoded, with what was counted of them, and the files that a run goes on from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from howdah.config.data import DataSection
from howdah.core.activity import Progress
from howdah.data.encode import Encoder
from howdah.etl.workspace.scratch import Scratch
from howdah.etl.workspace.staging import WHOLE
from howdah.etl.write import shards

_ROWS, FINAL, _REJECTS = WHOLE.removesuffix(".json"), "final", "rejects"
"""Names of intermediate data: of what is whole, and of its frames."""


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
    texts: list[str] = field(default_factory=list)
    """The beginnings of a sample of the texts that stay."""
    kept: DataFrame | None = None
    """Rows of text that are encoded: id, text, label, key, split, group."""
    keep_encoded: Callable[[], DataFrame] | None = None
    """Encodes the rows into files, which a run that takes this one's place goes on from; None: that
    run begins anew."""


def rejected(rejects: DataFrame, final: DataFrame) -> DataFrame:
    """id, text, label, reason, detail of the rows that the gate or de-duplication took out."""
    more = final.where(F.col("reason").isNotNull()).select(*shards.REJECT_COLUMNS)
    return rejects.select(*shards.REJECT_COLUMNS).unionByName(more)


def keep_rejects(rejects: DataFrame, scratch: Scratch) -> DataFrame:
    """The rows that the gate rejected, from files."""
    return scratch.keep(rejects.select(*shards.REJECT_COLUMNS), _REJECTS)


def finish(
    scratch: Scratch, final: DataFrame, rejects: DataFrame, about: Mapping[str, Any]
) -> None:
    """Say that both are whole: `resumed` goes on from them.

    Args:
        about: labels, quality and samples.
    """
    scratch.finish(_ROWS, {FINAL: final, _REJECTS: rejects}, **about)


def resumed(
    spark: SparkSession, data: DataSection, encoder: Encoder, scratch: Scratch, progress: Progress
) -> Built | None:
    """What a killed run of the same version had read, de-duplicated and divided into splits; None:
    there is nothing to go on from."""
    before = scratch.finished(spark, _ROWS)
    if before is None:
        return None
    frames, about = before
    rows = about["quality"]["read"]
    progress(f"continuing from the {rows:,} rows that an unfinished run has read and split")
    unusable = rejected(frames[_REJECTS], frames[FINAL])
    return of_rows(frames[FINAL], unusable, about, data, encoder, scratch)


def of_rows(
    final: DataFrame,
    unusable: DataFrame,
    about: Mapping[str, Any],
    data: DataSection,
    encoder: Encoder,
    scratch: Scratch | None,
) -> Built:
    """Encoded rows of rows with their splits.

    Args:
        final: the intermediate data `FINAL`.
        unusable: rejected rows.
        about: labels, quality and samples.
        scratch: keeps what is whole; None: nothing is kept for another run.
    """

    def encode(rows: DataFrame) -> DataFrame:
        return shards.encode(
            rows.where(F.col("reason").isNull()),
            encoder,
            about["labels"],
            data.max_length,
            task=data.task,
            pairs=data.columns.text_pair is not None,
        )

    def keep_encoded() -> DataFrame:
        return scratch.once_by_pieces(FINAL, final, encode, "encoded")

    samples = about["samples"]
    return Built(
        encoded=encode(final),
        rejected=unusable,
        labels=about["labels"],
        quality=about["quality"],
        samples=samples["label"],
        reject_samples=samples["reason"],
        texts=samples["any"].get("any", []),
        kept=final.where(F.col("reason").isNull()),
        keep_encoded=None if scratch is None else keep_encoded,
    )
