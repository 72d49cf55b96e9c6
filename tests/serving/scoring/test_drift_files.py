"""Files that `howdah drift --source` is given: damaged ones are refused by name."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from howdah.errors import DataError
from howdah.serving.prediction.rows import Outputs, Prediction, open_output
from howdah.serving.scoring import drift

LABELS = ["a", "b, c"]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_predictions_are_read_in_each_format_that_predict_writes(tmp_path, ending):
    path = str(tmp_path / f"predictions.{ending}")
    written = [
        Prediction("1", "b, c", np.array([0.25, 0.75], np.float32)),
        Prediction("2", None, np.array([0.5, 0.5], np.float32)),
        Prediction("3", None, None, "the text is empty"),
    ]
    with open_output(path, Outputs(task="single_label", labels=LABELS), "run-1") as writer:
        writer.write(written)
    assert drift._are_predictions(path)
    for one, other in zip(drift._predictions(path, LABELS), written, strict=True):
        assert (one.id, one.label, one.error) == (other.id, other.label, other.error)
        assert np.array_equal(one.scores, other.scores)
    with pytest.raises(DataError, match="does not have the model's scores"):
        list(drift._predictions(path, [*LABELS, "d"]))


def test_texts_are_not_taken_for_predictions(tmp_path):
    for name, text in (("a.csv", "id,text,error\n1,a,b\n"), ("b.csv", ""), ("c.jsonl", "{}\n")):
        (tmp_path / name).write_text(text)
        assert not drift._are_predictions(str(tmp_path / name))


def test_a_file_that_is_not_parquet_is_refused(tmp_path):
    source = tmp_path / "in.parquet"
    source.write_bytes(b"id,text\n1,a\n")
    with pytest.raises(DataError, match="not a Parquet file") as caught:
        drift._are_predictions(str(source))
    assert caught.value.where == str(source)


def test_predictions_with_a_damaged_page_are_refused(tmp_path):
    source = str(tmp_path / "in.parquet")
    columns = {"id": ["1"], "label": ["a"], "scores": [[0.5, 0.5]], "run_id": ["r"]}
    pq.write_table(pa.table({**columns, "error": pa.array([None], pa.string())}), source)
    assert drift._are_predictions(source)
    assert list(drift._records(source, LABELS)) == [["1", "a", [0.5, 0.5], None]]
    with open(source, "r+b") as file:
        file.seek(6)
        file.write(b"XXXXXXXX")
    with pytest.raises(DataError, match="not a Parquet file"):
        list(drift._records(source, LABELS))
