"""One spelling of ids: the same of a Python value, of an Arrow column and in Spark."""

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from howdah.data import ids
from howdah.data.spark.ids import column

BERLIN = datetime.timezone(datetime.timedelta(hours=1))
AT = datetime.datetime(2026, 11, 1, 0, 30)
COLUMNS = {
    "whole": pa.array([5.0, 1e7, 2.0**53, -0.0, 1e18, 1e20, None]),
    "parts": pa.array([0.5, 1.25e-4, 12345678.5, -1e-9, float("nan"), float("inf"), None]),
    "single": pa.array([0.1, 16777216.0, 1.5e-5, 2.5e9, 3.4e38, -0.25, None], pa.float32()),
    "decimal": pa.array([*map(Decimal, ["5.00", "5.10", "-0.25", "10000000.00", "0.00", "7.01"]),
                         None], pa.decimal128(12, 2)),
    "large": pa.array([0, 2**64 - 1, 1, 2, 3, 4, None], pa.uint64()),
    "integer": pa.array([5, -1, 2**63 - 1, 0, 1, 2, None]),
    "truth": pa.array([True, False, True, True, False, True, None]),
    "day": pa.array([AT.date(), datetime.date(1999, 12, 31), *[AT.date()] * 4, None]),
    "bare": pa.array([AT, AT.replace(microsecond=500000), AT.replace(microsecond=1),
                      AT.replace(year=1969), AT, AT, None], pa.timestamp("us")),
    "zoned": pa.array([AT.replace(tzinfo=BERLIN), AT.replace(microsecond=120, tzinfo=BERLIN),
                       *[AT.replace(tzinfo=datetime.UTC)] * 4, None], pa.timestamp("us", "UTC")),
    "text": pa.array(["5.0", " a ", "", "a#2", "\u0915\u093f", "1E7", None]),
}  # fmt: skip


@pytest.mark.spark
def test_spark_and_python_spell_ids_alike(spark, tmp_path):
    path = str(tmp_path / "keys.parquet")
    pq.write_table(pa.table(COLUMNS), path)
    frame = spark.read.parquet(path)
    spelt = [column(frame[name], frame.schema[name].dataType).alias(name) for name in COLUMNS]
    rows = frame.select(*spelt).collect()
    read = pq.read_table(path)
    for name in COLUMNS:
        assert [row[name] for row in rows] == ids.texts(read.column(name)), name
        if name != "single":  # as Python numbers those have other digits
            assert [ids.text(one) for one in read.column(name).to_pylist()] == [
                row[name] for row in rows
            ]
    assert [rows[0][name] for name in ("whole", "decimal", "bare", "zoned")] == [
        "5", "5", "2026-11-01T00:30:00", "2026-10-31T23:30:00Z",
    ]  # fmt: skip
    assert (rows[1]["whole"], rows[5]["whole"], rows[2]["single"]) == (
        "10000000",
        "1.0E20",
        "1.5E-5",
    )


def test_a_type_without_ids_has_no_column(spark):
    frame = spark.createDataFrame([([1],)], "a array<int>")
    assert column(frame["a"], frame.schema["a"].dataType) is None


def test_nanoseconds_and_the_scalars_of_numpy():
    at = np.datetime64("2026-11-01T10:00:00.000000001")
    assert ids.texts(pa.array([at])) == ["2026-11-01T10:00:00.000000001"]
    assert ids.texts(pa.array([at]).cast(pa.timestamp("ns", "UTC"))) == [
        "2026-11-01T10:00:00.000000001Z"
    ]
    assert ids.texts(pa.array(["a", "b", "a"]).dictionary_encode()) == ["a", "b", "a"]
    assert [ids.text(one) for one in (np.float32(0.1), np.int64(7), np.bool_(True), b"k")] == [
        "0.1", "7", "true", "k",
    ]  # fmt: skip
