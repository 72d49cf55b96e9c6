"""Train by MirroredStrategy on two devices; each line that only it needs has "# Mirrored".

The devices are two halves of one CPU ("logical devices"): TensorFlow treats them as it treats GPUs.
"""

import os
import sys
import time
import zlib

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1"}

import numpy as np
import pyarrow.parquet as pq
import tensorflow as tf

WORDS, HIDDEN, CLASSES = 8192, 128, 9  # WORDS: numbers that words are hashed to
ROWS, EPOCHS, TEST = 64, 4, 720  # ROWS: of a batch, over both devices


def rows(path):
    """(log(1 + how often a word is in the text), labels), 400 rows a class, shuffled."""
    frame = pq.read_table(path, columns=["text", "label"]).to_pandas().dropna()
    frame = frame.groupby("label").sample(400, random_state=0).sample(frac=1, random_state=0)
    counts = np.zeros((len(frame), WORDS), np.float32)
    for row, text in enumerate(frame.text):
        for word in text.lower().split():
            counts[row, zlib.crc32(word.encode()) % WORDS] += 1
    return np.log1p(counts), frame.label.astype("category").cat.codes.to_numpy(np.int64)


def train(strategy, words, labels):
    """Return the losses, the model and the seconds."""
    data = tf.data.Dataset.from_tensor_slices((words[TEST:], labels[TEST:])).batch(ROWS)
    data = strategy.experimental_distribute_dataset(data)  # Mirrored  splits each batch
    with strategy.scope():  # Mirrored  a variable made here has a copy on each device
        model = tf.keras.Sequential(
            [tf.keras.layers.Dense(HIDDEN, activation="relu"), tf.keras.layers.Dense(CLASSES)]
        )
        model.build((None, WORDS))
        optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    random = np.random.default_rng(0)  # the same first weights as in lesson 05
    shapes = [weight.shape for weight in model.weights]
    model.set_weights([random.normal(0, 0.05, shape) * (len(shape) > 1) for shape in shapes])

    @tf.function(reduce_retracing=True)
    def step(words_B, labels_B):
        def on_device(words_B, labels_B):  # Mirrored
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels_B, model(words_B))
                loss = tf.reduce_sum(losses) / ROWS  # of the GLOBAL batch: the sum is the mean
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        losses = strategy.run(on_device, (words_B, labels_B))  # Mirrored
        return strategy.reduce("SUM", losses, axis=None)  # Mirrored

    losses, began = [], time.perf_counter()
    for _ in range(EPOCHS):
        for words_B, labels_B in data:
            losses.append(step(words_B, labels_B))
    return np.array(losses), model, time.perf_counter() - began


def main():
    """Train on one device and on two."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    words, labels = rows(sys.argv[1])
    strategies = {
        "one device": tf.distribute.OneDeviceStrategy("CPU:0"),
        "MirroredStrategy": tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),  # Mirrored
    }
    for name, strategy in strategies.items():
        losses, model, seconds = train(strategy, words, labels)
        show(name, losses, seconds)
        right = np.argmax(model(words[:TEST]), 1) == labels[:TEST]
        print(f"{name}: accuracy on the test rows = {right.mean():.4f}")
    copies = model.trainable_variables[0].values
    print(f"MirroredStrategy: copies of each variable = {len(copies)}")
    apart = np.abs(copies[0] - copies[1]).max()
    print(f"MirroredStrategy: largest difference between the copies = {apart:g}")
    with open(__file__) as source:
        lines = sum("  # Mirrored" in line for line in source) - 1
        print(f"MirroredStrategy: lines that it needs = {lines}")


def show(name, losses, seconds):
    """Print what every way of training has."""
    print(f"{name}: loss of the first step = {losses[0]:.5f}")
    print(f"{name}: loss of the last step = {losses[-1]:.5f}")
    print(f"{name}: a step = {1000 * seconds / len(losses):.1f} ms")


if __name__ == "__main__":
    main()
