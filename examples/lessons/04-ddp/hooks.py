"""Buckets, overlap and compressed gradients of DDP over a link that is cut to 200 Mbit/s.

As root this process moves to a network of its own, whose loopback `tc tbf` cuts to 400 Mbit/s: two
ranks that send at the same time have 200 each. It is gone when the processes are. Otherwise bytes /
bandwidth is ADDED to every measured step: then overlap cannot be seen, and bytes of other processes
on loopback are counted, too.
"""

import ctypes
import itertools
import os
import shutil
import subprocess
import tempfile
import time

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

RATE = 200e6  # bit/s of a rank
STEPS, MEASURED = 10, 6  # the fastest of the last six: other work slows single steps
TBF = "tc qdisc add dev lo root tbf rate 400mbit burst 256kb latency 100ms"


def bytes_sent():
    """Bytes that a rank has sent, by the kernel's counter."""
    with open("/proc/self/net/dev") as table:
        (counters,) = [line.split() for line in table if line.strip().startswith("lo:")]
    return int(counters[9]) / 2  # both ranks send by this interface


def network():
    """Build 3.0 million weights: 12 MB of gradients."""
    sizes = [64, 768, 768, 768, 768, 768, 768, 10]
    parts = [[torch.nn.Linear(*pair), torch.nn.ReLU()] for pair in itertools.pairwise(sizes)]
    return torch.nn.Sequential(*list(itertools.chain(*parts))[:-1])


def train(rank, bucket_mb, hook):
    """Return milliseconds and bytes of a step, and the loss after the last step."""
    images, labels = (torch.tensor(one[rank::2]) for one in load_digits(return_X_y=True))
    images = images.float() / 16
    torch.manual_seed(0)
    model = DistributedDataParallel(network(), bucket_cap_mb=bucket_mb or 25)
    if hook:
        model.register_comm_hook(*hook)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    times = []
    for _ in range(STEPS):
        dist.barrier()
        sent, began = bytes_sent(), time.perf_counter()
        optimizer.zero_grad()
        if bucket_mb:
            loss = F.cross_entropy(model(images), labels)
            loss.backward()  # a bucket leaves as soon as all of its gradients are there
        else:
            with model.no_sync():
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
            gradient = parameters_to_vector([w.grad for w in model.parameters()]) / 2
            dist.all_reduce(gradient)  # nothing else happens meanwhile
            vector_to_parameters(gradient, [w.grad for w in model.parameters()])
        optimizer.step()
        seconds, size = time.perf_counter() - began, bytes_sent() - sent
        times.append(1000 * (seconds + (0 if CUT else 8 * size / RATE)))
    dist.all_reduce(loss.detach())
    return min(times[-MEASURED:]), size, loss.item() / 2


# Two thin matrices of rank 4 in place of each gradient, from the third step on. In one bucket: with
# several the hook's callbacks start all-reduces in an order that differs between ranks, and over
# Gloo they take each other's bytes ("Is there a distributed collective mismatch in your code?").
LOW_RANK = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
CASES = {
    "all-reduce after the backward pass": (None, None),
    "DDP, buckets of 25 MB": (25, None),
    "DDP, buckets of 2 MB": (2, None),
    "DDP, 2 MB, fp16": (2, (None, default_hooks.fp16_compress_hook)),
    "DDP, 2 MB, bf16": (2, (None, default_hooks.bf16_compress_hook)),
    "DDP, 25 MB, PowerSGD of rank 4": (25, (LOW_RANK, powerSGD_hook.powerSGD_hook)),
}


def work(rank, store):
    """Take the steps of all cases as one of the two ranks."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    times = {}
    for name, case in CASES.items():
        times[name], size, loss = train(rank, *case)
        if rank == 0:
            print(f"{name}: a step = {times[name]:.0f} ms")
            print(f"{name}: sent in a step = {size / 1e6:.2f} MB")
            print(f"{name}: loss after {STEPS} steps = {loss:.4f}", flush=True)
    if rank != 0:
        return
    for key in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"):
        plt.rcParams[key] = "#808080"
    plt.figure(figsize=(6, 3.2), layout="constrained")
    plt.barh(list(times), times.values())
    plt.gca().invert_yaxis()
    plt.suptitle("Milliseconds a step, 12 MB of gradients at 200 Mbit/s", fontsize=10)
    plt.savefig("hooks.svg", transparent=True)


CUT = shutil.which("tc") is not None and ctypes.CDLL(None).unshare(0x40000000) == 0  # CLONE_NEWNET
if CUT:
    for command in ("ip link set lo up", TBF):
        subprocess.run(command.split(), check=True)
print("the link is cut by tc" if CUT else "bytes / bandwidth is added to each step", flush=True)
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
with tempfile.TemporaryDirectory() as folder:
    mp.start_processes(work, (f"file://{folder}/store",), 2, start_method="fork")
