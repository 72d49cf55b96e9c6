"""100 million rows: planner, resume, shard cache, `howdah plan` and an evaluation's sums.

Small records (4 to 8 tokens) in 250 shards. The records of all shards are one file under 250 names;
each shard's index is a file of its own, so that as much is mapped as for 250 different shards. The
shard cache is measured with the same rows as gzip, in room for two groups of shards. Logits of the
evaluation are 64 chunks that repeat; `exact` compares its sums of two million rows with the metrics
of the rows themselves. Each part runs in a process of its own: seconds,
its own memory at the peak (RssAnon), and the peak with the files that it has mapped (VmHWM).

BENCH_ROWS (100000000). One part or several: BENCH_WHAT ("plan resume command cache tally exact").
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import harness
from bench.benches.rows import data
from bench.processes import Sampler
from howdah.config import loader
from tools import minilm

WHAT = os.environ.get("BENCH_WHAT", "plan resume command cache tally exact").split()
SOURCES = ("training/data", "training/planning", "training/evaluation", "bench/benches/rows")


def main() -> None:
    """Each part in a process of its own; what was measured before is taken up."""
    journal = harness.Rounds("rows", sources=SOURCES, rows=data.ROWS)
    lines = [
        "| 100 M rows | s | own memory, MB | with mapped files, MB | |",
        "|---|--:|--:|--:|---|",
    ]
    parts = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in WHAT:
            (parts[part],) = journal.up_to(1, part, lambda part=part: _measure(folder, part))
            one = dict(parts[part])
            plain = [one.pop(key) for key in ("seconds", "own", "mapped")]
            notes = ", ".join(f"{key}: {value}" for key, value in one.items())
            lines.append(
                f"| {part} | {plain[0]:,.2f} | {plain[1] / 1e6:,.0f} | {plain[2] / 1e6:,.0f}"
                f" | {notes} |"
            )
    print("\n".join(lines), flush=True)
    harness.report("rows", [], parts=parts)


def _measure(folder: str, part: str) -> dict:
    if part not in ("tally", "exact") and not os.path.exists(f"{folder}/done"):
        data.write(f"{folder}/plain", "none")
        data.write(f"{folder}/packed", "gzip")
        Path(f"{folder}/done").touch()
    argv = [sys.executable, "-m", "bench.benches.rows.parts", part, folder]
    if part == "command":
        argv = [sys.executable, "-m", "howdah.cli", "plan", "--config", _config(folder), "--json"]
    began = time.monotonic()
    process = subprocess.Popen(
        argv, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    sampler = Sampler(lambda: {"own": process.pid}).start()
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - began
    memory = max(sizes["own"] for _, sizes in sampler.stop())
    if process.returncode:
        raise SystemExit(f"{part} failed")
    figures = json.loads(out.splitlines()[-1]) if part != "command" else _plan(json.loads(out))
    return {"seconds": seconds, **figures, "own": memory, "mapped": usage.ru_maxrss * 1024}


def _plan(plan: dict) -> dict:
    if plan["rows"]["train"] != data.ROWS:
        raise SystemExit(f"howdah plan counts other rows: {plan['rows']}")
    return {"steps an epoch": plan["steps_per_epoch"]}


def _config(folder: str) -> str:
    base, _ = minilm.base_model(lambda line: print(line, file=sys.stderr))
    settings = {
        "data": {"source": "none", "dataset": f"{folder}/plain"},
        "model": {"base": base},
        "training": {"framework": "torch", "global_batch_size": data.BATCH},
    }
    path = Path(folder, "config.yaml")
    path.write_text(loader.dump_yaml(loader.from_dict(settings)), encoding="utf-8")
    return str(path)
