"""Hive scenarios in a process of their own: Spark's one session of a process needs the metastore.

    python -m tests.workers.hive METASTORE_URI HDFS_DIRECTORY BASE_MODEL

Makes tables in the database `etl_<random>`, runs the ETL over them, and prints one JSON object.
"""

from __future__ import annotations

import json
import secrets
import sys

from howdah import storage
from howdah.config import loader as config_module
from howdah.config.data import SparkOptions
from howdah.errors import HowdahError
from tests.fixtures.spark import FEW_JOBS, INTERPRETED


def main(metastore: str, directory: str, base: str) -> dict:
    """All scenarios, one after the other; what each gave."""
    from howdah.etl import pipeline
    from howdah.etl.sources import hive
    from howdah.etl.sources import source as sources
    from howdah.spark.session import session

    database = f"etl_{secrets.token_hex(4)}"
    options = SparkOptions(
        master="local[2]",
        driver_memory="1g",
        conf={
            "spark.hadoop.hive.metastore.uris": metastore,
            "spark.sql.warehouse.dir": f"{directory}/warehouse",
            "spark.sql.shuffle.partitions": "2",
            **INTERPRETED,
            "spark.hadoop.hive.exec.dynamic.partition.mode": "nonstrict",
        },
    )
    answer: dict = {"database": database}

    def configured(data: dict):
        settings = {
            "format": "hive",
            "dataset": f"{directory}/dataset",
            "columns": {"text": "body", "label": "topic"},
            **FEW_JOBS,
            **data,
        }
        return config_module.from_dict({"data": settings, "model": {"base": base}})

    def look(name: str, **data) -> None:
        """A source's kind and its number of rows, without making a dataset of it."""
        data = configured(data).data
        try:
            source = hive.resolved(spark, sources.resolve(data), data)
            rows = hive.read(spark, source, data).count()
        except HowdahError as error:
            answer[name] = {"error": error.as_dict()}
            return
        answer[name] = {"source": source.identity, "rows": rows}

    def etl(name: str, **data) -> None:
        lines: list[str] = []
        try:
            result = pipeline.run(configured(data), progress=lines.append)
        except HowdahError as error:
            answer[name] = {"error": error.as_dict()}
            return
        answer[name] = {**result.as_dict(), "lines": lines, "source": result.manifest.source}

    with session(options, hive=True) as spark:
        spark.sql(f"CREATE DATABASE {database} LOCATION '{directory}/{database}.db'")
        # It stays: no other test has a database of its name.
        _scenarios(spark, database, directory, etl, look, answer)
    return answer


def _scenarios(spark, database: str, directory: str, etl, look, answer: dict) -> None:
    news = f"{database}.news"
    columns = "body string, topic string"
    for form in ("parquet", "textfile"):
        table = news if form == "parquet" else f"{news}_text"
        spark.sql(f"CREATE TABLE {table} ({columns}) PARTITIONED BY (ds string) STORED AS {form}")
        for day in ("2026-01-01", "2026-01-02", "2026-01-03"):
            rows = ", ".join(
                f"('{day} tells of number {n * 7919} and {n * 104729}', '{'ab'[n % 2]}')"
                for n in range(40)
            )
            spark.sql(f"INSERT INTO {table} PARTITION (ds='{day}') VALUES {rows}")
    look("whole", source=news)
    etl("two_days", source=news, partitions={"ds": ["2026-01-01", "2026-01-03"]})
    etl("two_days_again", source=news, partitions={"ds": ["2026-01-03", "2026-01-01"]})
    look("no_such_day", source=news, partitions={"ds": ["2025-12-31"]})
    look("no_such_column", source=news, partitions={"day": ["2026-01-01"]})
    look("no_such_table", source=f"{database}.newz")
    look("text_table", source=f"{news}_text", partitions={"ds": "2026-01-02"})
    spark.sql(f"INSERT INTO {news}_text PARTITION (ds='2026-01-01') VALUES ('a new row', 'a')")
    look("text_other_day_grew", source=f"{news}_text", partitions={"ds": "2026-01-02"})
    spark.sql(f"INSERT INTO {news}_text PARTITION (ds='2026-01-02') VALUES ('a new row', 'a')")
    look("text_table_grew", source=f"{news}_text", partitions={"ds": "2026-01-02"})
    spark.sql(f"INSERT INTO {news}_text PARTITION (ds='2026/02/01') VALUES ('a new row', 'a')")
    look("slash", source=f"{news}_text", partitions={"ds": "2026/02/01"})

    query = f"{directory}/query.sql"
    text = f"-- the last day\nSELECT body, topic FROM {news} WHERE ds = '2026-01-03';\n"
    storage.write_whole(query, text.encode())
    etl("query", query_file=query)
    etl("query_again", query_file=query)
    spark.sql(f"INSERT INTO {news} PARTITION (ds='2026-01-03') VALUES ('one more row of it', 'b')")
    look("query_grew", query_file=query)
    for name, text in (
        ("query_random", f"SELECT body, topic FROM {news} WHERE rand() < 0.5"),
        ("query_drops", f"DROP TABLE {news}"),
        ("query_now", f"SELECT body, topic FROM {news} WHERE ds < cast(current_date() AS string)"),
    ):
        storage.write_whole(query, text.encode())
        look(name, query_file=query)

    spark.sql(f"CREATE VIEW {database}.short AS SELECT body, topic FROM {news} WHERE ds > '2026'")
    look("view", source=f"{database}.short")
    spark.sql(
        f"CREATE TABLE {database}.acid ({columns}) CLUSTERED BY (topic) INTO 2 BUCKETS"
        " STORED AS ORC TBLPROPERTIES ('transactional'='true')"
    )
    look("transactional", source=f"{database}.acid")
    storage.write_whole(query, f"SELECT body, topic FROM {database}.acid".encode())
    look("query_transactional", query_file=query)
    text = f"SELECT body, topic FROM {news} WHERE topic <> (SELECT max(topic) FROM {database}.acid)"
    storage.write_whole(query, text.encode())
    look("subquery_transactional", query_file=query)
    text = f"SELECT body, topic FROM {news} WHERE topic >= (SELECT min(topic) FROM {news}_text)"
    storage.write_whole(query, text.encode())
    look("subquery", query_file=query)
    _foreign_views(spark, database)
    look("presto_view", source=f"{database}.presto")
    look("materialized", source=f"{database}.mat")

    bad = f"{database}.with_rejects"
    spark.sql(f"CREATE TABLE {bad} ({columns}) STORED AS PARQUET")
    rows = ", ".join(f"('good text of {n * 7919}', '{'ab'[n % 2]}')" for n in range(30))
    spark.sql(f"INSERT INTO {bad} VALUES {rows}, ('', 'a'), ('x', 'b')")
    rejects = f"{database}.rejects"
    etl("rejects", source=bad, rejects_table=rejects)
    answer["rejected"] = [r.asDict() for r in spark.table(rejects).orderBy("reason").collect()]
    spark.sql(f"CREATE TABLE {database}.other (a string)")
    etl("rejects_wrong", source=bad, rejects_table=f"{database}.other", max_length=64)


def _foreign_views(spark, database: str) -> None:
    """Views as Presto and Hive 3 leave them in a metastore; Spark's SQL cannot make such."""
    conf = spark._jvm.org.apache.hadoop.hive.conf.HiveConf()
    key = "hive.metastore.uris"
    conf.set(key, spark._jsc.hadoopConfiguration().get(key))
    client = spark._jvm.org.apache.hadoop.hive.metastore.HiveMetaStoreClient(conf)
    for name, kind, text in (
        ("presto", "VIRTUAL_VIEW", "/* Presto View: eyJvcmlnaW5hbFNxbCI6IlNFTEVDVCAxIn0= */"),
        ("mat", "MATERIALIZED_VIEW", f"SELECT body FROM {database}.news"),
    ):
        table = client.getTable(database, "news").deepCopy()
        table.setTableName(name)
        table.setTableType(kind)
        table.setViewOriginalText(text)
        table.setViewExpandedText(text)
        table.setPartitionKeys(spark._jvm.java.util.ArrayList())
        table.getSd().unsetLocation()
        table.setParameters(spark._jvm.java.util.HashMap())
        table.getParameters().put("presto_view" if name == "presto" else "comment", "true")
        client.createTable(table)
    client.close()


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
