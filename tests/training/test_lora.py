"""Runs with adapters: the same in both frameworks and on two ranks, resumed, exported, refused.

So are runs with frozen layers, whose checkpoints leave out what is the base model's.
"""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file

from howdah.models.weights import lora
from howdah.models.weights.pretrained import load_base
from tests.runs.training_runs import NO_DROPOUT, Finished, howdah, train
from tests.support.by_default import either

LORA = NO_DROPOUT | {
    "training.lora.rank": 4,
    "training.lora.modules": ["query", "value", "outer"],
    "training.learning_rate": 0.02,
    "training.max_steps": 6,
    "checkpoint.every_steps": 1,
    "checkpoint.keep": 9,
    "evaluation.splits": ["validation", "test"],
}
FROZEN = {"model.freeze_embeddings": True, "model.freeze_layers": 1}
ADAPTED = ("q_lin.weight", "v_lin.weight", "lin2.weight")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny_dataset, tiny_model_dir):
    """(name, settings of `train`) -> the run, which is trained when it is first asked for."""
    place, runs = tmp_path_factory.mktemp("lora"), {}

    def run(name: str, settings: dict | None = None, **more) -> Finished:
        if name not in runs:
            runs[name] = train(str(place / name), dataset=tiny_dataset.path, base=tiny_model_dir,
                               settings=LORA | (settings or {}), **more)  # fmt: skip
        return runs[name]

    return run


@pytest.mark.parametrize(
    ("name", "more"),
    [
        pytest.param("tensorflow", {"framework": "tensorflow"}, marks=pytest.mark.full),
        pytest.param("ranks", {"np_": 2}, marks=pytest.mark.full),
        ("ranks-tensorflow", {"np_": 2, "framework": "tensorflow"}),
    ],
)
def test_both_frameworks_and_two_ranks_take_the_same_steps(runs, name, more):
    one, other = runs("torch"), runs(name, **more)
    assert one.losses()[-1] < one.losses()[0]
    assert other.losses() == pytest.approx(one.losses(), abs=2e-5)
    first, theirs = one.tensors(1), other.tensors(1)
    assert theirs.keys() == first.keys()
    for key, array in first.items():  # adam_m is a tenth of the gradient
        if key.startswith("adam_m/"):
            np.testing.assert_allclose(theirs[key], array, atol=1e-6, err_msg=key)


def test_a_checkpoint_has_the_adapters_and_the_classifier_alone(runs, tiny_model_dir):
    tensors, base = runs("torch").tensors(6), load_base(tiny_model_dir)
    named = {key.removeprefix("model/") for key in tensors if key.startswith("model/")}
    assert all(name.endswith((lora.A, lora.B)) or "classifier" in name for name in named)
    assert len(named) == 2 * 3 * base.config["n_layers"] + 4
    for moment in ("adam_m/", "adam_v/"):
        assert {key.removeprefix(moment) for key in tensors if key.startswith(moment)} == named


@pytest.mark.parametrize("framework", either("torch"))
def test_the_export_has_them_merged_and_is_what_was_evaluated(runs, tiny_model_dir, framework):
    done, base = runs(framework, framework=framework), load_base(tiny_model_dir)
    best = done.run_json()["best_step"]
    exported = load_file(os.path.join(done.directory, "export", "model.safetensors"))
    tensors = done.tensors(best)
    of_run = {key[6:]: array for key, array in tensors.items() if key.startswith("model/")}
    merged = lora.without_adapters(lora.merged(base.weights | of_run))
    assert exported.keys() == merged.keys()
    for name, array in exported.items():
        np.testing.assert_allclose(array, merged[name], atol=1e-6, err_msg=name)
        same = name in base.weights and np.array_equal(array, base.weights[name])
        assert same is not (name.endswith(ADAPTED) or "classifier" in name), name
    config = os.path.join(done.directory, "given.yaml")
    again = json.loads(howdah("evaluate", "--json", "--split", "test", "--config", config))
    theirs = done.run_json()["metrics"]["test"]["loss"]
    assert again["metrics"]["loss"] == pytest.approx(theirs, abs=1e-6)
    copy = os.path.join(done.directory, "again")
    howdah("export", "--config", config, "--checkpoint", done.checkpoint(best), "--output", copy)
    for name, array in load_file(os.path.join(copy, "model.safetensors")).items():
        np.testing.assert_allclose(array, exported[name], atol=1e-6, err_msg=name)


@pytest.mark.parametrize("framework", either("torch"))
def test_a_run_goes_on_bit_by_bit_and_from_the_other_framework_s_checkpoint(runs, framework):
    whole = runs(framework, framework=framework)
    for other in ("torch", "tensorflow"):
        start = runs(other, framework=other).checkpoint(3)
        resumed = runs(f"{framework}-of-{other}", {"checkpoint.resume": start}, framework=framework)
        assert len(resumed.losses()) == 3
        assert resumed.losses() == pytest.approx(whole.losses()[3:], abs=2e-5)
        if framework == other:
            for key, array in whole.tensors(6).items():
                np.testing.assert_array_equal(resumed.tensors(6)[key], array, err_msg=key)


@pytest.mark.parametrize(
    "changed",
    [
        {"training.lora.rank": 2},
        pytest.param({"training.lora.modules": ["query"]}, marks=pytest.mark.full),
        pytest.param({"training.lora.rank": None}, marks=pytest.mark.full),
    ],
)
def test_a_run_does_not_go_on_with_other_adapters(
    runs, tiny_dataset, tiny_model_dir, tmp_path, changed
):
    settings = LORA | {"checkpoint.resume": runs("torch").checkpoint(3)} | changed
    refused = train(str(tmp_path / "run"), dataset=tiny_dataset.path, base=tiny_model_dir,
                    settings=settings, check=False)  # fmt: skip
    assert refused.returncode != 0 and "another set of adapters" in refused.output
    assert "rank 4 on query, value, outer (the checkpoint's)" in refused.output
    assert "training.lora" in refused.output and "Traceback" not in refused.output


def test_a_run_with_adapters_begins_from_another_s_export(runs):
    before = os.path.join(runs("torch").directory, "export")
    done = runs("from", {"model.init_from": before, "training.max_steps": 2})
    exported = load_file(os.path.join(done.directory, "export", "model.safetensors"))
    began = load_file(os.path.join(before, "model.safetensors"))
    assert exported.keys() == began.keys()
    for name, array in exported.items():
        changed = name.endswith(ADAPTED) or "classifier" in name
        assert np.array_equal(array, began[name]) is not changed, name


@pytest.mark.parametrize("framework", either("torch"))
def test_what_was_frozen_and_is_trained_later_comes_from_the_base_again(
    tmp_path, tiny_dataset, tiny_model_dir, framework
):
    """The best checkpoint leaves it out, and the weights that the run ends with are others."""
    where, base = str(tmp_path / "run"), load_base(tiny_model_dir)
    settings = NO_DROPOUT | {"training.max_steps": 2, "evaluation.every_steps": 2,
                             "evaluation.metric": "loss"}  # fmt: skip
    more = {"dataset": tiny_dataset.path, "base": tiny_model_dir, "framework": framework}
    first = train(where, settings=settings | FROZEN, **more)
    assert "model/distilbert.transformer.layer.0.ffn.lin1.weight" not in first.tensors(2)
    # A learning rate that unlearns everything: step 2 stays the best.
    harm = {"training.max_steps": 4, "training.learning_rate": 0.9}
    done = train(where, settings=settings | harm, **more)
    assert done.run_json()["best_step"] == 2
    last = done.tensors(4)
    exported = load_file(os.path.join(where, "export", "model.safetensors"))
    for name, array in base.weights.items():
        frozen = ".embeddings." in name or ".layer.0." in name
        assert not np.array_equal(last[f"model/{name}"], array), name
        assert np.array_equal(exported[name], array) is frozen, name
