"""Train with Horovod in PyTorch; each line that only Horovod needs has the comment "# Horovod"."""

import sys
import time
import zlib

import horovod.torch as hvd  # Horovod
import numpy as np
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler  # Horovod

WORDS, HIDDEN, CLASSES = 8192, 128, 9  # WORDS: numbers that words are hashed to
ROWS, EPOCHS, TEST = 32, 4, 720  # rows of a batch, on each rank


def rows(path):
    """(log(1 + how often a word is in the text), labels), 400 rows a class, shuffled."""
    frame = pq.read_table(path, columns=["text", "label"]).to_pandas().dropna()
    frame = frame.groupby("label").sample(400, random_state=0).sample(frac=1, random_state=0)
    counts = np.zeros((len(frame), WORDS), np.float32)
    for row, text in enumerate(frame.text):
        for word in text.lower().split():
            counts[row, zlib.crc32(word.encode()) % WORDS] += 1
    return np.log1p(counts), frame.label.astype("category").cat.codes.to_numpy(np.int64)


hvd.init()  # Horovod
torch.set_num_threads(1)  # two ranks, two cores
words, labels = map(torch.from_numpy, rows(sys.argv[1]))
data = TensorDataset(words[TEST:], labels[TEST:])
sampler = DistributedSampler(data, hvd.size(), hvd.rank(), shuffle=False)  # Horovod
loader = DataLoader(data, ROWS, sampler=sampler)

model = torch.nn.Sequential(
    torch.nn.Linear(WORDS, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, CLASSES)
)
random = np.random.default_rng(0)  # the same first weights as in TensorFlow
with torch.no_grad():
    for weight in model.parameters():
        shape = tuple(reversed(weight.shape))  # TensorFlow's matrices are the other way round
        values = random.normal(0, 0.05, shape) * (weight.ndim > 1)
        weight.copy_(torch.from_numpy(values.T))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # Horovod
hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # Horovod
hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # Horovod

losses, began = [], time.perf_counter()
for _ in range(EPOCHS):
    for words_B, labels_B in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(words_B), labels_B)
        loss.backward()  # hooks start the averages while this still runs
        optimizer.step()  # waits for them
        losses.append(loss.detach())
seconds = time.perf_counter() - began

# The rest is for printing alone.
mean = hvd.allreduce(torch.stack(losses))
every = hvd.allgather(torch.nn.utils.parameters_to_vector(model.parameters()).detach()[None])
if hvd.rank() == 0:  # Horovod  also where a model is saved
    print(f"PyTorch: loss of the first step = {mean[0]:.5f}")
    print(f"PyTorch: loss of the last step = {mean[-1]:.5f}")
    accuracy = (model(words[:TEST]).argmax(1) == labels[:TEST]).float().mean()
    print(f"PyTorch: accuracy on the test rows = {accuracy:.4f}")
    apart = (every[0] - every[1]).abs().max()
    print(f"PyTorch: largest difference between the ranks' weights = {apart:g}")
    print(f"PyTorch: a step = {1000 * seconds / len(losses):.1f} ms")
    with open(__file__) as source:
        lines = sum("  # Horovod" in line for line in source) - 1
        print(f"PyTorch: lines that Horovod needs = {lines}")
