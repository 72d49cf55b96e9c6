"""The int8 export: rows that do not see each other, labels of float32, what it does not read."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest

from howdah import storage
from howdah.errors import ModelError
from howdah.models.export import int8_onnx
from howdah.models.export.export import INFO
from howdah.models.opened.onnx_session import open_session
from howdah.models.opened.opened import open_model
from howdah.models.weights.parameters import start_weights
from howdah.models.weights.pretrained import load_base
from tests.support.models.exported import base_of, info_of, weights_of, write_export
from tools import minilm
from tools.demo.corpus import corpus

PACKAGES = ("networkx", "sqlalchemy")


@pytest.mark.parametrize("family", ["distilbert", "roberta"])
def test_a_row_of_the_graph_does_not_depend_on_its_neighbours(family, tmp_path):
    base = base_of(str(tmp_path / "base"), family)
    path = write_export(tmp_path / "export", base, formats=["onnx-int8"])
    file = os.path.join(path, "model_int8.onnx")
    forward, rng = open_session(file, threads=1, where=file), np.random.default_rng(5)
    for tokens in (1, 2, 3, 8, 17, 33):
        ids_BT = rng.integers(5, 900, (40, tokens)).astype(np.int32)
        lengths_B1 = rng.integers(1, tokens + 1, (40, 1))
        mask_BT = (np.arange(tokens) < lengths_B1).astype(np.int32)
        alone = np.concatenate([forward(ids_BT[i : i + 1], mask_BT[i : i + 1]) for i in range(40)])
        for batch in (slice(None), slice(3, 10), slice(None, None, -1)):
            np.testing.assert_array_equal(forward(ids_BT[batch], mask_BT[batch]), alone[batch])


def test_encoders_compute_in_integers_and_the_classifier_does_not(tmp_path):
    base = base_of(str(tmp_path / "base"), "distilbert")
    path = write_export(tmp_path / "export", base, formats=["onnx-int8"])
    graph = onnx.load(os.path.join(path, "model_int8.onnx"))
    kinds = [node.op_type for node in graph.graph.node]
    layers = base.config["n_layers"]
    assert kinds.count("MatMulIntegerToFloat") == 6 * layers and kinds.count("Gemm") == 2
    assert not {"DynamicQuantizeLinear", "DynamicQuantizeMatMul"} & set(kinds)


def test_rounding_corrects_with_later_weights():
    rng = np.random.default_rng(0)
    x_NI = rng.standard_normal((400, 20)) @ rng.standard_normal((20, 200))  # correlated inputs
    weight_OI = rng.standard_normal((30, 200)).astype(np.float32)
    scales_O = np.abs(weight_OI).max(1) / 127

    def error(integers_OI: np.ndarray) -> float:
        assert integers_OI.dtype == np.int8
        return float(np.square(x_NI @ (integers_OI * scales_O[:, None] - weight_OI).T).mean())

    nearest = error(int8_onnx.rounded(weight_OI, scales_O, None))
    assert error(int8_onnx.rounded(weight_OI, scales_O, x_NI.T @ x_NI)) < 0.1 * nearest
    # Inputs that calibration has never seen: nothing can be corrected, and nothing is lost.
    unseen = int8_onnx.rounded(weight_OI, scales_O, np.zeros((200, 200)))
    np.testing.assert_array_equal(unseen, int8_onnx.rounded(weight_OI, scales_O, None))


def test_weights_and_activations_of_zero(tmp_path):
    base = base_of(str(tmp_path / "base"), "distilbert")
    weights = {name: np.zeros_like(array) for name, array in weights_of(base).items()}
    path = write_export(tmp_path / "export", base, weights=weights, formats=["onnx-int8"])
    scores = open_model(path, framework="onnx-int8").scores(["a town", "of"])
    np.testing.assert_allclose(scores, 1 / scores.shape[1], atol=1e-6)


def test_a_single_sample_row_sets_the_scales_and_is_compared(tmp_path):
    base = base_of(str(tmp_path / "base"), "distilbert")
    samples = [np.array([2, 5, 6, 3], np.int32)]
    path = write_export(tmp_path / "export", base, formats=["onnx-int8"], samples=samples)
    assert storage.read_json(os.path.join(path, INFO))["formats"]["onnx-int8"]["rows"] == 1


def test_a_missing_or_damaged_file_is_named(tmp_path):
    base = base_of(str(tmp_path / "base"), "distilbert")
    plain = write_export(tmp_path / "plain", base)
    with pytest.raises(ModelError, match="no model_int8") as refused:
        open_model(plain, framework="onnx-int8")
    assert "howdah export --set export.formats=[hf,onnx-int8]" in refused.value.remedy
    path = write_export(tmp_path / "export", base, formats=["onnx-int8"])
    file = os.path.join(path, "model_int8.onnx")
    storage.write_whole(file, storage.read_bytes(file)[:-100])
    with pytest.raises(ModelError, match="onnxruntime cannot load the model"):
        open_model(path, framework="onnx-int8")


def docstrings(count: int) -> tuple[list[str], np.ndarray]:
    """`count` docstrings of each package, and the numbers of their packages, mixed."""
    texts: dict[str, list[str]] = {name: [] for name in PACKAGES}
    for _, text, package in corpus(PACKAGES):
        text = " ".join(text.split())[:200]
        if len(text) > 40 and len(texts[package]) < count and text not in texts[package]:
            texts[package].append(text)
    mixed = [texts[package][number] for number in range(count) for package in PACKAGES]
    return mixed, np.tile(np.arange(len(PACKAGES)), count)


@pytest.mark.full
def test_docstrings_keep_their_labels(tmp_path):
    """A classifier fitted on what MiniLM's encoder returns for half of the docstrings."""
    directory, is_pretrained = minilm.base_model(print)
    if not is_pretrained:
        pytest.skip("MiniLM cannot be fetched")
    base = load_base(directory)
    width = base.config["dim"]
    weights = start_weights(base.config, base.weights, num_labels=width, seed=1)
    for name in ("pre_classifier.weight", "classifier.weight"):
        weights[name] = np.eye(width, dtype=np.float32)
    settings = {"run_info": info_of(base, clean={}), "label_names": [str(n) for n in range(width)]}
    encoder = open_model(
        write_export(tmp_path / "encoder", base, weights=weights, **settings), framework="onnx"
    )
    texts, packages = docstrings(500)
    ids = encoder.encode(texts)
    half = len(texts) // 2
    features = np.concatenate(
        [encoder.forward(row[None], np.ones((1, len(row)), np.int32)) for row in ids[:half]]
    )
    targets = np.eye(len(PACKAGES))[packages[:half]] - 1 / len(PACKAGES)
    fitted = np.linalg.solve(features.T @ features + 100 * np.eye(width), features.T @ targets).T
    weights["classifier.weight"] = (20 * fitted).astype(np.float32)
    weights["classifier.bias"] = np.zeros(len(PACKAGES), np.float32)
    settings["label_names"] = list(PACKAGES)
    path = write_export(
        tmp_path / "export", base, weights=weights, formats=["onnx-int8"],
        samples=ids[:half:4], **settings,
    )  # fmt: skip
    exact, near = (
        open_model(path, framework=name, threads=1).scores_of_ids(ids[half:]).argmax(1)
        for name in ("onnx", "onnx-int8")
    )
    assert (exact == packages[half:]).mean() > 0.95
    assert (near == exact).mean() >= 0.995
    assert storage.read_json(os.path.join(path, INFO))["formats"]["onnx-int8"]["agreement"] >= 0.98
