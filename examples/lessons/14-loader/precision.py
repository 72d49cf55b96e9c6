"""Mixed precision and accumulation: what is equal, what is lost, what the scaler brings back."""

import os
import sys
import time

os.environ["USE_TF"] = "0"  # transformers would import TensorFlow, too
import matplotlib.pyplot as plt
import pyarrow.parquet as parquet
import torch
from transformers import AutoTokenizer, DistilBertModel

torch.set_num_threads(1)
torch.manual_seed(0)
table = parquet.read_table(sys.argv[1]).to_pandas().groupby("label").sample(4, random_state=0)
labels = torch.tensor(table.label.astype("category").cat.codes.values).long()[:16]
tokens = AutoTokenizer.from_pretrained(sys.argv[2])(
    table.text.tolist()[:16], truncation=True, max_length=32, padding="max_length",
    return_tensors="pt",
)  # fmt: skip
body, head = DistilBertModel.from_pretrained(sys.argv[2]).eval(), torch.nn.Linear(384, 9)
weights = [*body.parameters(), *head.parameters()]


def losses(rows=slice(None)):
    """The loss of each row. Dropout is off: it would differ between a batch and its parts."""
    output = body(tokens["input_ids"][rows], tokens["attention_mask"][rows])
    logits = head(output.last_hidden_state[:, 0])
    return torch.nn.functional.cross_entropy(logits, labels[rows], reduction="none")


def gradients():
    """All gradients in one vector; the next ones begin at zero."""
    every = torch.cat([weight.grad.flatten() for weight in weights])
    for weight in weights:
        weight.grad = None
    return every


def gap(a, b):
    """Relative difference."""
    return ((a - b).norm() / b.norm()).item()


print("1. Accumulation: the gradient of 16 rows, and of the same rows in parts")
losses().mean().backward()
whole = gradients()
for sizes in ([4, 4, 4, 4], [8, 4, 2, 2]):
    for way in ("mean of means", "sum by rows"):
        start = 0
        for size in sizes:
            part = losses(slice(start, start + size))
            # The course divides each part's mean by the number of parts.
            (part.mean() / len(sizes) if way == "mean of means" else part.sum() / 16).backward()
            start += size
        difference = gap(gradients(), whole)
        print(
            f"relative difference, {way}, parts of {' '.join(map(str, sizes))} = {difference:.1e}"
        )

print("2. bf16 by autocast: no scaler, since bf16 has float32's range")
for dtype in (torch.float32, torch.bfloat16):
    for _ in range(4):
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = losses().mean()
        loss.backward()
        seconds = time.perf_counter() - start
        gradient = gradients()
    name = str(dtype).removeprefix("torch.")
    print(f"forward and backward, {name} = {seconds * 1000:.0f} ms")
    print(f"relative difference of the gradient, {name} = {gap(gradient, whole):.1e}")

print("3. fp16: the same step by a scaler; a CPU shows the range, not the speed")
for scale in (1.0, 2.0**16):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = losses().mean()
    (loss * scale).backward()
    gradient = gradients()
    lost = ((gradient == 0) & (whole != 0)).sum() / (whole != 0).sum()
    print(f"share of the gradient that is 0 in fp16, scale {scale:.0f} = {lost:.4f}")
    print(f"relative difference, fp16, scale {scale:.0f} = {gap(gradient / scale, whole):.1e}")

scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=4)
optimizer = torch.optim.AdamW(weights, lr=1e-5)
scales, skipped = [], []
for step in range(16):
    scales.append(scaler.get_scale())
    with torch.autocast("cpu", dtype=torch.float16):
        loss = losses(slice(0, 4)).mean()
    scaler.scale(loss).backward()
    scaled = torch.nn.utils.get_total_norm([weight.grad for weight in weights])
    scaler.unscale_(optimizer)
    # Clip after unscale_: before it, the norm is in units of the scale.
    norm = torch.nn.utils.clip_grad_norm_(weights, 1.0)
    scaler.step(optimizer)  # is skipped if a gradient is infinite
    scaler.update()  # halves the scale then; doubles it after four good steps
    optimizer.zero_grad()
    if norm.isfinite():
        ratio = scaled / norm / scales[-1]
    else:
        skipped.append(step)
print(f"scale at the first step = {scales[0]:.0f}")
print(f"scale at the last step = {scales[-1]:.0f}")
print(f"steps that the scaler skipped, of 16 = {len(skipped)}")
print(f"norm before unscale_, over the scale and the norm after it = {ratio:.3f}")

for part in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"):
    plt.rcParams[part] = "#808080"
plt.figure(figsize=(6, 3.2), layout="tight")
plt.step(range(len(scales)), scales, where="post")
plt.plot(skipped, [scales[step] for step in skipped], "o", label="skipped: a gradient is infinite")
plt.yscale("log", base=2)
plt.xlabel("step")
plt.title("The scaler looks for the largest scale that fits")
plt.legend(frameon=False)
plt.savefig("scale.svg", transparent=True)
