"""A look at a source before Spark starts: what tests/contact/test_peek.py does not have."""

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
