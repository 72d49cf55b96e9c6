"""A vision transformer from random weights on scikit-learn's digits: ours against HF Trainer on the
same rows, weights and steps, three seeds each.

Bars: mean accuracy within one point, and no slower a step. fp32, one process, all cores.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile

from bench import harness
from howdah.config import loader
from tools.demo import images

SEEDS = (1, 2, 3)
EPOCHS = float(os.environ.get("BENCH_EPOCHS", "20"))
LEARNING_RATE = 1e-3
BATCH = 64


def _settings(folder: str) -> dict:
    return {
        "data": {
            "kind": "image",
            "source": f"{folder}/digits",
            "dataset": f"{folder}/dataset",
            "split": {"validation": 0.0, "test": 0.2},
            "spark": {"driver_memory": "1g"},
        },
        "model": {"base": f"{folder}/vit"},
        "training": {
            "framework": "torch",
            "precision": "fp32",
            "global_batch_size": BATCH,
            "num_train_epochs": EPOCHS,
            "learning_rate": LEARNING_RATE,
            "warmup_ratio": 0.1,
            "weight_decay": 0.01,
            "logging_steps": 50,
        },
        "evaluation": {"splits": ["test"], "metric": "accuracy"},
    }


def _run(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", *arguments], stdout=sys.stderr)
    if done.returncode:
        raise SystemExit(f"{arguments[0]} ended with exit code {done.returncode}")


def _ours(folder: str, seed: int) -> dict:
    directory = f"{folder}/run-{seed}"
    _run(
        "howdah.cli", "train", "--config", f"{folder}/run.yaml",
        "--set", f"run.directory={directory}", "--set", f"training.seed={seed}",
    )  # fmt: skip
    with open(f"{directory}/run.json", encoding="utf-8") as file:
        run = json.load(file)
    return {
        "accuracy": run["metrics"]["test"]["accuracy"],
        "steps": run["steps"],
        "train_seconds": run["train_seconds"],
    }


def _peer(folder: str, seed: int) -> dict:
    out = f"{folder}/hf-{seed}.json"
    _run(
        "bench.peers.hf_vision", "--dataset", f"{folder}/dataset", "--base", f"{folder}/vit",
        "--out", out, "--seed", str(seed), "--epochs", str(EPOCHS), "--batch", str(BATCH),
        "--learning-rate", str(LEARNING_RATE), "--threads", str(len(os.sched_getaffinity(0))),
    )  # fmt: skip
    with open(out, encoding="utf-8") as file:
        return json.load(file)


def main() -> None:
    """Peer and ours in turn for each seed."""
    ways = {"HF Trainer": _peer, "ours": _ours}
    runs_by_way: dict[str, list[dict]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        images.write_folder(f"{folder}/digits", images.digits())
        images.write_vit(f"{folder}/vit", side=16, patch=4, width=64, layers=4)
        with open(f"{folder}/run.yaml", "w", encoding="utf-8") as file:
            file.write(loader.dump_yaml(loader.from_dict(_settings(folder))))
        _run("howdah.cli", "etl", "--config", f"{folder}/run.yaml")
        for seed in SEEDS:
            for name, way in ways.items():
                runs_by_way[name].append(way(folder, seed))
                print(f"{name}, seed {seed}: {runs_by_way[name][-1]}", flush=True)
    values = {
        name: (
            [100 * run["accuracy"] for run in runs],
            [1000 * run["train_seconds"] / run["steps"] for run in runs],
        )
        for name, runs in runs_by_way.items()
    }
    rows = [
        harness.Row(
            what=what, unit=unit, peer="HF Trainer", bar=bar, lower_is_better=unit == "ms",
            peer_values=values["HF Trainer"][at], our_values=values["ours"][at],
        )
        for at, (what, unit, bar) in enumerate(
            (
                ("ViT on digits, accuracy", "%", "means within 1 point"),
                ("ViT on digits, a step", "ms", "no slower"),
            )
        )
    ]  # fmt: skip
    harness.report("vision", rows, runs=runs_by_way)
    for name, (accuracies, steps) in values.items():
        each = ", ".join(f"{value:.2f}" for value in accuracies)
        print(f"{name:<12} mean {statistics.mean(accuracies):.2f}  per seed {each}", end="")
        print(f"  {statistics.median(steps):.1f} ms a step")


if __name__ == "__main__":
    main()
