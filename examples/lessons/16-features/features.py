"""Numbers and categories beside the text: a classifier with two inputs, and a column that leaks."""

import os
import re
import sys

os.environ["USE_TF"] = "0"  # transformers need not load TensorFlow

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.metrics import f1_score
from torch import nn
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

source, model_directory, per_class = [*sys.argv[1:], 300][:3]

rows = pd.read_parquet(source).query("text.str.strip() != ''").drop_duplicates("text")
rows = rows.groupby("label").sample(int(per_class), random_state=0)
rows = rows.sort_values("text", key=lambda text: text.str.len()).reset_index(drop=True)
labels, classes = np.unique(rows.label, return_inverse=True)[1], rows.label.nunique()

# ---- the text: mean of MiniLM's last hidden states, computed once and frozen ----
tokenizer = AutoTokenizer.from_pretrained(model_directory)
encoder = AutoModel.from_pretrained(model_directory).eval()
torch.set_num_threads(2)
options = {"max_length": 64, "return_tensors": "pt", "return_token_type_ids": False}
means = []  # of batches of texts that are about equally long
for start in range(0, len(rows), 32):
    texts = rows.text[start : start + 32]
    batch = tokenizer(list(texts), truncation=True, padding=True, **options)
    mask = batch["attention_mask"][..., None]
    with torch.inference_mode():
        hidden = encoder(**batch).last_hidden_state  # (rows, tokens, 384)
    means.append((hidden * mask).sum(1) / mask.sum(1))
vectors = torch.cat(means).numpy()
rows.to_parquet("rows.parquet")  # the other two scripts start from here
np.save("vectors.npy", vectors)


# ---- beside the text: numbers, and a category from the row's metadata ----
def numbers(text: str) -> list[float]:
    """Characters, words and lines; characters a word; Flesch reading ease."""
    words = re.findall(r"[a-z]+", text.lower()) or ["x"]
    sentences = max(len(re.findall(r"[.!?](?:\s|$)", text)), 1)
    syllables = sum(max(len(re.findall(r"[aeiouy]+", word)), 1) for word in words)
    ease = 206.835 - 1.015 * len(words) / sentences - 84.6 * syllables / len(words)
    return [len(text), len(words), text.count("\n"), len(text) / len(words), ease]


raw = np.array([numbers(text) for text in rows.text], np.float32)
names = rows.id.str.split(":")  # package, file, qualified name
first = names.str[2].str.split(".").str[-1].str[0]  # "<module>", "_private", "Class", "function"
kinds = np.where(first.str.isupper(), "A", np.where(first.isin(["<", "_"]), first, "a"))
kinds, files = (np.unique(c, return_inverse=True)[1] + 1 for c in (kinds, names.str[1]))


class TwoInputs(nn.Module):
    """The vector of the text and the numbers side by side; a category enters by an embedding."""

    def __init__(self, width: int, values: int) -> None:
        super().__init__()
        self.category = nn.Embedding(values, 16, padding_idx=0)
        self.hidden, self.out = nn.Linear(width + 16, 128), nn.Linear(128, classes)

    def forward(self, x: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return self.out(self.hidden(torch.cat([x, self.category(category)], 1)).relu())


def macro_f1(dense: np.ndarray, category: np.ndarray, train: np.ndarray, seed: int) -> float:
    """Train on the rows of `train`, score the others. A value that training never saw is 0."""
    torch.manual_seed(seed)
    category = np.where(np.isin(category, category[train]), category, 0)
    x, c, y = torch.tensor(dense), torch.tensor(category), torch.tensor(labels)
    model = TwoInputs(x.shape[1], int(category.max()) + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    for _ in range(15):
        for part in torch.tensor(np.flatnonzero(train))[torch.randperm(train.sum())].split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[part], c[part]), y[part]).backward()
            optimizer.step()
    predicted = model(x[~train], c[~train]).argmax(1)
    return 100 * f1_score(y[~train], predicted, average="macro")


torch.set_num_threads(1)  # the head is so small that two threads would only wait for each other
nothing = np.zeros(len(rows), int)
scores: dict[str, list[float]] = {}
for seed in (0, 1, 2):
    rng = np.random.default_rng(seed)
    train = rng.random(len(rows)) < 0.6
    train_by_file = (rng.random(files.max() + 1) < 0.6)[files]
    logs = np.hstack([np.log1p(raw[:, :3]), raw[:, 3:]])  # counts have a long tail
    scaled = ((logs - logs[train].mean(0)) / logs[train].std(0)).astype(np.float32)
    for name, dense, category, split in (
        ("text alone", vectors, nothing, train),
        ("numbers and kind alone", scaled, kinds, train),
        ("text, numbers and kind", np.hstack([vectors, scaled]), kinds, train),
        ("text and numbers not scaled", np.hstack([vectors, raw]), kinds, train),
        ("text and file name, random split", vectors, files, train),
        ("text and file name, split by file", vectors, files, train_by_file),
        ("text alone, split by file", vectors, nothing, train_by_file),
    ):
        scores.setdefault(name, []).append(macro_f1(dense, category, split, seed))

print(f"{len(rows)} docstrings of {classes} packages; mean and range over three splits.")
for name, values in scores.items():
    print(f"macro F1, {name} = {np.mean(values):.1f} %")
    print(f"range of macro F1, {name} = {np.ptp(values):.1f} points")

keys = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
plt.rcParams.update(dict.fromkeys(keys, "#808080"))
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for name, values in reversed(scores.items()):
    axes.barh(name, np.mean(values), color="tab:blue")
    axes.plot(values, [name] * 3, "o", color="tab:orange", ms=4)
axes.set(title="What stands beside the text", xlabel="macro F1, %; dots: three splits")
figure.savefig("features.svg", transparent=True)
