"""A look at a source before Spark starts: what tests/contact/test_peek.py does not have."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from howdah.config import loader
from howdah.errors import DataError
from howdah.etl import peek


@pytest.mark.parametrize(
    ("name", "text"), [("m.csv", "text,label\na,b,c\nd,e,f\n"), ("m.jsonl", "[1]\nnope\n")]
)
def test_a_source_of_malformed_rows_alone_is_not_empty(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    data = {"source": str(tmp_path / name), "columns": {"text": "text", "label": "label"}}
    with pytest.raises(DataError, match="too many rows are rejected") as caught:
        peek.look(loader.from_dict({"data": data}).data)
    assert caught.value.got == "2 rows: 2 malformed" and name in caught.value.where


@pytest.mark.parametrize(("codec", "count"), [("brotli", 1), ("zstd", 0)])
def test_a_codec_that_spark_lacks_is_said_before_spark_starts(tmp_path, codec, count):
    table = pa.table({"text": ["a b", "c d"], "label": ["x", "y"]})
    pq.write_table(table, tmp_path / "rows.parquet", compression=codec)
    data = {"source": str(tmp_path), "columns": {"text": "text", "label": "label"}}
    warnings = peek.look(loader.from_dict({"data": data}).data).warnings
    assert len([line for line in warnings if "jar of that codec" in line]) == count
