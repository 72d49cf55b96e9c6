"""First contact with a GPU: everything that only a GPU can say, in at most 10 minutes.

Losses beside a CPU's in float32; throughput, share of the peak and memory beside HF Trainer (bf16,
group_by_length, sdpa; compiled too); what padding costs; where the host waits for the GPU; memory
that does not suffice; and with two GPUs sums during and after the backward pass, and the bits of
both ranks' weights. Rates are of real tokens.

BENCH_GPU_SIZE (base): with `tiny` all of it runs on a CPU too: its lines have run then, and the
figures mean nothing. BENCH_GPU_SECONDS (540): no piece begins later, and
none lasts until a minute after it.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

from bench import harness
from bench.training_runs import Bench, Device, Steps, device
from howdah.core.processes import LIMITS
from howdah.data.splits.planner import Planner, PlanSpec
from howdah.data.splits.shards import ShardSet

SECONDS = float(os.environ.get("BENCH_GPU_SECONDS", "540"))
_RANK = "bench.benches.gpu.rank"
_CURVES = {"fp32": 2e-3, "bf16": 5e-2, "fp16": 5e-2}
"""Largest difference of a step's loss from float32 on a CPU, as a share of it."""
Line = tuple[str, float | str, str]
"""What, its value (or why there is none), the unit."""


class FirstContact:
    """The pieces, each of which returns lines of the table.

    Args:
        bench: a dataset, and a base model.
        on: the device.
        batch: the global batch.
        steps: timed steps of a run; as many come before them.
    """

    def __init__(self, bench: Bench, on: Device, *, batch: int, steps: int) -> None:
        self._bench, self._on, self._batch, self._steps = bench, on, batch, steps
        self._peak = on.peaks.get("bf16", on.peaks["fp32"])
        self._count = 0
        self._usual: tuple[Steps, list[dict]] | None = None

    def pieces(self) -> dict[str, Callable[[], list[Line]]]:
        """All of them, the most important first."""
        return {
            "losses": self.losses,
            "throughput": self.throughput,
            "waits and memory": self.waits_and_memory,
            "out of memory": self.out_of_memory,
            "two ranks": self.two_ranks,
            "padding": self.padding,
            "kernels": self.kernels,
            "HF Trainer, compiled": lambda: self._peer("sdpa, compiled", "--compile"),
        }

    # ------------------------------------------------------------------------------- the pieces
    def losses(self) -> list[Line]:
        """The first 20 losses without dropout beside those of a CPU in float32."""

        def curve(precision: str, **env: str) -> np.ndarray:
            set_ = (f"training.precision={precision}", "model.dropout=0.0", "training.max_steps=20")
            run = self._bench.ours("torch", batch=32, set_=set_, warm=10, env=env)
            return np.array(run.losses)

        reference, lines = curve("fp32", CUDA_VISIBLE_DEVICES=""), []
        for precision, most in _CURVES.items():
            if precision == "fp16" and not self._on.gpu:
                continue
            worst = float(np.max(np.abs(curve(precision) / reference - 1)))
            what = f"loss in {precision}: largest difference from a CPU's in fp32 (bar {most})"
            lines.append((what, worst, "holds" if worst <= most else "DOES NOT HOLD"))
        return lines

    def throughput(self) -> list[Line]:
        """Ours as it comes and HF Trainer at its best."""
        usual, _ = self._usual_run()
        return [*self._rates("ours", usual), *self._peer("sdpa")]

    def waits_and_memory(self) -> list[Line]:
        """Places where the host waits for the GPU in each step, and memory."""
        _, [watched] = self._usual_run()
        lines = [(f"host waits at {place}", count, "a step")
                 for place, count in sorted(watched["waits"].items())]  # fmt: skip
        if not self._on.gpu:
            lines = [("host waits", "needs a GPU", "")]
        lines += [(f"memory, {name}", (watched[name] or 0) / 2**30, "GiB")
                  for name in ("allocated", "reserved", "resident")]  # fmt: skip
        for most in (8_192, 16_384):
            run, _ = self._watched(f"training.per_device_max_tokens={most}")
            lines += self._rates(f"ours, micro-batches of {most:,} tokens", run)
        return lines

    def out_of_memory(self) -> list[Line]:
        """A run that may use less than it needs: it halves its micro-batches."""
        _, [watched] = self._usual_run()
        if self._on.gpu:
            import torch

            whole = torch.cuda.get_device_properties(0).total_memory
            state = 16 * sum(np.prod(shape) for shape in self._shapes())
            share = str((state + (watched["allocated"] - state) * 0.6) / whole)
        else:
            share = str(self._batch * 32)
        run, _ = self._watched(env={"MEMORY_SHARE": share})
        how = "" if self._on.gpu else " (simulated)"
        return self._rates(f"ours, out of memory{how}, halved", run)

    def two_ranks(self) -> list[Line]:
        """Sums during the backward pass and after it, and both ranks' bits."""
        gpus = self._gpus()
        if self._on.gpu and gpus < 2:
            return [("two ranks", f"needs two GPUs, and there is {gpus}", "")]
        lines = []
        for overlap in (True, False):
            when = "during" if overlap else "after"
            run, ranks = self._watched(
                "training.comm=torch", ranks=2, env={LIMITS: json.dumps({"overlap": overlap})}
            )
            alike = ranks[0]["checksum"] == ranks[1]["checksum"]
            lines += self._rates(f"two ranks, sums {when} the backward pass", run)
            what = f"two ranks, sums {when}: weights of both"
            lines.append((what, "equal" if alike else "DIFFER", "bit by bit"))
        return lines

    def padding(self) -> list[Line]:
        """Widths rounded up to multiples of 8, 4 and 2, and rows of random lengths, with linear
        layers of all that is padded and of tokens alone."""
        lines = []
        for multiple in (8, 4, 2):
            run, _ = self._watched(env={LIMITS: json.dumps({"pad_multiple": multiple})})
            lines += self._rates(f"ours, widths in multiples of {multiple}", run)
        for rows, set_ in (("", ()), (" of random rows", ("training.length_window=1",))):
            for name, least in (("padded", 1e9), ("packed", 1.0)):
                run, _ = self._watched(*set_, env={LIMITS: json.dumps({"pack_from": least})})
                lines += self._rates(f"ours, batches{rows}, {name}", run)
        return lines

    def kernels(self) -> list[Line]:
        """Attention padded and packed, and a layer as it is and compiled."""
        with open(f"{self._bench.folder}/lengths.json", "w", encoding="utf-8") as file:
            json.dump(self._batches(), file)
        done = subprocess.run(
            [sys.executable, "-m", "bench.benches.gpu.kernels", self._bench.base,
             str(self._batch), file.name],
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        results = json.loads(done.stdout.splitlines()[-1])
        return [(f"{piece}: {name}", value, "ms")
                for piece, values in results.items() for name, value in values.items()]  # fmt: skip

    # -------------------------------------------------------------------------------- their parts
    def _usual_run(self) -> tuple[Steps, list[dict]]:
        self._usual = self._usual or self._watched()
        return self._usual

    def _watched(
        self, *set_: str, ranks: int = 1, env: dict[str, str] | None = None
    ) -> tuple[Steps, list[dict]]:
        """A run, and what each rank has seen."""
        self._count += 1
        folder = f"{self._bench.folder}/watched-{self._count}"
        os.mkdir(folder)
        run = self._bench.ours(
            "torch", ranks=ranks, launched_by="torchrun", batch=self._batch, set_=set_,
            warm=self._steps, module=_RANK, env={"WATCHED": folder, **(env or {})},
        )  # fmt: skip
        ranks_seen = []
        for rank in range(ranks):
            with open(f"{folder}/{rank}.json", encoding="utf-8") as file:
                ranks_seen.append(json.load(file))
        return run, ranks_seen

    def _peer(self, name: str, *more: str) -> list[Line]:
        bf16 = ["--bf16"] if "bf16" in self._on.peaks else []
        run = self._bench.hf_trainer(
            "--batch", str(self._batch), "--group-by-length", "--attention", "sdpa", *bf16, *more,
            warm=self._steps,
        )  # fmt: skip
        return self._rates(f"HF Trainer, group_by_length, {name}", run)

    def _rates(self, name: str, run: Steps) -> list[Line]:
        used = run.tokens_per_second * self._bench.flops_per_token() / self._peak
        return [
            (f"{name}: real tokens", run.tokens_per_second, "a second"),
            (f"{name}: a step", 1000 * statistics.median(run.seconds), "ms"),
            (f"{name}: share of the peak of this device's products", 100 * used, "%"),
        ]

    def _batches(self) -> dict[str, list[int]]:
        """Lengths of a usual batch, and of one of random rows."""
        lengths = ShardSet(self._bench.dataset, "train").lengths
        spec = PlanSpec(dataset_hash="x", split="train", seed=0, global_batch_size=self._batch)
        usual = Planner(lengths, spec).batch(0, 0).length.tolist()
        drawn = np.random.default_rng(0).choice(np.concatenate(lengths), self._batch)
        return {"rows of like length": usual, "random rows": drawn.tolist()}

    def _shapes(self) -> list[tuple[int, ...]]:
        from howdah.data.family import DISTILBERT

        return list(DISTILBERT.encoder_shapes(self._bench.shape).values())

    def _gpus(self) -> int:
        import torch

        return torch.cuda.device_count()


def table(lines: list[Line]) -> str:
    """The lines in Markdown."""
    rows = ["| what | value | unit |", "|---|--:|---|"]
    for what, value, unit in lines:
        shown = value if isinstance(value, str) else f"{value:,.4g}"
        rows.append(f"| {what} | {shown} | {unit} |")
    return "\n".join(rows)


def _late(number: int, frame: object) -> None:
    raise TimeoutError("not done a minute after the last piece may begin")


def main() -> None:
    """Piece by piece; one that fails is a line that says why."""
    signal.signal(signal.SIGALRM, _late)
    begun, on = time.monotonic(), device()
    size = os.environ.get("BENCH_GPU_SIZE", "base")
    if not on.gpu and "BENCH_GPU_SIZE" not in os.environ:
        print("bench gpu: no GPU; BENCH_GPU_SIZE=tiny runs every line of it on the CPU")
        return
    batch, steps, rows = (256, 50, 12_800) if on.gpu else (16, 10, 320)
    lines: list[Line] = [("device", on.name, ""), ("model", size, "")]
    lines += [(f"peak of products, {name}", peak / 1e12, "TFLOP/s")
              for name, peak in on.peaks.items()]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder, size=size, texts="docstrings", rows=rows, steps=steps)
        contact = FirstContact(bench, on, batch=batch, steps=steps)
        for name, piece in contact.pieces().items():
            at = time.monotonic() - begun
            if at > SECONDS:
                lines.append((name, f"not begun: {SECONDS:.0f} s are over", ""))
                continue
            signal.alarm(int(SECONDS + 60 - at))
            try:
                lines += piece()
            except (Exception, SystemExit) as error:
                lines.append((name, f"fails: {str(error)[-300:]!r}", ""))
            print(f"{name}: {time.monotonic() - begun - at:.0f} s", file=sys.stderr, flush=True)
    signal.alarm(0)
    lines.append(("all pieces", time.monotonic() - begun, "s"))
    print(table(lines))
    harness.report("gpu", [], device=on.name, size=size, batch=batch, lines=lines)


if __name__ == "__main__":
    main()
