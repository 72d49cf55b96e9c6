"""Near-duplicate removal beside its peers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from bench import harness
from bench.benches.etl import rows

_ROOT = Path(__file__).parents[3]
_PEERS = _ROOT / "build" / "bench-peers"
_DATASKETCH = "datasketch==1.6.5"
_DATATROVE = ("datatrove[io,processing]==0.10.1", "spacy")
WAYS = {
    "datasketch": "datasketch MinHashLSH, 128 permutations, 0.7, one process",
    "mllib": "Spark MLlib MinHashLSH, 3 tables, 0.7",
    "datatrove": "datatrove, 5-grams, 14 x 8 hashes, two processes",
    "datatrove-2": "datatrove, 2-grams, 14 x 8 hashes, two processes",
}
_WANTED = os.environ.get("BENCH_WAYS", "ours datasketch mllib").split()


def compared(
    folder: str, count: int, rounds: int, journal: harness.Rounds, budget: harness.Budget
) -> list[harness.Row]:
    """Seconds and the share found of each way, over `count` rows."""
    path = f"{folder}/near-{count}.parquet"

    def run(way: str) -> dict:
        if not os.path.exists(path):
            rows.write(path, count)
        result = _run(way, path, folder)
        print(f"{way}, {count:,} rows: {result}", flush=True)
        return result

    def name(way: str) -> str:
        return f"near duplicates of {count}, {way}"

    for round_ in range(1, rounds + 1):
        for way in _WANTED:
            journal.up_to(round_, name(way), partial(run, way), budget)
    runs = {way: journal.kept(name(way))[:rounds] for way in ("ours", *WAYS)}
    return [
        harness.Row(
            what=f"near duplicates of {count:,} rows", unit="rows/s", peer=peer,
            peer_values=[count / one["seconds"] for one in runs[way]],
            our_values=[count / one["seconds"] for one in runs["ours"]],
            bar="> 1x at equal or better recall",
            notes={
                "found_by_peer": runs[way][0]["found"],
                "found_by_ours": runs["ours"][0]["found"],
                "joined_by_peer": runs[way][0]["joined"],
                "joined_by_ours": runs["ours"][0]["joined"],
            },
        )
        for way, peer in WAYS.items()
        if runs[way] and runs["ours"]
    ]  # fmt: skip


def _run(way: str, path: str, folder: str) -> dict:
    python, places = sys.executable, [str(_ROOT)]
    if way.startswith("datatrove"):
        # An environment of its own, since it asks for another huggingface-hub.
        python = harness.python_with(str(_PEERS / "datatrove"), _DATATROVE)
    elif way == "datasketch":
        places = [*sys.path, _folder_of_datasketch()]
    done = subprocess.run(
        [python, "-m", "bench.peers.near_duplicates", way, path, folder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def _folder_of_datasketch() -> str:
    folder = str(_PEERS / "datasketch")
    if not os.path.exists(folder):
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        subprocess.run([*command, folder, _DATASKETCH], check=True)
    return folder
