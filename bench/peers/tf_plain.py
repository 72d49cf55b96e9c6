"""The plain TensorFlow loop: TFDistilBert, one tf.function, fp32, every row padded to the maximum.

    python -m bench.peers.tf_plain --dataset D --base B --steps N --batch 32 --threads 2
Prints one JSON line: seconds and real tokens of each step.
"""

from __future__ import annotations

import argparse
import json
import os
import time

os.environ.update(TF_USE_LEGACY_KERAS="1", USE_TORCH="0", TF_CPP_MIN_LOG_LEVEL="3")

import numpy as np
import tensorflow as tf
from transformers import DistilBertConfig, TFDistilBertForSequenceClassification

from howdah.data.manifest import load_dataset
from howdah.data.splits.shards import ShardSet


def main() -> None:
    """Throughput needs no pretrained weights: the model is made from the base's config."""
    parser = argparse.ArgumentParser()
    for name, kind in (("dataset", str), ("base", str), ("steps", int), ("batch", int),
                       ("threads", int)):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, required=True)
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    dataset = load_dataset(options.dataset)
    shards = ShardSet(dataset, "train")
    width = dataset.manifest.max_length
    rows = [
        shards.example(shard, n)
        for shard, lengths in enumerate(shards.lengths)
        for n in range(len(lengths))
    ]
    model = TFDistilBertForSequenceClassification(
        DistilBertConfig.from_pretrained(options.base, num_labels=len(dataset.manifest.labels))
    )
    optimizer = tf.keras.optimizers.Adam(1e-5)
    losses = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(ids, mask, labels):
        with tf.GradientTape() as tape:
            logits = model({"input_ids": ids, "attention_mask": mask}, training=True).logits
            loss = losses(labels, logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    rng = np.random.default_rng(0)
    seconds, tokens = [], []
    order = np.concatenate([rng.permutation(len(rows)) for _ in range(1 + options.steps)])
    for number in range(options.steps):
        begun = time.perf_counter()
        picked = [rows[n] for n in order[number * options.batch : (number + 1) * options.batch]]
        ids = np.zeros((options.batch, width), np.int32)
        mask = np.zeros_like(ids)
        for n, row in enumerate(picked):
            ids[n, : len(row.input_ids)] = row.input_ids
            mask[n, : len(row.input_ids)] = 1
        step(
            tf.constant(ids), tf.constant(mask), tf.constant([row.label for row in picked])
        ).numpy()
        seconds.append(time.perf_counter() - begun)
        tokens.append(sum(len(row.input_ids) for row in picked))
    print(json.dumps({"step_seconds": seconds, "step_tokens": tokens}))


if __name__ == "__main__":
    main()
