"""float32 logits of every format within 1e-5 of each other, on 200 odd shapes; two transformers."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from howdah.data.encode import Encoder
from howdah.hadoop.versions import TRIED
from howdah.models.export import formats
from howdah.models.weights.pretrained import load_base
from tests import ROOT
from tests.support.models.exported import FAMILIES, base_of, write_export
from tests.support.models.tiny_families import LABELS

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


def read(reader: str, *paths: str, before: str = "") -> str:
    """The logits by one reader, in a process of its own; what that prints.

    Args:
        before: what its PYTHONPATH begins with.
    """
    framework = "0" if reader in ("transformers", "torch") else "1"
    done = subprocess.run(
        [sys.executable, "-m", "tests.workers.format_logits", reader, *paths],
        env=os.environ | {"PYTHONPATH": f"{before}:{ROOT}".lstrip(":"), "USE_TF": framework,
                          "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


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
        read(reader, path, batches, target)
        logits[reader] = np.load(target)
    for number in range(SHAPES):
        by_reader = np.stack([logits[reader][f"logits_{number}"] for reader in READERS])
        assert np.ptp(by_reader, axis=0).max() < 1e-5, number
        assert np.isfinite(by_reader).all()


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_each_transformers_reads_exports_and_what_it_saves_is_a_base(
    family, tmp_path, transformers_paths
):
    base = base_of(str(tmp_path / "base"), family)
    path = write_export(tmp_path / "export", base)
    batches = str(tmp_path / "batches.npz")
    np.savez(batches, **odd_batches(900, 48))
    text, logits, versions = "Caf\u00e9 of the text, word 12", [], []
    exported = load_base(path, label_names=LABELS)
    ids = Encoder(exported.tokenizer_files, path).encode([text], 48)[0].tolist()
    for major, before in transformers_paths.items():
        target, copy = str(tmp_path / f"{major}.npz"), str(tmp_path / f"saved-{major}")
        versions.append(
            read("transformers", path, batches, target, copy, before=before).split()[-1]
        )
        logits.append(np.load(target))
        saved = load_base(copy, label_names=LABELS)
        assert saved.weights.keys() == exported.weights.keys()
        assert all(
            np.array_equal(saved.weights[name], exported.weights[name]) for name in saved.weights
        )
        assert Encoder(saved.tokenizer_files, copy).encode([text], 48)[0].tolist() == ids
    assert versions == list(TRIED["transformers"])
    for number in range(SHAPES):
        one, two = (each[f"logits_{number}"] for each in logits)
        assert np.array_equal(one, two), (number, np.abs(one - two).max())


@pytest.mark.full
def test_a_saved_model_that_tensorflow_cannot_write_leaves_nothing(tmp_path, monkeypatch):
    base = base_of(str(tmp_path / "base"), "distilbert")
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(formats.ModelError, match="did not write the SavedModel"):
        write_export(tmp_path / "export", base, formats=["savedmodel"])
    assert sorted(os.listdir(tmp_path)) == ["base"]
