"""Pairs of texts and several labels on real text: both frameworks of ours beside HF Trainer.

Pairs: does a description belong to a title (AG News; without it docstrings). Several labels:
docstrings with their package, what they describe, and whether they have examples. The same rows,
ids, base (MiniLM), schedule and steps for all, and for each seed the same new classifier, HF
Trainer's: from another one the Trainer itself ends three points lower. Pairs are grouped by length,
by ours and by HF Trainer (group_by_length). Several labels are not, by either: these labels go with
the length, so a batch of one length has few of them, and both learn less by far. Bar: means over
the seeds within one point of accuracy, or of micro F1.

One part is a run of one system with one seed. Each is kept as it ends
(bench/results/tasks.rounds.jsonl), and a bench that is run again goes on with the next.

AG_NEWS (path of the CSV: class, title, description, no header), BENCH_TASKS ("pairs tags"),
BENCH_STEPS (each task's own), BENCH_SEEDS ("1 2 3"), BENCH_ROWS (7000), BENCH_PARTS (parts to run
now; all).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

from bench import harness
from bench.benches.tasks import rows
from bench.benches.tasks.rows import PAIRS, TAGS
from howdah.config import loader
from howdah.core.machine import cpu_gains_by_bf16
from tools import minilm

SEEDS = [int(seed) for seed in os.environ.get("BENCH_SEEDS", "1 2 3").split()]
ROWS = int(os.environ.get("BENCH_ROWS", "7000"))
PARTS = int(os.environ.get("BENCH_PARTS", "1000"))
WANTED = os.environ.get("BENCH_TASKS", f"{PAIRS} {TAGS}").split()
BATCH = 32


@dataclasses.dataclass(frozen=True)
class Plan:
    """What all systems do alike for a task."""

    metric: str
    steps: int
    learning_rate: float
    max_length: int
    grouped: bool
    """Batches are of rows of like length."""


PLANS = {
    PAIRS: Plan("accuracy", 200, 1e-4, 128, grouped=True),
    # 14 labels: after 600 steps of 48 tokens the loss still fell with all systems.
    TAGS: Plan("micro_f1", 1200, 2e-4, 24, grouped=False),
}
if "BENCH_STEPS" in os.environ:
    for task in PLANS:
        PLANS[task] = dataclasses.replace(PLANS[task], steps=int(os.environ["BENCH_STEPS"]))
SYSTEMS = ("HF Trainer", "torch", "tensorflow")
SOURCES = ("training", "bench/benches/tasks", "bench/peers/hf_trainer.py")
_WORK = Path(__file__).parents[3] / "build" / "bench-tasks"


def main() -> None:
    """Peer and ours in turn for each seed, or as much as BENCH_PARTS allows."""
    base, pretrained = minilm.base_model(lambda line: print(line, file=sys.stderr))
    ag_news = os.environ.get("AG_NEWS")
    journal = harness.Rounds(
        "tasks", sources=SOURCES, plans=repr(PLANS), rows=ROWS, articles=bool(ag_news), base=base
    )
    budget = harness.Budget(PARTS)
    rows = []
    for task in WANTED:
        folder = _folder(task, ag_news)
        runs: dict[str, list[dict]] = {name: [] for name in SYSTEMS}
        for seed in SEEDS:
            for name in SYSTEMS:
                run = partial(_run_of, name, seed, folder, task, base, ag_news)
                runs[name] += journal.up_to(1, f"{task}, {name}, seed {seed}", run, budget)
        rows += _rows(task, runs)
    if budget.over:
        print("parts are left: run the bench again")
    harness.report(
        "tasks", rows, pretrained=pretrained, plans=repr(PLANS), complete=not budget.over
    )


def _rows(task: str, runs: dict[str, list[dict]]) -> list[harness.Row]:
    metric, scores = PLANS[task].metric, {}
    for name, values in runs.items():
        scores[name] = [100 * one["score"] for one in values]
        each = ", ".join(f"{value:.2f}" for value in scores[name])
        mean = f"{statistics.mean(scores[name]):.2f}" if scores[name] else "none"
        print(f"{task}, {metric}, {name}: mean {mean}; per seed {each}", flush=True)
    return [
        harness.Row(
            what=f"{task}, {metric}, {name}", unit="%", peer="HF Trainer",
            peer_values=scores["HF Trainer"], our_values=scores[name], bar="means within 1 point",
            notes={"seconds": [one["seconds"] for one in runs[name]]},
        )
        for name in SYSTEMS[1:]
        if scores[name] and scores["HF Trainer"]
    ]  # fmt: skip


def _folder(task: str, ag_news: str | None) -> str:
    """Where a task's rows and dataset are, by what they are made of."""
    made = [task, ROWS, PLANS[task].max_length, ag_news if task == PAIRS else None]
    return str(_WORK / f"{task}-{hashlib.sha256(repr(made).encode()).hexdigest()[:8]}")


def _settings(folder: str, task: str, base: str) -> dict:
    columns = {"id": "id", "label": "label", "text": "text"}
    plan = PLANS[task]
    return {
        "data": {
            "source": f"{folder}/rows.jsonl",
            "columns": {**columns, "text_pair": "second"} if task == PAIRS else columns,
            "task": "single_label" if task == PAIRS else "multi_label",
            "dataset": f"{folder}/dataset",
            "split": {"validation": 0.0, "test": 0.2},
            "max_length": plan.max_length,
        },
        "model": {"base": base},
        "training": {
            "global_batch_size": BATCH, "max_steps": plan.steps,
            "learning_rate": plan.learning_rate,
            "warmup_ratio": 0.1, "weight_decay": 0.01, "logging_steps": 50,
            **({} if plan.grouped else {"length_window": 1}),
        },
        "evaluation": {"splits": ["test"], "metric": plan.metric},
        "checkpoint": {"every_minutes": None, "every_epoch": False},
        "tracking": {"tensorboard": False},
    }  # fmt: skip


def _dataset(folder: str, task: str, base: str, ag_news: str | None) -> str:
    """The configuration's path; the dataset is made unless it is there."""
    os.makedirs(folder, exist_ok=True)
    if not os.path.exists(f"{folder}/rows.jsonl"):
        rows.write(f"{folder}/part", task, ROWS, ag_news)
        os.rename(f"{folder}/part", f"{folder}/rows.jsonl")
    config = f"{folder}/run.yaml"
    checked = loader.from_dict(_settings(folder, task, base))
    Path(config).write_text(loader.dump_yaml(checked), encoding="utf-8")
    _command("howdah.cli", "etl", "--config", config)
    return config


def _run_of(name: str, seed: int, folder: str, task: str, base: str, ag_news: str | None) -> dict:
    """{score, seconds} of one run."""
    config = _dataset(folder, task, base, ag_news)
    plan = PLANS[task]
    out = f"{folder}/{name.replace(' ', '-')}-{seed}-{plan.steps}"
    if name == "HF Trainer":
        _command(
            "bench.peers.hf_trainer", "--dataset", f"{folder}/dataset", "--base", base,
            "--out", f"{out}.json", "--seed", str(seed), "--max-steps", str(plan.steps),
            "--learning-rate", str(plan.learning_rate),
            *(["--group-by-length"] if plan.grouped else []),
            *(["--bf16"] if cpu_gains_by_bf16() else []),
            "--threads", str(len(os.sched_getaffinity(0))),
        )  # fmt: skip
        result = json.loads(Path(f"{out}.json").read_text())
        return {"score": result[plan.metric], "seconds": result["train_seconds"]}
    start = _start(folder, seed, base)
    _command(
        "howdah.cli", "train", "--config", config, "--set", "checkpoint.resume=never",
        "--set", f"run.directory={out}", "--set", f"training.framework={name}",
        "--set", f"training.seed={seed}", "--set", f"model.base={start}",
    )  # fmt: skip
    run = json.loads(Path(f"{out}/run.json").read_text())
    return {"score": run["metrics"]["test"][plan.metric], "seconds": run["train_seconds"]}


def _start(folder: str, seed: int, base: str) -> str:
    """The base with HF Trainer's new classifier of this seed, as a base model."""
    start = f"{folder}/start-{seed}"
    if not os.path.exists(start):
        shutil.rmtree(f"{start}-part", ignore_errors=True)
        _command(
            "bench.peers.hf_trainer", "--dataset", f"{folder}/dataset", "--base", base,
            "--seed", str(seed), "--start-only", f"{start}-part",
        )  # fmt: skip
        os.rename(f"{start}-part", start)
    return start


def _command(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", *arguments], stdout=sys.stderr)
    if done.returncode:
        raise SystemExit(f"{arguments[0]} ended with exit code {done.returncode}")
