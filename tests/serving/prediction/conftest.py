"""The model of this folder's tests."""

from __future__ import annotations

import pytest

from howdah.config.data import CleanOptions, Columns
from howdah.data.encode import Encoder
from howdah.models.opened.opened import ServedModel
from howdah.models.version import Version
from howdah.serving.prediction import lines
from howdah.serving.prediction import predict as predictor
from tests.serving.prediction.parity import LABELS, parity_forward


@pytest.fixture
def served(tiny_model_dir, monkeypatch) -> ServedModel:
    model = ServedModel(
        path="somewhere", framework="torch", labels=LABELS, run_id="run-9", max_length=64,
        clean=CleanOptions(), columns=Columns(id="key"), encoder=Encoder.load(tiny_model_dir),
        gpu=False, forward=parity_forward, positions=512,
    )  # fmt: skip
    for module in (predictor, lines):
        monkeypatch.setattr(module, "open_model", lambda path, **options: model)

    def open_version(address: str, directory: str) -> Version:
        version = Version(address=address, path="somewhere")
        version.__dict__.update(info={"columns": {"id": "key"}}, kind="text")  # no files there
        return version

    monkeypatch.setattr(predictor, "open_version", open_version)
    return model
