"""Training steps in one process and at np=2, each beside its peer; the MiniLM size, fp32 or auto.

One process: HF Trainer as it comes (padded to max_length 128) and with group_by_length; a plain
tf.function loop padded to the maximum. np=2: what gradient synchronisation adds to a step (np=2
less np=1 at half the batch), against DDP over gloo. Rows have log-normal lengths; the first steps
are not counted. BENCH_STEPS and BENCH_ROUNDS set the length (108 and 1): group_by_length sorts each
50 batches, so that only a multiple of 50 timed steps has its mix of lengths.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile

from bench import harness
from bench.data import write_dataset
from howdah import config
from howdah.encode import Encoder
from tools import minilm
from training.prepare import cpu_gains_by_bf16

STEPS = int(os.environ.get("BENCH_STEPS", "108"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "1"))
WARM, BATCH = 8, 32
CORES = len(os.sched_getaffinity(0))


def _child(module: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *words], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def _rate(seconds: list[float]) -> float:
    """Examples a second after the first steps."""
    return BATCH * len(seconds[WARM:]) / sum(seconds[WARM:])


def _ours(
    folder: str, base: str, framework: str, np: int, launcher: str, batch: int
) -> list[float]:
    """Seconds of each step of a run of ours."""
    directory = tempfile.mkdtemp(dir=folder)
    settings = {
        "run": {"name": "bench", "directory": directory},
        "data": {"dataset": f"{folder}/data"},
        "model": {"base": base},
        "training": {
            "framework": framework, "global_batch_size": batch, "max_steps": STEPS,
            "logging_steps": 1,
        },
        "checkpoint": {"every_minutes": None, "every_epoch": False},
        "evaluation": {"splits": []},
        "tracking": {"tensorboard": False},
    }  # fmt: skip
    with open(f"{directory}.yaml", "w", encoding="utf-8") as file:
        file.write(config.dump_yaml(config.from_dict(settings)))
    subprocess.run(
        [sys.executable, "-m", "howdah.cli", "train", "--config", f"{directory}.yaml",
         "--np", str(np), "--launcher", launcher],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    with open(f"{directory}/metrics.jsonl", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return [
        batch / line["examples_per_second"] for line in lines if line.get("examples_per_second")
    ]


def _hf(folder: str, base: str, *words: str) -> list[float]:
    out = f"{folder}/hf.json"
    _child(
        "bench.hf_trainer", "--dataset", f"{folder}/data", "--base", base, "--out", out,
        "--max-steps", str(STEPS), "--threads", str(CORES), *words,
    )  # fmt: skip
    with open(out, encoding="utf-8") as file:
        return json.load(file)["step_seconds"]


def _ddp(folder: str, base: str, world: int, batch: int) -> list[float]:
    meet = tempfile.mktemp(dir=folder)  # a name for the ranks to meet at
    return json.loads(
        _child(
            "bench.ddp_gloo", "--dataset", f"{folder}/data", "--base", base, "--meet", meet,
            "--world", str(world), "--steps", str(STEPS), "--batch", str(batch), "--threads", "1",
        ).splitlines()[-1]
    )  # fmt: skip


def _added_ms(two: list[float], one: list[float]) -> float:
    return 1000 * (statistics.median(two[WARM:]) - statistics.median(one[WARM:]))


def _one_process(folder: str, base: str) -> list[harness.Row]:
    bf16 = ["--bf16"] if cpu_gains_by_bf16() else []
    found: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name, call in (
            ("as it comes", lambda: _hf(folder, base, "--pad-to", "128")),
            ("group_by_length", lambda: _hf(folder, base, "--group-by-length", *bf16)),
            ("torch", lambda: _ours(folder, base, "torch", 1, "mpirun", BATCH)),
            ("plain", lambda: json.loads(_child(
                "bench.tf_plain", "--dataset", f"{folder}/data", "--base", base,
                "--steps", str(STEPS), "--batch", str(BATCH), "--threads", str(CORES),
            ).splitlines()[-1])),
            ("tensorflow", lambda: _ours(folder, base, "tensorflow", 1, "mpirun", BATCH)),
        ):  # fmt: skip
            found.setdefault(name, []).append(_rate(call()))
    return [
        harness.Row(
            what=f"{ours} training, one process", unit="examples/s", peer=peer,
            peer_values=found[key], our_values=found[ours], bar=bar,
        )
        for ours, key, peer, bar in (
            ("torch", "as it comes", "HF Trainer as it comes, padded to 128", ">= 7x (bf16)"),
            ("torch", "group_by_length", "HF Trainer, group_by_length", ">= 1.4x (bf16)"),
            ("tensorflow", "plain", "plain tf.function loop, padded to 128", ">= 3x"),
        )
    ]  # fmt: skip


def _two_processes(folder: str, base: str) -> list[harness.Row]:
    """Each rank has one thread and half the batch; np=1 is measured so as well."""
    half = BATCH // 2
    found: dict[str, list[float]] = {}
    os.environ["OMP_NUM_THREADS"] = "1"
    for _ in range(ROUNDS):
        alone, both = _ddp(folder, base, 1, half), _ddp(folder, base, 2, BATCH)
        found.setdefault("ddp", []).append(_added_ms(both, alone))
        for framework in ("torch", "tensorflow"):
            alone = _ours(folder, base, framework, 1, "mpirun", half)
            for launcher in ("mpirun", "horovodrun"):
                both = _ours(folder, base, framework, 2, launcher, BATCH)
                found.setdefault(f"{framework} {launcher}", []).append(_added_ms(both, alone))
    return [
        harness.Row(
            what=f"np=2 adds to a step, {name}", unit="ms", peer="DDP over gloo",
            peer_values=found["ddp"], our_values=values, lower_is_better=True,
            bar="<= 0.5x" if "mpirun" in name else "<= 1x",
        )
        for name, values in found.items()
        if name != "ddp"
    ]  # fmt: skip


def main() -> None:
    """One process, then two."""
    base, _ = minilm.base_model(lambda line: print(line, file=sys.stderr))
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(f"{folder}/data")
        write_dataset(f"{folder}/data", 8_000, tokenizer=Encoder.load(base))
        rows = _one_process(folder, base)
        harness.report("training", rows, steps=STEPS, rounds=ROUNDS)
        harness.report("np2", _two_processes(folder, base), steps=STEPS, rounds=ROUNDS)


if __name__ == "__main__":
    main()
