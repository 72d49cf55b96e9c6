"""Threads of one process with a replica each, as torch.nn.DataParallel has it, against DDP.

DataParallel itself needs GPUs: without one it calls its module and does nothing. So its parts are
taken here one by one, on two threads: copy the module, split the rows, run the replicas in threads,
add their gradients up. On a GPU a replica's operators run beside Python, which shortens their hold
of the lock; the copies go over PCIe.
"""

import copy
import os
import tempfile
import time
from threading import Thread

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

STEPS, ROWS = 15, 256


def layers(count, width):
    """Build a stack of small or large layers."""
    parts = [
        part for _ in range(count) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())
    ]
    for linear in parts[::2]:
        torch.nn.init.kaiming_normal_(linear.weight)  # gradients neither vanish nor explode
    return torch.nn.Sequential(*parts)


NETWORKS = {"150 layers of 32": (150, 32), "4 layers of 1536": (4, 1536)}


def forward_backward(network, rows):
    """Leave the gradients of these rows in the network."""
    network.zero_grad(set_to_none=True)
    network(rows).square().mean().backward()


def one_thread(network, rows):
    """All rows on one replica: nothing is parallel."""
    forward_backward(network, rows)
    return 0.0


def two_threads(network, rows):
    """A step of DataParallel; returns the seconds that its copies take."""
    began = time.perf_counter()
    replicas = [network, copy.deepcopy(network)]  # again in EVERY step: the weights have changed
    copied = time.perf_counter() - began
    pairs = zip(replicas, rows.chunk(2), strict=True)
    threads = [Thread(target=forward_backward, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    began = time.perf_counter()
    for weight, other in zip(network.parameters(), replicas[1].parameters(), strict=True):
        weight.grad.add_(other.grad).div_(2)
    return copied + time.perf_counter() - began


def measure(step, network, rows):
    """(milliseconds of the fastest step, of the copies in it): other work slows single steps."""
    steps = []
    for _ in range(STEPS):
        began = time.perf_counter()
        copies = step(network, rows)
        steps.append((1000 * (time.perf_counter() - began), 1000 * copies))
    return min(steps)


def ddp(rank, size, folder):
    """Be one of two processes, each with half of the rows and DDP's gradients."""
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    network, rows = DistributedDataParallel(layers(*size)), torch.randn(ROWS, size[1])
    dist.barrier()
    result = measure(one_thread, network, rows.chunk(2)[rank])
    if rank == 0:
        torch.save(result, f"{folder}/result")
    del network  # before its group: the other way round it may deadlock on the GIL (torch 2.13)
    dist.destroy_process_group()


def main():
    """Measure three ways with many small layers and with a few large ones."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)  # inside an operator: what is parallel here is rows
    results = {}
    for name, size in NETWORKS.items():
        # DDP first: a process that has run backward passes should not be forked.
        with tempfile.TemporaryDirectory() as folder:
            mp.start_processes(ddp, (size, folder), 2, start_method="fork")
            results[name] = {"two processes, DDP": torch.load(f"{folder}/result")}
    for name, size in NETWORKS.items():
        torch.manual_seed(0)
        network, rows = layers(*size), torch.randn(ROWS, size[1])
        forward_backward(network, rows)
        whole = [weight.grad.clone() for weight in network.parameters()]
        results[name]["one thread"] = measure(one_thread, network, rows)
        results[name]["two threads, DataParallel"] = measure(two_threads, network, rows)
        apart = max(
            (w.grad - g).abs().max() for w, g in zip(network.parameters(), whole, strict=True)
        )
        for way, (ms, copies) in results[name].items():
            print(f"{name}: {way} = {ms:.1f} ms a step")
            if copies:
                print(f"{name}: copies, {way} = {copies:.1f} ms a step")
        size = sum(weight.nbytes for weight in network.parameters())
        print(f"{name}: a replica and its gradients = {2 * size / 1e6:.1f} MB a step")
        print(f"{name}: largest difference of a gradient = {apart:.2g}")


main()
