"""Drift that is there and drift that is not; a board and a manifest that name what exists."""

import copy
import json
import re
import subprocess
import sys

import jsonschema
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import yaml
from prometheus_client.parser import text_string_to_metric_families

export, board_path, manifest_path = sys.argv[1:4]
train, later = pd.read_parquet("rows.parquet"), pd.read_parquet("later.parquet")


# ---- population stability index, by hand
def psi(reference: np.ndarray, rows: np.ndarray) -> float:
    """Sum over the reference's deciles of (q - p) ln(q / p); an empty bin counts as half a row."""
    edges = np.unique(np.quantile(reference, np.linspace(0, 1, 11)))[1:-1]
    bins = len(edges) + 1
    p, q = (
        np.bincount(np.searchsorted(edges, x, "right"), minlength=bins) for x in (reference, rows)
    )
    p, q = (np.maximum(counts, 0.5) / counts.sum() for counts in (p, q))
    return float(((q - p) * np.log(q / p)).sum())


lengths = train.text.str.len().to_numpy()
moved = later[later.label.isin(["pandas", "networkx"])].assign(text=lambda rows: rows.text.str[:60])
later.to_parquet("same.parquet")
moved.to_parquet("moved.parquet")
rng = np.random.default_rng(0)
print("Population stability index of the texts' lengths against the training rows:")
print(f"PSI of {len(later)} later rows of the same kind = {psi(lengths, later.text.str.len()):.3f}")
print(f"PSI of {len(moved)} rows cut at 60 characters = {psi(lengths, moved.text.str.len()):.3f}")
sizes = (30, 60, 120, 250, 500, 1000)
alarms = []
for size in sizes:  # samples of the training rows themselves: nothing has drifted
    samples = [psi(lengths, rng.choice(lengths, size)) for _ in range(1000)]
    alarms.append(100 * np.mean(np.array(samples) > 0.2))
    print(f"false alarms of PSI > 0.2 with {size} rows = {alarms[-1]:.1f} %")

# ---- the same by `howdah drift`
for name in ("same", "moved"):
    command = ["howdah", "drift", "--model", export, "--source", f"{name}.parquet"]
    done = subprocess.run([*command, "--output", name], text=True, capture_output=True)
    print(f"`howdah drift` of the {name} rows says:")
    print(done.stdout.strip() or done.stderr.strip())
    print(f"exit code of howdah drift, {name} rows = {done.returncode}")

# ---- the board's queries name real metrics
with open("metrics.txt", encoding="utf-8") as file:  # what the server of serve.py exposed
    families = list(text_string_to_metric_families(file.read()))
endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
values = {sample.name: sample.value for family in families for sample in family.samples}
mean = values["howdah_batch_texts_sum"] / values["howdah_batch_texts_count"]
print(f"requests in a batch of howdah serve under load, mean = {mean:.1f}")
exposed = {f.name + end for f in families for end in endings.get(f.type, [""])}
with open(board_path, encoding="utf-8") as file:
    board = json.load(file)
queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
queried = {name for q in queries for name in re.findall(r"\b(?:howdah|process)_\w+", q)}
print(f"panels of the board = {len(board['panels'])}")
print(f"metrics that the board's queries name = {len(queried)}")
print(f"of these not exposed by howdah serve = {len(queried - exposed)}")


# ---- both files against their schemas
def problems(document: dict, path: str) -> int:
    """Violations of the schema that lies beside the file."""
    with open(re.sub(r"\.\w+$", ".schema.json", path), encoding="utf-8") as file:
        return len(list(jsonschema.Draft202012Validator(json.load(file)).iter_errors(document)))


with open(manifest_path, encoding="utf-8") as file:
    manifest = yaml.safe_load(file)
print(f"violations of its schema, board = {problems(board, board_path)}")
print(f"violations of its schema, InferenceService = {problems(manifest, manifest_path)}")
wrong = copy.deepcopy(manifest)
wrong["spec"]["predictor"]["minReplica"] = wrong["spec"]["predictor"].pop("minReplicas")
wrong["metadata"]["annotations"]["prometheus.io/scrape"] = True  # an annotation is text
print(f"violations found in a copy with two mistakes = {problems(wrong, manifest_path)}")

keys = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
plt.rcParams.update(dict.fromkeys(keys, "#808080"))
figure, axes = plt.subplots(figsize=(6, 3.2))
axes.semilogx(sizes, alarms, "o-", color="tab:red")
axes.set_xticks(sizes, [str(size) for size in sizes])
axes.minorticks_off()
axes.set_title("Nothing has drifted, and PSI > 0.2 raises an alarm all the same")
axes.set(xlabel="rows", ylabel="alarms, %")
figure.tight_layout()
figure.savefig("false_alarms.svg", transparent=True)
