"""Exports of each task, of texts and of pairs, beside transformers' pipeline; a process of its own.

    python -m tests.workers.task_exports DIRECTORY MODEL_DIRECTORY

Prints a JSON object: by task {ours, theirs: [{label: score}, ...], served: the answers of a server,
refused: what the wrong kind of text gets}.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from transformers import pipeline

from howdah.data.clean import joined
from howdah.data.inputs import encoder_of_model
from howdah.models.export.export import export
from howdah.models.export.run_info import RunInfo
from howdah.models.metrics.multi_label import multi_label_metrics
from howdah.models.metrics.regression import regression_metrics
from howdah.models.opened.opened import open_model
from howdah.models.weights.parameters import start_weights
from howdah.models.weights.pretrained import load_base
from howdah.serving.compute.requests import as_json, rows_of
from howdah.serving.prediction.classify import classify, outputs_of
from howdah.serving.prediction.rows import Row

PAIRS = [["the list of values", "is not sorted " * 12], ["water river", "lake"]]
KINDS = {
    "multi_label": (["a", "b", "c"], False),
    "regression": (["score"], True),
    "single_label": (["x", "y"], True),
}
"""{task: (labels, whether of pairs)}"""


def _metrics(task: str, labels: list[str]) -> dict:
    if task == "multi_label":
        return {"test": multi_label_metrics(np.eye(3), np.eye(3) - 0.5, labels)}
    if task == "regression":
        return {"test": regression_metrics(np.arange(3.0), np.arange(3.0)[:, None], labels)}
    return {}


def _one(task: str, directory: str, model: str) -> dict:
    labels, pairs = KINDS[task]
    base = load_base(model)
    weights = start_weights(base.config, base.weights, num_labels=len(labels), seed=1)
    for name in ("pre_classifier.weight", "classifier.weight"):
        weights[name] = weights[name] * 20  # scores far from each other
    encoder = encoder_of_model(base.config, base.tokenizer_files, model)
    info = RunInfo(
        run_id="r", max_length=24, clean={}, base={"source": "base", "hash": base.hash},
        tokenizer_hash=encoder.hash, task=task, pairs=pairs, metrics=_metrics(task, labels),
    )  # fmt: skip
    path = export(
        f"{directory}/{task}", weights=weights, base_config=base.config, label_names=labels,
        tokenizer_files=base.tokenizer_files, run_info=info,
    )  # fmt: skip
    served = open_model(path, framework="torch", threads=1)
    inputs = PAIRS if pairs else [" ".join(sides) for sides in PAIRS]
    results = classify(served, rows_of(inputs))
    judge = pipeline("text-classification", model=path, top_k=None, truncation=True)
    pairs_of_texts = [dict(zip(("text", "text_pair"), one, strict=True)) for one in PAIRS]
    theirs = [judge(one) for one in pairs_of_texts] if pairs else judge(inputs)
    wrong = Row("0", "one text" if pairs else joined("a", "b"), pair=not pairs)
    return {
        "ours": [dict(zip(labels, one.scores.tolist(), strict=True)) for one in results],
        "theirs": [{one["label"]: one["score"] for one in row} for row in theirs],
        "served": as_json(results, outputs_of(served)),
        "refused": classify(served, [wrong])[0].error,
    }


if __name__ == "__main__":
    print(json.dumps({task: _one(task, *sys.argv[1:]) for task in KINDS}))
