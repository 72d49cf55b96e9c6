"""A pretrained DistilBERT over two ranks by torch's tensor parallelism, equal to one process.

torchrun --nproc-per-node 2 encoder.py $TEXTS $MODEL
"""

import copy
import os
import sys
import time

os.environ |= {"USE_TF": "0", "GLOO_SOCKET_IFNAME": "lo"}  # USE_TF: transformers without it

import pandas as pd
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoTokenizer, DistilBertForSequenceClassification, logging

TOKENS, BATCHES = 32, (4, 8, 16, 32)  # tokens of a row, rows of a batch


class SentBytes(TorchDispatchMode):
    """Adds up what this rank's all-reduces send: 2 (N - 1) / N of each tensor, as a ring does."""

    total = calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops._c10d_functional.all_reduce.default:
            self.total += 2 * (world - 1) * args[0].nbytes // world
            self.calls += 1
        return function(*args, **(kwargs or {}))


def divide(model, mesh):
    """Split every layer by heads and by hidden units, and the word embeddings by vocabulary."""
    words = {"embeddings.word_embeddings": RowwiseParallel(input_layouts=Replicate())}
    parallelize_module(model.distilbert, mesh, words)
    for layer in model.distilbert.transformer.layer:
        plan = {f"attention.{name}_lin": ColwiseParallel() for name in "qkv"}
        plan |= {"attention.out_lin": RowwiseParallel()}  # a sum over the ranks' heads
        plan |= {"ffn.lin1": ColwiseParallel(), "ffn.lin2": RowwiseParallel()}
        parallelize_module(layer, mesh, plan)
        layer.attention.n_heads //= world  # the heads that this rank computes
        layer.attention.dim //= world
    return model


def step(model, rows):
    """Forward and backward over the first `rows` texts: (logits, seconds)."""
    model.zero_grad()
    start = time.perf_counter()
    batch = {name: tensor[:rows] for name, tensor in encoded.items()}
    output = model(**batch, labels=labels[:rows])
    output.loss.backward()
    return output.logits.detach(), time.perf_counter() - start


def bytes_of(parameters):
    """The bytes that this rank has."""
    return sum(p.to_local().nbytes if isinstance(p, DTensor) else p.nbytes for p in parameters)


def draw(sent, gradients):
    """What a layer sends: by the rows of a batch, and by data parallelism."""
    import matplotlib.pyplot as plt  # rank 0 alone needs it

    grey = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    plt.rcParams.update(dict.fromkeys(grey, "#808080"))
    axis = plt.figure(figsize=(6, 3.2)).add_subplot(title="One layer, one step")
    axis.plot(BATCHES, [b / 2**20 for b in sent], "o-", label="tensor parallel: activations")
    axis.axhline(gradients / 2**20, color="tab:orange", label="data parallel: gradients")
    axis.set(xlabel=f"rows of {TOKENS} tokens in a batch", ylabel="MiB sent by a rank", ylim=0)
    axis.legend(frameon=False)
    plt.savefig("layer_bytes.svg", transparent=True, bbox_inches="tight")


torch.set_num_threads(1)
logging.set_verbosity_error()
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
rows = pd.read_parquet(sys.argv[1]).query("text.str.len() > 200").groupby("label").head(4)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[2], model_max_length=TOKENS)
encoded = tokenizer([*rows["text"]], padding="max_length", truncation=True, return_tensors="pt")
labels = torch.tensor(pd.factorize(rows["label"])[0])

torch.manual_seed(0)  # the classifier's first weights, equal on all ranks
one = DistilBertForSequenceClassification.from_pretrained(sys.argv[2], num_labels=9)
one.eval()  # no dropout: the ranks' heads would draw other numbers than one process does
parts = divide(copy.deepcopy(one), dist.init_device_mesh("cpu", (world,)))

sent = []
for count in BATCHES:
    one_logits, one_seconds = step(one, count)
    dist.barrier()
    with SentBytes() as counter:
        logits, seconds = step(parts, count)
    sums = (counter.calls - 1) // one.config.n_layers  # one sum of the step is the word embeddings'
    sent.append(counter.total * sums / counter.calls)  # all sums have the same size
pairs = []
for mine, expected in zip(parts.parameters(), one.parameters(), strict=True):
    gradient = mine.grad.full_tensor() if isinstance(mine, DTensor) else mine.grad
    pairs.append(((gradient - expected.grad).norm(), expected.grad.norm()))
error, norm = torch.tensor(pairs).norm(dim=0)
if rank == 0:
    print(f"largest difference of the logits = {(logits - one_logits).abs().max():.8f}")
    print(f"norm of the gradients' differences, of their norm = {error / norm:.8f}")
    for name, model in (("in one process", one), ("of a rank", parts)):
        print(f"weights {name} = {bytes_of(model.parameters()) / 2**20:.1f} MiB")
    print(f"sums of a layer in a step = {sums}")
    for count, size in zip(BATCHES, sent, strict=True):
        print(f"sent for a layer, {count} rows of {TOKENS} tokens = {size / 2**10:.0f} KiB")
    layer = one.distilbert.transformer.layer[0]
    gradients = 2 * (world - 1) * bytes_of(layer.parameters()) / world
    print(f"sent for a layer, data parallelism = {gradients / 2**10:.0f} KiB")
    print(f"step of {count} rows in one process = {one_seconds:.2f} s")
    print(f"step of {count} rows over 2 ranks = {seconds:.2f} s")
    draw(sent, gradients)
dist.destroy_process_group()
