"""Tests of an export in either framework and in onnxruntime, run by
tests/models/export/test_serve_torch.py, _tf.py and test_serve_onnx.py.

The reference is a forward pass written out in numpy: DistilBERT as its paper and code define it
(Sanh et al. 2019; transformers' modeling_distilbert.py), with no framework in it.
"""

from __future__ import annotations

import csv
import io
import json
import os

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.special import erf

from howdah import storage
from howdah.config.loader import from_dict
from howdah.data.family import FAMILIES
from howdah.errors import ModelError, UsageError
from howdah.models.decision import softmax
from howdah.models.export.export import INFO, export
from howdah.models.export.run_info import describe_run
from howdah.models.opened.opened import open_model
from howdah.models.weights.pretrained import load_base
from howdah.serving.prediction import predict as predictor
from howdah.serving.prediction.lines import predict_lines
from howdah.training.evaluation.evaluate import evaluate_run
from tests.fixtures.dataset import LABELS, build_dataset
from tests.support.models.other_family import OTHER, other_config, other_weights

TEXTS = ["the cat sat", "of", "the and in to was he is as for on with that it his by at " * 9, ""]


def reference_logits(weights: dict, config: dict, ids_T: np.ndarray) -> np.ndarray:
    """Logits of one row of ids, in float64."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}

    def linear(x, name):
        return x @ w[name + ".weight"].T + w[name + ".bias"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        return scaled * w[name + ".weight"] + w[name + ".bias"]

    def gelu(x):
        return 0.5 * x * (1.0 + erf(x / np.sqrt(2.0)))

    tokens, heads = len(ids_T), config["n_heads"]
    x_TD = w["distilbert.embeddings.word_embeddings.weight"][ids_T]
    x_TD = x_TD + w["distilbert.embeddings.position_embeddings.weight"][:tokens]
    x_TD = norm(x_TD, "distilbert.embeddings.LayerNorm")
    for number in range(config["n_layers"]):
        layer = f"distilbert.transformer.layer.{number}."
        split = [
            linear(x_TD, f"{layer}attention.{part}_lin").reshape(tokens, heads, -1).swapaxes(0, 1)
            for part in "qkv"
        ]
        q_HTE, k_HTE, v_HTE = split
        attention_HTT = softmax(q_HTE @ k_HTE.swapaxes(1, 2) / np.sqrt(q_HTE.shape[-1]))
        mixed_TD = (attention_HTT @ v_HTE).swapaxes(0, 1).reshape(tokens, -1)
        x_TD = norm(x_TD + linear(mixed_TD, layer + "attention.out_lin"), layer + "sa_layer_norm")
        inner_TF = gelu(linear(x_TD, layer + "ffn.lin1"))
        x_TD = norm(x_TD + linear(inner_TF, layer + "ffn.lin2"), layer + "output_layer_norm")
    pooled_D = np.maximum(linear(x_TD[0], "pre_classifier"), 0.0)
    return linear(pooled_D, "classifier")


def random_weights(base) -> dict[str, np.ndarray]:
    """Every tensor random, biases and norms too, so that a mix-up shows."""
    rng = np.random.default_rng(5)
    shapes = {name: a.shape for name, a in base.weights.items()}
    shapes |= base.family.head_shapes(base.config, 4)
    weights = {n: (rng.standard_normal(s) * 0.3).astype(np.float32) for n, s in shapes.items()}
    return weights | {
        name: 1.0 + array for name, array in weights.items() if name.lower().endswith("norm.weight")
    }


class ServingContract:
    framework = ""
    trained_with = ""
    """"": the same."""

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, tmp_path_factory, tiny_model_dir) -> dict:
        """A dataset, a run directory with an export, and the configuration that names them."""
        directory = str(tmp_path_factory.mktemp("serving"))
        dataset = build_dataset(os.path.join(directory, "data", "v=1"), model_dir=tiny_model_dir)
        config = from_dict(
            {
                "run": {"name": "zoo", "directory": os.path.join(directory, "run")},
                "data": {"dataset": os.path.join(directory, "data")},
                "model": {"base": tiny_model_dir},
                "training": {"framework": cls.trained_with or cls.framework, "threads_per_rank": 1},
            }
        )
        base = load_base(tiny_model_dir)
        weights = random_weights(base)
        info = describe_run(config=config, dataset=dataset, base=base, run_id="run-1", step=3)
        export(
            os.path.join(directory, "run", "export"),
            weights=weights, base_config=base.config, tokenizer_files=base.tokenizer_files,
            label_names=dataset.manifest.labels, run_info=info,
        )  # fmt: skip
        return {"config": config, "weights": weights, "base": base, "dataset": dataset}

    @pytest.fixture(scope="class")
    @classmethod
    def served(cls, place):
        return open_model(place["config"].run.directory, framework=cls.framework, threads=1)

    def expected(self, place, served, text: str) -> np.ndarray:
        ids_T = served.encoder.encode([text], served.max_length)[0]
        return softmax(reference_logits(place["weights"], place["base"].config, ids_T))

    def test_scores_are_the_models(self, place, served):
        assert served.framework == self.framework
        scores_NC = served.scores(TEXTS)
        assert scores_NC.dtype == np.float32
        for text, scores_C in zip(TEXTS, scores_NC, strict=True):
            want = self.expected(place, served, text)
            assert want.max() - want.min() > 0.1
            np.testing.assert_allclose(scores_C, want, atol=2e-5)

    def test_a_batch_is_no_wider_than_the_position_table(self, place, tmp_path):
        """15 positions: widths are multiples of 2, and 16 exceeds the positions."""
        table = "distilbert.embeddings.position_embeddings.weight"
        weights = {**place["weights"], table: place["weights"][table][:15]}
        base = {**place["base"].config, "max_position_embeddings": 15}
        info = describe_run(
            config=place["config"], dataset=place["dataset"], base=place["base"],
            run_id="run-2", step=3,
        )  # fmt: skip
        path = export(
            str(tmp_path / "short"), weights=weights, base_config=base, run_info=info,
            tokenizer_files=place["base"].tokenizer_files,
            label_names=place["dataset"].manifest.labels,
        )  # fmt: skip
        served = open_model(path, framework=self.framework, threads=1)
        assert served.max_length == 15
        for text in TEXTS:
            ids_T = served.encoder.encode([text], served.max_length)[0]
            want = softmax(reference_logits(weights, base, ids_T))
            np.testing.assert_allclose(served.scores([text])[0], want, atol=2e-5)

    def test_a_score_does_not_depend_on_the_other_rows(self, served):
        alone = np.concatenate([served.scores([text]) for text in TEXTS])
        np.testing.assert_allclose(served.scores(TEXTS), alone, atol=1e-5)
        assert served.scores([]).shape == (0, 4)

    def test_predict_a_file(self, place, served, tmp_path):
        source, output = str(tmp_path / "in.csv"), str(tmp_path / "out.parquet")
        text = io.StringIO()
        csv.writer(text).writerows([["text"], *([t] for t in TEXTS)])
        storage.write_whole(source, text.getvalue().encode())
        summary = predictor.predict(
            place["config"].run.directory, source, output, framework=self.framework
        )
        assert summary["run_id"] == "run-1"
        assert summary["rows"] == 4
        assert summary["errors"] == 1  # the empty one
        for row, sample in zip(pq.read_table(output).to_pylist()[:3], TEXTS, strict=False):
            want = self.expected(place, served, sample)
            assert row["label"] == LABELS[want.argmax()]
            np.testing.assert_allclose(row["scores"], want, atol=2e-5)

    def test_lines_are_classified(self, place):
        out = io.StringIO()
        predict_lines(
            place["config"].run.directory, io.StringIO("the cat sat\n"), out,
            framework=self.framework,
        )  # fmt: skip
        row = json.loads(out.getvalue())
        assert row["label"] in LABELS
        assert row["run_id"] == "run-1"

    def test_evaluate_a_split(self, place, tmp_path):
        metrics = evaluate_run(
            place["config"], split="test", framework=self.framework,
            predictions_dir=str(tmp_path / "predictions"),
        )  # fmt: skip
        assert metrics["rows"] == 25
        rows = pq.read_table(str(tmp_path / "predictions")).to_pylist()
        assert sorted(row["id"] for row in rows) == sorted(f"test-{n}" for n in range(25))
        right = sum(row["label"] == row["predicted"] for row in rows)
        assert metrics["accuracy"] == pytest.approx(right / 25)
        # The rows' scores are those of the reference on the dataset's own ids.
        from howdah.data.splits.shards import ShardSet

        shards = ShardSet(place["dataset"], "test")
        by_id = {row["id"]: row for row in rows}
        for shard, row in ((0, 0), (1, 3), (2, 5)):
            example = shards.example(shard, row)
            want = softmax(
                reference_logits(place["weights"], place["base"].config, example.input_ids)
            )
            np.testing.assert_allclose(by_id[example.id.decode()]["scores"], want, atol=2e-5)

    def test_evaluate_refusals(self, place, tmp_path, tiny_model_dir):
        with pytest.raises(UsageError, match="unknown split"):
            evaluate_run(place["config"], split="dev", framework=self.framework)
        with pytest.raises(ModelError, match="no such model"):
            evaluate_run(place["config"], model=str(tmp_path), framework=self.framework)
        build_dataset(
            str(tmp_path / "three" / "v=1"), model_dir=tiny_model_dir, classes=3, rows={"test": 8}
        )
        data = place["config"].data.model_copy(update={"dataset": str(tmp_path / "three")})
        other = place["config"].model_copy(update={"data": data})
        with pytest.raises(ModelError, match="different labels"):
            evaluate_run(other, framework=self.framework)

    def test_an_altered_tokenizer_is_refused(self, place, tmp_path):
        source = os.path.join(place["config"].run.directory, "export")
        for entry in storage.list_dir(source):
            storage.download(entry.path, str(tmp_path / entry.name))
        path = str(tmp_path / "tokenizer.json")
        tokenizer = storage.read_json(path)
        vocabulary = tokenizer["model"]["vocab"]
        vocabulary["the"], vocabulary["of"] = vocabulary["of"], vocabulary["the"]
        storage.write_whole(path, json.dumps(tokenizer).encode())
        with pytest.raises(ModelError, match="tokenizer is not"):
            open_model(str(tmp_path), framework=self.framework)

    def test_a_foreign_classifier_without_howdahs_file(self, place, tmp_path):
        source = os.path.join(place["config"].run.directory, "export")
        for entry in storage.list_dir(source):
            if entry.name != INFO:
                storage.download(entry.path, str(tmp_path / entry.name))
        model = open_model(str(tmp_path), framework=self.framework, threads=1)
        assert model.run_id.startswith("sha256:")
        assert model.clean_text("a  b") == "a  b"  # its cleaning is not known
        np.testing.assert_allclose(
            model.scores(TEXTS[:1])[0], self.expected(place, model, TEXTS[0]), atol=2e-5
        )

    def test_a_family_with_other_names_is_served_alike(self, place, served, tmp_path, monkeypatch):
        monkeypatch.setitem(FAMILIES, OTHER.model_type, OTHER)
        base, dataset = place["base"], place["dataset"]
        info = describe_run(
            config=place["config"], dataset=dataset, base=base, run_id="run-3", step=3
        )
        path = export(
            str(tmp_path / "other"), weights=other_weights(place["weights"], base.config),
            base_config=other_config(base.config), tokenizer_files=base.tokenizer_files,
            label_names=dataset.manifest.labels, run_info=info,
        )  # fmt: skip
        model = open_model(path, framework=self.framework, threads=1)
        assert model.positions == served.positions
        np.testing.assert_allclose(model.scores(TEXTS), served.scores(TEXTS), atol=1e-6)

    def test_each_family_has_its_forward_pass(self, served):
        if self.framework == "torch":
            from howdah.models.forward.forward_torch import FORWARD_PASSES

            passes = {f.forward for f in FAMILIES.values() if "torch" in f.frameworks}
        elif self.framework == "onnx":
            from howdah.models.forward.forward_onnx import FORWARD_PASSES

            passes = {f.forward for f in FAMILIES.values() if f.kind == "text"}
        else:
            from howdah.models.forward.forward_tf import FORWARD_PASSES

            passes = {f.forward for f in FAMILIES.values() if "tensorflow" in f.frameworks}
        assert passes and passes <= set(FORWARD_PASSES)

    def test_a_base_model_is_no_classifier(self, tiny_model_dir):
        with pytest.raises(ModelError, match="has no labels"):
            open_model(tiny_model_dir, framework=self.framework)
