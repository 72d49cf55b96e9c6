"""One model in three runtimes: PyTorch, TorchScript, ONNX Runtime. Equal logits, unequal times."""

import os
import sys
import time

os.environ["USE_TF"] = "0"  # transformers need not load TensorFlow

import matplotlib.pyplot as plt
import numpy as np
import onnxruntime
import pandas as pd
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

EXPORT, THREADS, CALLS = sys.argv[1], 1, 20
torch.set_num_threads(THREADS)
texts = list(pd.read_parquet("later.parquet").text)
tokenizer = AutoTokenizer.from_pretrained(EXPORT)
model = AutoModelForSequenceClassification.from_pretrained(EXPORT).eval()


def batch(rows: int, tokens: int) -> dict[str, torch.Tensor]:
    """Token ids and mask of the first texts, padded to exactly so many tokens."""
    return tokenizer(texts[:rows], padding="max_length", max_length=tokens, truncation=True,
                     return_tensors="pt", return_token_type_ids=False)  # fmt: skip


# ---- TorchScript: what the model does with ONE example is recorded, and needs no Python after ----
class Logits(torch.nn.Module):
    """Tensors in, one tensor out: a trace knows no dict."""

    def __init__(self) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


with torch.inference_mode():
    example = batch(2, 24)
    traced = torch.jit.trace(Logits().eval(), (example["input_ids"], example["attention_mask"]))
    torch.jit.freeze(traced).save("model.pt")
script = torch.jit.load("model.pt")

# ---- ONNX: the graph as `howdah export` writes it; its weights are those of model.safetensors ----
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = THREADS
session = onnxruntime.InferenceSession(f"{EXPORT}/model.onnx", options)


def run_torch(inputs: dict[str, torch.Tensor]) -> np.ndarray:
    """PyTorch, operator by operator from Python."""
    with torch.inference_mode():
        return model(**inputs).logits.numpy()


def run_script(inputs: dict[str, torch.Tensor]) -> np.ndarray:
    """The recorded graph, by torch's interpreter."""
    with torch.inference_mode():
        return script(inputs["input_ids"], inputs["attention_mask"]).numpy()


def run_onnx(inputs: dict[str, torch.Tensor]) -> np.ndarray:
    """The optimised graph, without torch."""
    return session.run(["logits"], {name: value.numpy() for name, value in inputs.items()})[0]


runtimes = {"PyTorch": run_torch, "TorchScript": run_script, "ONNX Runtime": run_onnx}
shapes = {"1 text of 32 tokens": batch(1, 32), "8 texts of 64 tokens": batch(8, 64)}
medians: dict[tuple[str, str], float] = {}
for shape, inputs in shapes.items():  # neither is the shape that was traced
    seconds: dict[str, list[float]] = {name: [] for name in runtimes}
    for call in range(CALLS):
        for name, run in runtimes.items():  # in turns, so that a busy machine slows all of them
            began = time.perf_counter()
            run(inputs)
            if call >= 5:  # the first calls warm up: TorchScript specialises, ONNX allocates
                seconds[name].append(time.perf_counter() - began)
    for name in runtimes:
        medians[shape, name] = 1000 * float(np.median(seconds[name]))
        print(f"{name}, {shape} = {medians[shape, name]:.1f} ms")

whole = batch(64, 64)
reference = run_torch(whole)
for name in ("TorchScript", "ONNX Runtime"):
    logits = runtimes[name](whole)
    same = (logits.argmax(1) == reference.argmax(1)).sum()
    print(f"largest difference of the logits, {name} = {abs(logits - reference).max():.1e}")
    print(f"equal labels of 64, {name} = {same}")
megabytes = os.path.getsize("model.pt") / 1e6
print(f"TorchScript's file = {megabytes:.1f} MB")
print(f"ONNX's graph beside the weights = {os.path.getsize(f'{EXPORT}/model.onnx') / 1e6:.2f} MB")

keys = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
plt.rcParams.update(dict.fromkeys(keys, "#808080"))
figure, sides = plt.subplots(1, 2, figsize=(6, 3.2))
for axes, shape in zip(sides, shapes, strict=True):
    heights = [medians[shape, name] for name in runtimes]
    axes.bar(range(3), heights, color=["tab:blue", "tab:orange", "tab:green"])
    axes.set_xticks(range(3), [name.replace(" ", "\n") for name in runtimes], fontsize=8)
    axes.set(title=shape, ylabel="ms, median")
figure.tight_layout()
figure.savefig("formats.svg", transparent=True)
