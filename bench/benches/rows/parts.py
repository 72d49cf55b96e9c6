"""`python -m bench.benches.rows.parts PART FOLDER`: one part in a process of its own, as JSON."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.benches.rows.data import BATCH, CLASSES, ROWS
from howdah.data.manifest import load_dataset
from howdah.data.splits.planner import Planner, PlanSpec, PlanState
from howdah.data.splits.shard_cache import ShardCache
from howdah.data.splits.shards import ShardSet
from howdah.models.metrics import metrics
from howdah.models.metrics.tally import Tally
from howdah.training.comm.base import SoloComm
from howdah.training.data.readers import BatchSource

_CHUNK = 65_536
_EXACT_ROWS = 2_000_000
_NAMES = [str(n) for n in range(CLASSES)]


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
        labels = rng.integers(0, CLASSES, _CHUNK)
        logits = rng.normal(0, 2, (_CHUNK, CLASSES)).astype(np.float32)
        logits[np.arange(_CHUNK), labels] += 1.5
        chunks.append((labels, logits))
    return chunks


def _metrics(chunks: list[tuple[np.ndarray, np.ndarray]], rows: int) -> dict:
    tally = Tally(_NAMES)
    for at in range(0, rows, _CHUNK):
        labels, logits = chunks[at // _CHUNK % len(chunks)]
        size = min(_CHUNK, rows - at)
        tally.add(labels[:size], logits[:size])
    return tally.metrics(SoloComm())


def _tallied(_: str) -> dict:
    """Metrics of ROWS rows."""
    chunks = _chunks()
    began = time.monotonic()
    metrics = _metrics(chunks, ROWS)
    seconds = time.monotonic() - began
    if metrics["rows"] != ROWS:
        raise SystemExit(f"the tally has other rows: {metrics['rows']}")
    size = sum(labels.nbytes + logits.nbytes for labels, logits in chunks)
    return {"ns a row": round(1e9 * seconds / ROWS), "of them the chunks": f"{size / 1e6:,.0f} MB"}


def _exact(_: str) -> dict:
    """How far the sums are off the metrics that are computed of the rows themselves."""
    chunks = _chunks()
    rows = min(ROWS, _EXACT_ROWS)
    parts = chunks[: -(-rows // _CHUNK)]
    labels, logits = (np.concatenate(part)[:rows] for part in zip(*parts, strict=True))
    exact = metrics.classification_metrics(labels, logits, _NAMES)
    values = _metrics(chunks, rows)
    off = {key: abs(values[key] - exact[key]) for key in ("ece", "roc_auc", "loss", "macro_f1")}
    return {"rows": rows, **{key: f"{value:.1e}" for key, value in off.items()}}


_PARTS: dict[str, Callable[[str], dict]] = {
    "plan": _planned, "resume": _resumed, "cache": _cached, "tally": _tallied,
    "exact": _exact,
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(_PARTS[sys.argv[1]](sys.argv[2])))
