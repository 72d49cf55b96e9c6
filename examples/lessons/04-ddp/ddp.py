"""Train with DistributedDataParallel; each line that only DDP needs ends with "# DDP"."""

import os
import sys
import time
import zlib

import numpy as np
import pyarrow.parquet as pq
import torch
import torch.distributed as dist  # DDP
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel  # DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler  # DDP

WORDS = 8192  # numbers that words are hashed to
ROWS, EPOCHS = 32, 4  # rows of a batch, on each rank


def counts(texts):
    """float32[rows, WORDS]: log(1 + how often a word is in the text)."""
    table = np.zeros((len(texts), WORDS), np.float32)
    for row, text in enumerate(texts):
        for word in text.lower().split():
            table[row, zlib.crc32(word.encode()) % WORDS] += 1
    return torch.from_numpy(np.log1p(table))


def network():
    """Build a classifier of nine classes."""
    return torch.nn.Sequential(
        torch.nn.Linear(WORDS, 128), torch.nn.ReLU(), torch.nn.Linear(128, 9)
    )


torch.set_num_threads(1)  # two ranks, two cores
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo")  # DDP  torchrun has set RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
rank, ranks = dist.get_rank(), dist.get_world_size()  # DDP

frame = pq.read_table(sys.argv[1], columns=["text", "label"]).to_pandas().dropna()
frame = frame.groupby("label").sample(400, random_state=0)  # of each of nine packages
labels = torch.from_numpy(frame.label.astype("category").cat.codes.to_numpy(np.int64))
data = TensorDataset(counts(frame.text), labels, torch.arange(len(frame)))
train, test = torch.utils.data.random_split(data, [0.8, 0.2], torch.Generator().manual_seed(0))

# Without the sampler every rank would read ALL rows: nothing fails, and nothing is gained.
sampler = DistributedSampler(train)  # DDP
loader = DataLoader(train, ROWS, sampler=sampler)  # in place of shuffle=True

model = network()
model = DistributedDataParallel(model)  # DDP  sends rank 0's weights to all, hooks the gradients
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

seen, began, steps = set(), time.perf_counter(), 0
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)  # DDP  else every epoch has the order of the first
    for words, classes, numbers in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(words), classes)
        loss.backward()  # the hooks of DDP average the gradients while this still runs
        optimizer.step()
        if epoch == 0:
            seen.update(numbers.tolist())
        steps += 1
seconds = time.perf_counter() - began

if rank == 0:  # DDP  two ranks that write one file spoil it
    torch.save(model.module.state_dict(), "model.pt")  # .module: no "module." before the names
dist.barrier()  # DDP  before another rank reads the file

# What the ranks have in common, only to print it.
weights, rows = [None] * ranks, [None] * ranks
dist.all_gather_object(weights, torch.nn.utils.parameters_to_vector(model.parameters()).detach())
dist.all_gather_object(rows, seen)
if rank == 0:
    print(f"rows of the training split = {len(train)}")
    for number, mine in enumerate(rows):
        print(f"rows that rank {number} read in an epoch = {len(mine)}")
    print(f"rows that both ranks read = {len(rows[0] & rows[1])}")
    apart = (weights[0] - weights[1]).abs().max()
    print(f"largest difference between the ranks' weights = {apart:g}")
    print(f"steps = {steps}")
    print(f"a step = {1000 * seconds / steps:.1f} ms")
    words, classes, _ = next(iter(DataLoader(test, len(test))))
    logits = model.module(words)
    accuracy = (logits.argmax(1) == classes).float().mean()
    print(f"accuracy on the test rows = {accuracy:.3f}")
    alone = network()  # as a process without DDP has it
    alone.load_state_dict(torch.load("model.pt"))
    apart = (alone(words) - logits).abs().max()
    print(f"largest difference of the logits after loading = {apart:g}")
    with open(__file__) as source:
        print(f"lines that DDP needs = {sum('  # DDP' in line for line in source) - 1}")
del model  # before its group: the other way round it may deadlock on the GIL (torch 2.13)
dist.destroy_process_group()  # DDP
