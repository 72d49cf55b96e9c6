"""Step 9: a model of BERT-large's size takes a few real steps, and arithmetic does the rest.

The arithmetic is that of `howdah plan`: compute is a line in the tokens of a step, the gradient
goes around a ring, nothing overlaps.
"""

import json
import os
import resource
import time
from pathlib import Path

os.environ["USE_TF"] = "0"  # transformers need not load TensorFlow

import matplotlib.pyplot as plt
import torch
from transformers import BertConfig, BertForSequenceClassification

TEXTS, EPOCHS, BATCH = 100_000_000, 3, 4_096  # BATCH: rows of a step over all nodes
LINK, HOP = 25e9 / 8 * 0.95, 50e-6  # assumed: bytes a second of 25 Gbit/s; seconds of a hop
GPU = 240e12  # assumed: FLOP a second of one GPU in bfloat16
GRAY = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
torch.set_num_threads(2)
torch.manual_seed(1)
prepared = json.loads(Path("prepare.json").read_text("utf-8"))
trained = json.loads(Path("train.json").read_text("utf-8"))

config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
                    intermediate_size=4096, num_labels=9)  # fmt: skip
model = BertForSequenceClassification(config)  # random weights take as long as trained ones
weights = sum(weight.numel() for weight in model.parameters())
encoder = sum(weight.numel() for weight in model.bert.encoder.parameters())
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
print(f"weights = {weights / 1e6:.0f} M")


def step(rows, tokens):
    """Seconds of forward and backward, and of the update."""
    ids = torch.randint(1000, 30_000, (rows, tokens))
    began = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=ids, labels=torch.zeros(rows, dtype=torch.long)).loss
    loss.backward()
    passed = time.perf_counter()
    optimizer.step()
    optimizer.zero_grad()
    return passed - began, time.perf_counter() - passed


step(1, 32)  # allocates the gradients and the moments
seconds = {}
for rows, tokens in ((4, 32), (16, 32), (1, 512)):
    passes, updates = zip(*(step(rows, tokens) for _ in range(2)), strict=True)
    seconds[rows, tokens] = min(passes)
    print(f"{rows} x {tokens} tokens, forward and backward = {min(passes):.2f} s")
print(f"update of the weights = {min(updates):.2f} s")
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(f"weights, gradients and two moments in fp32 = {16 * weights / 1e9:.1f} GB")
print(f"memory of the rank, peak = {peak / 1e9:.1f} GB")

# A line through two sizes: what a token costs, and what a step costs whatever its size.
token = (seconds[16, 32] - seconds[4, 32]) / (12 * 32)
fixed = max(0.0, seconds[4, 32] - 4 * 32 * token) + min(updates)
print(f"a token = {1000 * token:.2f} ms")
print(f"a step whatever its size = {fixed:.2f} s")
print(f"both cores at work = {6 * encoder / token / 1e12:.2f} TFLOP/s")
padded = (seconds[1, 512] - fixed + min(updates)) / (prepared["tokens"] * token)
print(f"rows of the mean length in the time of one padded to 512 = {padded:.1f}\n")

rows = TEXTS * prepared["rows"] / prepared["texts"]
steps = -(-EPOCHS * rows // BATCH)
spark_hours = TEXTS / prepared["texts"] * prepared["seconds"] / 3600
print(f"rows of 100 M texts = {rows / 1e6:.1f} M")
print(f"steps of {EPOCHS} epochs = {steps:.0f}")
print(f"storage of the rows = {rows * prepared['row_bytes'] / 1e9:.1f} GB")
print(f"a checkpoint = {12 * weights / 1e9:.1f} GB")
print(f"Spark's part on two cores = {spark_hours:.1f} hours")
print(f"Spark's part on 64 such nodes = {60 * spark_hours / 64:.0f} minutes")
print(f"gradient of a step, BERT-large = {4 * weights / 1e9:.2f} GB\n")

# A byte goes at the speed of the slower of link and processor. Two ranks on loopback show the
# processor's: at N = 2 a ring moves 2 (N - 1) / N = 1 times the gradient through each.
processor = trained["reduced"] / trained["gradient_bytes"]
print(f"all-reduce on loopback = {1e-9 / processor:.2f} GB/s")
kinds = {
    "nodes of two cores": (fixed, token, max(1 / LINK, processor)),
    "GPUs (assumed)": (0.0, 6 * encoder / GPU, 1 / LINK),
}
nodes, efficiency = (1, 8, 64, 512), {}
for kind, (whole, a_token, a_byte) in kinds.items():
    took = {}
    for n in nodes:
        compute = whole + a_token * prepared["tokens"] * BATCH / n
        took[n] = compute + 2 * (n - 1) / n * 4 * weights * a_byte + 2 * (n - 1) * HOP
        print(f"{n} {kind}, a step = {took[n]:.2f} s")
        print(f"{n} {kind}, training = {steps * took[n] / 3600:.1f} hours")
    efficiency[kind] = [100 * took[1] / (n * took[n]) for n in nodes]
    print(f"64 {kind}, efficiency = {efficiency[kind][2]:.0f} %\n")

plt.rcParams.update(dict.fromkeys(GRAY, "#808080"))
plt.figure(figsize=(6, 3.2))
for kind, values in efficiency.items():
    plt.plot(nodes, values, marker="o", label=kind)
plt.xscale("log", base=2)
plt.xticks(nodes, nodes)
plt.ylim(0, 105)
plt.xlabel("nodes")
plt.ylabel("efficiency, %")
plt.title(f"BERT-large, {BATCH} rows a step, 25 Gbit/s: arithmetic")
plt.legend(frameon=False, labelcolor="#808080")
plt.savefig("efficiency.svg", transparent=True, bbox_inches="tight")
