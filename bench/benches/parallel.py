"""Memory of a rank and time of a step: the state whole, divided in each way, and DeepSpeed's.

np=2 under torchrun, fp32, DistilBERT's architecture with random weights. BENCH_SIZE: base (67 M
weights) or large (24 layers of width 1,024, as BERT-large: 335 M). BENCH_LAYOUTS: names of rows,
separated by commas; all without it. Memory is what no file backs (RssAnon), sampled from outside
every 20 ms. In theory a rank saves what training/planning/rank_state.py computes: AdamW's state is
8 bytes a weight, weights and gradients 8 more; of what is divided a rank of N saves all but 1/N,
less the largest module that `full` gathers for a moment.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import yaml

from bench.benches.memory import write_base, write_dataset
from bench.data import LABELS
from bench.harness import Rounds, report
from bench.processes import Sampler
from howdah.config.model import ModelSection
from howdah.config.training import ParallelSection
from howdah.data.family import DISTILBERT
from howdah.models.runs.metrics_log import read_metrics
from howdah.training.planning.rank_state import rank_state

ROOT = Path(__file__).resolve().parents[2]
SIZE = os.environ.get("BENCH_SIZE", "base")
RANKS = 2
ROWS, LENGTH = {"base": (16, 64), "large": (4, 32)}[SIZE]
"""Of a step. What divides the model divides no activations: large has few of them, since a core
computes its step of 1,024 tokens for minutes."""
SAVED, STEPS, MORE = 8, 10, 12
"""A checkpoint after step 8, the run's end after 10; a second start goes on to 12."""
LAYOUTS: dict[str, dict] = {
    "whole": {"shard": "none"},
    "optimizer": {"shard": "optimizer"},
    "full": {"shard": "full"},
}
STAGES = {"DeepSpeed stage 0": 0, "DeepSpeed ZeRO-1": 1, "DeepSpeed ZeRO-2": 2}
_ENV = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def settings(folder: str, base: str, dataset: str, parallel: dict) -> dict:
    """The run's configuration."""
    return {
        "run": {"name": "parallel", "directory": folder},
        "data": {"dataset": dataset, "max_length": LENGTH},
        "model": {"base": base},
        "training": {
            "framework": "torch", "precision": "fp32", "global_batch_size": ROWS,
            "per_device_max_tokens": ROWS * LENGTH, "num_train_epochs": 1000,
            "threads_per_rank": 1, "logging_steps": 1, "parallel": parallel,
        },
        "checkpoint": {"every_steps": SAVED, "every_epoch": False},
        "evaluation": {"splits": [], "every_steps": 1000},
        "tracking": {"tensorboard": False},
    }  # fmt: skip


def _launch(directory: str, config: dict, steps: int) -> list[tuple[float, dict[int, int]]]:
    """Train up to `steps`; the samples."""
    config["training"]["max_steps"] = steps
    os.makedirs(directory, exist_ok=True)
    path = f"{directory}/given.yaml"
    Path(path).write_text(yaml.safe_dump(config), encoding="utf-8")
    sampler = Sampler(lambda: _ranks(directory)).start()
    done = subprocess.run(
        [sys.executable, "-m", "howdah.cli", "train", "--config", path, "--np", str(RANKS),
         "--set", "training.comm=torch"],
        env=os.environ | _ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    samples = sampler.stop()
    if done.returncode:
        raise RuntimeError(done.stdout[-4000:])
    return samples


def _ranks(directory: str) -> dict[int, int]:
    """{rank: its process}, as the job's driver knows them by now."""
    try:
        status = json.loads(Path(directory, "job", "status.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {one["rank"]: one["pid"] for one in status["ranks"] if one["pid"]}


def measure(base: str, dataset: str, layout: str) -> dict:
    """One run and its second start: peaks in bytes by rank, and milliseconds."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(base)) as directory:
        config = settings(directory, base, dataset, LAYOUTS[layout])
        samples = _launch(directory, config, STEPS)
        at = {line["step"]: line["time"] for line in read_metrics(directory) if "split" not in line}
        again = _launch(directory, config, MORE)
        later = {
            line["step"]: line["time"] for line in read_metrics(directory) if "split" not in line
        }
    steps = [at[number + 1] - at[number] for number in range(1, SAVED)]
    median = statistics.median(steps)
    return {
        "step_ms": 1000 * median,
        # The line of step 8 is written before its checkpoint.
        "save_ms": 1000 * (at[SAVED + 1] - at[SAVED] - median),
        "loading": _peaks(samples, 0, at[1]),
        "steps": _peaks(samples, at[1], at[SAVED]),
        "run": _peaks(samples, 0, float("inf")),
        "resuming": _peaks(again, 0, later[STEPS + 1]),
    }


def _peaks(samples: list[tuple[float, dict[int, int]]], begin: float, end: float) -> list[int]:
    within = [sizes for at, sizes in samples if begin <= at <= end]
    return [max(sizes.get(rank, 0) for sizes in within) for rank in range(RANKS)]


def measure_peer(base: str, dataset: str, stage: int) -> dict:
    """The peer's steps."""
    # A build of DeepSpeed's that was killed leaves a lock in torch's own directory of extensions,
    # for which every later start waits without end.
    extensions = os.path.join(os.path.dirname(base), "extensions")
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS),
             "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
             "--local-addr", "127.0.0.1", "-m", "bench.peers.deepspeed_zero",
             "--stage", str(stage), "--base", base, "--dataset", dataset,
             "--batch", str(ROWS), "--steps", str(SAVED)],
            env=os.environ | _ENV | {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo",
                                     "USE_TF": "0", "TRITON_CACHE_DIR": home,
                                     "TORCH_EXTENSIONS_DIR": extensions},
            capture_output=True, text=True,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank"')]
    ranks.sort(key=lambda one: one["rank"])
    seconds = [step for one in ranks for step in one["seconds"][1:]]
    return {
        "step_ms": 1000 * statistics.median(seconds),
        "steps": [one["anon"] for one in ranks],
    }


def theoretical(shape: dict) -> tuple[int, dict[str, int]]:
    """(bytes of a rank's whole state, bytes that a rank saves by each layout or stage)."""
    states = {
        name: rank_state(shape, LABELS, ModelSection(), ParallelSection(**layout), RANKS)
        for name, layout in LAYOUTS.items()
    }
    whole = sum(states["whole"].values())
    saved = {name: whole - sum(sizes.values()) for name, sizes in states.items()}
    saved["DeepSpeed ZeRO-1"] = saved["optimizer"]
    divided_gradients = states["whole"]["gradients"] * (RANKS - 1) // RANKS
    saved["DeepSpeed ZeRO-2"] = saved["optimizer"] + divided_gradients
    return whole, saved


def _mib(values: list[int] | None) -> str:
    return "" if values is None else " / ".join(f"{value / 2**20:,.0f}" for value in values)


def main() -> None:
    """Measure all layouts in turn; print the table."""
    rounds = int(os.environ.get("BENCH_ROUNDS", "1"))
    kept = Rounds(
        "parallel", sources=["training", "bench/benches/parallel.py", "bench/peers"], size=SIZE
    )
    runs_of: dict[str, list[dict]] = {}
    with tempfile.TemporaryDirectory() as folder:
        base = write_base(f"{folder}/{SIZE}", SIZE)
        dataset = write_dataset(f"{folder}/data", base, LENGTH)
        shape = json.loads(Path(base, "config.json").read_text(encoding="utf-8"))
        weights = DISTILBERT.parameters(shape, LABELS)
        runs = {name: partial(measure, base, dataset, name) for name in LAYOUTS}
        runs |= {
            name: partial(measure_peer, base, dataset, stage) for name, stage in STAGES.items()
        }
        chosen = os.environ.get("BENCH_LAYOUTS", ",".join(runs)).split(",")
        for number in range(1, rounds + 1):
            for name, run in ((name, runs[name]) for name in chosen):
                runs_of[name] = kept.up_to(number, name, run)
    whole, theory = theoretical(shape)
    print(f"\n{SIZE}: {weights / 1e6:,.1f} M weights, {whole / 2**20:,.0f} MiB a rank\n")
    print("MiB of ranks 0 / 1 | loading | steps | whole run | resuming | ms a step | ms for a save")
    for name, values in runs_of.items():
        cells = [_mib(_median(values, key)) for key in ("loading", "steps", "run", "resuming")]
        times = [_median(values, key) for key in ("step_ms", "save_ms")]
        cells += ["" if time is None else f"{time:,.0f}" for time in times]
        print(" | ".join([name, *cells]))
    undivided = dict.fromkeys(LAYOUTS, "whole") | dict.fromkeys(STAGES, next(iter(STAGES)))
    for name in runs_of:
        one = undivided[name]
        if name == one or one not in runs_of:
            continue
        pairs = zip(_median(runs_of[one], "steps"), _median(runs_of[name], "steps"), strict=True)
        shares = " / ".join(f"{(a - b) / theory[name]:.2f}" for a, b in pairs)
        print(
            f"{name} saves {shares} of {theory[name] / 2**20:,.0f} MiB in theory"
            f" against {one} (bar for ours: 0.9)"
        )
    report("parallel", [], size=SIZE, weights=weights, theory=theory, found=runs_of)


def _median(values: list[dict], key: str) -> list[int] | float | None:
    if key not in values[0]:
        return None
    if isinstance(values[0][key], list):
        return [
            int(statistics.median(ranks)) for ranks in zip(*(v[key] for v in values), strict=True)
        ]
    return statistics.median(value[key] for value in values)


if __name__ == "__main__":
    main()
