"""Train, validation and test by hash of the duplicates' group: what is alike never crosses."""

from __future__ import annotations

from hashlib import sha256

from pyspark.sql import Column
from pyspark.sql import functions as F

from howdah.config.data import SplitOptions
from howdah.config.splits import TEST, TRAIN, VALIDATION, Split

_HEX_DIGITS = 12
_RULE = "u = first 12 hex digits of SHA-256('<seed>:<cluster>') / 16^12; test if u < test;"
_RULE += " validation if u < test + validation; else train"


def rule(options: SplitOptions) -> dict:
    """The rule as the manifest states it, so that another program can repeat it."""
    return {
        "by": "group of duplicates (the smallest row id in it): a cluster, or clusters that an LSH"
        " bucket too large to compare all its members puts together",
        "rule": _RULE,
        "seed": options.seed,
        VALIDATION: options.validation,
        TEST: options.test,
    }


def split_column(cluster: str, options: SplitOptions) -> Column:
    """The split of each row as a Spark column.

    Args:
        cluster: name of the column with the cluster's key.
    """
    digest = F.sha2(F.concat(F.lit(f"{options.seed}:"), F.col(cluster)), 256)
    number = F.conv(F.substring(digest, 1, _HEX_DIGITS), 16, 10).cast("double")
    u = number / float(16**_HEX_DIGITS)
    return (
        F.when(u < options.test, TEST)
        .when(u < options.test + options.validation, VALIDATION)
        .otherwise(TRAIN)
    )


def split_of(cluster: str, options: SplitOptions) -> Split:
    """The same for one cluster, without Spark."""
    digest = sha256(f"{options.seed}:{cluster}".encode()).hexdigest()
    u = int(digest[:_HEX_DIGITS], 16) / 16**_HEX_DIGITS
    if u < options.test:
        return TEST
    return VALIDATION if u < options.test + options.validation else TRAIN
