"""Sum a gradient over N ranks as a ring, as a tree and by a parameter server, over slow links."""

import statistics
import time

import links
import matplotlib.pyplot as plt
import torch
import torch.distributed as dist

COMPUTE = 0.1  # seconds of forward and backward, by a sleep: each rank stands for a machine
GRADIENT = 2**20  # float32 numbers: 4.19 MB
SERVER = 8  # the ranks before it are workers
sent = 0  # bytes


def send(x, to):
    """Begin to send; the caller waits for it."""
    global sent
    sent += x.nbytes
    sending = dist.isend(x, to)
    links.occupy(x)
    return sending


def ring(x, rank, n):
    """2 (n - 1) rounds: in each, every rank sends one n-th of x to its right neighbour."""
    parts, right, left = x.chunk(n), (rank + 1) % n, (rank - 1) % n
    incoming = torch.empty_like(parts[0])
    for step in range(2 * (n - 1)):
        receiving = dist.irecv(incoming, left)  # first: "ready" must not queue behind the data
        sending = send(parts[(rank - step) % n], right)
        receiving.wait()
        sending.wait()
        if step < n - 1:  # add; in the end this rank has part rank + 1 of the sum
            parts[(rank - step - 1) % n].add_(incoming)
        else:  # pass on what is complete
            parts[(rank - step - 1) % n].copy_(incoming)


def tree(x, rank, n):
    """log2 n rounds up to rank 0 and as many down again; every message is all of x."""
    incoming, levels = torch.empty_like(x), n.bit_length() - 1
    for distance in (2**level for level in range(levels)):
        if rank % (2 * distance) == distance:
            send(x, rank - distance).wait()
        elif rank % (2 * distance) == 0:
            links.receive(incoming, rank + distance)
            x.add_(incoming)
    for distance in (2**level for level in reversed(range(levels))):
        if rank % (2 * distance) == 0:
            send(x, rank + distance).wait()
        elif rank % (2 * distance) == distance:
            links.receive(x, rank - distance)


def server(x, rank, n):
    """Every worker sends x to one server, which answers each with the sum."""
    if rank != SERVER:
        send(x, SERVER).wait()
        links.receive(x, SERVER)
        return
    incoming = torch.empty_like(x)
    for _ in range(n):
        links.receive(incoming)  # from any worker
        x.add_(incoming)
    for sending in [send(x, worker) for worker in range(n)]:
        sending.wait()


def step(way, rank, n, size=GRADIENT, compute=COMPUTE, straggler=1.0):
    """Return the largest of all ranks: milliseconds, bytes sent, wrong sums."""
    global sent
    worker = rank < n
    x = torch.full((size,), rank + 1.0 if worker else 0.0)
    dist.barrier()
    sent, began, wrong = 0, time.perf_counter(), 0
    if worker or (rank == SERVER and way is server):
        time.sleep(worker * compute * (straggler if rank == 1 else 1.0))
        way(x, rank, n)
        wrong = int((x != n * (n + 1) / 2).sum())
    every = [None] * (SERVER + 1)
    dist.all_gather_object(every, (1000 * (time.perf_counter() - began), sent, wrong))
    return map(max, zip(*every, strict=True))


def work(rank):
    """Measure all ways on all numbers of ranks, and draw the steps."""
    torch.set_num_threads(1)
    times, wrong, ways = {}, 0, (ring, tree, server)
    show = print if rank == 0 else lambda _: None
    show("links are cut by tc" if links.CUT else "a sleep stands for each link")
    for n in (2, 4, 8):
        for way in ways:
            ms, sizes, wrongs = zip(*[step(way, rank, n) for _ in range(3)], strict=True)
            times[way, n] = statistics.median(ms)
            wrong += sum(wrongs)
            show(f"{way.__name__}, {n} ranks, most bytes sent by one = {sizes[0] / 1e6:.3f} MB")
            show(f"{way.__name__}, {n} ranks, step = {times[way, n]:.0f} ms")
    for way in ways:
        ms, _, _ = step(way, rank, 4, straggler=3.0)
        show(f"{way.__name__}, 4 ranks, one computes 3x as long, step = {ms:.0f} ms")
        ms = statistics.median([next(step(way, rank, 8, 256, compute=0)) for _ in range(9)])
        show(f"{way.__name__}, 8 ranks, sum of 1 kB = {ms:.1f} ms")
    show(f"wrong sums = {wrong}")
    if rank != 0:
        return
    for key in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"):
        plt.rcParams[key] = "#808080"
    plt.figure(figsize=(6, 3.2), layout="constrained")
    for way in (server, tree, ring):
        plt.plot((2, 4, 8), [times[way, n] / 1000 for n in (2, 4, 8)], "o-", label=way.__name__)
    plt.xticks((2, 4, 8), ("2 ranks", "4", "8"))
    plt.ylabel("seconds a step")
    plt.title("A server's link is shared by all ranks; a ring uses every link", fontsize=10)
    plt.legend(frameon=False)
    plt.savefig("all_reduce.svg", transparent=True)


links.start(work, SERVER + 1)
