"""The ETL's growth with its rows, and its near-duplicate removal beside datasketch and Spark MLlib.

Rows are made: words by Zipf's law, log-normal lengths (median 40 words), 4 labels, 5 % exact copies
and 5 % copies in which one word is another. Growth: `howdah etl` over them as Parquet, each size in
a process of its own, its tasks' seconds, shuffle and kept bytes from Spark's event log. Near
duplicates: the same rows on the same two cores, each way in a process of its own, in turn; found is
the share of the copies with one other word (and at least 10 words) that are joined to their
original.

One part is a size of the growth, or one way once. Each is kept as it ends
(bench/results/etl.rounds.jsonl), and a bench that is run again goes on with the next.

Killed: a run of BENCH_KILLED rows (320000; 0: none) that is killed after 80 % of an undisturbed
one's time, and the run that goes on.

BENCH_ROWS ("20000 80000 320000 1000000"), BENCH_DEDUP_ROWS (20000), BENCH_ROUNDS (3), BENCH_WAYS
("ours datasketch mllib"; also datatrove, whose pipeline has 5-grams as it comes, and datatrove-2,
with 2-grams), BENCH_APART (1: the executor in a process of its own, so that the JVM measured is the
driver's alone), BENCH_PARTS (parts to run now; all). datasketch and datatrove come from the package
index into build/bench-peers.
"""

from __future__ import annotations

import os
import tempfile

from bench import harness
from bench.benches.etl import growth, near

SIZES = [int(size) for size in os.environ.get("BENCH_ROWS", "20000 80000 320000 1000000").split()]
DEDUP_ROWS = [int(size) for size in os.environ.get("BENCH_DEDUP_ROWS", "20000").split()]
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
KILLED = int(os.environ.get("BENCH_KILLED", "320000"))
PARTS = int(os.environ.get("BENCH_PARTS", "1000"))
SOURCES = (
    "etl", "data", "howdah/spark", "howdah/config/data.py",
    "bench/benches/etl", "bench/peers/near_duplicates.py",
)  # fmt: skip


def main() -> None:
    """Both parts, or as much of them as BENCH_PARTS allows."""
    journal = harness.Rounds("etl", sources=SOURCES)
    budget = harness.Budget(PARTS)
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            row
            for count in DEDUP_ROWS
            for row in near.compared(folder, count, ROUNDS, journal, budget)
        ]
        sizes = growth.measured(folder, SIZES, journal, budget)
        killed = growth.killed(folder, KILLED, journal, budget) if KILLED else []
    if budget.over:
        print("parts are left: run the bench again")
    harness.report(
        "etl", rows, rows_of_near_duplicates=DEDUP_ROWS, rounds=ROUNDS, growth=sizes, killed=killed,
        complete=not budget.over,
    )  # fmt: skip
