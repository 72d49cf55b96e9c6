"""Take one synchronous data-parallel step by hand and draw when each rank did what."""

import os
import sys
import tempfile
import time

import matplotlib.pyplot as plt
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

RANKS, ROWS = 2, 32  # each rank takes its share of the rows of a global batch
PHASES = ("rows", "forward", "backward", "all-reduce", "update")


class Classifier(torch.nn.Module):
    """A convolution over the bytes of a text and the maximum over its positions."""

    def __init__(self, classes):
        super().__init__()
        self.bytes = torch.nn.Embedding(256, 64, padding_idx=0)
        self.convolution = torch.nn.Conv1d(64, 256, 5, padding=4, bias=False)
        self.head = torch.nn.Linear(256, classes)

    def forward(self, ids):
        # Padding gives zeros, which change no maximum: it does not matter how long the batch is.
        return self.head(F.relu(self.convolution(self.bytes(ids).mT)).amax(2))


def tensors(rows):
    """Pad to the longest text of THESE rows: a rank with short texts has less to compute."""
    ids = [torch.tensor(list(text.encode()[:1000])) for text, _ in rows]
    ids = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    return ids, torch.tensor([label for _, label in rows])


def train(rank, rows, classes, store):
    """Take three steps as one of the ranks."""
    torch.set_num_threads(1)  # two ranks, two cores
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    torch.manual_seed(0)  # the same first weights on every rank
    model = Classifier(classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for step in range(3):  # two to warm up; the last one is drawn
        batch = rows[step::3]
        if step == 2:  # this time rank 0 has the short texts and rank 1 the long ones
            batch.sort(key=lambda row: len(row[0]))
            old = parameters_to_vector(model.parameters()).detach()
        dist.barrier()  # only for the drawing: all start at one moment
        clock = [time.perf_counter()]  # CLOCK_MONOTONIC: one clock for all processes

        share = len(batch) // RANKS
        ids, labels = tensors(batch[rank * share : (rank + 1) * share])
        clock.append(time.perf_counter())
        loss = F.cross_entropy(model(ids), labels)
        clock.append(time.perf_counter())
        optimizer.zero_grad()
        loss.backward()
        clock.append(time.perf_counter())
        gradient = parameters_to_vector([weight.grad for weight in model.parameters()])
        dist.all_reduce(gradient)  # returns when the slowest rank has come, too
        gradient /= RANKS
        vector_to_parameters(gradient, [w.grad for w in model.parameters()])
        clock.append(time.perf_counter())

        optimizer.step()  # the same gradient on the same weights: no weight has to be sent
        clock.append(time.perf_counter())
    clocks, weights = [None] * RANKS, [None] * RANKS
    dist.all_gather_object(clocks, clock)
    dist.all_gather_object(weights, parameters_to_vector(model.parameters()).detach())
    if rank == 0:
        slowest = max(times[3] for times in clocks)  # the last one to enter the all-reduce
        for number, times in enumerate(clocks):
            for phase, start, end in zip(PHASES, times, times[1:], strict=False):
                print(f"rank {number}, {phase} = {1000 * (end - start):.1f} ms")
            print(f"rank {number}, wait for the other rank = {1000 * (slowest - times[3]):.1f} ms")
        apart = (weights[0] - weights[1]).abs().max()
        print(f"largest difference between the ranks' weights = {apart:g}")
        # The gradient of the same rows on the same weights, by one process.
        vector_to_parameters(old, model.parameters())
        ids, labels = tensors(batch)
        optimizer.zero_grad()
        F.cross_entropy(model(ids), labels).backward()
        alone = parameters_to_vector([weight.grad for weight in model.parameters()])
        apart = (alone - gradient).norm() / alone.norm()
        print(f"relative difference from the gradient of one process = {apart:.9f}")
        draw(clocks)
    dist.destroy_process_group()


def draw(clocks):
    """Draw a bar for each phase of each rank."""
    for key in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"):
        plt.rcParams[key] = "#808080"
    plt.figure(figsize=(6, 3.2), layout="constrained")
    ms = 1000 * (torch.tensor(clocks, dtype=torch.double) - clocks[0][0])
    for index, phase in enumerate(PHASES):
        start, end = ms[:, index], ms[:, index + 1]
        plt.barh(("rank 0", "rank 1"), end - start, 0.5, start, label=phase)
    plt.xlabel("milliseconds")
    plt.title("One step: the rank with the short texts waits in the all-reduce", fontsize=10)
    plt.gcf().legend(ncols=5, loc="outside lower center", frameon=False, fontsize=8)
    plt.savefig("one_step.svg", transparent=True)


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    table = pq.read_table(sys.argv[1], columns=["text", "label"]).to_pydict()
    names = sorted(set(table["label"]))
    pairs = zip(table["text"], table["label"], strict=True)
    rows = [(text, names.index(label)) for text, label in pairs if text and text.strip()]
    rows = rows[:: len(rows) // (3 * ROWS)][: 3 * ROWS]  # three global batches of all classes
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"  # by this file the ranks find each other
        mp.start_processes(train, args=(rows, len(names), store), nprocs=RANKS, start_method="fork")
