"""The loops as a user starts them: what they learn, write, refuse, freeze, and when they stop.

The fixed table: each test launches one framework; the other one in `make test-all`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file

from howdah import storage
from howdah.data.splits.planner import Planner, PlanSpec
from howdah.data.splits.shards import ShardSet
from howdah.models.profile.profile import reference_of
from howdah.models.weights.parameters import start_weights
from howdah.models.weights.pretrained import load_base
from howdah.serving.registry.gate import scalars
from tests.fixtures.dataset import build_dataset
from tests.runs.training_runs import NO_DROPOUT, NOISE, train
from tests.support.by_default import either
from tests.support.models.serving_contract import reference_logits
from tests.support.training import wandb_files


# --------------------------------------------------------------------------------- a whole run
@pytest.fixture(scope="module")
def learnable(tmp_path_factory, tiny_model_dir):
    path = str(tmp_path_factory.mktemp("learnable") / "v=1")
    rows = {"train": 768, "validation": 128, "test": 90}
    return build_dataset(path, model_dir=tiny_model_dir, rows=rows, seed=5)


@pytest.fixture(scope="module", params=either("torch"))
def half(request, tmp_path_factory, learnable, tiny_model_dir):
    """A short run in bf16, with two ranks."""
    return train(
        str(tmp_path_factory.mktemp("half") / "run"),
        dataset=learnable.path,
        base=tiny_model_dir,
        framework=request.param,
        np_=2,
        settings={
            "training.precision": "bf16",
            "training.global_batch_size": 32,
            "training.per_device_max_tokens": 2048,
            "training.learning_rate": 0.004,
            "evaluation.splits": ["validation", "test"],
            "tracking.wandb": "news",
        },
        env={"WANDB_MODE": "offline"},
    )


def test_rank_0_alone_writes_the_run_for_weights_and_biases(half):
    [run] = wandb_files.runs(os.path.join(half.directory, "wandb"))
    record = half.run_json()
    assert (run.id, run.exit_code, run.config["howdah"]["run_id"]) == (record["run_id"], 0, run.id)
    losses = [row["train/loss"] for row in run.history if "train/loss" in row]
    assert losses == pytest.approx(half.losses())
    assert run.summary["test/accuracy"] == record["metrics"]["test"]["accuracy"]
    with open(os.path.join(half.directory, "report.html"), encoding="utf-8") as page:
        assert run.summary["verdict"] == record["verdict"]["verdict"] in page.read()
    assert not list((run.path.parent / "files").iterdir())
    assert f"`wandb sync {run.path.parent}` sends it" in half.output


def test_the_metrics_of_the_end_are_those_of_the_model_as_it_is_served(half):
    record = half.run_json()
    for split in ("validation", "test"):
        done = subprocess.run(
            [sys.executable, "-m", "howdah.cli", "evaluate", "--json", "--split", split,
             "--config", os.path.join(half.directory, "given.yaml")],
            capture_output=True, text=True, check=True,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        served = json.loads(done.stdout)["metrics"]
        assert record["metrics"][split]["accuracy"] == served["accuracy"]
        # ... and all that a gate may ask for
        ours, theirs = (scalars(metrics) for metrics in (record["metrics"][split], served))
        assert ours == pytest.approx(theirs, abs=1e-6) and "ece" in ours


def test_run_json_says_what_the_run_was_made_of_and_what_it_used(half, learnable, tiny_model_dir):
    record = half.run_json()
    [attempt] = record["attempts"]
    assert attempt["usage"]["of"] == "all ranks" and attempt["usage"]["gpus"] == 0
    assert attempt["command"].startswith("python -m howdah.training --config")
    hours = record["hours"]
    assert hours["complete"] and hours["vcore"] is None
    assert hours["cpu"] == pytest.approx(attempt["usage"]["cpu_seconds"] / 3600, abs=1e-6)
    # two ranks have imported a framework and trained: more than a rank's own time
    assert attempt["usage"]["cpu_seconds"] > 2 and hours["wall"] > 0
    assert record["base"]["source"] == tiny_model_dir and record["source"]["kind"]
    with open(os.path.join(half.directory, "report.html"), encoding="utf-8") as page:
        assert "CPU hours" in page.read()


def test_the_export_has_a_profile_of_both_ranks_last_evaluation(half, learnable):
    profile = reference_of(os.path.join(half.directory, "export"))
    validation = half.run_json()["metrics"]["validation"]
    assert (profile.counts.rows, profile.reference.split) == (128, "validation")
    assert profile.reference.right == round(validation["accuracy"] * 128)
    estimate = profile.counts.calibrated_nano / 128 / 1e9
    assert estimate == pytest.approx(validation["accuracy"], abs=0.02)
    shards = ShardSet(learnable, "train")
    assert profile.counts.texts == shards.rows == 768
    assert profile.counts.ids == sum(int(lengths.sum()) for lengths in shards.lengths)
    ids = [shards.example(n, row).input_ids for n in range(len(shards.lengths))
           for row in range(len(shards.lengths[n]))]  # fmt: skip
    occurred = set(np.concatenate(ids).tolist())
    assert set(np.flatnonzero(profile.reference.known_tokens.bits).tolist()) == occurred
    assert profile.counts.unseen == 0 < profile.reference.unseen[0]
    assert profile.counts.tokens == profile.counts.ids - 2 * 768  # [CLS] and [SEP] of each


def test_the_logs_of_ranks_on_cpus_say_nothing_of_cuda_and_absl(half):
    for rank in (0, 1):
        with open(os.path.join(half.directory, "logs", f"rank.{rank}"), encoding="utf-8") as file:
            log = file.read()
        assert "step 10/10" in log
        # TensorFlow says this of processors without AVX-512, of the bf16 that is not used there.
        kept = [line for line in log.splitlines() if "oneDNN supports DT_BFLOAT16" not in line]
        noise = NOISE.search("\n".join(kept))
        assert noise is None, noise[0]


@pytest.mark.parametrize("framework", either("torch"))
def test_a_run_learns_and_leaves_what_it_promises(tmp_path, learnable, tiny_model_dir, framework):
    done = train(
        str(tmp_path / "run"),
        dataset=learnable.path,
        base=tiny_model_dir,
        framework=framework,
        settings={
            "training.max_steps": None,
            "training.num_train_epochs": 8.0,  # the last ones make the outcome sure
            "training.global_batch_size": 32,
            "training.per_device_max_tokens": 2048,
            "training.learning_rate": 0.004,
            "training.warmup_ratio": 0.1,
            "checkpoint.every_steps": None,
            "evaluation.splits": ["validation", "test"],
        },
    )
    run = done.run_json()
    assert run["status"] == "finished"
    assert run["steps"] == 8 * 24
    assert run["framework"] == framework
    for split, rows in (("validation", 128), ("test", 90)):
        metrics = run["metrics"][split]
        assert metrics["rows"] == rows
        assert metrics["accuracy"] > 0.8, done.output  # by chance: 0.25
    parts = [
        pq.read_table(os.path.join(done.directory, "predictions", split, "part-00000.parquet"))
        for split in ("validation", "test")
    ]
    assert [part.num_rows for part in parts] == [128, 90]
    test = parts[1].to_pydict()
    assert len(set(test["id"])) == 90
    right = sum(a == b for a, b in zip(test["label"], test["predicted"], strict=True))
    assert right / 90 == pytest.approx(run["metrics"]["test"]["accuracy"], abs=1e-6)
    assert set(test["run_id"]) == {run["run_id"]}
    # The export is the best checkpoint's weights, and they are what was evaluated.
    exported = load_file(os.path.join(done.directory, "export", "model.safetensors"))
    best = done.tensors(run["best_step"])
    assert all(np.array_equal(exported[name], best[f"model/{name}"]) for name in exported)
    config = storage.read_json(os.path.join(done.directory, "export", "config.json"))
    logits = reference_logits(exported, config, _first_row(learnable, "test"))
    labels = learnable.manifest.labels
    predicted = test["predicted"][test["id"].index("test-0")]
    assert labels[int(np.argmax(logits))] == predicted
    assert os.path.exists(os.path.join(done.directory, "report.html"))


def _first_row(dataset, split: str) -> np.ndarray:
    shards = ShardSet(dataset, split)
    example = shards.example(0, 0)
    assert example.id == f"{split}-0".encode()
    return example.input_ids


# ---------------------------------------------------------------------------------- the loss
@pytest.mark.parametrize("framework", either("torch"))
def test_the_loss_is_the_weighted_smoothed_one_over_the_global_batch(
    tmp_path, tiny_dataset, tiny_model_dir, framework
):
    settings = NO_DROPOUT | {
        "training.class_weights": {"plants": 2.5, "stars": 0.5},
        "training.label_smoothing_factor": 0.2,
        "training.max_steps": 1,
    }
    done = train(str(tmp_path), dataset=tiny_dataset.path, base=tiny_model_dir,
                 framework=framework, settings=settings)  # fmt: skip
    base = load_base(tiny_model_dir)
    weights = start_weights(base.config, base.weights, num_labels=4, seed=42)
    shards = ShardSet(tiny_dataset, "train")
    spec = PlanSpec(dataset_hash=tiny_dataset.manifest_hash, split="train", seed=42,
                    global_batch_size=12)  # fmt: skip
    rows = Planner(shards.lengths, spec).batch(0, 0)
    losses, says = [], []
    for shard, row in zip(rows.shard, rows.row, strict=True):
        example = shards.example(int(shard), int(row))
        logits = reference_logits(weights, base.config, example.input_ids)
        log_p = logits - np.log(np.exp(logits).sum())
        losses.append(-0.8 * log_p[example.label] - 0.2 * log_p.mean())
        says.append([1.0, 2.5, 1.0, 0.5][example.label])
    assert done.losses() == pytest.approx([np.average(losses, weights=says)], abs=1e-5)


# ------------------------------------------------------------------------------- frozen parts
@pytest.mark.parametrize("framework", either("torch"))
def test_frozen_parts_stay_and_the_rest_moves(tmp_path, tiny_dataset, tiny_model_dir, framework):
    settings = {"model.freeze_embeddings": True, "model.freeze_layers": 1}
    if framework == "torch":
        settings["training.gradient_checkpointing"] = True
    done = train(str(tmp_path), dataset=tiny_dataset.path, base=tiny_model_dir,
                 framework=framework, settings=settings)  # fmt: skip
    tensors, base = done.tensors(done.run_json()["best_step"]), load_base(tiny_model_dir)
    exported = load_file(os.path.join(done.directory, "export", "model.safetensors"))
    for name, before in base.weights.items():
        frozen = ".embeddings." in name or ".layer.0." in name
        assert np.array_equal(exported[name], before) is frozen, name
        # A checkpoint leaves out what is the base model's.
        assert (f"adam_m/{name}" in tensors) is (f"model/{name}" in tensors) is not frozen, name


@pytest.mark.full
def test_gradient_checkpointing_changes_nothing_but_memory(tmp_path, tiny_dataset, tiny_model_dir):
    plain, saving = (
        train(str(tmp_path / str(on)), dataset=tiny_dataset.path, base=tiny_model_dir,
              settings={"training.gradient_checkpointing": on})
        for on in (False, True)
    )  # fmt: skip
    np.testing.assert_allclose(saving.losses(), plain.losses(), atol=1e-6)


# --------------------------------------------------------------------------------- bf16
@pytest.mark.parametrize("framework", either("torch"))
def test_bf16_follows_fp32(tmp_path, tiny_dataset, tiny_model_dir, framework):
    done = [
        train(str(tmp_path / precision), dataset=tiny_dataset.path, base=tiny_model_dir,
              framework=framework, settings=NO_DROPOUT | {"training.precision": precision})
        for precision in ("fp32", "bf16")
    ]  # fmt: skip
    fp32, bf16 = (one.losses() for one in done)
    assert fp32 != bf16
    np.testing.assert_allclose(bf16, fp32, atol=0.03)
    assert all(array.dtype == np.float32 for array in done[1].tensors(10).values())


# ----------------------------------------------------------------------------------- the end
@pytest.mark.parametrize("framework", either("torch"))
def test_early_stopping_ends_a_run_and_exports_the_best(
    tmp_path, tiny_dataset, tiny_model_dir, framework
):
    settings = {
        "training.early_stopping": {"patience": 2},
        "training.learning_rate": 1e-30,  # no evaluation is better than the first one
        "evaluation.every_steps": 2,
        "evaluation.metric": "loss",
        "training.max_steps": 50,
    }
    done = train(str(tmp_path), dataset=tiny_dataset.path, base=tiny_model_dir,
                 framework=framework, settings=settings)  # fmt: skip
    run = done.run_json()
    assert (run["status"], run["steps"], run["stopped_early"]) == ("finished", 6, True)
    again = train(str(tmp_path), dataset=tiny_dataset.path, base=tiny_model_dir,
                  framework=framework, settings=settings)  # fmt: skip
    assert again.run_json()["steps"] == 6  # a run that is over stays so


@pytest.mark.mpi
@pytest.mark.parametrize("framework", either("torch"))
def test_nan_on_one_rank_stops_all_and_is_never_saved(
    tmp_path, tiny_dataset, tiny_model_dir, framework
):
    """A base whose embedding of one word overflows, a word that one rank meets at one step."""
    shards = ShardSet(tiny_dataset, "train")
    spec = PlanSpec(dataset_hash=tiny_dataset.manifest_hash, split="train", seed=42,
                    global_batch_size=12)  # fmt: skip
    planner = Planner(shards.lengths, spec)
    seen: dict[int, set[tuple[int, int]]] = {}  # word -> {(step, rank)}
    for step in range(planner.steps_per_epoch):
        for rank in range(2):
            rows = planner.rank_rows(0, step, rank, 2)
            for shard, row in zip(rows.shard, rows.row, strict=True):
                for word in set(shards.example(int(shard), int(row)).input_ids.tolist()):
                    seen.setdefault(word, set()).add((step, rank))
    word = next(w for w, at in sorted(seen.items()) if len(at) == 1 and min(at)[0] >= 5
                and min(at)[1] == 1)  # fmt: skip
    ((step, _),) = seen[word]
    base = str(tmp_path / "base")
    shutil.copytree(tiny_model_dir, base)
    weights = load_file(os.path.join(base, "model.safetensors"))
    row_D = weights["distilbert.embeddings.word_embeddings.weight"][word]
    row_D[:] = 3e38  # finite, as a base must be; its LayerNorm is not
    row_D[len(row_D) // 2 :] = -3e38
    save_file(weights, os.path.join(base, "model.safetensors"), metadata={"format": "pt"})
    done = train(
        str(tmp_path / "run"),
        dataset=tiny_dataset.path,
        base=base,
        framework=framework,
        np_=2,
        settings={"checkpoint.every_steps": 1},
        check=False,
    )
    assert done.returncode == 6, done.output
    assert "is not finite" in done.output
    assert "Traceback" not in done.output
    saved = sorted(os.listdir(os.path.join(done.directory, "checkpoints")))
    assert f"step-{step}" in saved and f"step-{step + 1}" not in saved
    assert done.run_json()["status"] == "failed"
