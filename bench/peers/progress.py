"""What a peer's ranks leave for the bench that watches them: ids of processes, times of steps."""

from __future__ import annotations

import json
import os
import time


class Progress:
    """Progress file of one rank; without a folder it writes nothing.

    Args:
        folder: `ranks/<rank>` has this process's id; `steps.jsonl` a line for each step of rank 0.
        rank: rank of this process.
    """

    def __init__(self, folder: str | None, rank: int) -> None:
        self._path = None
        if folder is None:
            return
        os.makedirs(f"{folder}/ranks", exist_ok=True)
        unfinished = f"{folder}/.rank-{rank}"
        with open(unfinished, "w", encoding="utf-8") as file:
            file.write(str(os.getpid()))
        os.replace(unfinished, f"{folder}/ranks/{rank}")  # the bench never reads an empty one
        if rank == 0:
            self._path = f"{folder}/steps.jsonl"

    def step(self, number: int) -> None:
        """Step `number`, counted from 1, is done."""
        if self._path is not None:
            line = {"step": number, "time": time.time(), "life": os.getpid()}
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
