"""TensorFlow's MultiWorkerMirroredStrategy trains Howdah's model on a dataset of Howdah.

    python examples/mirrored.py run.yaml

This file starts itself again for each worker. It has no resume, evaluation or export, unlike
Howdah's TensorFlow ranks. run.json has the result.
"""

import json
import os
import socket
import subprocess
import sys

import verdict

RANKS = 2


def start(config_path: str, config) -> None:
    """Start the workers; the first one that fails ends the others."""
    from shared_rows import require_no_run

    require_no_run(config)
    free = [socket.create_server(("127.0.0.1", 0)) for _ in range(RANKS)]
    workers = ["{}:{}".format(*one.getsockname()) for one in free]
    for one in free:
        one.close()
    running = {}
    for me in range(RANKS):
        task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": me}}
        env = os.environ | {"TF_CONFIG": json.dumps(task), "TF_USE_LEGACY_KERAS": "1"}
        one = subprocess.Popen([sys.executable, __file__, config_path], env=env)
        running[one.pid] = one
    try:
        while running:
            pid, status = os.wait()
            del running[pid]
            if status:
                raise RuntimeError(f"a worker ended with {os.waitstatus_to_exitcode(status)}")
    finally:
        for one in running.values():
            one.kill()


def worker(config, me: int) -> None:
    """Train as one worker."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # must be TensorFlow's first call
    from shared_rows import batches, finish

    from howdah.models.forward.forward_tf import build
    from howdah.models.weights.parameters import dropout_seed
    from howdah.models.weights.pretrained import load_base

    source, labels = batches(config, me, RANKS)
    base, training = load_base(config.model.base), config.training
    with strategy.scope():
        net = build(base.config, base.weights, num_labels=labels, training=training,
                    model=config.model)  # fmt: skip
        weights = [net.variables[name] for name in net.trainable_names]
        optimizer = tf.keras.optimizers.Adam(training.learning_rate)

    @tf.function(reduce_retracing=True)
    def step(ids, mask, labels_B, weights_B, total, seed_2):
        def of_replica():
            with tf.GradientTape() as tape:
                logits = net(ids, mask, seed_2)  # the seed enables dropout
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels_B, logits)
                loss = tf.reduce_sum(losses * weights_B) / total
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(of_replica), axis=None)

    for number, batch in enumerate(source):
        arrays = (batch.ids_BT, batch.mask_BT, batch.labels_B, batch.weights_B)
        seed = dropout_seed(training.seed, number, batch.micro, me)
        seed_2 = tf.constant([seed, 0], tf.int64)
        loss = step(*map(tf.constant, arrays), tf.constant(batch.global_weight), seed_2)
    if me == 0:
        steps = int(optimizer.iterations.numpy())
        finish(config, steps=steps, loss=float(loss), system="MultiWorkerMirroredStrategy")


if __name__ == "__main__":
    if "TF_CONFIG" in os.environ:
        from howdah.config.loader import load

        mine = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        sys.exit(worker(load(sys.argv[1]), mine))
    sys.exit(verdict.main(start))
