"""`howdah etl` at growing sizes: what a row costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from bench.benches.etl import rows
from bench.harness import Budget, Rounds
from bench.processes import Sampler
from howdah.config import loader
from tools import minilm

EXECUTORS, CORES, TARGET = 200, 2, 100_000_000
APART = os.environ.get("BENCH_APART") == "1"
# Executors in the driver's JVM, or one of its own beside a driver that must do with little.
SPARK = (
    {"master": "local-cluster[1,2,4096]", "driver_memory": "640m"}
    if APART
    else {"master": "local[2]", "driver_memory": "4g"}
)


def measured(folder: str, sizes: list[int], journal: Rounds, budget: Budget) -> list[dict]:
    """The figures of each size; printed as a table, with what they say of 100 M rows."""
    base, _ = minilm.base_model(lambda line: print(line, file=sys.stderr))
    figures: list[dict] = []
    for size in sizes:
        run = partial(_measure, folder, base, size)
        name = f"growth {size}, executor apart" if APART else f"growth {size}"
        figures += journal.up_to(1, name, run, budget)
    if not figures:
        return []
    lines = [
        "| rows | wall s | task s | task ms a row | shuffle bytes a row | kept bytes a row"
        f" | driver's Python MB | JVM MB{'' if APART else ' (its executors in it)'} | jobs |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in figures:
        lines.append(
            f"| {row['rows']:,} | {row['wall']:.0f} | {row['task']:.0f}"
            f" | {1000 * row['task'] / row['rows']:.2f} | {row['shuffle'] / row['rows']:,.0f}"
            f" | {row['kept'] / row['rows']:,.0f} | {row['python'] / 1e6:.0f}"
            f" | {row['jvm'] / 1e6:,.0f} | {row['jobs']} |"
        )
    last = figures[-1]
    seconds = last["task"] / last["rows"] * TARGET / (EXECUTORS * CORES)
    lines.append(
        f"\nExtrapolated from the last row, not measured: {TARGET:,} rows on {EXECUTORS} executors"
        f" of {CORES} cores: {seconds / 60:.0f} minutes of tasks,"
        f" {last['shuffle'] / last['rows'] * TARGET / 1e9:,.0f} GB of shuffle,"
        f" {last['kept'] / last['rows'] * TARGET / EXECUTORS / 1e9:.1f} GB kept an executor."
    )
    print("\n".join(lines), flush=True)
    return figures


def killed(folder: str, size: int, journal: Rounds, budget: Budget) -> list[dict]:
    """What a SIGKILL at 80 % of the time costs: the seconds up to it and those of the run that goes
    on, beside an undisturbed one's."""
    base, _ = minilm.base_model(lambda line: print(line, file=sys.stderr))
    run = partial(_measure_killed, folder, base, size)
    figures = journal.up_to(1, f"killed at 80 %, {size}", run, budget)
    for row in figures:
        whole, again = row["wall"], row["again"]
        cost = 0.8 + again / whole - 1
        print(
            f"{size:,} rows: {whole:.0f} s undisturbed; killed after {0.8 * whole:.0f} s, the next"
            f" run took {again:.0f} s: {100 * cost:.0f} % more (bar: at most 10 %)",
            flush=True,
        )
    return figures


def _measure_killed(folder: str, base: str, size: int) -> dict:
    seconds = {}
    for name, limit in (("wall", None), ("killed", 0.8), ("again", None)):
        place = Path(folder) / ("undisturbed" if name == "wall" else "disturbed")
        if name != "again":
            (place / "events").mkdir(parents=True)
            os.symlink(_source(Path(folder), size), place / "rows.parquet")
        config = _config(place, base)
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "howdah.cli", "etl", "--config", str(config)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(limit and limit * seconds["wall"])
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait() + signal.SIGKILL
        if code:
            raise SystemExit(f"howdah etl ended with {code}")
        seconds[name] = time.monotonic() - began
    return seconds


def _source(folder: Path, size: int) -> Path:
    path = folder / f"rows-{size}.parquet"
    if not path.exists():
        rows.write(str(path), size)
    return path


def _measure(folder: str, base: str, size: int) -> dict:
    place = Path(folder) / f"growth-{size}"
    events = place / "events"
    events.mkdir(parents=True)
    os.symlink(_source(Path(folder), size), place / "rows.parquet")
    config = _config(place, base)
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "howdah.cli", "etl", "--config", str(config)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    sampler = Sampler(lambda: _processes(process.pid)).start()
    _, stderr = process.communicate()
    wall = time.monotonic() - began
    samples = [sizes for _, sizes in sampler.stop()]
    if process.returncode:
        raise SystemExit(f"howdah etl failed:\n{stderr[-4000:]}")
    return {
        "rows": size,
        "wall": wall,
        **_events(events),
        "python": max(sizes.get("python", 0) for sizes in samples),
        "jvm": max(sizes.get("jvm", 0) for sizes in samples),
    }


def _config(place: Path, base: str) -> Path:
    events = place / "events"
    settings = {
        "data": {
            "source": str(place / "rows.parquet"),
            "dataset": str(place / "dataset"),
            "columns": {"id": "id"},
            "spark": {
                **SPARK,
                "conf": {
                    "spark.executor.memory": "4g",
                    "spark.eventLog.enabled": "true",
                    "spark.eventLog.dir": f"file://{events}",
                    "spark.eventLog.rolling.enabled": "false",
                    "spark.eventLog.compress": "false",
                    "spark.eventLog.logBlockUpdates.enabled": "true",
                    "spark.local.dir": str(place / "spark"),
                },
            },
        },
        "model": {"base": base},
    }
    config = place / "config.yaml"
    config.write_text(loader.dump_yaml(loader.from_dict(settings)), encoding="utf-8")
    return config


def _processes(pid: int) -> dict[str, int]:
    """The driver's Python, and its JVM; unless they are apart, the executors are in it."""
    processes = {"python": pid}
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children:
            if Path(f"/proc/{child}/comm").read_text().strip() == "java":
                processes["jvm"] = int(child)
    except OSError:
        pass
    return processes


def _events(folder: Path) -> dict[str, float]:
    """Seconds of tasks, shuffle bytes, most bytes kept at a time, and jobs of a run."""
    task = shuffle = kept = most = jobs = 0.0
    blocks: dict[str, float] = {}
    (log,) = folder.iterdir()
    with log.open(encoding="utf-8") as file:
        for line in file:
            event = json.loads(line)
            kind = event["Event"].rpartition(".")[2]
            if kind == "SparkListenerJobStart":
                jobs += 1
            elif kind == "SparkListenerTaskEnd" and "Task Metrics" in event:
                metrics = event["Task Metrics"]
                task += metrics["Executor Run Time"] / 1000
                shuffle += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"]
            elif kind == "SparkListenerBlockUpdated":
                block = event["Block Updated Info"]
                if block["Block ID"].startswith("rdd_"):
                    # Spark reports a block that it moves to disk with its size in memory as well.
                    in_memory = block["Storage Level"]["Use Memory"]
                    now = block["Disk Size"] + (block["Memory Size"] if in_memory else 0)
                    kept += now - blocks.get(block["Block ID"], 0)
                    blocks[block["Block ID"]] = now
                    most = max(most, kept)
            elif kind == "SparkListenerUnpersistRDD":
                gone = f"rdd_{event['RDD ID']}_"
                for name in [name for name in blocks if name.startswith(gone)]:
                    kept -= blocks.pop(name)
    return {"task": task, "shuffle": shuffle, "kept": most, "jobs": int(jobs)}
