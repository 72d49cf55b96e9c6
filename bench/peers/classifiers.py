"""A classifier in a process of its own, with one thread: transformers' pipeline, or one of ours.

    python -m bench.peers.classifiers KIND DIRECTORY TEXTS.json

Answers each line of stdin (`single`, `bulk` or `labels`) with a line of JSON: processor time in
milliseconds a text, or the labels.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ |= {"USE_TF": "0", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}

PIPELINE = "pipeline"
BATCH = 32
"""Of the pipeline: its best size here."""


def classifier(kind: str, directory: str) -> Callable[[list[str], bool], list[str]]:
    """(texts, whether in batches) -> labels."""
    if kind == PIPELINE:
        import torch
        import transformers

        torch.set_num_threads(1)
        judge = transformers.pipeline(
            "text-classification", model=directory, truncation=True, device="cpu"
        )
        return lambda texts, bulk: [
            prediction["label"] for prediction in judge(texts, batch_size=BATCH if bulk else 1)
        ]
    from howdah.models.opened.opened import open_model

    served = open_model(directory, framework=kind, threads=1)
    return lambda texts, bulk: [
        served.labels[number] for number in served.scores(texts).argmax(axis=1)
    ]


def main(kind: str, directory: str, texts_path: str) -> None:
    """Answer until stdin ends."""
    with open(texts_path, encoding="utf-8") as file:
        texts = json.load(file)
    classify = classifier(kind, directory)
    for line in sys.stdin:
        command = line.strip()
        if command == "labels":
            print(json.dumps(classify(texts, True)), flush=True)
            continue
        started = time.process_time()
        if command == "bulk":
            classify(texts, True)
        else:
            for text in texts:
                classify([text], False)
        print(json.dumps(1e3 * (time.process_time() - started) / len(texts)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
