"""Where the rows lie, and what each option of DataLoader changes, one at a time."""

import os
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import pyarrow.parquet as parquet
import torch
from tokenizers import Tokenizer
from torch.utils.data import DataLoader, Dataset, RandomSampler

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a worker is one process of one thread
torch.set_num_threads(1)
ROWS, BATCH, STEPS, COMPUTE = 4000, 64, 40, 0.01
texts = parquet.read_table(sys.argv[1])["text"].to_pylist()[:ROWS]
tokenizer = Tokenizer.from_file(sys.argv[2] + "/tokenizer.json")
tokenizer.enable_truncation(128)
tokenizer.enable_padding(length=128)


def encode(text):
    """128 ids of a text."""
    return torch.tensor(tokenizer.encode(text).ids)


class InMemory(Dataset):
    """All rows are encoded before the first step."""

    name = "in memory"

    def __init__(self):
        self.rows = [encode(text) for text in texts]

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return self.rows[row]


class FileARow(InMemory):
    """The course's dataset: a file a row, loaded when the row is read."""

    name = "a file a row"

    def __init__(self):
        Path("rows").mkdir(exist_ok=True)
        for row, text in enumerate(texts):
            torch.save(encode(text), f"rows/{row}.pt")

    def __getitem__(self, row):
        return torch.load(f"rows/{row}.pt")


class OneFile(InMemory):
    """The texts in one file and each row's place in it; a row is read and encoded when needed."""

    name = "one file"

    def __init__(self):
        contents = [text.encode() for text in texts]
        Path("texts").write_bytes(b"".join(contents))
        self.starts = [0, *torch.tensor([len(content) for content in contents]).cumsum(0).tolist()]

    def __getitem__(self, row):
        with open("texts", "rb") as file:
            file.seek(self.starts[row])
            return encode(file.read(self.starts[row + 1] - self.starts[row]).decode())


def steps(loader):
    """Seconds until the first batch, and of all steps; a GPU computes while this process sleeps."""
    start, first = time.perf_counter(), None
    for _ in loader:
        first = first or time.perf_counter() - start
        time.sleep(COMPUTE)
    return first, time.perf_counter() - start


for store in (InMemory, FileARow, OneFile):
    start = time.perf_counter()
    dataset = store()
    ready, start = time.perf_counter() - start, time.perf_counter()
    for row in range(0, ROWS, 4):
        dataset[row]
    reading = (time.perf_counter() - start) / (ROWS / 4) * 1000
    print(f"seconds before the first row, {store.name} = {ready:.2f} s")
    print(f"milliseconds a row, {store.name} = {reading:.3f} ms")
print(f"bytes on disk a row, a file a row = {Path('rows/0.pt').stat().st_blocks * 512} bytes")
print(f"bytes on disk a row, one file = {Path('texts').stat().st_size / ROWS:.0f} bytes")

options = {
    "no worker": {},
    "1 worker": {"num_workers": 1},
    "2 workers": {"num_workers": 2},
    "2 workers, prefetch_factor 8": {"num_workers": 2, "prefetch_factor": 8},
    "2 workers that persist": {"num_workers": 2, "persistent_workers": True},
}
print(f"The GPU is simulated: a step sleeps for {COMPUTE * 1000:.0f} ms and uses no core.")
sampler, milliseconds = RandomSampler(dataset, num_samples=BATCH * STEPS), []
for name, option in options.items():
    steps(loader := DataLoader(dataset, BATCH, sampler=sampler, **option))
    first, seconds = steps(loader)  # of the second epoch
    milliseconds.append(seconds / STEPS * 1000)
    print(f"milliseconds a step, {name} = {milliseconds[-1]:.1f} ms")
    print(f"milliseconds until an epoch's first batch, {name} = {first * 1000:.1f} ms")

batch = next(iter(DataLoader(dataset, BATCH, pin_memory=True)))
print(f"bytes of a batch = {batch.nbytes} bytes")
print(f"of these pinned without a GPU = {batch.is_pinned() * batch.nbytes} bytes")

for part in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"):
    plt.rcParams[part] = "#808080"
plt.figure(figsize=(6, 3.2), layout="tight").gca().invert_yaxis()
plt.barh(list(options), milliseconds)
plt.axvline(COMPUTE * 1000, color="tab:red")
plt.title("Milliseconds a step; red: computation alone")
plt.savefig("loader.svg", transparent=True)
