"""One row in fifty: class weights, a weighted sampler and a moved threshold, three draws each."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.set_num_threads(1)
RARE, RATIO, BATCH, EPOCHS = "numpy", 50, 32, 12
WAYS = ("as it is", "class weights", "class weights, batch mean", "weighted sampler")

vectors = torch.from_numpy(np.load("vectors.npy"))
target = torch.from_numpy((pd.read_parquet("rows.parquet").label == RARE).to_numpy().astype(int))
rare, rest = np.flatnonzero(target), np.flatnonzero(1 - target)
few, many = len(rest) // 80, len(rest) // 80 * RATIO  # five eighths of the others are trained on


def loader(rows: np.ndarray, way: str, seed: int) -> DataLoader:
    """Batches of an epoch: each row once, or drawn so that both classes are equally likely."""
    torch.manual_seed(seed)
    data = TensorDataset(vectors[rows], target[rows])
    if way != "weighted sampler":
        return DataLoader(data, BATCH, shuffle=True)
    weight = torch.where(target[rows] == 1, 1 / few, 1 / many)
    return DataLoader(data, BATCH, sampler=WeightedRandomSampler(weight, len(rows)))


def loss(logits: torch.Tensor, labels: torch.Tensor, way: str) -> torch.Tensor:
    """Cross entropy; a class's weight is inverse to its share of the rows."""
    weight = torch.tensor([(few + many) / (2 * many), (few + many) / (2 * few)])
    if way == "class weights, batch mean":
        # torch divides by the weights of THIS batch: where no rare row is, the others count in full
        return F.cross_entropy(logits, labels, weight)
    if way == "class weights":
        return F.cross_entropy(logits, labels, weight, reduction="sum") / len(labels)
    return F.cross_entropy(logits, labels)


def head() -> nn.Module:
    """Two layers over the frozen vectors."""
    return nn.Sequential(nn.Linear(384, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 2))


def train(rows: np.ndarray, way: str, seed: int) -> tuple[nn.Module, float]:
    """The trained head, and the share of its batches that held no rare row."""
    batches, model = loader(rows, way, seed), head()
    optimizer, empty = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for _ in range(EPOCHS):
        for x, y in batches:
            optimizer.zero_grad()
            loss(model(x), y, way).backward()
            optimizer.step()
            empty.append(not y.any())
    return model.eval(), float(np.mean(empty))


def gradient_noise(rows: np.ndarray, way: str, seed: int) -> float:
    """Spread of single batches' gradients before the first step, in percent of their mean."""
    model, gradients = head().eval(), []
    for x, y in loader(rows, way, seed):
        model.zero_grad()
        loss(model(x), y, way).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    spread, mean = torch.var_mean(torch.stack(gradients), 0)
    return 100 * float(spread.sum().sqrt() / mean.norm())


def one_in_fifty(truth: np.ndarray) -> np.ndarray:
    """Weights of test rows: more rare rows are tested than that, and each counts for less."""
    return np.where(truth == 1, (truth == 0).sum() / RATIO / truth.sum(), 1.0)


def macro_f1(truth: np.ndarray, score: np.ndarray, cut: float) -> float:
    """Macro F1 in percent, where a row is rare if its score exceeds the cut."""
    return 100 * f1_score(truth, score > cut, average="macro", sample_weight=one_in_fifty(truth))


results: dict[str, list[dict[str, float]]] = {}
for seed in (0, 1, 2):
    r, o = (np.random.default_rng(seed).permutation(one) for one in (rare, rest))
    rows = np.concatenate([r[:few], o[:many]])
    halves = [np.concatenate([r[few:][i::2], o[many:][i::2]]) for i in (0, 1)]  # tune, test
    for way in WAYS:
        model, empty = train(rows, way, seed)
        with torch.inference_mode():
            tune, test = (model(vectors[half]).softmax(1)[:, 1].numpy() for half in halves)
        tune_truth, truth = (target[half].numpy() for half in halves)
        cuts = np.unique(np.quantile(tune, np.linspace(0.5, 1, 400)))[:-1]
        best = max(cuts, key=lambda cut: macro_f1(tune_truth, tune, cut))
        judged = {"y_true": truth, "sample_weight": one_in_fifty(truth)}
        results.setdefault(way, []).append({
            "macro F1": macro_f1(truth, test, 0.5),
            "recall of the rare class": 100 * recall_score(y_pred=test > 0.5, **judged),
            "precision of the rare class": 100 * precision_score(y_pred=test > 0.5, **judged),
            "macro F1 after moving the threshold": macro_f1(truth, test, best),
            "average precision": 100 * average_precision_score(y_score=test, **judged),
            "batches without a rare row": 100 * empty,
            "spread of a batch's gradient": gradient_noise(rows, way, seed),
        })  # fmt: skip

print(f"{many} rows of eight packages and {few} of {RARE}; means over three draws.")
for way, of_seeds in results.items():
    for name in of_seeds[0]:
        print(f"{name}, {way} = {np.mean([one[name] for one in of_seeds]):.1f} %")
    print(f"range of macro F1, {way} = {np.ptp([one['macro F1'] for one in of_seeds]):.1f} points")

keys = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
plt.rcParams.update(dict.fromkeys(keys, "#808080"))
axes = plt.figure(figsize=(6, 3.2), layout="constrained").gca()
for shift, name in ((-0.2, "macro F1"), (0.2, "macro F1 after moving the threshold")):
    heights = [np.mean([one[name] for one in results[way]]) for way in WAYS]
    axes.bar(np.arange(4) + shift, heights, 0.38, label=name)
axes.set_xticks(range(4), [way.replace(", ", ",\n") for way in WAYS])
axes.set(title="One row in fifty: the threshold does what the weights do", ylim=(0, 85))
axes.legend(frameon=False, loc="upper left", fontsize=8)
plt.savefig("imbalance.svg", transparent=True)
