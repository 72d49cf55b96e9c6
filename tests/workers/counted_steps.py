"""A job of two ranks that only count steps: `python -m ...counted_steps FOLDER ends|recovers`.

When a rank dies the other is ended. Then the job ends with code 3, or starts both again once, two
steps back.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from bench.peers.progress import Progress


def rank(out: str, number: int, first: int) -> None:
    progress = Progress(out, number)
    step = first
    while True:
        time.sleep(0.01)  # the pace of its steps
        step += 1
        progress.step(step)


def job(out: str, recovers: bool) -> int:
    first = 0
    for _ in range(1 + recovers):
        words = [sys.executable, "-m", "tests.workers.counted_steps", out, "rank"]
        ranks = [subprocess.Popen([*words, str(number), str(first)]) for number in range(2)]
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        for one in ranks:
            one.kill()
            one.wait()
        with open(f"{out}/steps.jsonl", encoding="utf-8") as file:
            first = len(file.readlines()) - 2
    return 3


if __name__ == "__main__":
    if sys.argv[2] == "rank":
        rank(sys.argv[1], int(sys.argv[3]), int(sys.argv[4]))
    sys.exit(job(sys.argv[1], sys.argv[2] == "recovers"))
