"""Accuracy on AG News: both frameworks against HF Trainer on the same rows, three seeds each.

AG_NEWS=path/to/ag_news_test.csv (X. Zhang, J. Zhao, Y. LeCun, NIPS 2015; class, title,
description, no header). Bar: means within one point. All train in the precision that
wins on the processor: fp32, or bf16 where it gains by that; HF Trainer groups rows by length.
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
from howdah.core.machine import cpu_gains_by_bf16
from tools import minilm

SEEDS = (1, 2, 3)
EPOCHS = 1
LEARNING_RATE = 1e-4


def settings(csv: str, folder: str, base: str) -> dict:
    """A configuration for AG News' CSV."""
    return {
        "data": {
            "source": csv,
            "format": "csv",
            "csv": {"header": False, "names": ["class", "title", "description"]},
            "columns": {"text": ["title", "description"], "label": "class"},
            "labels": {"1": "World", "2": "Sports", "3": "Business", "4": "Sci/Tech"},
            "clean": {"backslash_breaks": True},
            "dataset": f"{folder}/dataset",
            "split": {"validation": 0.0, "test": 0.13},
        },
        "model": {"base": base},
        "training": {
            "global_batch_size": 32,
            "num_train_epochs": EPOCHS,
            "learning_rate": LEARNING_RATE,
            "warmup_ratio": 0.1,
            "weight_decay": 0.01,
            "logging_steps": 50,
        },
        "evaluation": {"splits": ["test"], "metric": "accuracy"},
    }


def run(*arguments: str) -> None:
    """Run a module of Python; the bench ends if it fails."""
    done = subprocess.run([sys.executable, "-m", *arguments], stdout=sys.stderr)
    if done.returncode:
        raise SystemExit(f"{arguments[0]} ended with exit code {done.returncode}")


def _ours(folder: str, framework: str, seed: int) -> dict:
    directory = f"{folder}/{framework}-{seed}"
    run(
        "howdah.cli", "train", "--config", f"{folder}/run.yaml",
        "--set", f"run.directory={directory}", "--set", f"training.framework={framework}",
        "--set", f"training.seed={seed}",
    )  # fmt: skip
    with open(f"{directory}/run.json", encoding="utf-8") as file:
        result = json.load(file)
    return {"accuracy": result["metrics"]["test"]["accuracy"], "seconds": result["train_seconds"]}


def _peer(folder: str, dataset: str, base: str, seed: int) -> dict:
    out = f"{folder}/hf-{seed}.json"
    run(
        "bench.peers.hf_trainer", "--dataset", dataset, "--base", base, "--out", out,
        "--seed", str(seed), "--epochs", str(EPOCHS), "--learning-rate", str(LEARNING_RATE),
        *(["--bf16"] if cpu_gains_by_bf16() else []), "--group-by-length",
        "--threads", str(len(os.sched_getaffinity(0))),
    )  # fmt: skip
    with open(out, encoding="utf-8") as file:
        result = json.load(file)
    return {"accuracy": result["accuracy"], "seconds": result["train_seconds"]}


def main() -> None:
    """Peer and ours in turn for each seed."""
    csv = os.environ.get("AG_NEWS")
    if not csv or not os.path.exists(csv):
        print(f"accuracy: left out, AG_NEWS names no file (got {csv!r}): bench/benches/accuracy.py")
        return
    base, pretrained = minilm.base_model(lambda line: print(line, file=sys.stderr))
    runs_by_system: dict[str, list[dict]] = {"HF Trainer": [], "torch": [], "tensorflow": []}
    with tempfile.TemporaryDirectory() as folder:
        checked = loader.from_dict(settings(os.path.abspath(csv), folder, base))
        with open(f"{folder}/run.yaml", "w", encoding="utf-8") as file:
            file.write(loader.dump_yaml(checked))
        run("howdah.cli", "etl", "--config", f"{folder}/run.yaml")
        for seed in SEEDS:
            runs_by_system["HF Trainer"].append(_peer(folder, f"{folder}/dataset", base, seed))
            for framework in ("torch", "tensorflow"):
                runs_by_system[framework].append(_ours(folder, framework, seed))
            print({name: runs[-1] for name, runs in runs_by_system.items()}, file=sys.stderr)
    peer = [100 * one["accuracy"] for one in runs_by_system["HF Trainer"]]
    rows = [
        harness.Row(
            what=f"AG News accuracy, {name}",
            unit="%",
            peer="HF Trainer (group_by_length)",
            peer_values=peer,
            our_values=[100 * one["accuracy"] for one in runs_by_system[name]],
            bar="means within 1 point",
            notes={"seconds": [one["seconds"] for one in runs_by_system[name]]},
        )
        for name in ("torch", "tensorflow")
    ]
    harness.report("accuracy", rows, pretrained=pretrained, runs=runs_by_system)
    for name, runs in runs_by_system.items():
        values = [100 * one["accuracy"] for one in runs]
        each = ", ".join(f"{value:.2f}" for value in values)
        print(f"{name:<12} mean {statistics.mean(values):.2f}  per seed {each}")


if __name__ == "__main__":
    main()
