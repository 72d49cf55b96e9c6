"""A rank of tests/training/comm/test_comm.py: `python -m tests.workers.comm FRAMEWORK OUT`.

Each rank writes its results to OUT/rank.N.json; the test compares the files.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

import numpy as np

from howdah.errors import HowdahError
from howdah.process import env


def main(framework: str, out: str) -> None:
    env.prepare(framework, threads=1)
    from howdah.training.comm import backends

    comm = backends.init(framework)
    rank, size = comm.rank, comm.size
    seen: dict = {"rank": rank, "size": size, "backend": comm.backend}
    seen["sum"] = comm.sum(np.array([1.0, rank, 2.0**40 + rank])).tolist()
    rows = np.arange(rank * 2, dtype=np.float32).reshape(rank, 2) + 10 * rank  # rank 0: no rows
    seen["gather"] = comm.gather(rows).tolist()
    seen["gather_none"] = list(comm.gather(np.zeros((0, 3), np.float32)).shape)
    seen["gather_int"] = comm.gather(np.array([rank, 2**40], np.int64)).tolist()
    seen["gather_json"] = comm.gather_json({"rank": rank, "text": "é" * (rank + 1)})
    arrays = {
        "a": np.full((2, 3), rank + 1, np.float32),
        "scalar": np.array(rank + 5, np.int64),
        "none": np.zeros((0, 4), np.float32),
    }
    got = comm.broadcast(arrays if rank == 0 else {})
    seen["broadcast"] = {name: [str(a.dtype), a.tolist()] for name, a in got.items()}
    seen["broadcast_json"] = comm.broadcast_json({"from": rank, "text": "Größe"})
    seen["agree"] = [comm.agree(rank == size - 1), comm.agree(False)]
    seen |= _gradients(framework, comm)
    comm.barrier()
    seen |= _apart(comm)
    comm.barrier()
    with open(os.path.join(out, f"rank.{rank}.json"), "w", encoding="utf-8") as file:
        json.dump(seen, file)
    comm.shutdown()


def _gradients(framework: str, comm) -> dict:
    dense = [np.full((3,), comm.rank + 1, np.float32), np.full((2, 2), 0.5, np.float32)]
    ids = np.array([comm.rank, 7], np.int64)  # 7 on every rank
    values = np.full((2, 4), comm.rank + 1, np.float32)
    if framework == "torch":
        import torch

        reduced = comm.reduce_gradients([torch.from_numpy(a) for a in dense])
        ids_t, values_t = comm.reduce_rows(torch.from_numpy(ids), torch.from_numpy(values))
        reduced_in_graph = [a.clone() for a in reduced]
        divided = _divided(comm, torch) | {"exchanged": _exchanged(comm, torch)}
    else:
        import tensorflow as tf

        reduced = comm.reduce_gradients([tf.constant(a) for a in dense])
        ids_t, values_t = comm.reduce_rows(tf.constant(ids), tf.constant(values))
        reduced_in_graph = tf.function(comm.reduce_gradients)([tf.constant(a) for a in dense])
        divided = None
    return {
        "divided": divided,
        "gradients": [np.asarray(a).tolist() for a in reduced],
        "gradients_in_graph": [np.asarray(a).tolist() for a in reduced_in_graph],
        "row_ids": np.asarray(ids_t).tolist(),
        "row_values": np.asarray(values_t).tolist(),
    }


def _divided(comm, torch) -> dict:
    """A message for each rank: what a rank has of its own, of all others', and rank 0 of each."""
    owners = list(range(comm.size))
    messages = [torch.full((2 + owner,), float(comm.rank + 1)) for owner in owners]
    comm.reduce_to(messages, owners)
    reduced = messages[comm.rank].tolist()
    comm.broadcast_from(messages, owners)
    fetched = []
    for owner in owners:
        message = torch.full((3,), -0.0 if comm.rank == owner else 7.0)
        message[0] = comm.rank
        comm.fetch(message, owner)
        fetched.append([message[0].item(), str(message[1].item())])
    return {"own": reduced, "all": [one.tolist() for one in messages], "fetched": fetched}


def _exchanged(comm, torch) -> bool:
    """True if messages of several pieces arrive whole, and each rank's at its place."""
    ranks = torch.arange(comm.size)
    numbers = torch.arange(600_001)  # bytes: gloo gets them in three pieces

    def part(source, target):
        return ((numbers + 10 * source + target) % 251).to(torch.uint8)

    sent = torch.stack([part(comm.rank, rank) for rank in ranks])
    received = comm.begin_exchange(0, sent).wait()
    gathered = comm.begin_gather(0, sent[0].clone()).wait()
    whole = [
        torch.equal(received[rank], part(rank, comm.rank)) and torch.equal(gathered[rank], first)
        for rank, first in ((rank, part(rank, 0)) for rank in ranks)
    ]
    rows = torch.full((70_000, 2), float(comm.rank))
    ids, values = comm.reduce_rows(torch.arange(70_000), rows)
    blocks = values.view(comm.size, -1)
    in_order = all(bool((blocks[rank] == rank).all()) for rank in ranks)
    return all(whole) and in_order and torch.equal(ids.view(comm.size, -1)[0], torch.arange(70_000))


def _apart(comm) -> dict:
    """Horovod's thread sleeps while ranks compute, and so does a rank that waits for another."""
    woken = min(_woken_while_computing() for _ in range(3))
    comm.barrier()
    begun, used = time.perf_counter(), time.thread_time()
    if comm.rank:
        _compute(0.5)
    comm.barrier()
    used = time.thread_time() - used
    return {"others_woken": woken, "used_waiting": used / (time.perf_counter() - begun)}


def _woken_while_computing() -> int:
    """How often the most often woken of the other threads was, in half a second.

    A thread that polls does so in every half second; frameworks' own threads wake once in a while.
    """
    before = _wakings()
    _compute(0.5)
    return max(count - before.get(thread, count) for thread, count in _wakings().items())


def _compute(seconds: float) -> None:
    end = time.perf_counter() + seconds
    product = np.ones((64, 64))
    while time.perf_counter() < end:
        np.dot(product, product)


def _wakings() -> dict[str, int]:
    """{thread: voluntary context switches} of this process's other threads."""
    counts = {}
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != threading.get_native_id():
            with open(f"/proc/self/task/{thread}/status", encoding="ascii") as file:
                status = dict(line.split(":", 1) for line in file)
            counts[thread] = int(status["voluntary_ctxt_switches"])
    return counts


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except HowdahError as error:
        print(json.dumps(error.as_dict()), file=sys.stderr)
        sys.exit(error.exit_code)
