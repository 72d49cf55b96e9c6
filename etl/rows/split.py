"""Train, validation and test by hash of the duplicates' group: what is alike never crosses."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from howdah import redact
from howdah.config.options.split import SplitOptions, moment
from howdah.config.splits import SPLITS, TEST, TRAIN, VALIDATION, Split
from howdah.config.tasks import Task
from howdah.etl.rows.draw import draw, newest, refuse_too_few
from howdah.etl.sources.given import GIVEN, MOMENT
from howdah.etl.workspace.kept import Kept

_HEX_DIGITS = 12
_ALL = 16**_HEX_DIGITS
_U = "first 12 hex digits of SHA-256('<seed>:<cluster>')"
_RULE = f"u = {_U} / 16^12; test if u < test; validation if u < test + validation; else train"
_FOLD_RULE = (
    f"n = {_U}; w = (n * N - (K - 1) * 16^12) mod (N * 16^12), for fold K/N; test if w < 16^12;"
    " validation if w < (1 + validation * N) * 16^12; else train"
)

_SIZED_RULE = (
    "units in the order of SHA-256('<seed>:<unit>'), within each class if stratified: the first"
    " are test, the next validation, to within a unit of their sizes; units larger than a split are"
    " last"
)
_DUPLICATES = (
    "group of duplicates (the smallest row id in it): a cluster, or clusters that an LSH bucket too"
    " large to compare all its members puts together"
)


def rule(options: SplitOptions) -> dict:
    """The rule as the manifest states it, so that another program can repeat it."""
    folded = options.part is not None
    sized = bool(options.in_rows or options.stratify)
    by = _DUPLICATES
    if options.group:
        by += f"; joined with the rows that have the same {' or '.join(options.group)}"
    sources = {}
    if options.given:
        options_given = options.model_dump(
            mode="json", include={"column", "values", "sources", "time"}, exclude_defaults=True
        )
        sources = {
            "given": redact.plain(options_given),
            "drawn": "splits that the data does not give",
        }
    return {
        "by": by,
        "rule": _FOLD_RULE if folded else _SIZED_RULE if sized else _RULE,
        "seed": options.seed,
        VALIDATION: options.validation,
        **({"fold": options.fold} if folded else {TEST: options.test}),
        **({"stratify": options.stratify} if options.stratify else {}),
        **sources,
    }


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the data says of the splits of the rows that passed the gate."""

    rows: dict[str, int]
    """{split: rows}, those without one in train."""
    drawn: list[Split]
    """Test and validation, if the data does not give them and their sizes are not 0."""
    cuts: dict[str, float]
    """{split: the moment from which on rows are its own}."""

    def as_quality(self) -> dict:
        """The entry in the manifest's quality."""
        cuts = {"from": self.cuts} if self.cuts else {}
        return {"given": self.rows, "drawn": self.drawn, **cuts}


def given_by(rows: DataFrame, options: SplitOptions) -> tuple[DataFrame, Given | None]:
    """(the rows, with their `given` split by time if that gives it; what is given).

    Args:
        rows: rows that passed the gate, with the columns `given.columns`.
    """
    if not options.given:
        return rows, None
    cuts = {}
    if options.time.column is not None:
        cuts = _cuts(rows, options)
        split = F.lit(TRAIN)
        for name in (VALIDATION, TEST):
            if name in cuts:
                split = F.when(F.col(MOMENT) >= cuts[name], name).otherwise(split)
        rows = rows.withColumn(GIVEN, split)
    split = F.coalesce(GIVEN, F.lit(TRAIN)).alias("split")
    counts = {r["split"]: r["count"] for r in rows.groupBy(split).count().collect()}
    drawn = [
        split
        for split, size in ((TEST, options.test), (VALIDATION, options.validation))
        if size and split not in counts and options.time.column is None
    ]
    rows_by_split = {split: counts[split] for split in SPLITS if split in counts}
    return rows, Given(rows=rows_by_split, drawn=drawn, cuts=cuts)


def _cuts(rows: DataFrame, options: SplitOptions) -> dict[str, float]:
    """{split: its first moment}: as configured, or so that its rows are the newest left."""
    total = rows.count()
    cuts: dict[str, float] = {}
    left = rows
    sizes = {
        TEST: (options.time.test_from, options.test),
        VALIDATION: (options.time.validation_from, options.validation),
    }
    refuse_too_few({split: size for split, (begin, size) in sizes.items() if not begin}, total)
    for split, (begin, size) in sizes.items():
        if begin is not None:
            cuts[split] = moment(begin)
        elif size:
            count = size if size >= 1 else size * total
            cut = newest(left, MOMENT, count)
            cuts |= {} if cut is None else {split: cut}
        if split in cuts:
            left = left.where(F.col(MOMENT) < cuts[split])
    return cuts


def assign(
    rows: DataFrame,
    options: SplitOptions,
    official: Given | None,
    temporary: Kept,
    *,
    task: Task = "single_label",
) -> DataFrame:
    """The rows with the column `split`: as the data gives it, else by their group.

    Args:
        rows: label, reason, group, and `given` where the data gives splits.
        task: what labels are, where they are to be shared out.
    """
    drawn: list[Split] = [TEST, VALIDATION] if official is None else official.drawn
    if drawn and (options.in_rows or options.stratify):
        return draw(rows, options, drawn, temporary, task=task)
    if official is None:
        return rows.withColumn("split", split_column("group", options))
    none = {split: 0.0 for split in (TEST, VALIDATION) if split not in drawn}
    by_hash = split_column("group", options.model_copy(update=none))
    split = F.when(F.col(GIVEN).isin(TEST, VALIDATION), F.col(GIVEN)).otherwise(by_hash)
    return rows.withColumn("split", split)


def split_column(cluster: str, options: SplitOptions) -> Column:
    """The split of each row as a Spark column.

    Args:
        cluster: name of the column with the cluster's key.
    """
    digest = F.sha2(F.concat(F.lit(f"{options.seed}:"), F.col(cluster)), 256)
    number = F.conv(F.substring(digest, 1, _HEX_DIGITS), 16, 10)
    if options.part is not None:
        fold, folds = options.part
        # Whole numbers below 2^53: the comparisons are exact here and in `split_of`.
        place = F.pmod(
            number.cast("long") * folds - (fold - 1) * _ALL, F.lit(folds * _ALL).cast("long")
        )
        return (
            F.when(place < _ALL, TEST)
            .when(place < _validation_end(options, folds), VALIDATION)
            .otherwise(TRAIN)
        )
    u = number.cast("double") / float(_ALL)
    return (
        F.when(u < options.test, TEST)
        .when(u < options.test + options.validation, VALIDATION)
        .otherwise(TRAIN)
    )


def split_of(cluster: str, options: SplitOptions) -> Split:
    """The same for one cluster, without Spark."""
    digest = sha256(f"{options.seed}:{cluster}".encode()).hexdigest()
    number = int(digest[:_HEX_DIGITS], 16)
    if options.part is not None:
        fold, folds = options.part
        place = (number * folds - (fold - 1) * _ALL) % (folds * _ALL)
        if place < _ALL:
            return TEST
        return VALIDATION if place < _validation_end(options, folds) else TRAIN
    u = number / _ALL
    if u < options.test:
        return TEST
    return VALIDATION if u < options.test + options.validation else TRAIN


def _validation_end(options: SplitOptions, folds: int) -> int:
    """Where validation ends: after the fold, `validation` of all clusters."""
    return round((1 + options.validation * folds) * _ALL)
