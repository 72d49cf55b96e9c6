"""One process: torch beside HF Trainer, TensorFlow beside a plain tf.function loop.

Real texts (docstrings of the installed packages, and AG News where AG_NEWS names its CSV, see
benches/accuracy.py), 3,200 rows cut at 128 tokens, batch 32, the MiniLM size and DistilBERT-base's.
Rates are of real tokens, given as examples of the mean length. Precision: what wins on the
processor, bf16 where `howdah.core.machine.cpu_gains_by_bf16` says so, else fp32, for both sides but
for the peers as they come, which are fp32. On a GPU (`make bench-gpu`) torch alone, batch 256.

As many steps as are timed come before them, so that each length has been met: oneDNN compiles
kernels for it, and HF Trainer as it comes and the plain loop have one length only, which a few
steps warm. What those first steps reach is printed beside.

BENCH_ROUNDS (5), BENCH_STEPS (100: a multiple of 50, group_by_length sorts each 50 batches),
BENCH_SIZES ("minilm base"), BENCH_FRAMEWORKS ("torch tensorflow"), BENCH_BATCH (32). All of it
takes hours: rounds are kept as they end, and a second start of the same sources goes on with the
next one.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile

from bench import harness
from bench.training_runs import BATCH, SIZES, Bench, Device, Steps, device

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
STEPS = int(os.environ.get("BENCH_STEPS", "100"))
WANTED_SIZES = os.environ.get("BENCH_SIZES", " ".join(SIZES)).split()
FRAMEWORKS = os.environ.get("BENCH_FRAMEWORKS", "torch tensorflow").split()
ROWS = 3_200
SOURCES = (
    "training",
    *(f"bench/{name}.py" for name in ("training_runs", "peers/hf_trainer", "peers/tf_plain")),
)
PADDED_STEPS = min(STEPS, 60)  # padded to one length, each step costs the same
_PAIRS = (
    ("torch", "as it comes", "HF Trainer as it comes, padded to 128"),
    ("torch", "group_by_length", "HF Trainer, group_by_length"),
    ("tensorflow", "plain", "plain tf.function loop, padded to 128"),
)
_BARS = {
    False: {"as it comes": ">= 7x", "group_by_length": ">= 1.4x", "plain": ">= 3x"},
    True: {"as it comes": ">= 5x", "group_by_length": ">= 1.7x", "plain": None},
}


def _texts() -> dict[str, str]:
    """Name -> what bench.data.write_texts takes."""
    ag_news = os.environ.get("AG_NEWS")
    return {"docstrings": "docstrings"} | ({"AG News": ag_news} if ag_news else {})


def _round(bench: Bench, on: Device) -> dict[str, Steps]:
    bf16 = ["--bf16"] if "bf16" in on.peaks else []
    steps_by_name = {}
    if "torch" in FRAMEWORKS:
        steps_by_name["as it comes"] = bench.hf_trainer("--pad-to", "128", steps=PADDED_STEPS)
        steps_by_name["group_by_length"] = bench.hf_trainer("--group-by-length", *bf16, warm=STEPS)
        steps_by_name["torch"] = bench.ours("torch", warm=STEPS)
    if "tensorflow" in FRAMEWORKS:
        steps_by_name["plain"] = bench.tf_plain(steps=PADDED_STEPS)
        steps_by_name["tensorflow"] = bench.ours("tensorflow", warm=STEPS)
    return steps_by_name


def _rounds(bench: Bench, size: str, texts: str, on: Device) -> list[dict[str, Steps]]:
    journal = harness.Rounds(
        "training", sources=SOURCES, device=on.name, steps=STEPS, batch=BATCH,
        rows=ROWS, frameworks=FRAMEWORKS,
    )  # fmt: skip
    rounds = journal.up_to(
        ROUNDS,
        f"{size}, {texts}",
        lambda: {name: dataclasses.asdict(steps) for name, steps in _round(bench, on).items()},
    )
    return [{name: Steps(**steps) for name, steps in round_.items()} for round_ in rounds]


def _rows(bench: Bench, size: str, texts: str, on: Device) -> list[harness.Row]:
    rounds = _rounds(bench, size, texts, on)

    def rates(name: str) -> list[float]:
        return [one[name].tokens_per_second / bench.mean_length for one in rounds]

    rows = [
        harness.Row(
            what=f"{ours}, {size}, {texts}", unit="examples/s", peer=peer, peer_values=rates(key),
            our_values=rates(ours), bar=_BARS[on.gpu][key],
            notes={
                "mean_tokens": bench.mean_length,
                "input_wait": [one[ours].input_wait for one in rounds],
            },
        )
        for ours, key, peer in _PAIRS
        if ours in FRAMEWORKS
    ]  # fmt: skip
    if "torch" in FRAMEWORKS:
        rows.append(
            harness.Row(
                what=f"torch, {size}, {texts}: from start to first step", unit="s",
                peer="HF Trainer", lower_is_better=True,
                peer_values=[one["group_by_length"].to_first for one in rounds],
                our_values=[one["torch"].to_first for one in rounds],
            )
        )  # fmt: skip
    for name in FRAMEWORKS:
        used = statistics.median(rates(name)) * bench.mean_length * bench.flops_per_token()
        shares = ", ".join(f"{used / peak:.0%} of {kind}'s" for kind, peak in on.peaks.items())
        cold = [one[name].cold_tokens_per_second for one in rounds]  # of short runs: unknown
        till_warm = ""
        if all(cold):
            rate = statistics.median(cold) / bench.mean_length
            till_warm = f", {rate:.1f} examples/s till all lengths have come"
        waits, first = (
            statistics.median(getattr(one[name], key) for one in rounds)
            for key in ("input_wait", "to_first")
        )
        print(
            f"{name}, {size}, {texts}: {used / 1e9:,.0f} GFLOP/s of real tokens, {shares} peak;"
            f" waits for input {waits:.2%} of a step (bar 1%); {first:.1f} s to the first step"
            f"{till_warm}",
            flush=True,
        )
    return rows


def main() -> None:
    """Each size on each kind of text."""
    on = device()
    print(on, flush=True)
    rows = []
    for size in WANTED_SIZES:
        for name, texts in _texts().items():
            with tempfile.TemporaryDirectory() as folder:
                bench = Bench(folder, size=size, texts=texts, rows=ROWS, steps=STEPS)
                rows += _rows(bench, size, name, on)
                print(harness.table(rows), flush=True)
    harness.report("training", rows, steps=STEPS, rounds=ROUNDS)


if __name__ == "__main__":
    main()
