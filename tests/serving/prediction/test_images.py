"""Images whose file or name is broken; tests/vision classifies whole ones with real models."""

import dataclasses
import io
import json
import os
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from howdah.config.data import Columns
from howdah.data.images import UnusableImage
from howdah.errors import DataError
from howdah.serving.prediction import images, lines
from howdah.serving.prediction.judged import Reasons


def images_of(source: str) -> list:
    return list(images.read_images(images.image_files(source), Columns(), id_required=False))


def test_a_parquet_file_with_a_damaged_page_is_refused(tmp_path):
    """Its footer is whole, so that it is found only when its rows are read."""
    source = str(tmp_path / "in.parquet")
    pq.write_table(pa.table({"image": [b"one", b"other"]}), source)
    assert [(row.id, row.data) for row in images_of(source)] == [("0", b"one"), ("1", b"other")]
    with open(source, "r+b") as file:
        file.seek(6)
        file.write(b"XXXXXXXX")
    with pytest.raises(DataError, match="not a Parquet file") as caught:
        images_of(source)
    assert caught.value.where == source


def test_a_missing_column_is_refused_with_those_that_there_are(tmp_path):
    source = str(tmp_path / "in.parquet")
    pq.write_table(pa.table({"images": [b"one"]}), source)
    with pytest.raises(DataError, match="no column 'image'") as caught:
        images_of(source)
    assert "did you mean images?" in caught.value.got
    assert "--text-column" in caught.value.remedy


def test_a_path_on_stdin_may_be_of_any_bytes(served, tmp_path, monkeypatch):
    def undecodable(data: bytes):
        raise UnusableImage("undecodable", "not an image")

    model = dataclasses.replace(
        served, kind="image", encoder=SimpleNamespace(decode=undecodable, pad_id=0)
    )
    monkeypatch.setattr(lines, "open_model", lambda path, **options: model)
    path = os.fsencode(tmp_path) + b"/caf\xe9.png"
    with open(path, "wb") as file:
        file.write(b"x")
    source, out, progress_lines = tmp_path / "paths", io.StringIO(), []
    source.write_bytes(b"\xef\xbb\xbf" + path + b"\r\n")  # as Windows saves it
    with open(source, encoding="utf-8") as stdin:
        assert lines.predict_lines("m", stdin, out, progress=progress_lines.append) == 1
    row = json.loads(out.getvalue())
    assert row["id"] == f"{tmp_path}/caf\\xe9.png"
    assert row["error"].startswith("undecodable")  # the file was read
    assert "1 of 1 lines have an error" in progress_lines[-1]


def test_images_that_are_unusable_for_one_reason_are_counted_together(served):
    def too_small(data: bytes):
        raise UnusableImage("too_small", f"{len(data)} x 1 pixels")

    model = dataclasses.replace(served, kind="image", encoder=SimpleNamespace(decode=too_small))
    rows = [images.ImageRow(str(n), b"x" * n) for n in range(1, 4)]
    reasons = Reasons()
    reasons.add(images.classify_images(model, rows))
    assert [(one["error"], one["rows"]) for one in reasons.as_list()] == [("too_small", 3)]
    assert reasons.as_list()[0]["first"] == "too_small (1 x 1 pixels)"
