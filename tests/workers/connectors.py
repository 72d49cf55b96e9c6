"""Sources that need a connector, in a process of its own: jars are given when Spark starts.

    python -m tests.workers.connectors KIND DIRECTORY BASE_MODEL

KIND is delta, iceberg, avro or jdbc (the database of HOWDAH_JDBC_URL). Runs the ETL over what it
writes, and prints one JSON object.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys

from howdah.config import loader as config_module
from howdah.errors import HowdahError


def main(kind: str, directory: str, base: str) -> dict:
    """All scenarios of a kind, one after the other; what each gave."""
    from howdah.etl import pipeline
    from howdah.etl.sources import given, reading
    from howdah.spark import connectors
    from howdah.spark.session import session

    answer: dict = {}

    def configured(**data):
        spark = {
            "master": "local[1]",
            "driver_memory": "1g",
            "conf": {
                "spark.sql.warehouse.dir": f"{directory}/warehouse",
                "spark.sql.shuffle.partitions": "1",
                "spark.databricks.delta.snapshotPartitions": "1",
                "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
                "spark.sql.catalog.lake.type": "hadoop",
                "spark.sql.catalog.lake.warehouse": f"file://{directory}/lake",
            },
        }
        settings = {
            "format": kind, "dataset": f"{directory}/dataset", "dedup": {"near": False},
            "num_shards": 1, "spark": spark, **data,
        }  # fmt: skip
        return config_module.from_dict({"data": settings, "model": {"base": base}})

    def etl(name: str, **data) -> None:
        lines: list[str] = []
        try:
            result = pipeline.run(configured(**data), progress=lines.append)
        except HowdahError as error:
            answer[name] = {"error": error.as_dict()}
            return
        answer[name] = {**result.as_dict(), "source": result.manifest.source, "lines": lines}

    def look(name: str, **data) -> None:
        """A source's kind and its number of rows, without making a dataset of it."""
        section = configured(**data).data
        try:
            source = given.resolve(section)
            if given.by_spark(source):
                source = given.resolved(spark, source, section)
            rows = reading.table(spark, source, section).count()
        except HowdahError as error:
            answer[name] = {"error": error.as_dict()}
            return
        answer[name] = {"source": source.identity, "rows": {"all": rows}}

    first = configured()
    shipped = connectors.settings(first, print)
    with session(first.data.spark, shipped=shipped) as spark:
        each = {"delta": _delta, "iceberg": _iceberg, "avro": _avro, "jdbc": _jdbc}
        each[kind](spark, directory, etl, look, answer)
    return answer


def _rows(spark, begin: int, count: int = 40):
    rows = [
        (f"text of {n * 7919} and {n * 104729}", "ab"[n % 2]) for n in range(begin, begin + count)
    ]
    return spark.createDataFrame(rows, "text string, label string").coalesce(1)


def _scenarios(name: str, path: str, append, etl, look, first, second) -> None:
    """A table with two snapshots, and a third one that is appended on the way."""
    etl("newest", source=name)
    look("newest_again", source=name)
    look("pinned", source=name, as_of=second)
    etl("older", source=name, as_of=first)
    look("by_time", source=name, as_of="2100-01-01")
    look("before_all", source=name, as_of="2001-01-01")
    look("unknown", source=name, as_of=987_654)
    append()
    look("appended", source=name)
    etl("pinned_after", source=name, as_of=second)
    look("by_path", source=path, as_of=first)
    look("no_table", source=f"{path}-none")


def _delta(spark, directory: str, etl, look, answer: dict) -> None:
    path = f"{directory}/table"
    _rows(spark, 0).write.format("delta").save(path)
    _rows(spark, 100).write.format("delta").mode("append").save(path)

    def append() -> None:
        _rows(spark, 200).write.format("delta").mode("append").save(path)

    _scenarios(path, path, append, etl, look, 0, 1)
    # another table in the place of the first one, with the same versions
    shutil.rmtree(path)
    _rows(spark, 0).write.format("delta").save(path)
    look("replaced", source=path, as_of=0)


def _iceberg(spark, directory: str, etl, look, answer: dict) -> None:
    name, path = "lake.db.news", f"{directory}/lake/db/news"
    _rows(spark, 0).writeTo(name).create()
    _rows(spark, 100).writeTo(name).append()
    history = spark.read.format("iceberg").load(f"{name}.history").orderBy("made_current_at")
    first, second = [row["snapshot_id"] for row in history.collect()]

    def append() -> None:
        _rows(spark, 200).writeTo(name).append()

    _scenarios(name, path, append, etl, look, first, second)


def _avro(spark, directory: str, etl, look, answer: dict) -> None:
    for day, begin in (("2026-01-01", 0), ("2026-01-02", 100)):
        _rows(spark, begin).write.format("avro").save(f"{directory}/rows/ds={day}")
    etl("auto", source=f"{directory}/rows", format="auto")
    other = _rows(spark, 200).withColumnRenamed("text", "body")
    other.write.format("avro").save(f"{directory}/rows/ds=2026-01-03")
    look("other_columns", source=f"{directory}/rows")


def _jdbc(spark, directory: str, etl, look, answer: dict) -> None:
    import psycopg2

    url = os.environ["HOWDAH_JDBC_URL"]
    connection = psycopg2.connect(url)
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE news (id serial PRIMARY KEY, text text, label text, day date)")

    def insert(begin: int, count: int = 40) -> None:
        rows = [
            (f"text of {n * 7919} and {n * 104729}", "ab"[n % 2])
            for n in range(begin, begin + count)
        ]
        cursor.executemany(
            "INSERT INTO news (text, label, day) VALUES (%s, %s, '2026-01-01')", rows
        )

    insert(0)
    keyed = {"columns": {"id": "id"}}
    etl("whole", source="news", **keyed)
    look("whole_again", source="public.news", **keyed)  # another name is another source
    # the same rows, read by ranges and by a watermark
    etl(
        "ranges",
        source="news",
        jdbc={"partition_column": "id"},
        **keyed,
    )
    look("watermark", source="news", jdbc={"watermark": "id"}, **keyed)
    insert(100, 10)
    etl("grown", source="news", jdbc={"partition_column": "day"}, **keyed)
    look("grown_again", source="news", **keyed)
    look("watermark_grown", source="news", jdbc={"watermark": "id"}, **keyed)
    cursor.execute("UPDATE news SET text = text || ' and more' WHERE id = 1")
    look("changed", source="news", **keyed)
    look("watermark_changed", source="news", jdbc={"watermark": "id"}, **keyed)  # not noticed
    query = f"{directory}/query.sql"
    for name, text in (
        ("query", "SELECT id, text, label FROM news WHERE id > 10;\n"),
        ("writes", "WITH gone AS (DELETE FROM news RETURNING *) SELECT * FROM gone"),
        ("function", "SELECT *, setval('news_id_seq', 1) FROM news"),
        ("two", "SELECT 1; DROP TABLE news"),
    ):
        with open(query, "w") as file:
            file.write(text)
        look(name, query_file=query, source=None, **keyed)
    look("no_table", source="newz")
    look("no_column", source="news", jdbc={"partition_column": "idd"})
    cursor.execute("SELECT count(*) FROM news")
    answer["left"] = cursor.fetchone()[0]
    path = f"{directory}/url"
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write(re.sub(r":[^:@/]+@", ":wrong-hunter2@", url) + "\n")
    etl("wrong_password", source="news", jdbc={"url_file": path})
    connection.close()


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
