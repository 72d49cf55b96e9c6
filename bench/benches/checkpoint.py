"""What a checkpoint costs the training loop: MiniLM's size (22 M parameters) and Adam's state.

Real runs that save after 40 of 80 steps, to local disk and to HDFS (a mini cluster of its own, or
the one that BENCH_HDFS names), beside HF Trainer's save of the same model. Two figures: by how much
the step that begins a save is longer (the pause), and all that the steps until the next save lose,
as a share of the default interval of 10 minutes. Steps vary by the lengths of their rows; with the
same rows in the same order, each step is held against the same step of a run that saves nothing.
BENCH_ROUNDS (1) repeats all of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from bench import harness
from bench.data import write_dataset
from howdah import storage
from howdah.config import loader
from howdah.data.encode import Encoder
from tools import minilm

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "1"))
STEPS, EVERY, BATCH = 80, 40, 8
INTERVAL_SECONDS = 600.0
CORES = len(os.sched_getaffinity(0))


def _ours(folder: str, base: str, framework: str, directory: str, every: int | None) -> list[float]:
    """Seconds of each step; of the step after a save its pause is a part."""
    settings = {
        "run": {"name": "bench", "directory": directory},
        "data": {"dataset": f"{folder}/data"},
        "model": {"base": base},
        "training": {
            "framework": framework, "global_batch_size": BATCH, "max_steps": STEPS,
            "logging_steps": 1, "precision": "fp32",
        },
        "checkpoint": {"every_minutes": None, "every_epoch": False, "every_steps": every,
                       "keep": 2},
        "evaluation": {"splits": []},
        "tracking": {"tensorboard": False},
    }  # fmt: skip
    path = tempfile.mktemp(dir=folder, suffix=".yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(loader.dump_yaml(loader.from_dict(settings)))
    subprocess.run(
        [sys.executable, "-m", "howdah.cli", "train", "--config", path],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    lines = [json.loads(line) for line in
             storage.read_text(f"{directory}/metrics.jsonl").splitlines()]  # fmt: skip
    return [BATCH / line["examples_per_second"] for line in lines if "split" not in line]


def _hf(folder: str, base: str, every: int | None) -> list[float]:
    out = f"{folder}/hf.json"
    subprocess.run(
        [sys.executable, "-m", "bench.peers.hf_trainer", "--dataset", f"{folder}/data",
         "--base", base, "--out", out, "--max-steps", str(STEPS), "--threads", str(CORES),
         "--batch", str(BATCH),
         *(["--save-steps", str(every)] if every else [])],
        stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    with open(out, encoding="utf-8") as file:
        return json.load(file)["between_steps"]


def _cost(saving: list[float], plain: list[float]) -> tuple[list[float], list[float]]:
    """Pause in seconds and share in % of the interval, of each save but the last step's."""
    added = [a - b for a, b in zip(saving, plain, strict=True)]
    pauses, shares = [], []
    for step in range(EVERY, STEPS, EVERY):  # steps done; the next one is added[step]
        pauses.append(max(added[step], 0.0))
        shares.append(max(100 * sum(added[step : step + EVERY]) / INTERVAL_SECONDS, 0.0))
    return pauses, shares


def _warm_up(directory: str) -> None:
    """2 GiB through the DataNodes: those of a real cluster have their code compiled long since."""
    piece = os.urandom(2**23)

    def fill(file: BinaryIO) -> None:
        for _ in range(32):
            file.write(piece)

    for number in range(8):
        storage.write_stream(f"{directory}/warm-{number}", fill)
        storage.remove(f"{directory}/warm-{number}")


@contextmanager
def _hdfs() -> Iterator[str]:
    """The URL of a directory on HDFS."""
    from tools.minicluster import MiniCluster

    cluster_dir = os.environ.get("BENCH_HDFS")
    with tempfile.TemporaryDirectory() as folder:
        cluster = MiniCluster(cluster_dir or folder)
        if cluster_dir is None:
            cluster.start()
        try:
            os.environ |= {"HADOOP_CONF_DIR": str(cluster.conf_dir)}
            directory = f"/bench-{os.getpid()}"
            cluster.make_dir(directory)
            _warm_up(cluster.hdfs_url + directory)
            yield cluster.hdfs_url + directory
            cluster.remove(directory)
        finally:
            if cluster_dir is None:
                cluster.stop(remove=True)


def _round(folder: str, remote: str, base: str) -> dict[tuple[str, str], tuple[list, list]]:
    """{(who, where): pauses and shares}."""
    here = tempfile.mkdtemp(dir=folder)
    on_hdfs = storage.join(remote, os.path.basename(here))
    costs = {("peer", ""): _cost(_hf(folder, base, EVERY), _hf(folder, base, None))}
    for framework in ("torch", "tensorflow"):
        plain = _ours(folder, base, framework, f"{here}/{framework}-plain", None)
        for name, top in (("local disk", here), ("HDFS", on_hdfs)):
            saving = _ours(folder, base, framework, f"{top}/{framework}", EVERY)
            costs[framework, name] = _cost(saving, plain)
    return costs


def main() -> None:
    """Both frameworks to local disk and to HDFS; the peer to local disk."""
    base, _ = minilm.base_model(lambda line: print(line, file=sys.stderr))
    with tempfile.TemporaryDirectory() as folder, _hdfs() as remote:
        os.mkdir(f"{folder}/data")
        write_dataset(f"{folder}/data", 8_000, tokenizer=Encoder.load(base))
        rounds = [_round(folder, remote, base) for _ in range(ROUNDS)]
    rows = []
    for framework, where in list(rounds[0])[1:]:
        for figure, (what, unit, bar) in enumerate(
            (("pause of a checkpoint", "s", "<= 0.5 s"), ("time lost at 10 minutes", "%", "<= 1%"))
        ):
            peer, ours = (
                [max(value, 1e-4) for round_ in rounds for value in round_[who][figure]]
                for who in (("peer", ""), (framework, where))
            )
            rows.append(
                harness.Row(
                    what=f"{framework}, {where}: {what}", unit=unit, bar=bar,
                    peer="HF Trainer's save, local disk", peer_values=peer, our_values=ours,
                    lower_is_better=True,
                )
            )  # fmt: skip
    harness.report("checkpoint", rows, steps=STEPS, every=EVERY, batch=BATCH)


if __name__ == "__main__":
    main()
