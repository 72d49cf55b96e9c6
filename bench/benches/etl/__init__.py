"""The ETL's growth with its rows, and its near-duplicate removal beside datasketch and Spark MLlib.

Rows are made: words by Zipf's law, log-normal lengths (median 40 words), 4 labels, 5 % exact copies
and 5 % copies in which one word is another. Growth: `howdah etl` over them as Parquet, each size in
a process of its own, its tasks' seconds, shuffle and kept bytes from Spark's event log. Near
duplicates: the same rows on the same two cores, each way in a process of its own, in turn; found is
the share of the copies with one other word (and at least 10 words) that are joined to their
original.

BENCH_ROWS ("20000 80000 320000 1000000"), BENCH_DEDUP_ROWS (20000), BENCH_ROUNDS (3).
datasketch comes from the package index into build/bench-peers.
"""

from __future__ import annotations

import os
import tempfile

from bench import harness
from bench.benches.etl import growth, near

SIZES = [int(size) for size in os.environ.get("BENCH_ROWS", "20000 80000 320000 1000000").split()]
DEDUP_ROWS = int(os.environ.get("BENCH_DEDUP_ROWS", "20000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))


def main() -> None:
    """Both parts."""
    with tempfile.TemporaryDirectory() as folder:
        rows = near.compared(folder, DEDUP_ROWS, ROUNDS)
        sizes = growth.measured(folder, SIZES)
    harness.report("etl", rows, rows_of_near_duplicates=DEDUP_ROWS, rounds=ROUNDS, growth=sizes)
