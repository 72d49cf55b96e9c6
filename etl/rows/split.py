"""Train, validation and test by hash of the duplicates' group: what is alike never crosses."""

from __future__ import annotations

from hashlib import sha256

from pyspark.sql import Column
from pyspark.sql import functions as F

from howdah.config.data import SplitOptions
from howdah.config.splits import TEST, TRAIN, VALIDATION, Split

_HEX_DIGITS = 12
_ALL = 16**_HEX_DIGITS
_U = "first 12 hex digits of SHA-256('<seed>:<cluster>')"
_RULE = f"u = {_U} / 16^12; test if u < test; validation if u < test + validation; else train"
_FOLD_RULE = (
    f"n = {_U}; w = (n * N - (K - 1) * 16^12) mod (N * 16^12), for fold K/N; test if w < 16^12;"
    " validation if w < (1 + validation * N) * 16^12; else train"
)


def rule(options: SplitOptions) -> dict:
    """The rule as the manifest states it, so that another program can repeat it."""
    folded = options.part is not None
    fractions = {"fold": options.fold} if folded else {TEST: options.test}
    return {
        "by": "group of duplicates (the smallest row id in it): a cluster, or clusters that an LSH"
        " bucket too large to compare all its members puts together",
        "rule": _FOLD_RULE if folded else _RULE,
        "seed": options.seed,
        VALIDATION: options.validation,
        **fractions,
    }


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
