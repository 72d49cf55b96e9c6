"""Loading a base model: what is read, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from howdah.config.model import ModelSection
from howdah.data.family import DISTILBERT
from howdah.errors import HowdahError, ModelError
from howdah.models.weights.parameters import dropout_draw, dropout_rates
from howdah.models.weights.pretrained import label_names_of, load_base
from tests.support.models.tiny_model import tiny_weights, write_tiny_model

LABELS = ["cat", "dog", "owl"]


@pytest.fixture
def base(tmp_path) -> str:
    return write_tiny_model(str(tmp_path / "base"))


def edit_config(directory: str, **changes) -> None:
    path = os.path.join(directory, "config.json")
    with open(path) as file:
        config = json.load(file)
    with open(path, "w") as file:
        json.dump({**config, **changes}, file)


def rewrite(directory: str, change) -> None:
    """Apply `change(weights) -> weights` to model.safetensors."""
    path = os.path.join(directory, "model.safetensors")
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def with_head(weights: dict, num_labels: int = 3, dim: int = 32) -> dict:
    shapes = DISTILBERT.head_shapes({"dim": dim}, num_labels)
    return weights | {name: np.full(shape, 0.25, np.float32) for name, shape in shapes.items()}


def test_loads_every_tensor_exactly(base):
    model = load_base(base)
    expected = load_file(os.path.join(base, "model.safetensors"))
    named = DISTILBERT.encoder_shapes(model.config)
    assert sorted(model.weights) == sorted(expected) == sorted(named)
    for name, array in expected.items():
        assert model.weights[name].dtype == np.float32
        np.testing.assert_array_equal(model.weights[name], array)
    assert set(model.tokenizer_files) == {
        "tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json",
    }  # fmt: skip
    assert model.config["qa_dropout"] == 0.1
    assert model.source == base
    assert model.notes == ()


def test_tensors_come_in_the_order_of_their_names(base):
    assert list(load_base(base).weights) == sorted(load_base(base).weights)


def test_tiny_model_is_the_same_bytes_every_time(base, tmp_path):
    other = write_tiny_model(str(tmp_path / "other"))
    for name in os.listdir(base):
        with open(os.path.join(base, name), "rb") as a, open(os.path.join(other, name), "rb") as b:
            assert a.read() == b.read(), name


def test_hash_depends_on_content_not_on_the_path(base, tmp_path):
    copy = str(tmp_path / "copy")
    shutil.copytree(base, copy)
    assert load_base(copy).hash == load_base(base).hash
    rewrite(copy, lambda w: w | {"distilbert.embeddings.LayerNorm.bias": np.ones(32, np.float32)})
    assert load_base(copy).hash != load_base(base).hash
    shutil.rmtree(copy)
    shutil.copytree(base, copy)
    edit_config(copy, activation="relu")
    assert load_base(copy).hash != load_base(base).hash


def test_names_without_prefix_and_gamma_beta_are_normalised(base):
    def old_names(weights):
        renamed = {}
        for name, array in weights.items():
            name = name.removeprefix("distilbert.")
            if "layer_norm" in name or "LayerNorm" in name:
                name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
            renamed[name] = array
        renamed["vocab_projector.bias"] = np.zeros(10, np.float32)
        renamed["embeddings.position_ids"] = np.arange(128)[None]
        return renamed

    expected = load_base(base).weights
    rewrite(base, old_names)
    model = load_base(base)
    assert sorted(model.weights) == sorted(expected)
    assert all(np.array_equal(model.weights[n], expected[n]) for n in expected)
    assert model.notes == ()


def test_foreign_tensors_are_named_in_a_note(base):
    rewrite(base, lambda w: w | {"projector.weight": np.zeros(3, np.float32)})
    (note,) = load_base(base).notes
    assert "projector.weight" in note


def test_sharded_weights(base):
    expected = load_base(base).weights
    names = sorted(expected)
    shards = {
        "model-00001-of-00002.safetensors": names[:7],
        "model-00002-of-00002.safetensors": names[7:],
    }
    for file_name, part in shards.items():
        save_file({n: expected[n] for n in part}, os.path.join(base, file_name))
    os.remove(os.path.join(base, "model.safetensors"))
    index = {"weight_map": {n: f for f, part in shards.items() for n in part}}
    with open(os.path.join(base, "model.safetensors.index.json"), "w") as file:
        json.dump(index, file)
    model = load_base(base)
    assert all(np.array_equal(model.weights[n], expected[n]) for n in expected)

    os.remove(os.path.join(base, "model-00002-of-00002.safetensors"))
    with pytest.raises(ModelError, match=r"no model-00002-of-00002\.safetensors"):
        load_base(base)


def test_index_cannot_lead_out_of_the_directory(base):
    os.rename(os.path.join(base, "model.safetensors"), os.path.join(base, "..", "x.safetensors"))
    with open(os.path.join(base, "model.safetensors.index.json"), "w") as file:
        json.dump({"weight_map": {"a": "../x.safetensors"}}, file)
    with pytest.raises(ModelError, match="outside the directory"):
        load_base(base)


@pytest.mark.parametrize("body", [[], {}, {"weight_map": {"a": 1}}, {"weight_map": 5}, "{"])
def test_a_damaged_index_is_named(base, body):
    os.remove(os.path.join(base, "model.safetensors"))
    with open(os.path.join(base, "model.safetensors.index.json"), "w") as file:
        file.write(body if isinstance(body, str) else json.dumps(body))
    with pytest.raises(ModelError, match="index of the weight shards") as caught:
        load_base(base)
    assert caught.value.where.endswith("model.safetensors.index.json")


def test_half_precision_becomes_float32(base):
    expected = load_base(base).weights
    rewrite(base, lambda w: {n: a.astype(np.float16) for n, a in w.items()})
    halves = load_base(base).weights
    for name, array in expected.items():
        assert halves[name].dtype == np.float32
        np.testing.assert_array_equal(halves[name], array.astype(np.float16).astype(np.float32))


def test_bfloat16_becomes_float32(base):
    expected = load_base(base).weights
    path = os.path.join(base, "model.safetensors")
    # numpy has no bfloat16: write the header and the upper halves of the float32 bits here.
    header, body, offset = {}, b"", 0
    for name, array in expected.items():
        data = (array.view(np.uint32) >> 16).astype("<u2").tobytes()
        header[name] = {
            "dtype": "BF16",
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(data)],
        }
        body, offset = body + data, offset + len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + body)
    for name, array in load_base(base).weights.items():
        np.testing.assert_allclose(array, expected[name], rtol=2**-7)


def test_classifier_is_kept_for_its_own_labels_only(base):
    rewrite(base, with_head)
    edit_config(base, id2label={str(i): n for i, n in enumerate(LABELS)})
    kept = load_base(base, label_names=LABELS)
    assert set(DISTILBERT.head_names) <= set(kept.weights)
    assert kept.notes == ()
    for labels in (["dog", "cat", "owl"], ["cat", "dog"]):
        dropped = load_base(base, label_names=labels)
        assert not set(DISTILBERT.head_names) & set(dropped.weights)
        assert "cat, dog, owl" in dropped.notes[0]
    assert not set(DISTILBERT.head_names) & set(load_base(base).weights)


def test_pickle_only_is_refused_with_a_remedy(base):
    os.remove(os.path.join(base, "model.safetensors"))
    for name in ("pytorch_model.bin", "tf_model.h5"):
        path = os.path.join(base, name)
        with open(path, "wb") as file:
            file.write(b"\x80\x04.")
        with pytest.raises(ModelError) as caught:
            load_base(base)
        os.remove(path)
        assert caught.value.got == name
        assert "safe_serialization" in caught.value.remedy
        assert ("from_tf=True" in caught.value.remedy) == (name == "tf_model.h5")


def test_no_weights_at_all(base):
    os.remove(os.path.join(base, "model.safetensors"))
    with pytest.raises(ModelError, match="no weights"):
        load_base(base)


def test_missing_directory(tmp_path):
    with pytest.raises(HowdahError) as caught:
        load_base(str(tmp_path / "nowhere"))
    assert caught.value.exit_code in (4, 5)
    assert "nowhere" in str(caught.value)


def test_other_architectures_are_refused(base):
    edit_config(base, model_type="albert")
    with pytest.raises(ModelError) as caught:
        load_base(base)
    assert caught.value.got == "model_type albert"


def test_missing_and_misshapen_tensors_are_named(base):
    name = "distilbert.transformer.layer.1.attention.q_lin.weight"
    rewrite(base, lambda w: w | {name: np.zeros((32, 31), np.float32)})
    with pytest.raises(ModelError, match="shapes") as caught:
        load_base(base)
    assert f"{name} (32, 31)" in caught.value.got
    rewrite(base, lambda w: {n: a for n, a in w.items() if n != name})
    with pytest.raises(ModelError, match=r"1 of 36 tensors are missing") as caught:
        load_base(base)
    assert caught.value.expected == name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layers": 1}, "more layers"),
        ({"n_heads": 5}, "divisible"),
        ({"dim": "32"}, "sizes"),
        ({"vocab_size": 50}, "shapes"),
    ],
)
def test_config_that_contradicts_the_weights(base, changes, message):
    edit_config(base, **changes)
    with pytest.raises(ModelError, match=message):
        load_base(base)


def test_truncated_weights(base):
    path = os.path.join(base, "model.safetensors")
    with open(path, "rb") as file:
        data = file.read()
    for cut in (len(data) - 1, 100, 3, 0):
        with open(path, "wb") as file:
            file.write(data[:cut])
        with pytest.raises(ModelError, match="safetensors") as caught:
            load_base(base)
        assert caught.value.where.endswith("model.safetensors")


def test_nan_weights(base):
    bad = np.full(32, np.nan, np.float32)
    rewrite(base, lambda w: w | {"distilbert.embeddings.LayerNorm.bias": bad})
    with pytest.raises(ModelError, match="NaN"):
        load_base(base)


def test_tokenizer_must_be_there_and_fit(base):
    os.remove(os.path.join(base, "tokenizer.json"))
    assert "vocab.txt" in load_base(base).tokenizer_files
    with open(os.path.join(base, "vocab.txt"), "a") as file:
        file.write("onemore\n")
    with pytest.raises(ModelError, match="without an embedding"):
        load_base(base)
    os.remove(os.path.join(base, "vocab.txt"))
    with pytest.raises(ModelError, match="no tokenizer"):
        load_base(base)


@pytest.mark.parametrize(("special", "refused"), [(False, True), (True, False)])
def test_a_token_that_was_added_has_an_embedding_unless_no_text_can_hold_it(base, special, refused):
    from tokenizers import AddedToken, Tokenizer

    path = os.path.join(base, "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    add = tokenizer.add_special_tokens if special else tokenizer.add_tokens
    assert add([AddedToken("onemore")]) == 1
    tokenizer.save(path)
    if refused:
        with pytest.raises(ModelError, match="without an embedding"):
            load_base(base)
    else:
        load_base(base)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("config.json", "[" * 100_000),
        ("tokenizer.json", "[" * 100_000),
        ("tokenizer.json", "[]"),
        ("tokenizer.json", '{"model": {"vocab": {"a": "x"}}}'),
        ("tokenizer.json", '{"model": {"vocab": {}}}'),
        ("tokenizer.json", '{"model": {"vocab": {"a": 1e999}}}'),
    ],
)
def test_damaged_files_of_a_model_are_named(base, name, body):
    with open(os.path.join(base, name), "w") as file:
        file.write(body)
    with pytest.raises(ModelError, match=f"^{name} is not") as caught:
        load_base(base)
    assert caught.value.where == os.path.join(base, name)


@pytest.mark.parametrize("rate", ["x", None, 1.0, -0.1])
def test_a_dropout_that_is_not_a_rate_is_refused(base, rate):
    edit_config(base, dropout=rate)
    config = load_base(base).config
    with pytest.raises(ModelError, match="not a rate") as caught:
        dropout_rates(config, ModelSection())
    assert caught.value.where == "config.json: dropout"
    assert dropout_rates(config, ModelSection(dropout=0.3)) == (0.3, 0.3, 0.3)


def test_a_rate_that_rounds_to_one_keeps_some_elements():
    least, factor = dropout_draw(0.999_999)
    assert least == 2**15 - 1 and factor == 2**16


def test_a_classifier_with_the_default_labels_of_transformers_has_labels(tmp_path):
    """transformers does not write labels that are its default."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(architectures=["BertForSequenceClassification"])
    written = json.loads(config.to_json_string())
    assert "id2label" not in written
    assert label_names_of(written) == [config.id2label[number] for number in range(2)]
    assert label_names_of(written | {"architectures": ["BertForMaskedLM"]}) is None
    assert label_names_of(written | {"id2label": {}}) is None


def test_base_on_another_storage(base):
    from howdah import storage

    remote = "memory://base-on-another-storage"
    storage.make_dirs(remote)
    for name in os.listdir(base):
        with open(os.path.join(base, name), "rb") as file:
            storage.write_whole(storage.join(remote, name), file.read())
    try:
        assert load_base(remote).hash == load_base(base).hash
    finally:
        storage.remove(remote, recursive=True)


@pytest.mark.full  # tests/training/model/test_families_* compare logits in every run
def test_same_forward_as_transformers_loading_the_directory(tiny_model_dir):
    """Names and layouts are those of transformers: from_pretrained gives the same tensors."""
    script = (
        "import sys, numpy as np\n"
        "from transformers import DistilBertModel\n"
        "from howdah.models.weights.pretrained import load_base\n"
        "model, info = DistilBertModel.from_pretrained(sys.argv[1], output_loading_info=True)\n"
        "assert not info['missing_keys'] and not info['unexpected_keys'], info\n"
        "ours = load_base(sys.argv[1]).weights\n"
        "theirs = {'distilbert.' + n: t.numpy() for n, t in model.state_dict().items()}\n"
        "assert sorted(ours) == sorted(theirs)\n"
        "assert all(np.array_equal(ours[n], theirs[n]) for n in ours)\n"
    )
    environment = os.environ | {"USE_TF": "0", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, tiny_model_dir],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def test_tiny_weights_differ_by_seed():
    config = {
        "dim": 8,
        "hidden_dim": 8,
        "n_layers": 1,
        "vocab_size": 4,
        "max_position_embeddings": 4,
    }
    name = "distilbert.embeddings.word_embeddings.weight"
    assert not np.array_equal(tiny_weights(config, 0)[name], tiny_weights(config, 1)[name])
