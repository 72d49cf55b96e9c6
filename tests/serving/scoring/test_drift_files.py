"""Files that `howdah drift --source` is given: damaged ones are refused by name."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from howdah.errors import DataError
from howdah.models.decision import Decision
from howdah.models.profile.bins import Bins
from howdah.models.version import Version
from howdah.serving.prediction.reading import source_files
from howdah.serving.prediction.rows import Outputs, Prediction, open_output
from howdah.serving.scoring import predicted

LABELS = ["a", "b, c"]


def version_of(run_id: str | None = "run-1") -> Version:
    version = Version(address="zoo", path="models/zoo/v=1", number=1)
    vars(version)["info"] = {} if run_id is None else {"run_id": run_id}
    return version


def bins_of(task="single_label", labels=LABELS, **decision) -> Bins:
    return Bins(
        task=task, labels=tuple(labels), confidence=(0.5,), slope=1.0, intercept=0.0,
        decision=Decision(**decision),
    )  # fmt: skip


def write(path, predictions, task="single_label", run_id="run-1", decision=None) -> str:
    outputs = Outputs(task=task, labels=LABELS, decision=decision)
    with open_output(str(path), outputs, run_id) as writer:
        writer.write(predictions)
    return str(path)


def read(path: str, version=None, bins=None, say=lambda line: None) -> list[Prediction]:
    chunks = predicted.read(
        source_files(path), version or version_of(), bins or bins_of(), progress=say
    )
    return [one for chunk in chunks for one in chunk]


WRITTEN = [
    Prediction("1", "b, c", np.array([0.25, 0.75], np.float32)),
    Prediction("2", None, np.array([0.5, 0.5], np.float32)),
    Prediction("3", None, None, "the text is empty"),
]
ENDINGS = pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])


@ENDINGS
def test_predictions_are_read_in_each_format_that_predict_writes(tmp_path, ending):
    path = write(tmp_path / f"predictions.{ending}", WRITTEN)
    assert predicted.are_predictions(path)
    for one, other in zip(read(path), WRITTEN, strict=True):
        assert (one.id, one.label, one.error) == (other.id, other.label, other.error)
        assert np.array_equal(one.scores, other.scores)
    with pytest.raises(DataError, match="does not have the model's scores"):
        read(path, bins=bins_of(labels=[*LABELS, "d"]))
    if ending != "parquet":  # which has the scores by number
        with pytest.raises(DataError, match="does not have the model's scores"):
            read(path, bins=bins_of(labels=["a", "d"]))


@ENDINGS
def test_numbers_are_read_as_the_one_score(tmp_path, ending):
    numbers = [Prediction("1", 0.5, np.array([0.5], np.float32)), WRITTEN[2]]
    path = write(tmp_path / f"predictions.{ending}", numbers, "regression")
    assert predicted.are_predictions(path)
    first, second = read(path, bins=bins_of("regression", ["price"]))
    assert first.scores.tolist() == [0.5]
    assert second.scores is None and second.error == "the text is empty"
    with pytest.raises(DataError, match="does not have the model's scores"):
        read(path)


@ENDINGS
def test_predictions_of_another_model_are_refused(tmp_path, ending):
    path = write(tmp_path / f"predictions.{ending}", WRITTEN)
    with pytest.raises(DataError, match="of another model") as caught:
        read(path, version_of("run-2"))
    assert "run-2" in caught.value.expected and caught.value.got == "run_id run-1"
    with pytest.raises(DataError, match="of another model"):
        read(path, version_of(None))  # a third-party model is not a run's
    files = write(tmp_path / f"files.{ending}", WRITTEN, run_id="sha256:0")
    assert len(read(files, version_of(None))) == 3


def test_predictions_with_another_decision_are_refused_or_a_line_says_so(tmp_path):
    calibrated = Decision(temperature=1.7)
    path = write(tmp_path / "predictions.parquet", WRITTEN, decision=calibrated.hash)
    assert len(read(path, bins=bins_of(temperature=1.7))) == 3
    for bins in (bins_of(), bins_of(temperature=1.8)):
        with pytest.raises(DataError, match="a different decision"):
            read(path, bins=bins)
    # Lines do not name a decision, but have labels.
    sure = [*WRITTEN, Prediction("4", "a", np.array([0.75, 0.25], np.float32))]
    path, lines = write(tmp_path / "predictions.jsonl", sure), []
    assert len(read(path, say=lines.append)) == 4 and lines == []
    read(path, bins=bins_of(reject_below=0.8), say=lines.append)
    assert "other labels to the scores of 2 of 4 rows" in lines[0]


def test_texts_are_not_taken_for_predictions(tmp_path):
    for name, text in (("a.csv", "id,text,error\n1,a,b\n"), ("b.csv", ""), ("c.jsonl", "{}\n")):
        (tmp_path / name).write_text(text)
        assert not predicted.are_predictions(str(tmp_path / name))


def test_a_file_that_is_not_parquet_is_refused(tmp_path):
    source = tmp_path / "in.parquet"
    source.write_bytes(b"id,text\n1,a\n")
    with pytest.raises(DataError, match="not a Parquet file") as caught:
        predicted.are_predictions(str(source))
    assert caught.value.where == str(source)


def test_predictions_with_a_damaged_page_are_refused(tmp_path):
    source = str(tmp_path / "in.parquet")
    columns = {"id": ["1"], "label": ["a"], "scores": [[0.5, 0.5]], "run_id": ["r"]}
    pq.write_table(pa.table({**columns, "error": pa.array([None], pa.string())}), source)
    assert predicted.are_predictions(source)
    assert list(predicted._records(source)) == [["1", "a", None, [0.5, 0.5], "r", None]]
    with open(source, "r+b") as file:
        file.seek(6)
        file.write(b"XXXXXXXX")
    with pytest.raises(DataError, match="not a Parquet file"):
        list(predicted._records(source))
