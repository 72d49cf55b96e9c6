"""Train with Horovod in TensorFlow; each line that only Horovod needs has "# Horovod"."""

import os
import sys
import time
import zlib

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1"}

import horovod.tensorflow as hvd  # Horovod
import numpy as np
import pyarrow.parquet as pq
import tensorflow as tf

WORDS, HIDDEN, CLASSES = 8192, 128, 9  # WORDS: numbers that words are hashed to
ROWS, EPOCHS, TEST = 32, 4, 720  # rows of a batch, on each rank


def rows(path):
    """(log(1 + how often a word is in the text), labels), 400 rows a class, shuffled."""
    frame = pq.read_table(path, columns=["text", "label"]).to_pandas().dropna()
    frame = frame.groupby("label").sample(400, random_state=0).sample(frac=1, random_state=0)
    counts = np.zeros((len(frame), WORDS), np.float32)
    for row, text in enumerate(frame.text):
        for word in text.lower().split():
            counts[row, zlib.crc32(word.encode()) % WORDS] += 1
    return np.log1p(counts), frame.label.astype("category").cat.codes.to_numpy(np.int64)


hvd.init()  # Horovod
tf.config.threading.set_intra_op_parallelism_threads(1)  # two ranks, two cores
tf.config.threading.set_inter_op_parallelism_threads(1)
words, labels = rows(sys.argv[1])
data = tf.data.Dataset.from_tensor_slices((words[TEST:], labels[TEST:]))
data = data.shard(hvd.size(), hvd.rank())  # Horovod
data = data.batch(ROWS)

model = tf.keras.Sequential(
    [tf.keras.layers.Dense(HIDDEN, activation="relu"), tf.keras.layers.Dense(CLASSES)]
)
model.build((None, WORDS))
random = np.random.default_rng(0)  # the same first weights as in PyTorch
shapes = [weight.shape for weight in model.weights]
model.set_weights([random.normal(0, 0.05, shape) * (len(shape) > 1) for shape in shapes])
optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
hvd.broadcast_variables(model.variables, root_rank=0)  # Horovod


@tf.function(reduce_retracing=True)
def step(words_B, labels_B):
    """Forward, backward, average, update."""
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels_B, model(words_B))
        loss = tf.reduce_mean(losses)
    tape = hvd.DistributedGradientTape(tape)  # Horovod
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


losses, began = [], time.perf_counter()
for _ in range(EPOCHS):
    for words_B, labels_B in data:
        losses.append(step(words_B, labels_B))
seconds = time.perf_counter() - began

# The rest is for printing alone.
mean = hvd.allreduce(tf.stack(losses)).numpy()
every = hvd.allgather(tf.concat([tf.reshape(one, [-1]) for one in model.weights], 0)[None])
if hvd.rank() == 0:  # Horovod  also where a model is saved
    print(f"TensorFlow: loss of the first step = {mean[0]:.5f}")
    print(f"TensorFlow: loss of the last step = {mean[-1]:.5f}")
    accuracy = np.mean(np.argmax(model(words[:TEST]), 1) == labels[:TEST])
    print(f"TensorFlow: accuracy on the test rows = {accuracy:.4f}")
    apart = np.abs(every[0] - every[1]).max()
    print(f"TensorFlow: largest difference between the ranks' weights = {apart:g}")
    print(f"TensorFlow: a step = {1000 * seconds / len(losses):.1f} ms")
    with open(__file__) as source:
        lines = sum("  # Horovod" in line for line in source) - 1
        print(f"TensorFlow: lines that Horovod needs = {lines}")
