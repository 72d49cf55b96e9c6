"""A finished run's directory without training: predictions, metrics, dataset, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import yaml

from howdah import storage
from howdah.data.encode import Encoder
from howdah.data.manifest import DatasetManifest, RecordEntry, TokenizerEntry, commit, load_dataset
from howdah.data.record import Columns, RecordLayout
from howdah.data.splits.planner import Rows
from howdah.models.metrics.tally import Tally
from howdah.training.comm.base import SoloComm
from howdah.training.evaluation.evaluate import PredictionPart
from tests.fixtures.dataset import write_rows
from tests.support.models.tiny_model import write_tiny_model

_COLUMNS = {"input_ids": "input_ids", "label": "label", "length": "length", "id": "id"}


def make_run(
    directory: str,
    labels: list[str],
    splits: Mapping[str, tuple[list[str], list, np.ndarray]],
    *,
    task: str = "single_label",
    config: Mapping | None = None,
    ids: Mapping[str, list[str]] | None = None,
    parts: bool = True,
) -> str:
    """Write a run directory and return its path.

    Args:
        splits: {split: (texts, labels, logits_NC)}; train has no logits that matter.
        ids: {split: ids}; none: `<split>-<n>`.
        parts: write predictions of validation and test.
    """
    model, version = f"{directory}/base", f"{directory}/data/v=0"
    write_tiny_model(model)
    encoder = Encoder.load(model)
    layout = RecordLayout(columns=Columns(**_COLUMNS), task=task)
    row_ids = ids or {}
    shards, metrics, token_counts = {}, {}, {}
    for split, (texts, truth, logits) in splits.items():
        keys = (row_ids.get(split) or [f"{split}-{n}" for n in range(len(texts))])[: len(texts)]
        encoded = encoder.encode(texts, 64)
        token_counts[split] = [len(one) for one in encoded]
        stored = [tuple(np.flatnonzero(row)) for row in truth] if task == "multi_label" else truth
        entries = write_rows(version, split, layout, "none", 2, encoded, stored, keys)
        shards[split] = entries
        if split == "train":
            continue
        tally = Tally(labels, task)
        tally.add(np.asarray(truth), logits)
        metrics[split] = tally.metrics(SoloComm())
        if not parts:
            continue
        with PredictionPart(labels, "made-1", task) as part:
            ends = np.cumsum([0, *(entry.rows for entry in entries)])
            number = np.searchsorted(ends, np.arange(len(texts)), side="right") - 1
            places = Rows(
                shard=number.astype(np.int32), row=np.arange(len(texts)) - ends[number],
                length=np.array(token_counts[split], np.int32), real=np.ones(len(texts), bool),
            )  # fmt: skip
            stored = np.asarray(truth, np.float32 if task != "single_label" else None)
            part.add([key.encode() for key in keys], stored, np.asarray(logits, np.float32), places)
            part.publish(f"{directory}/run/predictions/{split}/part-00000.parquet")
    commit(
        version,
        DatasetManifest(
            dataset_hash="0" * 16, created="2026-01-01T00:00:00Z", etl_version="test", task=task,
            labels=labels, max_length=64,
            tokenizer=TokenizerEntry(hash=encoder.hash, vocab_size=encoder.vocab_size,
                                     pad_id=encoder.pad_id, source=model),
            record=RecordEntry(ids_dtype="uint16", columns=_COLUMNS), splits=shards,
            source={"kind": "csv", "name": "made.csv"}, seed=0, split_rule={}, cleaning={},
            quality={"read": 10, "kept": 9, "drops": {"empty": 1}},
        ),
    )  # fmt: skip
    dataset = load_dataset(version)
    run = f"{directory}/run"
    for name, data in encoder.files.items():
        storage.write_whole(f"{run}/export/{name}", data)
    about = {"run_id": "made-1", "step": 40, "task": task,
             "dataset": {"path": version, "hash": dataset.manifest.dataset_hash}}  # fmt: skip
    storage.write_whole(f"{run}/export/howdah.json", json.dumps(about).encode())
    values = {
        "run_id": "made-1", "name": "made", "status": "finished", "framework": "torch", "steps": 40,
        "world_size": 1, "dataset": version, "dataset_hash": dataset.manifest_hash,
        "metrics": metrics, "train_seconds": 12.5, "created": "2030-01-01T00:00:00+00:00",
        "attempts": [{"attempt": 1, "dataset": version, "seconds": 60.0, "started": "2030"}],
    }  # fmt: skip
    storage.write_whole(f"{run}/run.json", json.dumps(values).encode())
    lines = [{"attempt": 1, "step": n, "loss": 2 / n, "lr": 1e-5 * n} for n in range(10, 41, 10)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    storage.write_whole(f"{run}/metrics.jsonl", text.encode())
    keys = {"run": {"name": "made", "directory": run}, "data": {"task": task}, **(config or {})}
    storage.write_whole(f"{run}/config.yaml", yaml.safe_dump(keys).encode())
    return run
