"""Train by synchronous all-reduce and by an asynchronous parameter server, and compare them.

Four workers on loopback. A gradient takes 20 ms by the clock (a sleep after the arithmetic), so
that processes which share two cores stand for machines; a straggler's takes 60 ms.
"""

import os
import tempfile
import time
from itertools import chain

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from sklearn.datasets import load_digits

WORKERS, SERVER = 4, 4  # ranks 0 to 3 compute, rank 4 has the asynchronous weights
GRADIENT, ROWS, RATE = 0.02, 16, 0.1  # seconds and rows of a gradient, learning rate for each
UPDATES = 160  # of all-reduce; the server makes WORKERS times as many, of one gradient each
STOP, GOAL = -1.0, 0.3  # in place of a version; loss on 360 test rows

digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)


def loss_of(weights, rows):
    """An MLP of 64-64-10 whose weights are one flat vector."""
    first, second = weights[:4096].view(64, 64), weights[4096:].view(64, 10)
    return F.cross_entropy(F.relu(images[rows] @ first) @ second, labels[rows])


def gradient(weights, rank, slow):
    """The gradient of some training rows, in the time that it takes on this worker."""
    began = time.perf_counter()
    weights = weights.clone().requires_grad_()
    loss_of(weights, torch.randint(360, len(labels), (ROWS,))).backward()
    seconds = GRADIENT * (slow if rank == 1 else 1)
    time.sleep(max(0, seconds - (time.perf_counter() - began)))
    return weights.grad


def synchronous(weights, rank, slow):
    """Every update is by a gradient of each worker, all of the newest weights."""
    for _ in range(UPDATES):
        total = gradient(weights, rank, slow)
        dist.all_reduce(total)  # waits for the slowest
        weights -= RATE * total
        yield weights, [(worker, 0) for worker in range(WORKERS)]


def asynchronous(weights, rank, slow):
    """The server updates by each gradient as it comes and answers with the newest weights."""
    message = torch.cat([weights, torch.zeros(1)])  # weights or a gradient, and their version
    if rank == SERVER:
        for version in range(WORKERS * UPDATES):
            worker = dist.recv(message)  # from any of them
            weights -= RATE * message[:-1]
            yield weights, [(worker, version - int(message[-1]))]
            dist.send(torch.cat([weights, torch.tensor([version + 1.0])]), worker)
        for _ in range(WORKERS):
            dist.send(torch.full_like(message, STOP), dist.recv(message))
        return
    while message[-1] != STOP:
        message[:-1] = gradient(message[:-1], rank, slow)
        dist.send(message, SERVER)
        dist.recv(message, SERVER)


def train(rank, ranks, way, slow, folder):
    """Train as one of the ranks; who has the weights saves them after every update."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    torch.manual_seed(0)
    weights = torch.randn(64 * 64 + 64 * 10) / 8
    torch.manual_seed(rank)  # other rows on every worker
    dist.barrier()
    began, kept = time.perf_counter(), []
    for updated, gradients in way(weights, rank, slow):
        kept.append((time.perf_counter() - began, updated.clone(), gradients))
    if rank == ranks - 1:
        torch.save(kept, f"{folder}/kept")


def main():
    """Run the four cases and judge the weights of every update afterwards."""
    for key in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"):
        plt.rcParams[key] = "#808080"
    plt.figure(figsize=(6, 3.2), layout="constrained")
    for slow, case in ((1, ""), (3, ", one worker 3x as slow")):
        for way, ranks in ((synchronous, WORKERS), (asynchronous, WORKERS + 1)):
            name = way.__name__ + case
            with tempfile.TemporaryDirectory() as folder:
                mp.start_processes(train, (ranks, way, slow, folder), ranks, start_method="fork")
                kept = torch.load(f"{folder}/kept")
            seconds, weights, gradients = zip(*kept, strict=True)
            losses = [loss_of(one, torch.arange(360)).item() for one in weights]
            reached = next(index for index, loss in enumerate(losses) if loss <= GOAL)
            used = sum(len(one) for one in gradients[: reached + 1])
            worker, staleness = torch.tensor(list(chain(*gradients))).double().T
            print(f"{name}: seconds to a loss of {GOAL} = {seconds[reached]:.2f} s")
            print(f"{name}: gradients to it = {used}")
            print(f"{name}: mean staleness = {staleness.mean():.2f} updates")
            print(
                f"{name}: mean staleness of worker 1 = {staleness[worker == 1].mean():.2f} updates"
            )
            print(f"{name}: share of worker 1 = {100 * (worker == 1).double().mean():.0f} %")
            plt.plot(seconds, losses, label=name, linestyle="--" if slow == 3 else "-")
    plt.ylim(0, 1)
    plt.xlabel("seconds")
    plt.title("Loss on test rows: a straggler slows the synchronous updates most", fontsize=10)
    plt.legend(frameon=False, fontsize=8)
    plt.savefig("stale.svg", transparent=True)


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    main()
