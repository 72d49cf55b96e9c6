"""More rows from few: synonyms, dropped words, back-translation."""

import functools
import os
import shutil
import subprocess
import sys

os.environ["USE_TF"] = "0"  # transformers need not load TensorFlow

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import f1_score
from torch import nn
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

FEW, COPIES = 10, 2  # rows of a class to learn from; new rows made of each
SHOWN = ("return", "array", "first", "error", "file")
rows = pd.read_parquet("rows.parquet")
rows["y"] = np.unique(rows.label, return_inverse=True)[1]
rows["vector"] = list(np.load("vectors.npy"))
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
encoder = AutoModel.from_pretrained(sys.argv[1]).eval()

# ---- synonyms: the nearest other word in the table of MiniLM's word embeddings ----
words = sorted(word for word in tokenizer.get_vocab() if word.isalpha() and len(word) > 3)
number = {word: n for n, word in enumerate(words)}
table = encoder.get_input_embeddings().weight.detach()
table = F.normalize(table[tokenizer.convert_tokens_to_ids(words)])


@functools.cache
def neighbour(word: str) -> str:
    """The most similar word that does not begin alike (`returns` is no synonym of `return`)."""
    order = (table @ table[number[word]]).argsort(descending=True)[1:50].tolist()
    return next((words[n] for n in order if words[n][:4] != word[:4]), word)


def synonyms(text: str, rng: np.random.Generator) -> str:
    """One word in five becomes its nearest neighbour."""
    words = text.lower().split()
    return " ".join(neighbour(w) if w in number and rng.random() < 0.2 else w for w in words)


def dropped(text: str, rng: np.random.Generator) -> str:
    """One word in five is left out: the control that needs no knowledge of the language."""
    return " ".join(word for word in text.split() if rng.random() > 0.2) or text


def translate(texts: list[str], pair: str) -> list[str]:
    """Translate by Apertium's rules, a text a line."""
    lines = "\n".join(" ".join(text.split())[:600] for text in texts) + "\n"
    apertium = ["apertium", "-f", "line", "-u", pair]
    return subprocess.check_output(apertium, input=lines, text=True).splitlines()


def embed(texts: list[str]) -> torch.Tensor:
    """Mean of the last hidden states, as features.py computes it."""
    torch.set_num_threads(2)
    options, out = {"max_length": 64, "return_tensors": "pt", "return_token_type_ids": False}, []
    for start in range(0, len(texts), 32):
        batch = tokenizer(texts[start : start + 32], truncation=True, padding=True, **options)
        mask = batch["attention_mask"][..., None]
        with torch.inference_mode():
            out.append((encoder(**batch).last_hidden_state * mask).sum(1) / mask.sum(1))
    return torch.cat(out)


def macro_f1(x: torch.Tensor, y: pd.Series, test: pd.DataFrame, seed: int) -> float:
    """Train a head for the same number of steps, whatever the number of rows."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(384, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    for _ in range(300):
        part = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[part]), torch.tensor(y.to_numpy())[part]).backward()
        optimizer.step()
    with torch.inference_mode():
        predicted = model.eval()(torch.tensor(np.stack(test.vector))).argmax(1)
    return 100 * f1_score(test.y, predicted, average="macro")


scores: dict[str, list[float]] = {}
likeness: dict[str, list[float]] = {}
for seed in (0, 1, 2):
    train = rows.groupby("label").sample(FEW, random_state=seed)
    test = rows.drop(train.index)
    texts, rng = list(train.text), np.random.default_rng(seed)
    made = {
        "synonyms": [synonyms(text, rng) for text in texts * COPIES],
        "dropped words": [dropped(text, rng) for text in texts * COPIES],
    }
    if shutil.which("apertium"):
        made["back-translation"] = translate(translate(texts, "eng-spa"), "spa-eng")
    old = torch.tensor(np.stack(train.vector))
    scores.setdefault("no new rows", []).append(macro_f1(old, train.y, test, seed))
    for name, new in made.items():
        fresh, times = embed(new), len(new) // len(texts)
        x, y = torch.cat([old, fresh]), pd.concat([train.y] * (1 + times))
        scores.setdefault(name, []).append(macro_f1(x, y, test, seed))
        cosine = F.cosine_similarity(old.repeat(times, 1), fresh)
        likeness.setdefault(name, []).append(float(cosine.mean()))

print(f"{FEW} docstrings a class, tested on {len(test)} others; means over three draws.")
print("Nearest words:", ", ".join(f"{word} -> {neighbour(word)}" for word in SHOWN))
shown = min(texts, key=lambda text: abs(len(text) - 90))
print("A docstring:     ", " ".join(shown.split()))
for name in made:
    print(f"{name + ':':17}", " ".join(made[name][texts.index(shown)].split()))
if "back-translation" not in made:
    print("Back-translation is left out: the command `apertium` is not installed.")
for name, values in scores.items():
    print(f"macro F1, {name} = {np.mean(values):.1f} %")
    print(f"range of macro F1, {name} = {np.ptp(values):.1f} points")
    if name in likeness:
        print(f"cosine to the original, {name} = {np.mean(likeness[name]):.3f}")
