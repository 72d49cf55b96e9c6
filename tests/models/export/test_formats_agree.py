"""float32 logits of every format within 1e-5 of each other, on 200 odd shapes."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from howdah.models.export import formats
from tests import ROOT
from tests.support.models.exported import FAMILIES, base_of, write_export

READERS = ("transformers", "torch", "tensorflow", "saved_model", "onnx", "onnxruntime")
SHAPES = 200


def odd_batches(words: int, longest: int) -> dict[str, np.ndarray]:
    """Batches of 1 to 9 rows and 1 to `longest` tokens, rows of different lengths."""
    rng, batches = np.random.default_rng(2), {}
    for number in range(SHAPES):
        rows = int(rng.integers(1, 10))
        tokens = int(rng.choice([1, 2, 3, longest, rng.integers(1, longest + 1)]))
        mask = np.arange(tokens) < rng.integers(1, tokens + 1, (rows, 1))
        mask[0] = True
        # No padding's id (0 or 1) in a text: transformers' RoBERTa counts no position for it.
        batches[f"ids_{number}"] = rng.integers(2, words, (rows, tokens)).astype(np.int32)
        batches[f"mask_{number}"] = mask.astype(np.int32)
    return batches


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_reader_gives_the_same_logits(family, tmp_path):
    base, messages = base_of(str(tmp_path / "base"), family), []
    path = write_export(
        tmp_path / "export", base, formats=["onnx", "savedmodel"], progress=messages.append
    )
    assert any("saved_model" in line and "its logits differ by" in line for line in messages)
    batches = str(tmp_path / "batches.npz")
    np.savez(batches, **odd_batches(900, 48))
    logits = {}
    for reader in READERS:
        target = str(tmp_path / f"{reader}.npz")
        framework = "0" if reader in ("transformers", "torch") else "1"
        done = subprocess.run(
            [sys.executable, "-m", "tests.workers.format_logits", reader, path, batches, target],
            env=os.environ | {"PYTHONPATH": str(ROOT), "USE_TF": framework,
                              "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
            cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        logits[reader] = np.load(target)
    for number in range(SHAPES):
        by_reader = np.stack([logits[reader][f"logits_{number}"] for reader in READERS])
        assert np.ptp(by_reader, axis=0).max() < 1e-5, number
        assert np.isfinite(by_reader).all()


@pytest.mark.full
def test_a_saved_model_that_tensorflow_cannot_write_leaves_nothing(tmp_path, monkeypatch):
    base = base_of(str(tmp_path / "base"), "distilbert")
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(formats.ModelError, match="did not write the SavedModel"):
        write_export(tmp_path / "export", base, formats=["savedmodel"])
    assert sorted(os.listdir(tmp_path)) == ["base"]
