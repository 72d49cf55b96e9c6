"""Near-duplicate removal beside its peers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bench import harness
from bench.benches.etl import rows

_PEERS = Path(__file__).parents[3] / "build" / "bench-peers" / "datasketch"
_DATASKETCH = "datasketch==1.6.5"
WAYS = {
    "datasketch": "datasketch MinHashLSH, 128 permutations, 0.7, one process",
    "mllib": "Spark MLlib MinHashLSH, 12 tables, 0.7",
}


def compared(
    folder: str, count: int, rounds: int, journal: harness.Rounds, budget: harness.Budget
) -> list[harness.Row]:
    """Seconds and the share found of each way, over `count` rows."""
    path = f"{folder}/near-{count}.parquet"
    if not _PEERS.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        subprocess.run([*command, str(_PEERS), _DATASKETCH], check=True)

    def one_round() -> dict:
        if not os.path.exists(path):
            rows.write(path, count)
        found = {}
        for way in ("ours", *WAYS):
            found[way] = _run(way, path, folder)
            print(f"{way}: {found[way]}", flush=True)
        return found

    found = journal.up_to(rounds, f"near duplicates of {count}", one_round, budget)
    if not found:
        return []
    return [
        harness.Row(
            what=f"near duplicates of {count:,} rows", unit="rows/s", peer=peer,
            peer_values=[count / result[way]["seconds"] for result in found],
            our_values=[count / result["ours"]["seconds"] for result in found],
            bar="> 1x at equal or better recall",
            notes={
                "found_by_peer": found[0][way]["found"],
                "found_by_ours": found[0]["ours"]["found"],
                "joined_by_peer": found[0][way]["joined"],
                "joined_by_ours": found[0]["ours"]["joined"],
            },
        )
        for way, peer in WAYS.items()
    ]  # fmt: skip


def _run(way: str, path: str, folder: str) -> dict:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(_PEERS)])}
    done = subprocess.run(
        [sys.executable, "-m", "bench.peers.near_duplicates", way, path, folder],
        env=env, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])
