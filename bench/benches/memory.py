"""Memory of a worker: measured peaks beside what `howdah submit` computes.

Real jobs of the driver and its agents on this machine (tests/runs/jobs/stand_in_cluster.py),
DistilBERT's shape with random weights, rows of full length; the peak is the kernel's (VmHWM) of
each training process, with its agent's besides. Every step is committed and saved: the copies are
there while a step runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
import yaml
from safetensors.numpy import save_file

from bench.data import LABELS, commit_dataset
from bench.harness import RESULTS
from howdah.config.loader import from_dict
from howdah.data.encode import Encoder
from howdah.data.family import DISTILBERT
from howdah.data.manifest import (
    ShardEntry,
    load_dataset,
)
from howdah.data.record import RecordLayout, ShardWriter
from howdah.yarn.preflight import worker_memory

ROOT = Path(__file__).resolve().parents[2]
SHAPES = {
    "MiniLM": {"dim": 384, "hidden_dim": 1536, "n_heads": 12, "n_layers": 6},
    "base": {"dim": 768, "hidden_dim": 3072, "n_heads": 12, "n_layers": 6},
    "large": {"dim": 1024, "hidden_dim": 4096, "n_heads": 16, "n_layers": 24},
}
_ROWS = {"train": 640, "validation": 64}
_LIMIT_SECONDS = 1500.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job whose workers are measured."""

    framework: str
    size: str
    tokens: int
    """Tokens of a micro-batch."""
    elastic: bool = False
    workers: int = 1
    precision: str = "fp32"
    length: int = 128
    """Tokens of each row."""
    recompute: bool = False
    """training.gradient_checkpointing."""
    best_first: bool = True
    """The first evaluation is the best: at the end its weights are read beside the last ones."""

    def __str__(self) -> str:
        kind = "elastic" if self.elastic else "static"
        more = ", recomputed" if self.recompute else ""
        return (
            f"{self.framework} {self.size} {self.precision} {self.tokens} tokens of rows of"
            f" {self.length}, {self.workers} {kind}{more}"
        )


def write_base(directory: str, size: str) -> str:
    """A base model of DistilBERT's architecture with random weights; returns `directory`."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    os.makedirs(directory)
    shape = DISTILBERT.complete(SHAPES[size])
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [f"w{number}" for number in range(shape["vocab_size"] - len(special))]
    numbers = {piece: number for number, piece in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        special_tokens=[("[CLS]", numbers["[CLS]"]), ("[SEP]", numbers["[SEP]"])],
    )
    tokenizer.add_special_tokens(special)
    files = {
        "config.json": json.dumps(shape | {"architectures": ["DistilBertModel"]}),
        "tokenizer.json": tokenizer.to_str(),
        "vocab.txt": "".join(piece + "\n" for piece in numbers),
        "tokenizer_config.json": json.dumps({"tokenizer_class": "DistilBertTokenizer"}),
    }
    for name, text in files.items():
        Path(directory, name).write_text(text, encoding="utf-8")
    rng = np.random.default_rng(0)
    weights = {}
    for name, lengths in DISTILBERT.encoder_shapes(shape).items():
        weights[name] = (0.02 * rng.standard_normal(lengths)).astype(np.float32)
        if len(lengths) == 1:
            weights[name][:] = float(name.lower().endswith("norm.weight"))
    save_file(weights, f"{directory}/model.safetensors", metadata={"format": "pt"})
    return directory


def write_dataset(directory: str, base: str, length: int) -> str:
    """Rows of `length` tokens each, train and validation; returns `directory`."""
    encoder = Encoder.load(base)
    rng = np.random.default_rng(0)
    version = f"{directory}/v=1"
    os.makedirs(version)
    splits: dict[str, list[ShardEntry]] = {}
    for split, count in _ROWS.items():
        ids = [rng.integers(5, encoder.vocab_size, length).astype(np.uint16) for _ in range(count)]
        name = f"{split}-00000-of-00001.tfrecord"
        with open(f"{version}/{name}", "wb") as file:
            writer = ShardWriter(file, RecordLayout())
            keys = [b"%016x" % number for number in range(count)]
            writer.write(ids, rng.integers(0, LABELS, count), keys)
            stats = writer.close()
        Path(f"{version}/{name}.index").write_bytes(stats.index)
        splits[split] = [stats.entry(name)]
    commit_dataset(version, splits, length, encoder)
    return directory


def settings(case: Case, folder: str, base: str, dataset: str, steps: int = 4) -> dict:
    """The job's configuration."""
    rows = case.workers * case.tokens // case.length
    job = {"workers": case.workers, "hang_seconds": 600.0,
           "commit_every": 1}  # fmt: skip
    if case.elastic:
        job |= {"min_workers": case.workers, "max_workers": case.workers}
    return {
        "run": {"name": "memory", "directory": f"{folder}/run"},
        "data": {"dataset": dataset, "max_length": case.length},
        "model": {"base": base},
        "training": {
            "framework": case.framework, "precision": case.precision, "max_steps": steps,
            "global_batch_size": rows, "per_device_max_tokens": case.tokens,
            "num_train_epochs": 1000, "threads_per_rank": 1, "logging_steps": 1,
            "learning_rate": 0.3,  # which only makes it worse
            "gradient_checkpointing": case.recompute,
        },
        "checkpoint": {"every_steps": 1, "every_epoch": False},
        "evaluation": {
            "splits": ["validation"], "metric": "loss",
            "every_steps": 1 if case.best_first else 1000,
        },
        "tracking": {"tensorboard": False},
        "job": job,
        "yarn": {"python": sys.executable},
    }  # fmt: skip


def peaks(config: dict, folder: str) -> list[int]:
    """Peak resident bytes of each worker of a real job: its training process's and its agent's.

    Raises:
        RuntimeError: the job failed, or took too long; with the driver's log.
    """
    os.makedirs(f"{folder}/job")
    path = f"{folder}/config.yaml"
    Path(path).write_text(yaml.safe_dump(config), encoding="utf-8")
    arguments = ["-m", "tests.runs.jobs.stand_in_cluster", "driver", f"{folder}/job", path,
             "--application", "local_1", "--nodes", "a"]  # fmt: skip
    env = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    values: dict[int, int] = {}
    parents: dict[int, int] = {}
    with open(f"{folder}/driver.log", "wb") as log:
        driver = subprocess.Popen([sys.executable, *arguments], env=env, stdout=log, stderr=log)
        deadline = time.monotonic() + _LIMIT_SECONDS
        while driver.poll() is None and time.monotonic() < deadline:
            for pid, parent, role in _processes(folder):
                values[pid] = max(values.get(pid, 0), _peak(pid))
                if role == "training":
                    parents[pid] = parent
            time.sleep(0.02)
        if driver.poll() is None:
            driver.terminate()
            driver.wait()
    if driver.returncode != 0:
        raise RuntimeError(Path(f"{folder}/driver.log").read_text(encoding="utf-8")[-4000:])
    return [values[pid] + values[parent] for pid, parent in parents.items()]


def _processes(folder: str) -> list[tuple[int, int, str]]:
    """pid, parent and role of a job's training processes and agents."""
    rows = []
    for process in psutil.process_iter(["cmdline", "ppid"]):
        command = process.info["cmdline"] or []
        if not any(folder in word for word in command):
            continue
        if "--standby" in command:
            rows.append((process.pid, process.info["ppid"], "training"))
        elif "agent" in command:
            rows.append((process.pid, process.info["ppid"], "agent"))
    return rows


def _peak(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def measure(case: Case, folder: str) -> dict:
    """One case: what was measured and what is computed for it, in bytes."""
    base = f"{folder}/{case.size}"
    if not os.path.isdir(base):
        write_base(base, case.size)
    dataset = f"{folder}/{case.size}-{case.length}"
    if not os.path.isdir(dataset):
        write_dataset(dataset, base, case.length)
    run_folder = tempfile.mkdtemp(dir=folder)
    held = settings(case, run_folder, base, dataset)
    config = from_dict(held)
    shape = json.loads(Path(base, "config.json").read_text(encoding="utf-8"))
    computed = worker_memory.peak(config, shape, load_dataset(dataset).manifest)
    measured = peaks(held, run_folder)
    return {
        **asdict(case), "measured": max(measured), "each": measured, "computed": computed.total,
        "parts": computed.parts,
    }  # fmt: skip


CASES = [
    Case(framework=framework, size=size, tokens=tokens, elastic=elastic)
    for framework in ("torch", "tensorflow")
    for size, tokens, elastic in (
        ("MiniLM", 2048, False), ("MiniLM", 8192, False), ("MiniLM", 2048, True),
        ("base", 1024, False), ("base", 4096, False), ("base", 1024, True),
    )
]  # fmt: skip


def main(cases: Sequence[Case] = tuple(CASES)) -> None:
    """Measure all cases; print each as it ends."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            row = measure(case, folder)
            rows.append(row)
            computed, measured = row["computed"] / 2**20, row["measured"] / 2**20
            print(
                f"{case}: measured {measured:,.0f} MiB, computed {computed:,.0f}"
                f" ({computed / measured - 1:+.1%})",
                flush=True,
            )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "memory.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
