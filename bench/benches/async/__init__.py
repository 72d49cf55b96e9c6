"""An asynchronous parameter server against synchronous all-reduce: seconds, updates and gradients
to a loss, and how stale gradients are; all workers equal, and one of two three times as slow.

The peer is all-reduce. BENCH_ROUNDS (5) rounds of other seeds, each of all four cases. docs/lessons
says what the figures teach.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile

import numpy as np
import torch

from bench import harness

from . import parameter_server as ways  # the folder's name is a word of Python's

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
LOSS = 0.20
"""Loss on the test rows, the mean of five consecutive updates."""
UPDATES = {"all-reduce": 400, "server": 800}
"""Updates of each run, so that both ways compute the same number of gradients."""
STRAGGLER = 3.0
_WAYS = {"all-reduce": (ways.all_reduce, 2), "server": (ways.parameter_server, 3)}


def reached(seconds: np.ndarray, losses: np.ndarray, bound: float) -> tuple[float, int] | None:
    """(seconds, updates) until the mean loss of five updates in a row is at most `bound`."""
    smooth = np.convolve(losses, np.ones(5) / 5, mode="valid")
    below = np.flatnonzero(smooth <= bound)
    if not len(below):
        return None
    update = int(below[0]) + 4
    return float(seconds[update]), update


def _run(way: str, slow: float, seed: int, place: str) -> dict[str, float]:
    """One training, and what it took to LOSS."""
    work, ranks = _WAYS[way]
    path = os.path.join(place, f"{way}-{slow:g}-{seed}")
    torch.multiprocessing.spawn(
        work, args=(path + ".meet", seed, slow, UPDATES[way], path), nprocs=ranks
    )
    result = np.load(path + ".npz")
    with open(path + ".json", encoding="utf-8") as file:
        more = json.load(file)
    _, _, rows, labels = ways.digits()
    test_rows, test_labels = torch.from_numpy(rows), torch.from_numpy(labels)
    with torch.no_grad():
        losses = [
            float(ways.loss_of(torch.from_numpy(one), test_rows, test_labels))
            for one in result["weights"]
        ]
    end = reached(result["seconds"], np.array(losses), LOSS)
    if end is None:
        raise SystemExit(f"{way}, slow {slow:g}: loss {min(losses):.3f}, never {LOSS}")
    seconds, updates = end
    per_update = 2 if way == "all-reduce" else 1
    stale, by = (more[key][: updates * per_update] for key in ("staleness", "by"))
    second = [one for one, worker in zip(stale, by, strict=True) if worker == 1]
    return {
        "seconds": seconds,
        "updates": updates,
        "gradients": updates * per_update,
        "updates_a_second": UPDATES[way] / float(result["seconds"][-1]),
        "stale_mean": statistics.mean(stale),
        "stale_max": max(stale),
        "second_stale_mean": statistics.mean(second),
        "second_share": len(second) / len(by),
        "lowest_loss": min(losses),
    }


def main() -> None:
    """All rounds."""
    journal = harness.Rounds("async", sources=("bench/benches/async",), loss=LOSS)
    with tempfile.TemporaryDirectory() as place:
        seeds = iter(range(len(journal.kept("digits")), ROUNDS))

        def round_() -> dict:
            seed = next(seeds)
            return {
                f"{way} {slow:g}": _run(way, slow, seed, place)
                for slow in (1.0, STRAGGLER)
                for way in _WAYS
            }

        rounds = journal.up_to(ROUNDS, "digits", round_)
    rows = [
        harness.Row(
            what=f"{unit} to a loss of {LOSS:g}, {case}", unit=unit,
            peer="all-reduce", lower_is_better=True,
            peer_values=[one[f"all-reduce {slow:g}"][unit] for one in rounds],
            our_values=[one[f"server {slow:g}"][unit] for one in rounds],
        )
        for slow, case in ((1.0, "equal workers"), (STRAGGLER, "one of two 3x as slow"))
        for unit in ("seconds", "updates", "gradients")
    ]  # fmt: skip
    for slow, case in ((1.0, "equal workers"), (STRAGGLER, "one of two 3x as slow")):
        case_rounds = [one[f"server {slow:g}"] for one in rounds]
        mean, most, second, share = (
            statistics.median(one[key] for one in case_rounds)
            for key in ("stale_mean", "stale_max", "second_stale_mean", "second_share")
        )
        print(
            f"updates that a gradient is stale by, {case}: mean {mean:.2f}, max {most:g};"
            f" the second worker's {second:.2f}, {share:.0%} of the gradients"
        )
    harness.report("async", rows, rounds=rounds)


if __name__ == "__main__":
    main()
