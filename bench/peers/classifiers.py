"""A classifier in a process of its own, with one thread: a peer, or one of ours.

    python -m bench.peers.classifiers KIND DIRECTORY TEXTS.json

Answers each line of stdin (`single`, `bulk` or `labels`) with a line of JSON: processor time in
milliseconds a text, or the labels. The kinds in OTHERS run in another environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ |= {"USE_TF": "0", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
os.environ |= {"INFINITY_ANONYMOUS_USAGE_STATS": "0", "HF_HUB_OFFLINE": "1"}

PIPELINE, RUNTIME = "pipeline", "onnxruntime"
OTHERS = ("openvino", "openvino-int8", "infinity")
PACKAGES = ("openvino", "nncf", "infinity-emb[torch]")
"""What OTHERS need."""
BATCH = 32
"""The peers' batch size: the pipeline's best one here."""

Classify = Callable[[list[str], bool], list[str]]


def classifier(kind: str, directory: str, texts: list[str]) -> Classify:
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
    if kind == "infinity":
        return infinity(directory)
    if kind in (RUNTIME, *OTHERS):
        return of_graph(kind, directory, texts)
    from howdah.models.opened.opened import open_model

    served = open_model(directory, framework=kind, threads=1)
    return lambda texts, bulk: [
        served.labels[number] for number in served.scores(texts).argmax(axis=1)
    ]


def infinity(directory: str) -> Classify:
    """Infinity's engine with torch, without its HTTP server; it sorts texts by length itself."""
    import torch
    from infinity_emb import AsyncEmbeddingEngine, EngineArgs

    torch.set_num_threads(1)
    loop = asyncio.new_event_loop()
    engine = AsyncEmbeddingEngine.from_args(
        EngineArgs(
            model_name_or_path=directory,
            engine="torch",
            device="cpu",
            batch_size=BATCH,
            bettertransformer=False,
            model_warmup=False,
        )
    )
    loop.run_until_complete(engine.astart())

    def classify(texts: list[str], bulk: bool) -> list[str]:
        predictions, _ = loop.run_until_complete(engine.classify(sentences=texts))
        return [max(one, key=lambda label: label["score"])["label"] for one in predictions]

    return classify


def of_graph(kind: str, directory: str, texts: list[str]) -> Classify:
    """model.onnx in a loop of twenty lines: batches of BATCH texts, which are sorted by length."""
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding(pad_id=config["pad_token_id"])
    graph = os.path.join(directory, "model.onnx")

    def encoded(texts: list[str]) -> dict[str, np.ndarray]:
        rows = tokenizer.encode_batch(texts)
        return {
            "input_ids": np.array([row.ids for row in rows], np.int64),
            "attention_mask": np.array([row.attention_mask for row in rows], np.int64),
        }

    if kind == RUNTIME:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(graph, options)

        def logits(batch: dict[str, np.ndarray]) -> np.ndarray:
            return session.run(["logits"], batch)[0]
    else:
        import openvino

        model = openvino.Core().read_model(graph)
        if kind == "openvino-int8":
            import nncf

            rows = nncf.Dataset(texts[::3], lambda text: encoded([text]))
            model = nncf.quantize(model, rows, model_type=nncf.ModelType.TRANSFORMER)
        request = openvino.compile_model(
            model, "CPU", {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
        ).create_infer_request()

        def logits(batch: dict[str, np.ndarray]) -> np.ndarray:
            return request.infer(batch)[0]

    def classify(texts: list[str], bulk: bool) -> list[str]:
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        labels, size = [""] * len(texts), BATCH if bulk else 1
        for start in range(0, len(order), size):
            numbers = order[start : start + size]
            best = logits(encoded([texts[number] for number in numbers])).argmax(1)
            for number, label in zip(numbers, best, strict=True):
                labels[number] = config["id2label"][str(label)]
        return labels

    return classify


def main(kind: str, directory: str, texts_path: str) -> None:
    """Answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")  # libraries print progress to stdout
    os.dup2(2, 1)
    with open(texts_path, encoding="utf-8") as file:
        texts = json.load(file)
    classify = classifier(kind, directory, texts)
    for line in sys.stdin:
        command = line.strip()
        if command == "labels":
            print(json.dumps(classify(texts, True)), file=answers, flush=True)
            continue
        started = time.process_time()
        if command == "bulk":
            classify(texts, True)
        else:
            for text in texts:
                classify([text], False)
        milliseconds = 1e3 * (time.process_time() - started) / len(texts)
        print(json.dumps(milliseconds), file=answers, flush=True)
    os._exit(0)  # Infinity's threads would wait for more texts


if __name__ == "__main__":
    main(*sys.argv[1:])
