"""Partition columns of any type: directories named 05 and 5, null, decimals, booleans."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from howdah.config import loader as config_module
from howdah.errors import DataError
from howdah.etl.sources import hive, reading
from howdah.etl.sources import source as sources
from howdah.serving.scoring import partition
from howdah.serving.scoring.selection import Selection, chosen
from howdah.spark.hive_catalog import Catalogue

NULL = "__HIVE_DEFAULT_PARTITION__"


@pytest.fixture
def table(spark, tmp_path):
    """A table whose directories another loader has named, as the catalogue found them."""
    for n, name in enumerate(("hour=05/p=1.50", "hour=12/p=2.00", f"hour={NULL}/p=3.00")):
        (tmp_path / name).mkdir(parents=True)
        pq.write_table(
            pa.table({"text": [f"text {n}"], "label": ["a"]}), tmp_path / name / "0.parquet"
        )
    spark.sql("DROP TABLE IF EXISTS hours")
    spark.sql(
        "CREATE TABLE hours (text STRING, label STRING, hour INT, p DECIMAL(4,2)) USING parquet"
        f" PARTITIONED BY (hour, p) LOCATION '{tmp_path}'"
    )
    spark.sql("MSCK REPAIR TABLE hours")
    yield "hours"
    spark.sql("DROP TABLE hours")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("partitions", "texts"),
    [
        ({"hour": ["05", "12"]}, [0, 1]),
        ({"hour": ["5"]}, [0]),
        ({"hour": ["05"], "p": ["1.5"]}, [0]),
        ({"hour": [NULL]}, [2]),
        ({"hour": [NULL, "12"]}, [1, 2]),
    ],
)
def test_the_rows_of_the_partitions_that_are_found_are_read(spark, table, partitions, texts):
    settings = {"source": table, "format": "hive", "partitions": partitions}
    data = config_module.from_dict({"data": settings}).data
    source = hive.resolved(spark, sources.resolve(data), data)
    assert len(source.identity["partitions"]) == len(source.identity["files"]) == len(texts)
    rows = hive.read(spark, source, data).collect()
    assert sorted(row["text"] for row in rows) == [f"text {n}" for n in texts]


@pytest.mark.spark
def test_a_directory_may_be_named_with_characters_of_a_pattern(spark, tmp_path):
    root = tmp_path / "of [2026] {a,b}?"
    (root / "label=01").mkdir(parents=True)
    pq.write_table(pa.table({"text": ["the cat"]}), root / "label=01" / "0.parquet")
    data = config_module.from_dict({"data": {"source": str(root), "format": "parquet"}}).data
    rows = reading.read(spark, sources.resolve(data), data).collect()
    assert [(row["text"], row["label"]) for row in rows] == [("the cat", "01")]


@pytest.mark.spark
def test_a_partition_that_is_not_there_is_refused_in_any_spelling(spark, table):
    for value in ("6", "five"):
        settings = {"source": table, "format": "hive", "partitions": {"hour": ["05", value]}}
        data = config_module.from_dict({"data": settings}).data
        with pytest.raises(DataError, match="no such partition") as caught:
            hive.resolved(spark, sources.resolve(data), data)
        assert caught.value.got == f"hour={value}"
    catalogue = Catalogue.of(spark)
    entry = catalogue.table(table)
    assert [one.spec["hour"] for one in catalogue.matching(entry, {"hour": ["5"]})] == ["05"]


@pytest.mark.spark
def test_a_partition_with_rows_of_which_none_is_read_is_not_done(spark, table, tmp_path):
    entry, catalogue = Catalogue.of(spark).table(table), Catalogue.of(spark)
    spec = {"hour": "05", "p": "1.50"}
    state = partition.state_of(catalogue, entry, spec)
    with pytest.raises(DataError, match="finds none") as caught:
        partition.refuse_unread(spark, table, spec, state)
    assert "hour=05/p=1.50" in caught.value.where
    pq.write_table(pa.table({"text": ["x"]}).slice(1), tmp_path / "hour=05/p=1.50/0.parquet")
    partition.refuse_unread(spark, table, spec, partition.state_of(catalogue, entry, spec))


def test_scoring_takes_partitions_in_any_spelling():
    hours = [{"hour": value} for value in ("05", "4", "12", "06")]
    kinds = {"hour": "int"}

    def of(**fields):
        return [
            one["hour"]
            for one in chosen(Selection(**fields), ["hour"], hours, table="t", kinds=kinds)
        ]

    assert of(partitions=("hour=5",)) == of(partitions=("hour=05",)) == ["05"]
    assert of(since="hour=5") == ["05", "06", "12"] and of(until="hour=05") == ["4", "05"]
    assert of(since="hour=05", until="hour=6") == ["05", "06"]
