"""A partitioned Hive table of short days, in a process of its own.

python -m tests.workers.daily_table METASTORE_URI WAREHOUSE DATABASE.TABLE DAYS ROWS
"""

from __future__ import annotations

import random
import sys

from howdah.config.data import SparkOptions
from howdah.spark.session import session
from tests.support.rows.word_rows import WORDS


def main(metastore: str, warehouse: str, table: str, days: str, rows: int) -> None:
    """The first of the days has ten times the rows: its test split is that of all."""
    options = SparkOptions(
        master="local[2]", driver_memory="1g",
        conf={"spark.hadoop.hive.metastore.uris": metastore, "spark.sql.warehouse.dir": warehouse,
              "spark.sql.shuffle.partitions": "2",
              "spark.hadoop.hive.exec.dynamic.partition.mode": "nonstrict"},
    )  # fmt: skip
    rng, made = random.Random(3), []
    for number, day in enumerate(days.split(",")):
        for n in range(rows * (10 if number == 0 else 1)):
            label = ("sea", "sky")[n % 2]
            text = " ".join([*rng.choices(WORDS[label].split(), k=12), f"{day} {n}"])
            made.append((f"{day}-{n}", text, label, day))
    database = table.partition(".")[0]
    with session(options, hive=True) as spark:
        spark.sql(f"CREATE DATABASE {database} LOCATION '{warehouse}/{database}.db'")
        spark.sql(
            f"CREATE TABLE {table} (id string, text string, label string)"
            " PARTITIONED BY (ds string) STORED AS PARQUET"
        )
        frame = spark.createDataFrame(made, "id string, text string, label string, ds string")
        frame.repartition(1).write.mode("append").insertInto(table)


if __name__ == "__main__":
    main(*sys.argv[1:5], int(sys.argv[5]))
