"""What compressed gradients and LoRA cost in accuracy: two ranks of PyTorch, each seed and text.

All modes of a seed begin with the same weights and see the same rows in the same order. LoRA has
ten times the learning rate (docs/decisions/lora.md). Texts: AG News (AG_NEWS=path of the CSV:
class, title, description, no header) and docstrings with their package. Bar: the means of each mode
within the noise of the seeds, which the table shows as the range of float32.

BENCH_STEPS (100 of 32 rows), BENCH_SEEDS ("1 2 3"), BENCH_TEXTS ("ag-news docstrings"), BENCH_MODES
("none bf16 int8 lora"). A run is kept as it ends, and the bench that is run again goes on.
"""

from __future__ import annotations

import csv
import json
import os
import statistics
import sys
from functools import partial
from pathlib import Path

from bench import harness
from bench.benches import accuracy
from howdah.config import loader
from tools import minilm
from tools.demo import corpus

STEPS = int(os.environ.get("BENCH_STEPS", "100"))
SEEDS = [int(seed) for seed in os.environ.get("BENCH_SEEDS", "1 2 3").split()]
TEXTS = os.environ.get("BENCH_TEXTS", "ag-news docstrings").split()
MODES = {
    "none": {"training.learning_rate": 2e-4},
    "bf16": {"training.learning_rate": 2e-4, "training.gradient_compression": "bf16"},
    "int8": {"training.learning_rate": 2e-4, "training.gradient_compression": "int8"},
    "lora": {"training.learning_rate": 2e-3, "training.lora.rank": 8},
}
CHOSEN = os.environ.get("BENCH_MODES", " ".join(MODES)).split()
PACKAGES = 8
SOURCES = ("training", "bench/benches/compression")
_WORK = Path(__file__).parents[3] / "build" / "bench-compression"


def main() -> None:
    """Every text, seed and mode."""
    base, pretrained = minilm.base_model(lambda line: print(line, file=sys.stderr))
    journal = harness.Rounds("compression", sources=SOURCES, steps=STEPS, base=base)
    scores: dict[str, dict[str, list[float]]] = {}
    for text in TEXTS:
        if text == "ag-news" and not os.path.exists(os.environ.get("AG_NEWS", "")):
            print("compression: no AG News, AG_NEWS names no file")
            continue
        config = _dataset(text, base)
        scores[text] = {mode: [] for mode in CHOSEN}
        for seed in SEEDS:
            for mode in CHOSEN:
                run = partial(_run_of, config, mode, seed)
                (one,) = journal.up_to(1, f"{text}, {mode}, seed {seed}", run)
                scores[text][mode].append(100 * one["accuracy"])
        print(f"\n| {text} | mean | {' | '.join(f'seed {seed}' for seed in SEEDS)} |")
        print("|---|--:|" + "--:|" * len(SEEDS))
        for mode, values in scores[text].items():
            each = " | ".join(f"{value:.2f}" for value in values)
            print(f"| {mode} | {statistics.mean(values):.2f} | {each} |", flush=True)
    harness.report("compression", [], pretrained=pretrained, steps=STEPS, scores=scores)


def _dataset(text: str, base: str) -> str:
    """The path of the configuration; the dataset is made unless it is there."""
    folder = _WORK / text
    folder.mkdir(parents=True, exist_ok=True)
    settings = accuracy.settings(os.environ.get("AG_NEWS", ""), str(folder), base)
    if text == "docstrings":
        source = folder / "docstrings.csv"
        if not source.exists():
            _write_docstrings(source)
        settings["data"] |= {
            "source": str(source), "csv": {}, "columns": {"text": "text", "label": "label"},
            "labels": None, "clean": {},
        }  # fmt: skip
    settings["data"]["split"] = {"validation": 0.0, "test": 0.3}
    path = folder / "run.yaml"
    path.write_text(loader.dump_yaml(loader.from_dict(settings)), encoding="utf-8")
    accuracy.run("howdah.cli", "etl", "--config", str(path))
    return str(path)


def _write_docstrings(path: Path) -> None:
    rows = [(text, label) for _, text, label in corpus.corpus(corpus.PACKAGES[:PACKAGES])]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        writer.writerows(row for row in rows if len(row[0]) >= 20)


def _run_of(config: str, mode: str, seed: int) -> dict:
    """{accuracy, seconds} of a run."""
    directory = f"{os.path.dirname(config)}/{mode}-{seed}"
    changes = MODES[mode] | {
        "run.directory": directory, "training.seed": seed, "training.max_steps": STEPS,
        "training.framework": "torch", "training.comm": "torch", "checkpoint.resume": "never",
    }  # fmt: skip
    words = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    accuracy.run("howdah.cli", "train", "--np", "2", "--config", config, *words)
    run = json.loads(Path(f"{directory}/run.json").read_text())
    return {"accuracy": run["metrics"]["test"]["accuracy"], "seconds": run["train_seconds"]}
