"""What gradient synchronisation adds to a step at np=2, beside torch's DDP over gloo.

Each rank has one thread and half the batch; what np=1 takes for half the batch is taken off.
Log-normal lengths, the MiniLM size. BENCH_ROUNDS (5), BENCH_STEPS (60).
"""

from __future__ import annotations

import os
import statistics
import tempfile

from bench import harness
from bench.training_runs import BATCH, Bench

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
STEPS = int(os.environ.get("BENCH_STEPS", "60"))


def _added_ms(both: list[float], alone: list[float]) -> float:
    return 1000 * (statistics.median(both) - statistics.median(alone))


def main() -> None:
    """DDP, then both frameworks by both launchers, in turn."""
    found: dict[str, list[float]] = {}
    one_thread = ("training.threads_per_rank=1", "training.precision=fp32")  # as DDP has it
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder, size="minilm", texts="lengths", rows=8_000, steps=STEPS)
        for _ in range(ROUNDS):
            added = _added_ms(bench.ddp(2, BATCH), bench.ddp(1, BATCH // 2))
            found.setdefault("ddp", []).append(added)
            for framework in ("torch", "tensorflow"):
                alone = bench.ours(framework, batch=BATCH // 2, set_=one_thread).seconds
                for launcher in ("mpirun", "horovodrun"):
                    both = bench.ours(
                        framework, ranks=2, launcher=launcher, set_=one_thread
                    ).seconds
                    found.setdefault(f"{framework} {launcher}", []).append(_added_ms(both, alone))
            print(found, flush=True)
    rows = [
        harness.Row(
            what=f"np=2 adds to a step, {name}", unit="ms", peer="DDP over gloo",
            peer_values=found["ddp"], our_values=values, lower_is_better=True,
            bar="<= 0.5x of DDP's" if "mpirun" in name else "<= DDP's",
        )
        for name, values in found.items()
        if name != "ddp"
    ]  # fmt: skip
    harness.report("sync", rows, steps=STEPS, rounds=ROUNDS)


if __name__ == "__main__":
    main()
