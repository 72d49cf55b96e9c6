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
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench import harness
from bench.data import commit_dataset
from bench.processes import Sampler
from howdah.config import loader
from howdah.data.manifest import load_dataset
from howdah.data.record import RecordLayout, ShardWriter
from tools import minilm
from training.comm.base import SoloComm
from training.data.planner import Planner, PlanSpec, PlanState
from training.data.readers import BatchSource
from training.data.shard_cache import ShardCache
from training.data.shards import ShardSet
from training.evaluation import metrics
from training.evaluation.tally import Tally

ROWS = int(os.environ.get("BENCH_ROWS", "100000000"))
SHARDS, BATCH, CLASSES, CHUNK = 250, 256, 4, 65_536
WHAT = os.environ.get("BENCH_WHAT", "plan resume command cache tally exact").split()
_EXACT_ROWS = 2_000_000
_NAMES = [str(n) for n in range(CLASSES)]
SOURCES = ("training/data", "training/planning", "training/evaluation", "bench/benches/rows.py")


def main() -> None:
    """Each part in a process of its own; what was measured before is taken up."""
    journal = harness.Rounds("rows", sources=SOURCES, rows=ROWS)
    lines = [
        "| 100 M rows | s | own memory, MB | with mapped files, MB | |",
        "|---|--:|--:|--:|---|",
    ]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in WHAT:
            (found[part],) = journal.up_to(1, part, lambda part=part: _measure(folder, part))
            one = dict(found[part])
            plain = [one.pop(key) for key in ("seconds", "own", "mapped")]
            said = ", ".join(f"{key}: {value}" for key, value in one.items())
            lines.append(
                f"| {part} | {plain[0]:,.2f} | {plain[1] / 1e6:,.0f} | {plain[2] / 1e6:,.0f}"
                f" | {said} |"
            )
    print("\n".join(lines), flush=True)
    harness.report("rows", [], parts=found)


def _measure(folder: str, part: str) -> dict:
    if part not in ("tally", "exact") and not os.path.exists(f"{folder}/done"):
        _write(f"{folder}/plain", "none")
        _write(f"{folder}/packed", "gzip")
        Path(f"{folder}/done").touch()
    argv = [sys.executable, "-m", "bench.benches.rows", part, folder]
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
    own = max(sizes["own"] for _, sizes in sampler.stop())
    if process.returncode:
        raise SystemExit(f"{part} failed")
    said = json.loads(out.splitlines()[-1]) if part != "command" else _plan(json.loads(out))
    return {"seconds": seconds, **said, "own": own, "mapped": usage.ru_maxrss * 1024}


def _plan(said: dict) -> dict:
    if said["rows"]["train"] != ROWS:
        raise SystemExit(f"howdah plan counts other rows: {said['rows']}")
    return {"steps an epoch": said["steps_per_epoch"]}


def _write(folder: str, compression: str) -> None:
    """A dataset of ROWS rows: one shard's records under all names, an index for each."""
    os.makedirs(folder)
    count = ROWS // SHARDS
    rng = np.random.default_rng(0)
    lengths = rng.integers(4, 9, count)
    with open(f"{folder}/shard", "wb") as file:
        writer = ShardWriter(file, RecordLayout(), compression=compression)
        for at in range(0, count, 10_000):
            part = range(at, min(at + 10_000, count))
            writer.write(
                [np.arange(lengths[i], dtype=np.uint16) for i in part],
                [i % CLASSES for i in part],
                [b"%d" % i for i in part],
            )
        stats = writer.close()
    entries = []
    for n in range(SHARDS):
        name = f"train-{n:05d}-of-{SHARDS:05d}.tfrecord"
        os.link(f"{folder}/shard", f"{folder}/{name}")
        Path(f"{folder}/{name}.index").write_bytes(stats.index)
        entries.append(stats.entry(name))
    dataset = commit_dataset(folder, {"train": entries})
    if compression != "none":
        path = Path(folder, "manifest.json")
        value = json.loads(path.read_bytes())
        value["record"]["compression"] = compression
        path.write_text(json.dumps(value))
    if dataset.manifest.rows("train") != ROWS:
        raise SystemExit(f"BENCH_ROWS must be a multiple of {SHARDS}")


def _config(folder: str) -> str:
    base, _ = minilm.base_model(lambda line: print(line, file=sys.stderr))
    settings = {
        "data": {"source": "none", "dataset": f"{folder}/plain"},
        "model": {"base": base},
        "training": {"framework": "torch", "global_batch_size": BATCH},
    }
    path = Path(folder, "config.yaml")
    path.write_text(loader.dump_yaml(loader.from_dict(settings)), encoding="utf-8")
    return str(path)


# ------------------------------------------------------------------------- parts, in a child
def _opened(folder: str, cache: ShardCache | None = None) -> tuple[ShardSet, Planner]:
    dataset = load_dataset(folder)
    shards = ShardSet(dataset, "train", cache=cache)
    spec = PlanSpec(
        dataset_hash=dataset.manifest_hash, split="train", seed=1, global_batch_size=BATCH
    )
    return shards, Planner(shards.lengths, spec)


def _source(shards: ShardSet, planner: Planner, epoch: int, step: int, **more) -> BatchSource:
    start = PlanState.from_json(planner.state(epoch, step).to_json())
    return BatchSource(
        shards, planner, rank=0, world=1, max_tokens=8192, start=start, prefetch=0, **more
    )


def _planned(folder: str) -> dict:
    """An epoch's first and last batch, and one of each window of an epoch's first hundred."""
    began = time.monotonic()
    shards, planner = _opened(f"{folder}/plain")
    next(iter(_source(shards, planner, 0, 0)))
    first = time.monotonic() - began
    began = time.monotonic()
    windows = min(100, planner.steps_per_epoch // planner.window_batches)
    for n in range(windows):
        planner.batch(0, n * planner.window_batches)
    return {
        "to the first batch": f"{first:.2f} s",
        "a window": f"{1000 * (time.monotonic() - began) / windows:.1f} ms",
    }


def _resumed(folder: str) -> dict:
    """From a state in the middle of the second epoch to its batch."""
    began = time.monotonic()
    shards, planner = _opened(f"{folder}/plain")
    step = planner.steps_per_epoch // 2
    next(iter(_source(shards, planner, 1, step)))
    state = json.dumps(planner.state(1, step).to_json())
    return {"to the first batch": f"{time.monotonic() - began:.2f} s", "state": f"{len(state)} B"}


def _cached(folder: str) -> dict:
    """Batches from every tenth group of an epoch through a cache with room for two groups."""
    place = f"{folder}/cache"
    shutil.rmtree(place, ignore_errors=True)
    cache = ShardCache(place, 2**40)
    shards, planner = _opened(f"{folder}/packed", cache)
    room = planner.shards_at_once() * max(shards.files.sizes) + shards.files.index_bytes
    cache.limit_bytes = room
    most = 0
    groups = planner.groups(0)
    for number in range(0, len(groups), 10):
        before = sum(len(shards.lengths[s]) for group in groups[:number] for s in group)
        source = _source(shards, planner, 0, -(-before // BATCH))
        next(iter(source))
        held = sum(f.stat().st_blocks * 512 for f in Path(place).rglob("*") if f.is_file())
        most = max(most, held)
    return {"most held": f"{most / 1e6:,.0f} MB", "room": f"{room / 1e6:,.0f} MB"}


def _chunks() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    chunks = []
    for _ in range(64):
        labels = rng.integers(0, CLASSES, CHUNK)
        logits = rng.normal(0, 2, (CHUNK, CLASSES)).astype(np.float32)
        logits[np.arange(CHUNK), labels] += 1.5
        chunks.append((labels, logits))
    return chunks


def _metrics(chunks: list[tuple[np.ndarray, np.ndarray]], rows: int) -> dict:
    tally = Tally(_NAMES)
    for at in range(0, rows, CHUNK):
        labels, logits = chunks[at // CHUNK % len(chunks)]
        size = min(CHUNK, rows - at)
        tally.add(labels[:size], logits[:size])
    return tally.metrics(SoloComm())


def _tallied(_: str) -> dict:
    """Metrics of ROWS rows."""
    chunks = _chunks()
    began = time.monotonic()
    found = _metrics(chunks, ROWS)
    seconds = time.monotonic() - began
    if found["rows"] != ROWS:
        raise SystemExit(f"the tally has other rows: {found['rows']}")
    own = sum(labels.nbytes + logits.nbytes for labels, logits in chunks)
    return {"ns a row": round(1e9 * seconds / ROWS), "of them the chunks": f"{own / 1e6:,.0f} MB"}


def _exact(_: str) -> dict:
    """How far the sums are off the metrics that are computed of the rows themselves."""
    chunks = _chunks()
    rows = min(ROWS, _EXACT_ROWS)
    parts = chunks[: -(-rows // CHUNK)]
    labels, logits = (np.concatenate(part)[:rows] for part in zip(*parts, strict=True))
    exact = metrics.classification_metrics(labels, logits, _NAMES)
    found = _metrics(chunks, rows)
    off = {key: abs(found[key] - exact[key]) for key in ("ece", "roc_auc", "loss", "macro_f1")}
    return {"rows": rows, **{key: f"{value:.1e}" for key, value in off.items()}}


_PARTS: dict[str, Callable[[str], dict]] = {
    "plan": _planned, "resume": _resumed, "cache": _cached, "tally": _tallied,
    "exact": _exact,
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(_PARTS[sys.argv[1]](sys.argv[2])))
