"""The ETL of a Hive table and of a PostgreSQL table with times as keys, in the zone of $TZ.

    python -m tests.workers.zones METASTORE_URI HDFS_DIRECTORY BASE_MODEL DATABASE

Makes the tables if they do not exist, and prints {kind: {rows, hash, ids, partitions}}. The
PostgreSQL server is that of $HOWDAH_JDBC_URL.
"""

from __future__ import annotations

import json
import os
import sys

from howdah import storage
from howdah.config import loader as config_module
from howdah.config.data import SparkOptions
from howdah.data.manifest import load_dataset
from howdah.data.record import RecordLayout, decode_example, read_frames
from howdah.spark import connectors
from tests.fixtures.spark import FEW_JOBS, INTERPRETED

NIGHTS = ("2026-03-08 02:30", "2026-03-29 02:30", "2026-10-25 02:30", "2026-11-01 01:30")
"""Times that clocks in Los Angeles or Berlin do not show, or show twice."""
ROWS = [
    (f"{night}:{n:02}", f"text of {night} and {n * 7919}", "ab"[n % 2])
    for night in NIGHTS
    for n in range(12)
]


def main(metastore: str, directory: str, base: str, database: str) -> dict:
    """What each source gave."""
    from howdah.etl import pipeline
    from howdah.spark.session import session

    zone = os.environ["TZ"].replace("/", "-")

    def configured(kind: str, **data):
        settings = {
            "format": kind, "dataset": f"{directory}/{kind}-{zone}",
            "columns": {"id": "seen", "text": "body", "label": "topic"}, **FEW_JOBS, **data,
        }  # fmt: skip
        return config_module.from_dict({"data": settings, "model": {"base": base}})

    sources = {
        "hive": configured("hive", source=f"{database}.news", partitions={"ds": _days()[1:]}),
        "jdbc": configured("jdbc", source="news"),
    }
    conf = {
        "spark.hadoop.hive.metastore.uris": metastore,
        "spark.sql.warehouse.dir": f"{directory}/warehouse",
        "spark.sql.shuffle.partitions": "2",
        **INTERPRETED,
        **connectors.settings(sources["jdbc"], print),
    }
    options = SparkOptions(master="local[2]", driver_memory="1g", conf=conf)
    answer = {}
    with session(options, hive=True) as spark:
        if not spark.catalog.databaseExists(database):
            _create(spark, database, directory)
        for kind, config in sources.items():
            made = pipeline.run(config, progress=lambda line: print(line, file=sys.stderr))
            ids = _ids(made.as_dict()["dataset"])
            listed = made.manifest.source.get("partitions")
            answer[kind] = {"hash": made.as_dict()["hash"], "ids": ids, "partitions": listed}
    return answer


def _days() -> list[str]:
    return [night[:10] for night in NIGHTS]


def _create(spark, database: str, directory: str) -> None:
    import psycopg2

    spark.sql(f"CREATE DATABASE {database} LOCATION '{directory}/{database}.db'")
    columns = "seen timestamp, body string, topic string"
    spark.sql(f"CREATE TABLE {database}.news ({columns}) PARTITIONED BY (ds date) STORED AS ORC")
    for day in _days():
        values = ", ".join(
            f"(timestamp'{seen}', '{body}', '{topic}')" for seen, body, topic in ROWS if day in seen
        )
        spark.sql(f"INSERT INTO {database}.news PARTITION (ds=date'{day}') VALUES {values}")
    with psycopg2.connect(os.environ["HOWDAH_JDBC_URL"]) as connection:
        cursor = connection.cursor()
        cursor.execute(
            "CREATE TABLE news (seen timestamp PRIMARY KEY, at timestamptz, body text, topic text)"
        )
        for seen, body, topic in ROWS:
            row = (seen, f"{seen}+00", body, topic)
            cursor.execute("INSERT INTO news VALUES (%s, %s, %s, %s)", row)


def _ids(path: str) -> list[str]:
    dataset = load_dataset(path)
    layout = RecordLayout(ids_dtype=dataset.manifest.record.ids_dtype)
    ids: list[str] = []
    for entries in dataset.manifest.splits.values():
        for entry in entries:
            data = storage.read_bytes(dataset.shard_path(entry))
            frames = read_frames(data, entry.name)
            ids += [decode_example(frame, layout).id.decode() for _, frame in frames]
    return sorted(ids)


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:]), default=str))
