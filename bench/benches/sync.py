"""What gradient synchronisation adds to a step at np=2, beside torch's DDP over gloo.

Each rank has one thread and half the batch; what np=1 takes for half the batch is taken off.
Log-normal lengths, the MiniLM size. BENCH_ROUNDS (5), BENCH_STEPS (60). A round takes some nine
minutes on two cores: each is kept as it ends, and a second start of the same sources goes on with
the next one.
"""

from __future__ import annotations

import os
import statistics
import tempfile

from bench import harness
from bench.training_runs import BATCH, Bench
from howdah.config.launchers import CARRIES, LAUNCHERS

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
STEPS = int(os.environ.get("BENCH_STEPS", "60"))
ROWS = 8_000
ONE_THREAD = ("training.threads_per_rank=1", "training.precision=fp32")  # as DDP has it
SOURCES = ("training", "bench/training_runs.py", "bench/peers/ddp_gloo.py",
           "bench/peers/plain_torch.py")  # fmt: skip


def _added_ms(both: list[float], alone: list[float]) -> float:
    return 1000 * (statistics.median(both) - statistics.median(alone))


def _round(bench: Bench) -> dict[str, float]:
    """What DDP adds, then each framework by each launcher that starts it, in ms a step."""
    added = {"ddp": _added_ms(bench.ddp(2, BATCH), bench.ddp(1, BATCH // 2))}
    for framework in ("torch", "tensorflow"):
        alone = bench.ours(framework, batch=BATCH // 2, set_=ONE_THREAD).seconds
        for launcher, row in LAUNCHERS.items():
            if framework not in CARRIES[row.comm]:
                continue
            both = bench.ours(framework, ranks=2, launched_by=launcher, set_=ONE_THREAD).seconds
            added[f"{framework} {launcher}"] = _added_ms(both, alone)
    return added


def main() -> None:
    """All rounds."""
    journal = harness.Rounds("sync", sources=SOURCES, steps=STEPS, batch=BATCH, rows=ROWS)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder, size="minilm", texts="lengths", rows=ROWS, steps=STEPS)
        rounds = journal.up_to(ROUNDS, "minilm", lambda: _round(bench))
    rows = [
        harness.Row(
            what=f"np=2 adds to a step, {name}", unit="ms", peer="DDP over gloo",
            peer_values=[one["ddp"] for one in rounds],
            our_values=[one[name] for one in rounds], lower_is_better=True,
            bar="<= 0.5x of DDP's" if "mpirun" in name else "<= DDP's",
        )
        for name in rounds[0]
        if name != "ddp"
    ]  # fmt: skip
    harness.report("sync", rows, steps=STEPS, rounds=ROUNDS)


if __name__ == "__main__":
    main()
