"""Runs of ours and of the peers for the training benches: a process each, as users start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.data import write_dataset, write_texts
from howdah.config import loader
from howdah.core.machine import cpu_gains_by_bf16
from howdah.data.encode import Encoder
from tests.runs.training_runs import launcher
from tools import minilm

BATCH = int(os.environ.get("BENCH_BATCH", "32"))
CORES = len(os.sched_getaffinity(0))
SIZES = ("minilm", "base")
_WARM = 8
_SHAPES = {
    "base": {"dim": 768, "hidden_dim": 3072, "n_heads": 12, "n_layers": 6},
    "tiny": {"dim": 64, "hidden_dim": 128, "n_heads": 2, "n_layers": 2},
}


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The timed steps of a run."""

    seconds: list[float]
    tokens: float
    """Real tokens in all of them."""
    to_first: float | None = None
    """Seconds from the start of the command to the end of the first step."""
    input_wait: float | None = None
    """Share of the time for which steps waited for their batch."""
    cold_tokens_per_second: float | None = None
    """Of the steps before the timed ones, in which most lengths came for the first time; their
    very first ones are left out."""
    losses: list[float] | None = None
    """The loss of each step, those before the timed ones included."""

    @property
    def tokens_per_second(self) -> float:
        """Real tokens: whatever the mix of lengths was, runs can be compared by it."""
        return self.tokens / sum(self.seconds)


class Bench:
    """A dataset and a base model in a folder, and runs on them.

    Args:
        folder: where everything goes.
        size: `minilm` (pretrained), or with random weights `base`, DistilBERT-base's shape, or
            `tiny`.
        texts: `lengths` (log-normal ones without text), `even` (40 tokens each), `docstrings`, or
            the path of AG News' CSV.
        rows: of the dataset.
        steps: timed ones.
    """

    def __init__(self, folder: str, *, size: str, texts: str, rows: int, steps: int) -> None:
        self.folder, self.steps = folder, steps
        small, _ = minilm.base_model(lambda line: print(line, file=sys.stderr))
        self.base = small if size == "minilm" else _random_base(small, f"{folder}/base", size)
        with open(f"{self.base}/config.json", encoding="utf-8") as file:
            self.shape = json.load(file)
        os.mkdir(f"{folder}/data")
        encoder = Encoder.load(self.base)
        if texts in ("lengths", "even"):
            dataset = write_dataset(f"{folder}/data", rows, tokenizer=encoder, even=texts == "even")
        else:
            dataset = write_texts(f"{folder}/data", texts, rows, encoder)
        from howdah.data.splits.shards import ShardSet

        self.dataset = dataset
        lengths = np.concatenate(ShardSet(dataset, "train").lengths).astype(np.int64)
        self.mean_length = float(lengths.mean())
        self.seen_length = float((lengths**2).sum() / lengths.sum())
        """Tokens that a token's attention looks at, on average."""

    # ------------------------------------------------------------------------------------ runs
    def ours(
        self, framework: str, *, ranks: int = 1, launched_by: str | None = None, batch: int = BATCH,
        set_: tuple[str, ...] = (), warm: int = _WARM, module: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Steps:  # fmt: skip
        """`howdah train`, or ranks of a bare launcher (or of a module that takes their place); the
        first `warm` steps of the process are not counted."""
        directory = tempfile.mkdtemp(dir=self.folder)
        settings = {
            "run": {"name": "bench", "directory": directory},
            "data": {"dataset": f"{self.folder}/data"},
            "model": {"base": self.base},
            "training": {
                "framework": framework, "global_batch_size": batch,
                "max_steps": warm + self.steps, "logging_steps": 1,
            },
            "checkpoint": {"every_minutes": None, "every_epoch": False},
            "evaluation": {"splits": []},
            "tracking": {"tensorboard": False},
        }  # fmt: skip
        with open(f"{directory}.yaml", "w", encoding="utf-8") as file:
            file.write(loader.dump_yaml(loader.from_dict(settings)))
        arguments = [word for one in set_ for word in ("--set", one)]
        words = ["--config", f"{directory}.yaml", *arguments]
        if module is None and (launched_by is None or ranks == 1):
            _run("howdah.cli", "train", "--np", str(ranks), *words, env=env)
        else:
            under = bare(launched_by, ranks) if ranks > 1 else ()
            _run(module or "howdah.training", *words, under=under, env=env)
        with open(f"{directory}/metrics.jsonl", encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        lines = [line for line in lines if line.get("examples_per_second")]
        with open(f"{directory}/run.json", encoding="utf-8") as file:
            attempt = json.load(file)["attempts"][0]
        seconds = [batch / line["examples_per_second"] for line in lines]
        tokens = [s * line["tokens_per_second"] for s, line in zip(seconds, lines, strict=True)]
        waits = [s * line["input_wait"] for s, line in zip(seconds, lines, strict=True)]
        cold = sum(seconds[_WARM:warm])
        return Steps(
            seconds=seconds[warm:],
            tokens=sum(tokens[warm:]),
            to_first=attempt["seconds_to_first_step"],
            input_wait=sum(waits[warm:]) / sum(seconds[warm:]),
            cold_tokens_per_second=sum(tokens[_WARM:warm]) / cold if cold else None,
            losses=[line["loss"] for line in lines],
        )

    def hf_trainer(self, *arguments: str, steps: int | None = None, warm: int = 0) -> Steps:
        """Hugging Face's Trainer: `steps` (the bench's) after `warm` ones.

        Some backward passes of one length come before its first step in any case.

        group_by_length sorts each 50 batches, the longest first: only all steps of such a stretch
        have its mix of lengths.
        """
        out = f"{self.folder}/hf.json"
        _run(
            "bench.peers.hf_trainer", "--dataset", f"{self.folder}/data", "--base", self.base,
            "--out", out, "--max-steps", str(warm + (steps or self.steps)), "--threads", str(CORES),
            "--warm-up", *arguments,
        )  # fmt: skip
        with open(out, encoding="utf-8") as file:
            result = json.load(file)
        return Steps(
            seconds=result["step_seconds"][warm:],
            tokens=sum(result["step_tokens"][warm:]),
            to_first=result["seconds_to_first_step"],
        )

    def tf_plain(self, *, steps: int | None = None) -> Steps:
        """The plain tf.function loop, `steps` timed ones (the bench's)."""
        steps = 4 + (steps or self.steps)
        result = json.loads(
            _run(
                "bench.peers.tf_plain", "--dataset", f"{self.folder}/data", "--base", self.base,
                "--steps", str(steps), "--batch", str(BATCH), "--threads", str(CORES),
            ).splitlines()[-1]
        )  # fmt: skip
        return Steps(seconds=result["step_seconds"][4:], tokens=sum(result["step_tokens"][4:]))

    def ddp(self, world: int, batch: int) -> list[float]:
        """Seconds of each step of torch's DDP over gloo, the first ones left out."""
        meet = tempfile.mktemp(dir=self.folder)  # a name for the ranks to meet at
        output = _run(
            "bench.peers.ddp_gloo", "--dataset", f"{self.folder}/data", "--base", self.base,
            "--meet", meet, "--world", str(world), "--steps", str(_WARM + self.steps),
            "--batch", str(batch), "--threads", "1",
        )  # fmt: skip
        return json.loads(output.splitlines()[-1])[_WARM:]

    # -------------------------------------------------------------------------------- arithmetic
    def flops_per_token(self) -> float:
        """FLOPs of one real token's matrix products in our passes, forward and backward.

        The last layer computes keys and values of all tokens, and the rest of a row's first token.
        """
        width, inner, layers = (self.shape[key] for key in ("dim", "hidden_dim", "n_layers"))
        whole = 4 * width**2 + 2 * width * inner + 2 * width * self.seen_length
        last = 2 * width**2 + 2 * width + (2 * width**2 + 2 * width * inner) / self.mean_length
        return 3 * 2.0 * ((layers - 1) * whole + last)


@dataclass(frozen=True, kw_only=True)
class Device:
    """What the frameworks train on."""

    name: str
    gpu: bool
    peaks: dict[str, float]
    """FLOP/s of a large matrix product in torch, the best of several, by precision: fp32, and bf16
    where it gains."""


def device() -> Device:
    """Measured now, in a process of its own."""
    return Device(**json.loads(_run("bench.training_runs").splitlines()[-1]))


def _measured() -> dict:
    import time

    import torch

    gpu = torch.cuda.is_available()
    torch.set_num_threads(CORES)
    peaks = {}
    dtypes = {"fp32": torch.float32}
    if gpu or cpu_gains_by_bf16():  # elsewhere it may be emulated: minutes for a product
        dtypes["bf16"] = torch.bfloat16
    for name, dtype in dtypes.items():
        best = 0.0
        for rows, width, inner in ((8192,) * 3,) if gpu else ((1536, 768, 3072), (2048,) * 3):
            a, b = (
                torch.randn(*shape, device="cuda" if gpu else "cpu").to(dtype)
                for shape in ((rows, width), (width, inner))
            )
            for _ in range(20):
                begun = time.perf_counter()
                torch.mm(a, b)
                if gpu:
                    torch.cuda.synchronize()
                best = max(best, 2.0 * rows * width * inner / (time.perf_counter() - begun))
        peaks[name] = best
    return {
        "name": torch.cuda.get_device_name() if gpu else f"{CORES} cores",
        "gpu": gpu,
        "peaks": peaks,
    }


def _random_base(like: str, target: str, size: str) -> str:
    """A base of a shape with random weights, and the small one's tokenizer."""
    from safetensors.numpy import save_file

    from howdah.data.family import DISTILBERT

    with open(f"{like}/config.json", encoding="utf-8") as file:
        shape = json.load(file) | _SHAPES[size]
    rng = np.random.default_rng(0)
    weights = {}
    for name, size in DISTILBERT.encoder_shapes(shape).items():
        weights[name] = (0.02 * rng.standard_normal(size)).astype(np.float32)
        if len(size) == 1:
            weights[name][:] = float(name.endswith("LayerNorm.weight") or "norm.weight" in name)
    os.mkdir(target)
    for name in os.listdir(like):
        if name.endswith((".json", ".txt")) and name != "config.json":
            os.symlink(os.path.join(like, name), os.path.join(target, name))
    with open(f"{target}/config.json", "w", encoding="utf-8") as file:
        json.dump(shape, file)
    save_file(weights, f"{target}/model.safetensors", metadata={"format": "pt"})
    return target


def bare(name: str, ranks: int) -> list[str]:
    """The command of a launcher in front of its ranks' own."""
    program, *words = launcher(name, ranks)
    beside = os.path.join(os.path.dirname(sys.executable), program)
    return [beside if os.path.exists(beside) else program, *words]


def _run(
    module: str,
    *arguments: str,
    under: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> str:
    """A module's stdout; what it says besides is shown only where it fails."""
    done = subprocess.run(
        [*under, sys.executable, "-m", module, *arguments],
        capture_output=True, text=True, check=False, env=os.environ | dict(env or {}),
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{module} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    print(json.dumps(_measured()))
