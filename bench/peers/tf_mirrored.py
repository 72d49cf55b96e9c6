"""MultiWorkerMirroredStrategy around a plain loop with Hugging Face's class.

    python -m bench.peers.tf_mirrored WORLD JOB.json

Starts its workers itself. The weights are random: transformers reads none of the base's files into
this class without torch.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

from bench.peers.progress import Progress
from howdah.data.manifest import load_dataset


def worker(me: int, world: int, job: dict) -> None:
    """Train as one worker."""
    os.environ.update(TF_USE_LEGACY_KERAS="1", USE_TORCH="0", TF_CPP_MIN_LOG_LEVEL="3")
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(job["threads"])
    strategy = tf.distribute.get_strategy()
    if world > 1:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    from transformers import DistilBertConfig, TFDistilBertForSequenceClassification

    from howdah.data.splits.planner import Planner, PlanSpec
    from howdah.data.splits.shards import ShardSet
    from howdah.training.data.readers import BatchSource

    dataset = load_dataset(job["dataset"])
    shards = ShardSet(dataset, "train")
    spec = PlanSpec(dataset_hash="ddp", split="train", seed=1, global_batch_size=job["batch"])
    source = BatchSource(
        shards, Planner(shards.lengths, spec), rank=me, world=world, max_tokens=10**6,
        pad_multiple=2, stop_step=job["steps"],
    )  # fmt: skip
    labels = len(dataset.manifest.labels)
    with strategy.scope():
        net = TFDistilBertForSequenceClassification(
            DistilBertConfig.from_pretrained(job["base"], num_labels=labels)
        )
        net(net.dummy_inputs)
        optimizer = tf.keras.optimizers.Adam(1e-5, global_clipnorm=1.0)
    spec_BT = tf.TensorSpec([None, None], tf.int32)

    @tf.function(input_signature=[spec_BT, spec_BT, tf.TensorSpec([None], tf.int32)])
    def step(ids_BT, mask_BT, labels_B):
        def of_replica():
            with tf.GradientTape() as tape:
                inputs = {"input_ids": ids_BT, "attention_mask": mask_BT}
                logits = net(inputs, training=True).logits
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels_B, logits)
                loss = tf.reduce_sum(losses) / job["batch"]
            gradients = tape.gradient(loss, net.trainable_variables)
            pairs = zip(gradients, net.trainable_variables, strict=True)
            optimizer.apply_gradients((g, v) for g, v in pairs if g is not None)
            return loss

        return strategy.reduce("SUM", strategy.run(of_replica), axis=None)

    progress = Progress(job["out"], me)
    for number, batch in enumerate(source, start=1):
        float(step(batch.ids_BT, batch.mask_BT, batch.labels_B))
        progress.step(number)


def main() -> None:
    """Start the workers, or be one."""
    world, path = int(sys.argv[1]), sys.argv[2]
    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    if world == 1:
        worker(0, 1, job)
        return
    if "TF_CONFIG" in os.environ:
        worker(json.loads(os.environ["TF_CONFIG"])["task"]["index"], world, job)
        return
    free = [socket.create_server(("127.0.0.1", 0)) for _ in range(world)]
    addresses = ["{}:{}".format(*one.getsockname()) for one in free]
    for one in free:
        one.close()
    running = {}
    for me in range(world):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": me}}
        env = os.environ | {"TF_CONFIG": json.dumps(config)}
        command = [sys.executable, "-m", "bench.peers.tf_mirrored", *sys.argv[1:]]
        one = subprocess.Popen(command, env=env)
        running[one.pid] = one
    while running:
        pid, status = os.wait()
        del running[pid]
        if status:
            for one in running.values():
                one.kill()
            raise SystemExit(f"a worker ended with {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main()
