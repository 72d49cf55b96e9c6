"""Lessons about what a model learns from and how it is served."""

import pytest

from tests.support.lessons import run_lesson

pytestmark = pytest.mark.full


def test_16_what_is_beside_the_text_and_a_rare_class(tmp_path):
    lesson = run_lesson("16", tmp_path)
    figures = lesson.figures
    # What a file's name pretends to teach is gone where no file is on both sides of the split.
    assert (
        figures["macro F1, text and file name, random split"]
        > figures["macro F1, text and file name, split by file"]
    )
    assert figures["macro F1, numbers and kind alone"] < figures["macro F1, text alone"]
    assert figures["macro F1, numbers and kind alone"] > 100 / 9
    assert 0 < figures["cosine to the original, dropped words"] < 1
    assert ("back-translation:" in lesson.output) != ("apertium" in lesson.output)
    # 1 of 51 rows is rare, 32 rows a batch: (1 - 1/51)^32 have none. Drawn equally often: 2^-32.
    assert 45 < figures["batches without a rare row, class weights"] < 62
    assert figures["batches without a rare row, weighted sampler"] == 0
    for way in ("class weights", "weighted sampler"):
        recall = "recall of the rare class, "
        assert figures[recall + way] > figures[recall + "as it is"]
    assert lesson.pictures == ["features.svg", "imbalance.svg"]


@pytest.mark.spark
def test_17_serving_and_watching(tmp_path):
    lesson = run_lesson("17", tmp_path)
    figures = lesson.figures
    assert figures["rows in the Parquet file"] == figures["rows in the API"] == 800
    assert figures["pages"] == 8
    assert figures["requests refused with 429 and asked again"] > 0
    for runtime in ("TorchScript", "ONNX Runtime"):
        assert figures[f"largest difference of the logits, {runtime}"] < 1e-4
        assert figures[f"equal labels of 64, {runtime}"] == 64
    assert figures["equal labels of both servers"] == figures["requests to each server"]
    assert figures["exit code of howdah drift, same rows"] == 0
    assert figures["exit code of howdah drift, moved rows"] == 1
    few, many = (figures[f"false alarms of PSI > 0.2 with {rows} rows"] for rows in (30, 1000))
    assert few > 50
    assert many == 0
    assert figures["of these not exposed by howdah serve"] == 0
    assert figures["metrics that the board's queries name"] >= 10
    for file in ("board", "InferenceService"):
        assert figures[f"violations of its schema, {file}"] == 0
    assert figures["violations found in a copy with two mistakes"] == 2
    assert lesson.pictures == ["false_alarms.svg", "formats.svg"]
