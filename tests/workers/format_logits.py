"""The logits of an export by one of its readers, in a process of its own.

    python -m tests.workers.format_logits READER DIRECTORY BATCHES.npz LOGITS.npz [COPY]

READER: transformers, torch, tensorflow, onnx (of open_model), saved_model, or onnxruntime (the file
model.onnx by its path). BATCHES has ids_0, mask_0, ids_1, ...; LOGITS gets logits_0, ...; in COPY
transformers saves the model and its tokenizer again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import numpy as np


def reader(kind: str, directory: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """(ids_BT, mask_BT) -> logits_BC."""
    if kind == "transformers":
        import torch
        from transformers import AutoModelForSequenceClassification

        net = AutoModelForSequenceClassification.from_pretrained(directory).eval()

        def forward(ids, mask):
            with torch.inference_mode():
                tensors = (torch.from_numpy(array).long() for array in (ids, mask))
                return net(*tensors).logits.numpy()

        return forward
    if kind == "saved_model":
        import tensorflow as tf

        loaded = tf.saved_model.load(os.path.join(directory, "saved_model"))
        signature = loaded.signatures["serving_default"]
        return lambda ids, mask: signature(
            input_ids=tf.constant(ids), attention_mask=tf.constant(mask)
        )["logits"].numpy()
    if kind == "onnxruntime":
        import onnxruntime

        session = onnxruntime.InferenceSession(
            os.path.join(directory, "model.onnx"), providers=["CPUExecutionProvider"]
        )
        return lambda ids, mask: session.run(
            None, {"input_ids": ids.astype(np.int64), "attention_mask": mask.astype(np.int64)}
        )[0]
    from howdah.models.opened.opened import open_model

    return open_model(directory, framework=kind, threads=1).forward


def save(directory: str, copy: str) -> None:
    """Save an export as transformers saves models; print transformers' version."""
    import transformers

    parts = ("AutoModelForSequenceClassification", "AutoTokenizer")
    for part in parts:
        getattr(transformers, part).from_pretrained(directory).save_pretrained(copy)
    print(transformers.__version__)


def main(kind: str, directory: str, batches: str, target: str, copy: str | None = None) -> None:
    """Read the batches, write the logits."""
    forward, arrays = reader(kind, directory), np.load(batches)
    count = len(arrays.files) // 2
    np.savez(
        target,
        **{f"logits_{n}": forward(arrays[f"ids_{n}"], arrays[f"mask_{n}"]) for n in range(count)},
    )
    if copy is not None:
        save(directory, copy)


if __name__ == "__main__":
    main(*sys.argv[1:])
