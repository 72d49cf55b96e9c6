"""Formats of exports: the graph's logits, what is refused, what a failure leaves."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest

from howdah import storage
from howdah.errors import ModelError, UsageError
from howdah.models.export import formats, onnx_graph
from howdah.models.export.export import INFO
from howdah.models.forward import forward_numpy
from howdah.models.opened.opened import open_model
from howdah.models.opened.runtimes import serving_framework
from howdah.models.version import open_version
from tests import ROOT
from tests.support.models.exported import FAMILIES, base_of, info_of, weights_of, write_export
from tests.support.models.tiny_families import LOGITS, batch

SHAPES = [(1, 1), (1, 2), (3, 7), (5, 33), (2, 48)]
TEXTS = [
    "the country and the town", "of", "more and more " * 20, "the and in to was he is", "a b c d",
    "it his by at from her she you", "one", "into new two its time would no what about said",
]  # fmt: skip


def by_path(path: str):
    """The forward pass as any user of onnxruntime has it: nothing of Howdah's."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    assert names == ["input_ids", "attention_mask"]

    def forward(ids, mask):
        feeds = dict(zip(names, (ids.astype(np.int64), mask.astype(np.int64)), strict=True))
        return session.run(["logits"], feeds)[0]

    return forward


def batches(words: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    for rows, tokens in SHAPES:
        ids = rng.integers(0, words, (rows, tokens)).astype(np.int32)
        mask = (np.arange(tokens) < rng.integers(1, tokens + 1, (rows, 1))).astype(np.int32)
        yield ids, mask


@pytest.mark.parametrize("family", FAMILIES)
def test_the_graph_gives_the_models_logits(family, tmp_path):
    base = base_of(str(tmp_path / "base"), family)
    path = write_export(tmp_path / "export", base)
    file = os.path.join(path, "model.onnx")
    assert os.path.getsize(file) < 60_000  # no weight is in it
    onnx.checker.check_model(file, full_check=True)
    forward, weights = by_path(file), weights_of(base)
    for ids, mask in batches(900):
        expected = forward_numpy.logits(base.config, weights, ids, mask)
        np.testing.assert_allclose(forward(ids, mask), expected, atol=1e-5)
        assert np.ptp(expected) > 0.1


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_the_reference_is_transformers(family, tmp_path):
    from tests.support.models.tiny_families import tiny_weights

    base = base_of(str(tmp_path / "base"), family)
    weights = tiny_weights(base.family, base.config, classes=3)
    ids, mask, _ = batch(base.config["pad_token_id"])
    np.testing.assert_allclose(
        forward_numpy.logits(base.config, weights, ids, mask), LOGITS[family], atol=1e-5
    )


@pytest.mark.parametrize("activation", ["gelu_new", "relu", "silu"])
def test_each_activation(activation, tmp_path):
    base = base_of(str(tmp_path / "base"), "bert", hidden_act=activation)
    forward = by_path(os.path.join(write_export(tmp_path / "export", base), "model.onnx"))
    for ids, mask in batches(900):
        expected = forward_numpy.logits(base.config, weights_of(base), ids, mask)
        np.testing.assert_allclose(forward(ids, mask), expected, atol=1e-5)


def test_pairs_have_token_types_behind_the_first_text(tmp_path):
    base = base_of(str(tmp_path / "base"), "bert")
    path = write_export(tmp_path / "export", base, run_info=info_of(base, pairs=True))
    forward, served = by_path(os.path.join(path, "model.onnx")), open_model(path, framework="onnx")
    ends = served.encoder.first_type_ends
    assert ends is not None and served.pairs
    for ids, mask in batches(900):
        ids[:, ids.shape[1] // 3], mask[:] = ends, 1
        typed = forward_numpy.logits(base.config, weights_of(base), ids, mask, first_type_ends=ends)
        np.testing.assert_allclose(forward(ids, mask), typed, atol=1e-5)
        plain = forward_numpy.logits(base.config, weights_of(base), ids, mask)
        assert ids.shape[1] == 1 or np.abs(typed - plain).max() > 1e-3


# Another package than these must not be needed: all of TensorFlow, torch and onnx cannot be found.
ALONE = """
import json, sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "tensorflow", "transformers", "onnx", "scipy", "pandas"):
            raise ImportError(name)

sys.meta_path.insert(0, Refused())
from howdah.models.opened.opened import open_model
from howdah.models.opened.runtimes import serving_framework
from howdah.models.version import open_version
chosen = serving_framework(open_version(sys.argv[1], "none"))
scores = open_model(sys.argv[1], framework=chosen, threads=1).scores(json.loads(sys.argv[2]))
frameworks = sorted({name.split(".")[0] for name in sys.modules} & {"torch", "tensorflow", "onnx"})
print(json.dumps({"chosen": chosen, "scores": scores.tolist(), "frameworks": frameworks}))
"""


# Each of these modules would cost a tenth of a second or more before the first text's answer.
STDIN = """
import sys
from howdah.cli import main
sys.argv[1:] = ["predict", "--stdin", "--model", sys.argv[1]]
try:
    main()
except SystemExit:
    pass
heavy = ("rich", "pandas", "pyarrow", "torch", "tensorflow", "pyspark", "transformers", "PIL")
print("loaded:", *[name for name in heavy if name in sys.modules])
"""


def test_no_framework_is_imported(tmp_path):
    base = base_of(str(tmp_path / "base"), "distilbert")
    path = write_export(tmp_path / "export", base)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, path, json.dumps(TEXTS)], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["frameworks"] == [] and report["chosen"] == "onnx"
    here = open_model(path, framework="onnx", threads=1).scores(TEXTS)
    np.testing.assert_array_equal(np.array(report["scores"], np.float32), here)
    done = subprocess.run(
        [sys.executable, "-c", STDIN, path], capture_output=True, text=True, input=TEXTS[0],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=120, check=False,
    )  # fmt: skip
    answer, loaded = done.stdout.splitlines()
    assert max(json.loads(answer)["scores"].values()) == pytest.approx(here[0].max(), abs=1e-6)
    assert loaded == "loaded:"
    assert "run by onnxruntime on the CPU" in done.stderr


@pytest.mark.parametrize("family", FAMILIES)
def test_a_score_is_the_same_bits_alone_and_in_any_batch(family, tmp_path):
    base = base_of(str(tmp_path / "base"), family)
    path = write_export(tmp_path / "export", base, formats=["onnx-w8", "onnx-int8"])
    for framework in ("onnx", "onnx-w8", "onnx-int8"):
        served = open_model(path, framework=framework, threads=1)
        alone = np.concatenate([served.scores([text]) for text in TEXTS])
        np.testing.assert_array_equal(served.scores(TEXTS), alone)
        np.testing.assert_array_equal(served.scores(TEXTS[::-1] * 3)[: len(TEXTS)], alone[::-1])
        two = open_model(path, framework=framework, threads=2)
        np.testing.assert_array_equal(two.scores(TEXTS), alone)


def test_the_graph_says_what_a_program_needs_beside_the_tokenizer(tmp_path):
    base = base_of(str(tmp_path / "base"), "distilbert")
    path = write_export(tmp_path / "export", base, formats=["onnx-w8", "onnx-int8"])
    for name in ("model.onnx", "model_w8.onnx", "model_int8.onnx"):
        session = onnxruntime.InferenceSession(
            os.path.join(path, name), providers=["CPUExecutionProvider"]
        )
        metadata = session.get_modelmeta().custom_metadata_map
        assert metadata["run_id"] == "run-1" and json.loads(metadata["labels"])[0] == "negative"
        assert metadata["max_length"] == "48" and metadata["task"] == "single_label"
        assert json.loads(metadata["clean"]) == {"collapse_whitespace": True}
        assert json.loads(metadata["pairs"]) is False
    assert os.path.getsize(os.path.join(path, "model_w8.onnx")) < 0.5 * os.path.getsize(
        os.path.join(path, "model.safetensors")
    )


def test_formats_near_the_model_say_how_near(tmp_path):
    base, messages = base_of(str(tmp_path / "base"), "distilbert"), []
    rng = np.random.default_rng(1)
    rows = [rng.integers(5, 900, length) for length in rng.integers(3, 40, 60)]
    path = write_export(
        tmp_path / "export", base, formats=["onnx-w8", "onnx-int8"], samples=rows,
        progress=messages.append,
    )  # fmt: skip
    formats = storage.read_json(os.path.join(path, INFO))["formats"]
    assert formats["onnx-w8"]["rows"] == 60 and formats["onnx-w8"]["agreement"] > 0.9
    assert 0 < formats["onnx-w8"]["furthest_score"] < 0.1
    assert any("keep their label" in line and "model_w8.onnx" in line for line in messages)
    assert formats["onnx-int8"]["rows"] == 45 and formats["onnx-int8"]["agreement"] > 0.9
    assert any("inputs of 15 rows" in line for line in messages)  # and is compared on the others
    exact = open_model(path, framework="onnx").scores(TEXTS)
    for name in ("onnx-w8", "onnx-int8"):
        near = open_model(path, framework=name).scores(TEXTS)
        np.testing.assert_allclose(near, exact, atol=0.1)
        assert (near != exact).any()


def test_an_export_is_served_by_onnx_only_if_it_has_the_graph(tmp_path, monkeypatch):
    base, messages = base_of(str(tmp_path / "base"), "distilbert"), []
    path = write_export(tmp_path / "export", base)
    assert serving_framework(open_version(path, "none")) == "onnx"
    assert serving_framework(open_version(path, "none"), "torch") == "torch"
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "onnx" else find(name, *a)
    )
    without = write_export(tmp_path / "without", base, progress=messages.append)
    assert "model.onnx" not in os.listdir(without) and "`onnx` is not installed" in messages[0]
    assert serving_framework(open_version(without, "none")) == "torch"
    with pytest.raises(ModelError, match="not installed"):
        open_model(without, framework="onnx")
    with pytest.raises(UsageError, match="cannot be written here") as caught:
        write_export(tmp_path / "named", base, formats=["onnx", "onnx-w8", "tflite"])
    for problem in ("onnx: onnx not", "onnx-w8: onnx not", "tflite: no such format"):
        assert problem in caught.value.got
    assert not os.path.exists(tmp_path / "named")
    monkeypatch.undo()
    # An export from before there was model.onnx: the graph is made when it is opened.
    scores = open_model(without, framework="onnx").scores(TEXTS)
    np.testing.assert_array_equal(scores, open_model(path, framework="onnx").scores(TEXTS))


def test_unknown_and_missing_runtimes_are_refused(tmp_path):
    path = write_export(tmp_path / "export", base_of(str(tmp_path / "base"), "distilbert"))
    with pytest.raises(UsageError, match="unknown framework") as caught:
        open_model(path, framework="jax")
    assert "onnx-w8" in caught.value.expected
    with pytest.raises(ModelError, match="no model_w8") as refused:
        open_model(path, framework="onnx-w8")
    assert "howdah export --set export.formats=[hf,onnx-w8]" in refused.value.remedy


def test_weights_of_another_layout_are_refused(tmp_path):
    base = base_of(str(tmp_path / "base"), "distilbert")
    path = write_export(tmp_path / "export", base)
    other = write_export(
        tmp_path / "other", base, label_names=["a", "b"], weights=weights_of(base, 2)
    )
    shutil.copy(os.path.join(other, "model.safetensors"), path)
    with pytest.raises(ModelError, match="not the file that model"):
        open_model(path, framework="onnx")
    os.remove(os.path.join(path, "model.onnx"))
    with pytest.raises(ModelError, match="the export has no model"):
        open_model(path, framework="onnx")


def test_damaged_files_are_named(tmp_path):
    path = write_export(tmp_path / "export", base_of(str(tmp_path / "base"), "distilbert"))
    weights, graph = (os.path.join(path, name) for name in ("model.safetensors", "model.onnx"))
    whole = {name: storage.read_bytes(name) for name in (weights, graph)}
    storage.write_whole(weights, whole[weights][:-4])
    with pytest.raises(ModelError, match="does not have the size in its header"):
        open_model(path, framework="onnx")
    storage.write_whole(weights, whole[weights])
    for damaged in (b"", b"no graph", whole[graph][:-100]):
        storage.write_whole(graph, damaged)
        with pytest.raises(ModelError, match="onnxruntime cannot load the model") as caught:
            open_model(path, framework="onnx")
        assert caught.value.where == path and "howdah export" in caught.value.remedy


@pytest.mark.parametrize("form", ["onnx", "onnx-w8"])
def test_a_label_more_or_less_than_the_model_has_is_refused(form, tmp_path):
    """A user has edited config.json."""
    base = base_of(str(tmp_path / "base"), "distilbert")
    path = write_export(tmp_path / "export", base, formats=["onnx-w8"])
    config = storage.read_json(os.path.join(path, "config.json"))
    labels = config["id2label"]
    for edited in (dict(list(labels.items())[:-1]), labels | {str(len(labels)): "more"}):
        text = json.dumps(config | {"id2label": edited})
        storage.write_whole(os.path.join(path, "config.json"), text.encode())
        with pytest.raises(ModelError, match=r"labels of config\.json are not those") as caught:
            open_model(path, framework=form)
        assert caught.value.where == os.path.join(path, "config.json")


def test_files_elsewhere_behind_links_are_read(tmp_path):
    """YARN puts each file of a model into a directory of its own, and links it where it runs."""
    path = write_export(tmp_path / "export", base_of(str(tmp_path / "base"), "distilbert"))
    links = tmp_path / "links"
    links.mkdir()
    for number, name in enumerate(os.listdir(path)):
        place = tmp_path / "filecache" / str(number)
        place.mkdir(parents=True)
        shutil.copy(os.path.join(path, name), place / f"shipped-{name}")
        (links / name).symlink_to(place / f"shipped-{name}")
    np.testing.assert_array_equal(
        open_model(str(links), framework="onnx").scores(TEXTS),
        open_model(path, framework="onnx").scores(TEXTS),
    )


def test_a_wrong_format_leaves_the_export_that_was_there(tmp_path, monkeypatch):
    base = base_of(str(tmp_path / "base"), "distilbert")
    path = write_export(tmp_path / "export", base)
    before = storage.read_bytes(os.path.join(path, INFO))
    build = onnx_graph.forward_onnx.build

    def wrong(config, places, **options):  # the key's weights in the place of the query's
        names = [name for name in places if ".q_lin." in name]
        swapped = {name: places[name.replace("q_lin", "k_lin")] for name in names}
        return build(config, {**places, **swapped}, **options)

    monkeypatch.setattr(onnx_graph.forward_onnx, "build", wrong)
    with pytest.raises(ModelError, match="logits of the format onnx differ from the model"):
        write_export(tmp_path / "export", base, formats=["onnx"])
    assert storage.read_bytes(os.path.join(path, INFO)) == before
    assert sorted(os.listdir(tmp_path)) == ["base", "export"]


def test_an_image_model_has_the_directory_alone(tmp_path):
    config = {"model_type": "vit"}
    with pytest.raises(ModelError, match="only as a Hugging Face directory"):
        formats.require(["onnx"], config, where="here")
    assert formats.require(["hf"], config, where="here") == ["hf"]


def test_the_table_has_what_the_configuration_takes():
    from typing import get_args

    from howdah.config.options.export import ExportFormat

    assert list(formats.FORMATS) == list(get_args(ExportFormat))
    assert set(onnx_graph.FILES) == {name for name in formats.FORMATS if "onnx" in name}
    assert set(formats._WRITERS) == set(formats.FORMATS) - {"hf"}


def test_on_another_storage(tmp_path):
    base = base_of(str(tmp_path / "base"), "distilbert")
    target = "memory://formats/zoo"
    try:
        write_export(target, base, formats=["onnx", "onnx-w8"])
        names = {entry.name for entry in storage.list_dir(target)}
        assert {"model.onnx", "model_w8.onnx", "model.safetensors", INFO} <= names
        here = write_export(tmp_path / "export", base, formats=["onnx-w8"])
        for framework in ("onnx", "onnx-w8"):
            np.testing.assert_array_equal(
                open_model(target, framework=framework).scores(TEXTS),
                open_model(here, framework=framework).scores(TEXTS),
            )
    finally:
        storage.remove("memory://formats", recursive=True)
