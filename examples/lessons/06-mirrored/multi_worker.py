"""Train by MultiWorkerMirroredStrategy: the loop of mirrored.py in two processes, no shared memory.

Each worker is told by TF_CONFIG who all workers are and which of them it is. This file starts
itself again for each worker; on a cluster that is the launcher's work.
"""

import json
import os
import socket
import subprocess
import sys

WORKERS = 2


def start():
    """Start the workers and wait for them."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(WORKERS)]
    addresses = ["{}:{}".format(*one.getsockname()) for one in sockets]
    for one in sockets:
        one.close()
    workers = []
    for index in range(WORKERS):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environ = os.environ | {"TF_CONFIG": json.dumps(task)}
        workers.append(subprocess.Popen([sys.executable, __file__, *sys.argv[1:]], env=environ))
    sys.exit(max(abs(worker.wait()) for worker in workers))


def work():
    """Train as one of the workers."""
    import mirrored
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)  # two workers, two cores
    tf.config.threading.set_inter_op_parallelism_threads(2)  # one of them waits for the others
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before TensorFlow does anything else
    losses, model, seconds = mirrored.train(strategy, *mirrored.rows(sys.argv[1]))
    total = sum(float(tf.reduce_sum(weight)) for weight in model.trainable_variables)
    totals = strategy.gather(tf.constant([total]), axis=0).numpy()
    if strategy.cluster_resolver.task_id == 0:  # the chief; it saves models, too
        mirrored.show("MultiWorkerMirroredStrategy", losses, seconds)
        print(f"MultiWorkerMirroredStrategy: replicas = {strategy.num_replicas_in_sync}")
        apart = totals.max() - totals.min()
        print(
            f"MultiWorkerMirroredStrategy: difference of the workers' sums of weights = {apart:g}"
        )


if "TF_CONFIG" in os.environ:
    work()
else:
    start()
