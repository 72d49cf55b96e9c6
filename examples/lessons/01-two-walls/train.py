"""One training of a small transformer under a limit of memory, by some techniques.

walls.py calls `train` in a new process for each training and rank.
"""

import ctypes
import os
import resource
import statistics
import time

os.environ["GLOO_SOCKET_IFNAME"] = "lo"

import torch
import torch._dynamo  # an optimizer's first step loads it: not in the middle of a measurement
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

ROWS, TOKENS, WIDTH, LAYERS, CLASSES = 8, 128, 512, 4, 9
STEPS = 3
MIB = 2**20


class Encoder(nn.Module):
    """Transformer layers, the mean over the tokens, a linear classifier."""

    def __init__(self, recompute):
        super().__init__()
        self.recompute = recompute
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.classifier = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        for layer in self.layers:
            # Checkpointing keeps a layer's input only, and computes the layer again for backward.
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return self.classifier(x.mean(dim=1))


def memory(name):
    """A line of the kernel's account of this process, in MiB."""
    with open("/proc/self/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    return int(lines[name].split()[0]) / 1024


def train(techniques, limit, rank, ranks, store):
    """Train for some steps; limit is in MiB, 0 for none. Returns loss, peak MiB, seconds of a step.

    Raises:
        RuntimeError: the memory does not suffice.
    """
    torch.set_num_threads(1)
    timed = "timed" in techniques
    if not timed:
        # glibc gives freed blocks of 64 KiB and more back: only what is in use counts. It costs
        # time, since the kernel clears each block again.
        ctypes.CDLL(None).mallopt(-3, 2**16)  # M_MMAP_THRESHOLD
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    dtype = torch.bfloat16 if "bf16" in techniques else torch.float32
    micro_batches = 4 if "accumulation" in techniques else 1
    torch.manual_seed(0)  # the same weights and rows on all ranks
    warm = nn.Linear(64, 64, dtype=dtype)  # what the libraries set up once is not measured
    warm(torch.randn(64, 64, dtype=dtype)).sum().backward()
    before = memory("VmRSS")
    if limit:  # of private writable memory: what malloc and the tensors take
        bound = int((memory("VmData") + limit) * MIB)
        resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))

    model = Encoder(recompute="checkpointing" in techniques).to(dtype)
    x, labels = torch.randn(ROWS, TOKENS, WIDTH).to(dtype), torch.randint(CLASSES, (ROWS,))
    x, labels = x.chunk(ranks)[rank], labels.chunk(ranks)[rank]  # each rank has its own rows
    if "fsdp2" in techniques:  # 1/N of weights, gradients, moments; one layer whole at a time
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    elif ranks > 1:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if "zero1" in techniques:  # weights and gradients whole, 1/N of the moments
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    seconds = []
    for _ in range(10 if timed else STEPS):
        start, total = time.perf_counter(), torch.zeros(())
        for rows, targets in zip(x.chunk(micro_batches), labels.chunk(micro_batches), strict=True):
            loss = nn.functional.cross_entropy(model(rows).float(), targets) / micro_batches
            loss.backward()  # adds to the gradients; then these rows' activations are free
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)  # the gradients keep their memory
        seconds.append(time.perf_counter() - start)
    dist.all_reduce(total)
    del model  # before its group: the other way round it may deadlock on the GIL (torch 2.13)
    dist.destroy_process_group()
    peak, loss = memory("VmHWM") - before, total.item() / ranks
    return {"loss": loss, "peak": peak, "seconds": statistics.median(seconds[1:])}


def state_mib():
    """Weights, gradients and AdamW's two moments in float32, computed."""
    return 4 * 4 * sum(p.numel() for p in Encoder(recompute=False).parameters()) / MIB
