"""Saves only the tensors that have changed since the last checkpoint, under their checksums."""

import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

os.environ["USE_TF"] = "0"  # transformers would import TensorFlow, too
import matplotlib.pyplot as plt
import pyarrow.parquet as parquet
import torch
from safetensors.torch import load, save
from transformers import AutoTokenizer, DistilBertModel

torch.set_num_threads(1)
texts = parquet.read_table(sys.argv[1])["text"].to_pylist()[::200]
tokens = AutoTokenizer.from_pretrained(sys.argv[2])(
    texts, truncation=True, max_length=48, padding="max_length", return_tensors="pt"
)
SAVES, STEPS, ROWS = 3, 2, 8


def checkpoint(directory, step, tensors):
    """Write the tensors that no earlier checkpoint has, then the list; return the bytes written."""
    objects, names, written = directory / "objects", {}, 0
    objects.mkdir(parents=True, exist_ok=True)
    for name, tensor in tensors.items():
        content = save({"": tensor})
        names[name] = hashlib.sha256(content).hexdigest()
        if not (objects / names[name]).exists():
            (directory / "unfinished").write_bytes(content)
            os.replace(directory / "unfinished", objects / names[name])
            written += len(content)
    (directory / "unfinished").write_text(json.dumps(names))
    os.replace(directory / "unfinished", directory / f"step-{step}.json")  # the list comes last
    return written


def restore(directory, step):
    """The tensors of a checkpoint, each compared with its checksum."""
    names = json.loads((directory / f"step-{step}.json").read_text())
    contents = {name: (directory / "objects" / sha).read_bytes() for name, sha in names.items()}
    if any(hashlib.sha256(contents[name]).hexdigest() != sha for name, sha in names.items()):
        raise ValueError("an object is not what was written: take an older list")
    return {name: load(content)[""] for name, content in contents.items()}


def collect(directory, keep):
    """Remove the objects that only checkpoints older than the newest `keep` name."""
    lists = sorted(directory.glob("step-*.json"), key=lambda path: int(path.stem[5:]))
    for path in lists[:-keep]:
        path.unlink()
    used = {sha for path in lists[-keep:] for sha in json.loads(path.read_text()).values()}
    for path in (directory / "objects").iterdir():
        if path.name not in used:
            path.unlink()


def tensors(model, optimizer):
    """Weights and moments by name. The moments of a frozen weight do not exist."""
    every = dict(model.state_dict())
    for name, weight in model.named_parameters():
        for key, value in optimizer.state.get(weight, {}).items():
            every[f"{key}/{name}"] = value
    return every


HALF = ("body.embeddings", *(f"body.transformer.layer.{layer}." for layer in range(4)))
cases = {"all": ("-",), "two layers": HALF, "the head": ("body",)}  # case -> what is frozen
curves = {}
for case, frozen in cases.items():
    torch.manual_seed(0)
    model = torch.nn.Module()
    model.body, model.head = DistilBertModel.from_pretrained(sys.argv[2]), torch.nn.Linear(384, 9)
    for name, weight in model.named_parameters():
        weight.requires_grad = not name.startswith(frozen)
    optimizer = torch.optim.AdamW([w for w in model.parameters() if w.requires_grad], lr=1e-4)
    directory, curves[case] = Path(case.replace(" ", "-")), []
    shutil.rmtree(directory, ignore_errors=True)
    for step in range(SAVES * STEPS):
        rows = slice(step * ROWS, step * ROWS + ROWS)
        output = model.body(tokens["input_ids"][rows], tokens["attention_mask"][rows])
        model.head(output.last_hidden_state[:, 0]).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % STEPS == 0:
            start, state = time.perf_counter(), tensors(model, optimizer)
            curves[case].append(checkpoint(directory, step + 1, state))
            seconds = time.perf_counter() - start
    whole = sum(tensor.nbytes for tensor in state.values())
    print(f"bytes of the whole state, {case} trained = {whole} bytes")
    print(f"bytes of a later checkpoint, {case} trained = {curves[case][-1]} bytes")
    print(f"seconds of a later checkpoint, {case} trained = {seconds:.2f} s")
    again = restore(directory, SAVES * STEPS)
    differing = sum(not torch.equal(again[name], tensor) for name, tensor in state.items())
    print(f"tensors that differ when restored, {case} trained = {differing}")
    collect(directory, keep=2)
    size = sum(path.stat().st_size for path in (directory / "objects").iterdir())
    print(f"bytes on disk for the newest 2, {case} trained = {size} bytes")
    shutil.rmtree(directory)

for part in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"):
    plt.rcParams[part] = "#808080"
plt.figure(figsize=(6, 3.2), layout="tight")
for number, (case, sizes) in enumerate(curves.items()):
    plt.bar([save + 0.27 * number for save in range(SAVES)], sizes, 0.25, label=case)
plt.xticks([save + 0.27 for save in range(SAVES)], [f"checkpoint {n + 1}" for n in range(SAVES)])
plt.yscale("log")
plt.ylim(top=1e10)
plt.ylabel("bytes written")
plt.title("What is not trained is written once; trained:")
plt.legend(frameon=False, ncols=3)
plt.savefig("incremental.svg", transparent=True)
